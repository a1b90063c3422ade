"""Who is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Candidates(Protocol):
    """The population as a selector sees it, at the present instant."""

    @property
    def few(self) -> bool:
        """Whether those who may be asked are known, and few beside all clients."""

    @property
    def clients(self) -> int:
        """How many clients there are."""

    def available(self, client: int) -> bool:
        """Whether the client may be asked now."""

    def all_available(self) -> NDArray[np.int64]:
        """All clients that may be asked now, ascending."""

    def at_next_check_in(self, action: Callable[[], None]) -> Any:
        """Call ``action`` when somebody who may be asked comes; None if nobody ever will."""


class Selector(Protocol):
    """Chooses ``n`` clients that may be asked now, or as many as there are."""

    def select(self, n: int, turn: int, candidates: Candidates) -> Sequence[int]:
        """Distinct clients; ``turn`` counts the selections of the run."""
