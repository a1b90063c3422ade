"""When is a client online: stateless questions to a store of sessions.

Time is absolute simulated time, and so are all comparisons. Lap n of a row with period P covers
[n P, (n+1) P); its session (a, b) is [n P + a, n P + b], each rounded once and cut at the next
lap. Because every answer is made from these same rounded numbers, ``next_online`` always names
an instant at which ``online`` is true, and so does ``online_until``, after any number of laps.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from traces.errors import TraceError
from traces.sessions import Sessions

AtEnd = Literal["wrap", "hold", "end"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_INF = math.inf


class Availability:
    """Availability of clients: client c lives by row ``rows[c]`` of the sessions.

    Sessions are closed intervals. ``at_end`` says what comes after a row's trace:

    - ``wrap``: the trace again, and again; a session that touches the end of the trace and one
      that starts at 0 are one session across the seam;
    - ``hold``: the state at the end of the trace, for ever;
    - ``end``: offline, for ever.

    All times are finite and >= 0; others are a TraceError. No call changes anything.
    """

    def __init__(self, sessions: Sessions, rows: ArrayLike, at_end: AtEnd) -> None:
        if at_end not in get_args(AtEnd):
            raise TraceError(f"at_end: {at_end!r} is unknown; one of {', '.join(get_args(AtEnd))}")
        self.sessions = sessions
        self.at_end: AtEnd = at_end
        self.rows: Ints = np.ascontiguousarray(rows, dtype=np.int64)
        bad = (self.rows < 0) | (self.rows >= len(sessions))
        if bad.any():
            client = int(np.argmax(bad))
            raise TraceError(
                f"client {client} is given row {self.rows[client]}, "
                f"but the trace has rows 0 to {len(sessions) - 1}"
            )
        self._wraps = at_end == "wrap"
        self._holds = at_end == "hold"
        # A row of its own for each client, and one period for all, are read from no memory that the
        # processor has not at hand.
        own = np.array_equal(self.rows, np.arange(len(self.rows)))
        self._row: Sequence[int] = range(len(self.rows)) if own else _scalars(self.rows)
        self._offset: Sequence[int] = _scalars(sessions.offsets)
        self._start: Sequence[float] = _scalars(sessions.starts_s)
        self._end: Sequence[float] = _scalars(sessions.ends_s)
        period_s = sessions.period_s
        if len(period_s) and (period_s == period_s[0]).all():
            period_s = np.broadcast_to(period_s[0], period_s.shape)
        self._period: Sequence[float] = _scalars(period_s)

    @property
    def n_clients(self) -> int:
        """Number of clients."""
        return len(self.rows)

    def online(self, client: int, t_s: float) -> bool:
        """Whether the client is online at this instant, ends included."""
        return self._locate(client, t_s)[0]

    def online_until(self, client: int, t_s: float) -> float:
        """End of the session that holds ``t_s``: -inf when offline, inf when it never ends."""
        row = self._row[client]
        if 0.0 <= t_s < self._period[row]:
            # In the first lap nothing is rounded; this is asked for every task, so it is short.
            first = self._offset[row]
            at = bisect_right(self._start, t_s, first, self._offset[row + 1]) - 1
            if at < first or t_s > self._end[at]:
                return -_INF
            if self._end[at] < self._period[row]:
                return self._end[at]
        online, index, lo, _, lap, following = self._locate(client, t_s)
        if not online:
            return -_INF
        period = self._period[self._row[client]]
        end = self._end[index]
        if end < period:
            return min(lap * period + end, following)
        if not self._wraps or self._start[lo] > 0.0:
            return following
        if index == lo:
            return _INF
        return min(following + self._end[lo], (lap + 2.0) * period)

    def stays_until(self, client: int, t_s: float, end_s: float) -> float:
        """How long a task from ``t_s`` to ``end_s`` has the client: :meth:`online_until`."""
        return self.online_until(client, t_s)

    def next_online(self, client: int, t_s: float) -> float:
        """``t_s`` when online, else the start of the next session, inf when there is none."""
        online, index, lo, hi, lap, following = self._locate(client, t_s)
        if online:
            return t_s
        period = self._period[self._row[client]]
        if index + 1 < hi:
            return min(lap * period + self._start[index + 1], following)
        if self._wraps and hi > lo:
            return min(following + self._start[lo], (lap + 2.0) * period)
        return _INF

    def online_seconds(self, client: int, t0_s: float, t1_s: float) -> float:
        """Seconds online between two instants, 0 <= ``t0_s`` <= ``t1_s``."""
        _check_span(t0_s, t1_s)
        lap0, in_lap0 = self._online_before(client, t0_s)
        lap1, in_lap1 = self._online_before(client, t1_s)
        if lap0 == lap1:
            return in_lap1 - in_lap0
        whole = self._in_lap(client, self._period[self._row[client]])
        return (lap1 - lap0) * whole + in_lap1 - in_lap0

    def online_mask(self, t_s: float, clients: Ints | None = None) -> NDArray[np.bool_]:
        """:meth:`online` of many clients (all when None) at one instant, bool [clients]."""
        return self._locate_many(t_s, clients)[0]

    def next_online_many(self, t_s: float, clients: Ints | None = None) -> Floats:
        """:meth:`next_online` of many clients (all when None), float64 [clients]."""
        online, index, lo, hi, lap, period, following = self._locate_many(t_s, clients)
        result = np.full(len(online), _INF)
        result[online] = t_s
        later = ~online & (index + 1 < hi)
        at = index[later] + 1
        start = lap[later] * period[later] + self.sessions.starts_s[at]
        result[later] = np.minimum(start, following[later])
        if self._wraps:
            lapped = ~online & (index + 1 >= hi) & (hi > lo)
            start = following[lapped] + self.sessions.starts_s[lo[lapped]]
            result[lapped] = np.minimum(start, (lap[lapped] + 2.0) * period[lapped])
        return result

    def _locate(self, client: int, t_s: float) -> tuple[bool, int, int, int, float, float]:
        """(online, last session begun by ``t_s``, first and past-last of the row, lap, next lap).

        The session is ``first - 1`` when none has begun in this lap. ``next lap`` is the instant
        to which a session lasts that touches the end of the trace.
        """
        if not 0.0 <= t_s < _INF:
            raise TraceError(_bad_time(t_s))
        row = self._row[client]
        lo = self._offset[row]
        hi = self._offset[row + 1]
        period = self._period[row]
        starts = self._start
        if not self._wraps:
            index = bisect_right(starts, t_s, lo, hi) - 1
            following = _INF if self._holds else period
            if index < lo:
                return False, index, lo, hi, 0.0, following
            end = self._end[index]
            online = t_s <= end or (end == period and t_s <= following)
            return online, index, lo, hi, 0.0, following
        lap, base, following = _lap(t_s, period)
        index = bisect_right(starts, t_s - base, lo, hi) - 1
        if base:
            # t - base and base + start round differently: the absolute comparison decides.
            while index + 1 < hi and base + starts[index + 1] <= t_s:
                index += 1
            while index >= lo and base + starts[index] > t_s:
                index -= 1
        if index >= lo:
            end = self._end[index]
            return t_s <= base + end or end == period, index, lo, hi, lap, following
        if t_s == base and lap > 0.0 and hi > lo:
            # The first instant of a lap is the last one of the lap before.
            end = self._end[hi - 1]
            if end == period or (lap - 1.0) * period + end >= base:
                return True, hi - 1, lo, hi, lap - 1.0, base
        return False, index, lo, hi, lap, following

    def _locate_many(
        self, t_s: float, clients: Ints | None
    ) -> tuple[NDArray[np.bool_], Ints, Ints, Ints, Floats, Floats, Floats]:
        """:meth:`_locate` of many clients by a bisection that walks all rows side by side."""
        if not 0.0 <= t_s < _INF:
            raise TraceError(_bad_time(t_s))
        row = self.rows if clients is None else self.rows[clients]
        lo, hi = self.sessions.offsets[row], self.sessions.offsets[row + 1]
        period = self.sessions.period_s[row]
        starts, ends = self.sessions.starts_s, self.sessions.ends_s
        if self._wraps:
            lap, base, following = _laps(t_s, period)
        else:
            lap = base = np.zeros(len(row))
            following = np.full(len(row), _INF) if self._holds else period
        if not len(starts):
            return np.zeros(len(row), bool), lo - 1, lo, hi, lap, period, following

        below, above = lo.copy(), hi.copy()
        for _ in range(int((hi - lo).max(initial=0)).bit_length()):
            middle = np.minimum((below + above) >> 1, len(starts) - 1)
            begun = (below < above) & (base + starts[middle] <= t_s)
            above = np.where(begun, above, np.maximum(middle, below))
            below = np.where(begun, middle + 1, below)
        index = below - 1

        begun = index >= lo
        end = ends[np.maximum(index, 0)]
        online = begun & ((t_s <= base + end) | ((end == period) & (t_s <= following)))
        if self._wraps:
            last = ends[np.maximum(hi - 1, 0)]
            reaches = (last == period) | ((lap - 1.0) * period + last >= base)
            seam = ~begun & (base == t_s) & (lap > 0.0) & (hi > lo) & reaches
            online |= seam
        return online, index, lo, hi, lap, period, following

    def _online_before(self, client: int, t_s: float) -> tuple[float, float]:
        """The lap of ``t_s``, and the seconds online in that lap before ``t_s``."""
        period = self._period[self._row[client]]
        if self._wraps:
            lap, base, _ = _lap(t_s, period)
            return lap, self._in_lap(client, t_s - base)
        online_s = self._in_lap(client, t_s)
        hi = self._offset[self._row[client] + 1]
        lo = self._offset[self._row[client]]
        if self._holds and t_s > period and hi > lo and self._end[hi - 1] == period:
            online_s += t_s - period
        return 0.0, online_s

    def _in_lap(self, client: int, local_s: float) -> float:
        """Seconds online of the first ``local_s`` seconds of the client's trace."""
        row = self._row[client]
        lo = self._offset[row]
        last = bisect_right(self._start, local_s, lo, self._offset[row + 1])
        starts, ends = self._start, self._end
        return math.fsum(min(ends[k], local_s) - starts[k] for k in range(lo, last))


class AlwaysOnline:
    """Every client online for ever; answers the same questions as :class:`Availability`."""

    def __init__(self, n_clients: int) -> None:
        if n_clients < 1:
            raise TraceError(f"{n_clients} clients; there must be at least one")
        self.n_clients = n_clients

    def online(self, client: int, t_s: float) -> bool:
        """True."""
        return True

    def online_until(self, client: int, t_s: float) -> float:
        """inf."""
        return _INF

    def stays_until(self, client: int, t_s: float, end_s: float) -> float:
        """inf."""
        return _INF

    def next_online(self, client: int, t_s: float) -> float:
        """``t_s``."""
        return t_s

    def online_seconds(self, client: int, t0_s: float, t1_s: float) -> float:
        """All the seconds between two instants, 0 <= ``t0_s`` <= ``t1_s``."""
        _check_span(t0_s, t1_s)
        return t1_s - t0_s

    def online_mask(self, t_s: float, clients: Ints | None = None) -> NDArray[np.bool_]:
        """True for each client (all when None)."""
        return np.ones(self.n_clients if clients is None else len(clients), bool)

    def next_online_many(self, t_s: float, clients: Ints | None = None) -> Floats:
        """``t_s`` for each client (all when None)."""
        return np.full(self.n_clients if clients is None else len(clients), t_s)


def _scalars(array: NDArray[Any]) -> Sequence[Any]:
    # One element is read 3 times faster through a memoryview than from the array.
    view: Sequence[Any] = memoryview(cast(Any, array))
    return view


def _lap(t_s: float, period: float) -> tuple[float, float, float]:
    """(lap, its start, the next one's start), start <= t_s < next start, all rounded once."""
    lap = t_s // period
    following = (lap + 1.0) * period
    if following <= t_s:  # rounded down to t, or below it
        return lap + 1.0, following, (lap + 2.0) * period
    return lap, lap * period, following


def _laps(t_s: float, period: Floats) -> tuple[Floats, Floats, Floats]:
    """:func:`_lap` for many periods."""
    lap = np.floor_divide(t_s, period)
    lap += (lap + 1.0) * period <= t_s
    return lap, lap * period, (lap + 1.0) * period


def _bad_time(t_s: float) -> str:
    return f"availability was asked for time {t_s} s; a simulated time is finite and >= 0"


def _check_span(t0_s: float, t1_s: float) -> None:
    if not 0.0 <= t0_s <= t1_s < _INF:
        raise TraceError(
            f"seconds online were asked for from {t0_s} s to {t1_s} s; "
            "the span must be finite, start at 0 or later, and not run backwards"
        )
