"""Uniform selection without replacement.

Clients are drawn by number and refused when they may not be asked, so that a selection costs no
pass over a large population. The draws are taken modulo a power of two, so that one more client
leaves the draws of the others as they are (until their number passes that power). When as many
draws were in vain as a pass over the population would cost, the rest is chosen among all who may
be asked, in the order of one random key a client.
"""

from __future__ import annotations

from collections.abc import Sequence

from emulator.federation.selection import Candidates
from emulator.random_streams import bits, purpose_key, uniforms


class RandomSelector:
    """See the module."""

    def __init__(self, root_seed: int) -> None:
        self._draws = purpose_key(root_seed, "selection")
        self._keys = purpose_key(root_seed, "selection among few")

    def select(self, n: int, turn: int, candidates: Candidates) -> Sequence[int]:
        clients = candidates.clients
        mask = (1 << (clients - 1).bit_length()) - 1
        chosen: dict[int, None] = {}
        for attempt in range(16 + 4 * n + (mask >> 4)):
            client = bits(self._draws, turn, attempt) & mask
            if client < clients and client not in chosen and candidates.available(client):
                chosen[client] = None
                if len(chosen) == n:
                    return list(chosen)
        rest = candidates.all_available()
        keys = uniforms(self._keys, rest, turn)
        for client in rest[keys.argsort(kind="stable")].tolist():
            if len(chosen) == n:
                break
            chosen.setdefault(client)
        return list(chosen)
