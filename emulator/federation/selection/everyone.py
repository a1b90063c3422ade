"""Selection ``all``: everyone who may be asked."""

from __future__ import annotations

from collections.abc import Sequence

from emulator.federation.selection import Candidates


class AllSelector:
    """Ignores how many are wanted."""

    def select(self, n: int, turn: int, candidates: Candidates) -> Sequence[int]:
        chosen: Sequence[int] = candidates.all_available().tolist()
        return chosen
