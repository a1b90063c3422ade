"""The star: every client trains alone, from the server's model.

The visit key of a training is (version, how many tasks of this client started from that version
and were reported or are still under way before this one): a lost task shifts nobody's draws, and
two tasks never share a stream.
"""

from __future__ import annotations


class Star:
    """Counts visits; a client's count starts anew with every version it starts from."""

    def __init__(self, *, queueing: bool = False) -> None:
        self._visits: dict[int, tuple[int, int]] = {}
        self._queueing = queueing

    def visit(self, client: int, version: int) -> tuple[int, int]:
        """The visit key of a task that starts now."""
        last_version, count = self._visits.get(client, (version, 0))
        if last_version != version:
            count = 0
        self._visits[client] = (version, count + 1)
        return version, count

    def lost(self, client: int, version: int) -> None:
        """A task was not reported: its place in the count is free again.

        Where tasks of a client queue, a later one may hold the next place already; there a lost
        task keeps its own.
        """
        if self._queueing:
            return
        last_version, count = self._visits.get(client, (version, 0))
        if last_version == version and count > 0:
            self._visits[client] = (version, count - 1)
