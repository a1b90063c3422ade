"""The simulated clock: SimPy's environment with absolute times, ranks and cancellation.

Three things that SimPy leaves open are fixed here.

*Same-instant order.* SimPy breaks ties by insertion. Here ties go by :class:`Rank`, then by
entity, then by sequence number, so that the order of things that happen at one instant is part
of the model and not of the code.

*Absolute times.* SimPy adds a delay to ``now``; ``now + (t - now)`` need not be ``t``. Timers
here are set at the instant itself, so things meant for one instant meet there.

*Losers leave.* A timer that lost its race is cancelled and dropped, without ever moving the
clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import Any, overload

import simpy
from simpy.events import PENDING, Event

from emulator.errors import InternalError


class Rank(IntEnum):
    """What comes first at one instant (the design's same-instant order)."""

    UPLOAD = 1
    TRANSFER = 2
    OFFLINE = 3
    DEADLINE = 4
    AGGREGATION = 5
    EVALUATION = 6
    DISPATCH = 7
    CHECK_IN = 8


_ENTITY_BITS = 40


class Timer(Event):
    """A SimPy event at an absolute instant, for a process to wait for (``yield timer``).

    One that was created idle is set later, with :meth:`Clock.set`.
    """

    _ok = True
    _defused = False
    cancelled = False

    def __init__(self, clock: Clock, rank: Rank, entity: int) -> None:
        self.env = clock
        self.callbacks = []
        self.rank = rank
        self.entity = entity


class Call:
    """``action()`` at an instant: the light form of a timer, for which nobody waits.

    Things that happen by the million are calls; an event of SimPy costs four times as much.
    """

    __slots__ = ("action", "cancelled", "fired")

    def __init__(self, action: Callable[[], None]) -> None:
        self.action = action
        self.cancelled = False
        self.fired = False


class Clock(simpy.Environment):
    """Simulated time in seconds, from 0."""

    def __init__(self) -> None:
        super().__init__(initial_time=0.0)
        self._cancelled_count = 0
        self.halted = False
        """Set it to end :meth:`run_until` before the next event."""
        self.batching = False
        """Set while one event stands for several things of one instant; see :meth:`soon`."""

    @property
    def now(self) -> float:
        """The present instant."""
        now_s: float = self._now
        return now_s

    def idle_timer(self, rank: Rank, entity: int = 0) -> Timer:
        """A timer that is not in the schedule yet."""
        return Timer(self, rank, entity)

    def set(self, timer: Timer, time_s: float) -> Timer:
        """Put an idle timer into the schedule at ``time_s``.

        Raises :class:`InternalError` when the instant is not finite or lies in the past, or
        when the timer was set before.
        """
        if not self._now <= time_s < math.inf:
            raise self._impossible(time_s, timer.rank, timer.entity)
        if timer._value is not PENDING:
            raise InternalError(f"{timer.rank.name.lower()} timer was set twice")
        timer._value = None
        self._push(time_s, timer.rank, timer.entity, timer)
        return timer

    @overload
    def at(self, time_s: float, rank: Rank, entity: int = 0) -> Timer: ...

    @overload
    def at(
        self, time_s: float, rank: Rank, entity: int = 0, *, action: Callable[[], None]
    ) -> Call: ...

    @overload
    def at(self, time_s: float, rank: Rank, entity: int, action: Callable[[], None]) -> Call: ...

    def at(
        self,
        time_s: float,
        rank: Rank,
        entity: int = 0,
        action: Callable[[], None] | None = None,
    ) -> Timer | Call:
        """``action()`` at ``time_s``, or, without an action, a timer to wait for.

        Raises :class:`InternalError` as :meth:`set` does.
        """
        if action is None:
            return self.set(Timer(self, rank, entity), time_s)
        if not self._now <= time_s < math.inf:
            raise self._impossible(time_s, rank, entity)
        call = Call(action)
        # _push, written out: a task makes several calls.
        entry: Any = (time_s, (rank << _ENTITY_BITS) + entity, next(self._eid), call)
        heappush(self._queue, entry)
        return call

    def _push(self, time_s: float, rank: Rank, entity: int, what: Any) -> None:
        entry: Any = (time_s, (rank << _ENTITY_BITS) + entity, next(self._eid), what)
        heappush(self._queue, entry)

    def _impossible(self, time_s: float, rank: Rank, entity: int) -> InternalError:
        return InternalError(
            f"{rank.name.lower()} of entity {entity} was scheduled for t={time_s!r} at "
            f"t={self._now!r}; a finite instant not before now is needed"
        )

    def soon(self, rank: Rank, entity: int, action: Callable[[], None]) -> Call | None:
        """``action()`` at this instant, in the order of ranks.

        Where nothing else is due at this instant it runs now, and there is no call. Use it last:
        what the caller does afterwards would come too late.
        """
        queue = self._queue
        if not (self.batching or self.halted) and (not queue or queue[0][0] > self._now):
            action()
            return None
        return self.at(self._now, rank, entity, action)

    def cancel(self, what: Timer | Call) -> None:
        """Take a timer or a call out of the schedule; no effect when it is over or never was
        set."""
        if what.cancelled:
            return
        if type(what) is Call:
            if what.fired:
                return
            what.cancelled = True
        else:
            assert isinstance(what, Timer)
            if what.processed:
                return
            what.cancelled = True
            if what._value is PENDING:
                return
        self._cancelled_count += 1
        if self._cancelled_count > 64 and self._cancelled_count * 2 > len(self._queue):
            self._queue[:] = [entry for entry in self._queue if not _is_cancelled(entry[3])]
            heapify(self._queue)
            self._cancelled_count = 0

    def race(
        self, activity: Timer, deadline_s: float | None, rank: Rank = Rank.DEADLINE
    ) -> Generator[Event, Any, bool]:
        """Wait for ``activity`` or for the deadline, whichever comes first; the loser leaves.

        Use as ``met = yield from clock.race(activity, deadline_s)``: True when the activity
        won. Without a deadline it simply waits.
        """
        if deadline_s is None:
            yield activity
            return True
        deadline = self.at(deadline_s, rank, activity.entity)
        yield activity | deadline
        if activity.processed:
            self.cancel(deadline)
            return True
        self.cancel(activity)
        return False

    def _drop_cancelled(self) -> None:
        queue = self._queue
        while queue and _is_cancelled(queue[0][3]):
            heappop(queue)
            self._cancelled_count -= 1

    def peek(self) -> float:
        """The instant of the next event, or infinity."""
        self._drop_cancelled()
        return super().peek()

    def run_until(self, time_s: float, watch: Callable[[], None] | None = None) -> bool:
        """Process every event up to and including ``time_s``; then ``now`` is ``time_s``.

        Ends at once when :attr:`halted` is set. Returns False when the schedule ran empty before
        ``time_s`` and nobody had halted it. ``watch()`` is called every thousand events or so.
        """
        queue: list[Any] = self._queue
        step = self.step
        events = 0
        while not self.halted:
            if not queue:
                return False
            due_s, _, _, what = queue[0]
            if what.cancelled if type(what) is Call else _is_cancelled(what):
                heappop(queue)
                self._cancelled_count -= 1
                continue
            if due_s > time_s:
                self._now = time_s
                return True
            events += 1
            if watch is not None and events & 1023 == 0:
                watch()
            if type(what) is Call:
                heappop(queue)
                self._now = due_s
                what.fired = True
                what.action()
            else:
                step()
        return True


def _is_cancelled(what: object) -> bool:
    return isinstance(what, Timer | Call) and what.cancelled
