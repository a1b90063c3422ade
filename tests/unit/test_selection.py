"""Random selection: who is few beside all clients is chosen as who is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from emulator.federation.selection.random import RandomSelector


@dataclass
class Some:
    """Of ``clients`` these may be asked."""

    clients: int
    here: frozenset[int]
    few: bool

    def available(self, client: int) -> bool:
        return client in self.here

    def all_available(self) -> NDArray[np.int64]:
        return np.array(sorted(self.here), dtype=np.int64)

    def at_next_check_in(self, action: Callable[[], None]) -> Any:
        raise AssertionError


@settings(max_examples=60, deadline=None)
@given(
    clients=st.integers(1, 300), share=st.floats(0, 1), n=st.integers(1, 40),
    turn=st.integers(0, 2000), seed=st.integers(0, 2**32),
)  # fmt: skip
def test_few_are_chosen_as_many_are(
    clients: int, share: float, n: int, turn: int, seed: int
) -> None:
    here = frozenset(np.flatnonzero(np.random.default_rng(seed).random(clients) < share).tolist())
    one, other = (RandomSelector(seed).select(n, turn, Some(clients, here, few))
                  for few in (False, True))  # fmt: skip
    assert list(one) == list(other)
    assert len(one) == min(n, len(here)) == len(set(one) & here)
