"""Where a model is split, by what its layers weigh or by how far clients diverge in them.

Each rule gives s: part A is the first s layers. In all of them ties go to the smaller s, and
1 ≤ s < L for a model of L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def largest_jump(divergence: Sequence[float]) -> int:
    """argmax_s WD_{s+1} − WD_s."""
    jumps = [after - before for before, after in pairwise(divergence)]
    return jumps.index(max(jumps)) + 1


def threshold(divergence: Sequence[float], rho: float) -> int:
    """The last s with WD_s ≤ ρ · max WD, held within 1 and L − 1."""
    limit = rho * max(divergence)
    below = [s for s, value in enumerate(divergence, start=1) if value <= limit]
    return min(max(below, default=1), len(divergence) - 1)


def balanced_bytes(sizes_bytes: Sequence[int]) -> int:
    """The s whose share of the bytes is nearest to ½."""
    total, before, found = sum(sizes_bytes), 0, list[int]()
    for size in sizes_bytes[:-1]:
        before += size
        found.append(abs(2 * before - total))
    return found.index(min(found)) + 1


class Climber:
    """Hill climbing on the test accuracy: the split moves by one layer each time, first up, and
    turns around where accuracy has risen by less than in the period before, or at either end."""

    def __init__(self, layer: int, layers: int) -> None:
        self.layer = layer
        self._layers = layers
        self._step = 1
        self._accuracy: float | None = None
        self._rise: float | None = None

    def next(self, accuracy: float) -> int:
        """The split for the next period, after one that ended with this test accuracy."""
        if self._accuracy is not None:
            rise = accuracy - self._accuracy
            if self._rise is not None and rise < self._rise:
                self._step = -self._step
            self._rise = rise
        self._accuracy = accuracy
        if not 1 <= self.layer + self._step < self._layers:
            self._step = -self._step
        self.layer = min(max(self.layer + self._step, 1), self._layers - 1)
        return self.layer
