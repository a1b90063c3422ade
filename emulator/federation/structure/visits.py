"""The numbers that tell apart the trainings of one contributor from one version.

The visit key of a training is (version, how many contributions of this contributor started from
that version and were reported or are still under way before this one): a lost task shifts nobody's
draws, and two tasks never share a stream.
"""

from __future__ import annotations


class Visits:
    """Counts visits; a count starts anew with every version that a contributor starts from."""

    def __init__(self, *, queueing: bool = False) -> None:
        self._visits: dict[int, tuple[int, int]] = {}
        self._queueing = queueing

    def visit(self, contributor: int, version: int) -> tuple[int, int]:
        """The visit key of what starts now."""
        last_version, count = self._visits.get(contributor, (version, 0))
        if last_version != version:
            count = 0
        self._visits[contributor] = (version, count + 1)
        return version, count

    def lost(self, contributor: int, version: int) -> None:
        """It was not reported: its place in the count is free again.

        Where tasks of a client queue, a later one may hold the next place already; there a lost
        task keeps its own.
        """
        if self._queueing:
            return
        last_version, count = self._visits.get(contributor, (version, 0))
        if last_version == version and count > 0:
            self._visits[contributor] = (version, count - 1)
