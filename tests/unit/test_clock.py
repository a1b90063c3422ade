"""The clock: absolute times, same-instant order, cancellation, errors."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simpy.events import Event

from emulator.errors import InternalError
from emulator.simulation.clock import Clock, Rank


def never() -> bool:
    return False


def test_ties_go_by_rank_then_entity_then_sequence() -> None:
    clock, seen = Clock(), []
    for rank in reversed(Rank):
        for entity in (2, 1):
            for turn in (0, 1):
                clock.at(5.0, rank, entity, lambda r=rank, e=entity, k=turn: seen.append((r, e, k)))  # type: ignore[misc]
    clock.run_until(10.0, never)
    assert seen == sorted(seen)
    assert len(seen) == len(Rank) * 4
    assert clock.now == 5.0 or clock.now == 10.0


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=30))
def test_a_timer_fires_at_its_very_instant(times: list[float]) -> None:
    clock, seen = Clock(), []
    for t in times:
        clock.at(t, Rank.DISPATCH, action=lambda: seen.append(clock.now))
    clock.run_until(1e9, never)
    assert seen == sorted(times)


def test_a_cancelled_timer_never_moves_the_clock() -> None:
    clock = Clock()
    late = clock.at(1e6, Rank.DEADLINE)
    clock.at(1.0, Rank.UPLOAD, action=lambda: clock.cancel(late))
    assert clock.run_until(2e6, never) is False
    assert clock.now == 1.0


def test_cancelled_timers_leave_the_schedule() -> None:
    clock = Clock()
    for _ in range(10_000):
        clock.cancel(clock.at(1e6, Rank.DEADLINE))
    assert len(clock._queue) < 200


def test_race_discards_the_loser() -> None:
    clock, won = Clock(), []

    def waits(activity_s: float, deadline_s: float | None) -> Generator[Event, Any, None]:
        activity = clock.at(activity_s, Rank.UPLOAD)
        met = yield from clock.race(activity, deadline_s)
        won.append((met, clock.now))

    for activity_s, deadline_s in ((3.0, 5.0), (7.0, 6.0), (8.0, 8.0), (9.0, None)):
        clock.process(waits(activity_s, deadline_s))
    clock.run_until(1e9, never)
    # At 8.0 both come: an upload comes before a deadline.
    assert won == [(True, 3.0), (False, 6.0), (True, 8.0), (True, 9.0)]
    assert clock.now == 9.0


@pytest.mark.parametrize("time_s", [-1.0, math.nan, math.inf])
def test_impossible_instants_are_errors_that_name_their_origin(time_s: float) -> None:
    clock = Clock()
    with pytest.raises(InternalError, match="deadline of entity 7"):
        clock.at(time_s, Rank.DEADLINE, 7)


def test_no_timer_in_the_past() -> None:
    clock = Clock()
    clock.at(4.0, Rank.UPLOAD, action=lambda: clock.at(3.0, Rank.UPLOAD))
    with pytest.raises(InternalError, match=r"t=3\.0 at t=4\.0"):
        clock.run_until(10.0, never)


def test_an_error_in_a_process_keeps_its_text() -> None:
    clock = Clock()

    def fails() -> Generator[Event, Any, None]:
        yield clock.at(1.0, Rank.UPLOAD)
        raise InternalError("client 3 at t=1.0")

    clock.process(fails())
    with pytest.raises(InternalError, match=r"^client 3 at t=1\.0$"):
        clock.run_until(10.0, never)


def test_run_until_stops_at_the_limit() -> None:
    clock, seen = Clock(), []
    clock.at(2.0, Rank.UPLOAD, action=lambda: seen.append("at"))
    clock.at(2.5, Rank.UPLOAD, action=lambda: seen.append("beyond"))
    assert clock.run_until(2.0, never) is True
    assert (seen, clock.now) == (["at"], 2.0)
