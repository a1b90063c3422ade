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
import operator
from collections.abc import Callable, Generator
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import Any

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
    """A SimPy event at an absolute instant: ``action()`` runs when it fires.

    A process may also wait for it (``yield timer``). A timer that was created idle can be set
    later with :meth:`Clock.set`.
    """

    _ok = True
    _defused = False
    cancelled = False

    def __init__(
        self, clock: Clock, rank: Rank, entity: int, action: Callable[[], None] | None
    ) -> None:
        self.env = clock
        self.callbacks = [] if action is None else [_fire]
        self.rank = rank
        self.entity = entity
        self.action = action


def _fire(event: Event) -> None:
    event.action()  # type: ignore[attr-defined]


class Clock(simpy.Environment):
    """Simulated time in seconds, from 0."""

    def __init__(self) -> None:
        super().__init__(initial_time=0.0)
        self._cancelled_count = 0
        self.halted = False
        """Set it to end :meth:`run_until` before the next event."""
        self.batching = False
        """Set while one event stands for several things of one instant; see :meth:`soon`."""

    # SimPy's own property, read through C: it is read a dozen times a task.
    now = property(operator.attrgetter("_now"))

    def idle_timer(
        self, rank: Rank, entity: int = 0, action: Callable[[], None] | None = None
    ) -> Timer:
        """A timer that is not in the schedule yet."""
        return Timer(self, rank, entity, action)

    def set(self, timer: Timer, time_s: float) -> Timer:
        """Put an idle timer into the schedule at ``time_s``.

        Raises :class:`InternalError` when the instant is not finite or lies in the past, or
        when the timer was set before.
        """
        if not self._now <= time_s < math.inf:
            raise InternalError(
                f"{timer.rank.name.lower()} of entity {timer.entity} was scheduled for "
                f"t={time_s!r} at t={self._now!r}; a finite instant not before now is needed"
            )
        if timer._value is not PENDING:
            raise InternalError(f"{timer.rank.name.lower()} timer was set twice")
        timer._value = None
        priority = (timer.rank << _ENTITY_BITS) + timer.entity
        entry: tuple[float, Any, int, Event] = (time_s, priority, next(self._eid), timer)
        heappush(self._queue, entry)
        return timer

    def at(
        self,
        time_s: float,
        rank: Rank,
        entity: int = 0,
        action: Callable[[], None] | None = None,
    ) -> Timer:
        """A timer set at ``time_s``; see :meth:`set`."""
        timer = Timer(self, rank, entity, action)
        if not self._now <= time_s < math.inf:
            return self.set(timer, time_s)
        timer._value = None
        entry: Any = (time_s, (rank << _ENTITY_BITS) + entity, next(self._eid), timer)
        heappush(self._queue, entry)
        return timer

    def soon(self, rank: Rank, entity: int, action: Callable[[], None]) -> Timer | None:
        """``action()`` at this instant, in the order of ranks.

        Where nothing else is due at this instant it runs now, and there is no timer. Call it last:
        what the caller does afterwards would come too late.
        """
        queue = self._queue
        if not (self.batching or self.halted) and (not queue or queue[0][0] > self._now):
            action()
            return None
        return self.at(self._now, rank, entity, action)

    def cancel(self, timer: Timer) -> None:
        """Take a timer out of the schedule; no effect when it has fired or was never set."""
        if timer.cancelled or timer.callbacks is None:
            return
        timer.cancelled = True
        if timer._value is PENDING:
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
        if activity.callbacks is None:
            self.cancel(deadline)
            return True
        self.cancel(activity)
        return False

    def _drop_cancelled(self) -> None:
        queue = self._queue
        while queue:
            event = queue[0][3]
            if type(event) is not Timer or not event.cancelled:
                return
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
        queue = self._queue
        step = self.step
        events = 0
        while not self.halted:
            if not queue:
                return False
            first = queue[0]
            timer = first[3]
            lone = type(timer) is Timer and len(timer.callbacks) == 1
            if lone and timer.cancelled:  # type: ignore[attr-defined]
                heappop(queue)
                self._cancelled_count -= 1
                continue
            if first[0] > time_s:
                self._now = time_s
                return True
            events += 1
            if watch is not None and events & 1023 == 0:
                watch()
            if not lone:
                self._drop_cancelled()
                if queue and queue[0] is first:
                    step()
                continue
            # SimPy's step, short of what a lone timer does not need: it cannot fail.
            heappop(queue)
            self._now = first[0]
            callback = timer.callbacks[0]
            timer.callbacks = None  # type: ignore[assignment]  # as SimPy marks what is processed
            callback(timer)
        return True


def _is_cancelled(event: Event) -> bool:
    return type(event) is Timer and event.cancelled
