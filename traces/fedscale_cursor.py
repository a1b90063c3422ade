"""FedScale's own, stateful availability test, for comparing with what FedScale reports.

FedScale keeps one cursor a client and moves it by at most one session a call. A query that looks
ahead, or the wrap of the trace, leaves it behind, and the client seems offline while it is online;
it never seems online while it is offline. Simulations use :class:`traces.Availability`, which has
no state; this class exists to measure the difference.
"""

from __future__ import annotations

from collections.abc import Sequence


class FedScaleCursor:
    """Availability of one client as FedScale's ``isActive`` answers it.

    ``active_s`` and ``inactive_s`` are starts and ends of sessions, ``finish_s`` the period.
    """

    def __init__(
        self, active_s: Sequence[float], inactive_s: Sequence[float], finish_s: float
    ) -> None:
        self._active_s = active_s
        self._inactive_s = inactive_s
        self._finish_s = finish_s
        self._index = 0

    def online(self, t_s: float) -> bool:
        """The answer at ``t_s``, which also moves the cursor."""
        local_s = t_s % self._finish_s
        if local_s > self._inactive_s[self._index]:
            self._index += 1
        self._index %= len(self._active_s)
        return self._active_s[self._index] <= local_s <= self._inactive_s[self._index]
