"""Uniform selection without replacement.

Clients are drawn by number and refused when they may not be asked, so that a selection costs no
pass over a large population. The draws are taken modulo a power of two, so that one more client
leaves the draws of the others as they are (until their number passes that power). When as many
draws were in vain as a pass over the population would cost, the rest is chosen among all who may
be asked, in the order of one random key a client.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from emulator.federation.selection import Candidates
from emulator.random_streams import bits, bits_array, purpose_key, uniforms

_TURNS, _ATTEMPTS = 512, 8
"""The first draws of so many turns are made at once."""


@lru_cache
def _mask(clients: int) -> int:
    return (1 << (clients - 1).bit_length()) - 1


def _attempts(n: int, mask: int) -> int:
    """After so many draws in vain a pass over all is no dearer."""
    return 16 + 4 * n + (mask >> 4)


class RandomSelector:
    """See the module; each ``cohort`` but the first has draws of its own."""

    def __init__(self, root_seed: int, cohort: str | None = None) -> None:
        of = "" if cohort is None else f" of {cohort}"
        self._draws = purpose_key(root_seed, f"selection{of}")
        self._keys = purpose_key(root_seed, f"selection among few{of}")
        self._first_turn = -1
        self._block: list[list[int]] = []

    def select(self, n: int, turn: int, candidates: Candidates) -> Sequence[int]:
        if candidates.few:
            return self._select_among_few(n, turn, candidates)
        clients, available = candidates.clients, candidates.available
        mask = _mask(clients)
        row = self._first_draws(turn, mask)
        chosen: dict[int, None] = {}
        for attempt in range(_attempts(n, mask)):
            if attempt < _ATTEMPTS:
                client = row[attempt]
            else:
                client = bits(self._draws, turn, attempt) & mask
            if client < clients and client not in chosen and available(client):
                if n == 1:
                    return (client,)
                chosen[client] = None
                if len(chosen) == n:
                    return list(chosen)
        return self._filled_up(chosen, n, turn, candidates.all_available())

    def _select_among_few(self, n: int, turn: int, candidates: Candidates) -> Sequence[int]:
        """The same clients, by way of all who may be asked."""
        mask, rest = _mask(candidates.clients), candidates.all_available()
        drawn = bits_array(self._draws, np.array(turn), np.arange(_attempts(n, mask)))
        drawn &= np.uint64(mask)
        hits = drawn[np.isin(drawn, rest.astype(np.uint64))].tolist()
        return self._filled_up(dict.fromkeys(hits), n, turn, rest)

    def _filled_up(
        self, chosen: dict[int, None], n: int, turn: int, rest: NDArray[np.int64]
    ) -> Sequence[int]:
        """The first ``n`` of those chosen; where they are fewer, also of ``rest``."""
        if len(chosen) < n:
            keys = uniforms(self._keys, rest, turn)
            chosen |= dict.fromkeys(rest[keys.argsort(kind="stable")].tolist())
        return list(chosen)[:n]

    def _first_draws(self, turn: int, mask: int) -> list[int]:
        first = turn - turn % _TURNS
        if first != self._first_turn:
            turns = np.arange(first, first + _TURNS)[:, None]
            drawn = bits_array(self._draws, turns, np.arange(_ATTEMPTS)) & np.uint64(mask)
            self._first_turn, self._block = first, drawn.tolist()
        return self._block[turn - first]
