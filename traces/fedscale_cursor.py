"""FedScale's own, stateful availability test, for comparing with what FedScale reports.

FedScale keeps one cursor a client and moves it by at most one session a call. A query that looks
ahead, or the wrap of the trace, leaves it behind, and the client seems offline while it is online;
it never seems online while it is offline. Simulations use :class:`traces.Availability`, which has
no state, unless a scenario asks for FedScale's cursor to measure the difference.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traces.availability import Availability
from traces.sessions import Floats, Ints

Bools = NDArray[np.bool_]


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


class CursorAvailability:
    """A population that is online when FedScale's cursors say so; its answers depend on history.

    As in FedScale, two things ask: a selection asks every client, once, at its instant (so the
    answers of one instant stay the same however often they are read), and each task asks its
    client at the instant at which it would end. A task is lost when that answer is no, at the last
    moment, whether the client was away in between or not; that it was not away, but the cursor
    behind, makes no difference either.

    ``sessions`` are (starts, ends, offsets) as the file has them: unlike those of ``truth`` they
    may be unsorted, overlap, or have no length, and each of them is a step of the cursor. Seconds
    online and the next start of a session are those of ``truth``, which has to wrap.
    """

    def __init__(
        self, truth: Availability, sessions: tuple[Floats, Floats, Ints] | None = None
    ) -> None:
        store = truth.sessions
        if sessions is None:
            sessions = (store.starts_s, store.ends_s, store.offsets)
        self._truth = truth
        self._sessions = sessions
        self._starts, self._ends, offsets = sessions
        self._first = offsets[truth.rows]
        self._count = offsets[truth.rows + 1] - self._first
        self._period = store.period_s[truth.rows]
        self._filled = np.flatnonzero(self._count)
        self._cursor = np.zeros(truth.n_clients, np.int64)
        self._asked_s = -math.inf
        self._until = np.full(truth.n_clients, -math.inf)

    def rewound(self) -> CursorAvailability:
        """The same population, of which nobody has asked anything."""
        return CursorAvailability(self._truth, self._sessions)

    @property
    def truth(self) -> Availability:
        """What the trace says, whatever the cursors do."""
        return self._truth

    @property
    def n_clients(self) -> int:
        """Number of clients."""
        return len(self._cursor)

    def online(self, client: int, t_s: float) -> bool:
        """The answer of one client's cursor, which moves."""
        count, first = int(self._count[client]), int(self._first[client])
        if not count:
            return False
        local_s = math.fmod(t_s, float(self._period[client]))
        index = int(self._cursor[client])
        if local_s > self._ends[first + index]:
            index += 1
        self._cursor[client] = index = index % count
        return bool(self._starts[first + index] <= local_s <= self._ends[first + index])

    def online_mask(self, t_s: float, clients: Ints | None = None) -> Bools:
        """Whom a selection at ``t_s`` finds online, of all or of the given clients.

        The instant after the last selection is part of it: who is online then has a session that
        goes on.
        """
        if t_s == math.nextafter(self._asked_s, math.inf):
            mask: Bools = self._until >= t_s
        else:
            mask = self._asked(t_s) >= t_s
        return mask if clients is None else mask[clients]

    def online_until(self, client: int, t_s: float) -> float:
        """End of the session at which the client's cursor stands at the selection of ``t_s``;
        -inf for a client that the selection does not find online."""
        return float(self._asked(t_s)[client])

    def stays_until(self, client: int, t_s: float, end_s: float) -> float:
        """inf for a task that would end at ``end_s`` when the cursor then says online; else the
        last instant before ``end_s``. Moves the cursor, as FedScale's look-ahead does."""
        return math.inf if self.online(client, end_s) else math.nextafter(end_s, -math.inf)

    def next_online(self, client: int, t_s: float) -> float:
        """``t_s`` where the selection of ``t_s`` found the client online, else the start of the
        next session by the trace. Asks no cursor."""
        if t_s == self._asked_s and self._until[client] >= t_s:
            return t_s
        store, row = self._truth.sessions, int(self._truth.rows[client])
        lo, hi = int(store.offsets[row]), int(store.offsets[row + 1])
        if lo == hi:
            return math.inf
        period_s = float(store.period_s[row])
        lap = t_s // period_s
        at = bisect_left(store.starts_s, t_s - lap * period_s, lo, hi)
        start_s = store.starts_s[at] if at < hi else period_s + store.starts_s[lo]
        return max(t_s, float(lap * period_s + start_s))

    def next_online_many(self, t_s: float, clients: Ints | None = None) -> Floats:
        """:meth:`next_online` of all or of the given clients."""
        everyone = range(self.n_clients) if clients is None else clients.tolist()
        return np.array([self.next_online(client, t_s) for client in everyone])

    def online_seconds(self, client: int, t0_s: float, t1_s: float) -> float:
        """Seconds online in a span by the trace, whatever the cursor says."""
        return self._truth.online_seconds(client, t0_s, t1_s)

    def _asked(self, t_s: float) -> Floats:
        """The session's end of each client that is online at ``t_s``, else -inf; [clients]."""
        if t_s == self._asked_s:
            return self._until
        self._asked_s = t_s
        self._until.fill(-math.inf)
        who = self._filled
        local_s = np.fmod(t_s, self._period[who])
        cursor = self._cursor[who]
        cursor += local_s > self._ends[self._first[who] + cursor]
        cursor %= self._count[who]
        self._cursor[who] = cursor
        at = self._first[who] + cursor
        online = (self._starts[at] <= local_s) & (local_s <= self._ends[at])
        self._until[who[online]] = (t_s + (self._ends[at] - local_s))[online]
        return self._until
