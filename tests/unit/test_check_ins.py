"""Check-ins: who comes when its sessions start, and who waits for a cohort."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.federation.structure.cohorts.pool import Pool
from emulator.simulation.clock import Clock, Rank
from emulator.simulation.population import Population
from traces import AlwaysOnline, AtEnd, Availability, Sessions

Row = Sequence[tuple[float, float]]
CheckIn = tuple[float, int]


def population(
    clock: Clock, rows: Sequence[Row], period_s: float, at_end: AtEnd = "wrap",
    eligible: Sequence[bool] | None = None, at_work: Mapping[int, object] | None = None,
) -> Population:  # fmt: skip
    """Clients that live by these sessions, one row each."""
    n = len(rows)
    availability = Availability(Sessions.from_rows(rows, period_s), range(n), at_end)
    may = np.array(eligible if eligible is not None else [True] * n)
    busy = {} if at_work is None else at_work
    return Population(clock, availability, np.ones(n, np.int64), may, busy, queueing=False)


def check_ins(
    rows: Sequence[Row], period_s: float, until_s: float, at_end: AtEnd = "wrap",
    eligible: Sequence[bool] | None = None, from_s: float = 0.0,
) -> list[CheckIn]:  # fmt: skip
    """Who comes when, from the instant at which somebody begins to watch."""
    clock, found = Clock(), list[CheckIn]()
    clients = population(clock, rows, period_s, at_end, eligible)
    clock.at(from_s, Rank.AGGREGATION, action=lambda: clients.watch_check_ins(
        lambda client: found.append((clock.now, client))
    ))  # fmt: skip
    clock.run_until(until_s)
    return found


# --- by hand --------------------------------------------------------------------------------------


def test_who_is_online_comes_at_once_and_at_its_next_sessions() -> None:
    rows = [[(0, 2), (5, 6)], [(3, 4)], [(0, 1)]]
    assert check_ins(rows, 10.0, 9.0) == [(0, 0), (0, 2), (3, 1), (5, 0)]


def test_who_begins_to_watch_later_finds_who_is_online_then() -> None:
    """At 5: client 0 is in a session, client 1's ends now, client 2's begins now, and client 3
    comes later."""
    rows = [[(4, 7)], [(3, 5)], [(5, 6)], [(8, 9)]]
    found = check_ins(rows, 10.0, 16.0, from_s=5.0)
    assert found == [(5, 0), (5, 2), (8, 3), (13, 1), (14, 0), (15, 2)]


def test_sessions_that_start_together_come_in_the_order_of_their_numbers() -> None:
    rows = [[(7, 8)], [(3, 4)], [(3, 5), (7, 9)], [(0, 1), (3, 9)], [(3, 4)]]
    found = check_ins(rows, 10.0, 9.0)
    assert found == [(0, 3), (3, 1), (3, 2), (3, 3), (3, 4), (7, 0), (7, 2)]


def test_hundreds_at_one_instant_are_all_there() -> None:
    rows: list[Row] = [[(client % 2, 5), (6, 7)] for client in range(300)]
    found = check_ins(rows, 10.0, 9.0)
    zero, one, six = range(0, 300, 2), range(1, 300, 2), range(300)
    assert found == [*((0, c) for c in zero), *((1, c) for c in one), *((6, c) for c in six)]


def test_the_trace_goes_round() -> None:
    assert check_ins([[(2, 3)], [(0, 1), (8, 9)]], 10.0, 29.0) == [
        (0, 1), (2, 0), (8, 1), (10, 1), (12, 0), (18, 1), (20, 1), (22, 0), (28, 1),
    ]  # fmt: skip


def test_every_client_goes_round_by_its_own_period() -> None:
    sessions = Sessions.from_rows([[(1, 2)], [(1, 2)]], [4.0, 6.0])
    clock, found = Clock(), list[CheckIn]()
    clients = Population(
        clock, Availability(sessions, [0, 1], "wrap"), np.ones(2, np.int64), np.ones(2, bool), {},
        queueing=False,
    )  # fmt: skip
    clients.watch_check_ins(lambda client: found.append((clock.now, client)))
    clock.run_until(13.0)
    assert found == [(1, 0), (1, 1), (5, 0), (7, 1), (9, 0), (13, 0), (13, 1)]


def test_across_the_seam_it_is_one_session() -> None:
    """One session reaches the end of the trace, and another begins with it."""
    rows = [[(0, 2), (8, 10)], [(0, 2), (8, 9)], [(1, 2), (8, 10)]]
    assert check_ins(rows, 10.0, 19.0) == [
        (0, 0), (0, 1), (1, 2), (8, 0), (8, 1), (8, 2), (10, 1), (11, 2), (18, 0), (18, 1), (18, 2),
    ]  # fmt: skip


def test_two_sessions_with_nothing_between_them_are_two() -> None:
    """One ends at 2, and the next begins at the instant after it."""
    after_2 = math.nextafter(2.0, math.inf)
    found = check_ins([[(1, 2), (after_2, 3)], [(2, 3)]], 10.0, 9.0)
    assert found == [(1, 0), (2, 1), (after_2, 0)]


@pytest.mark.parametrize(("at_end", "later"), [("hold", [(20, 0)]), ("end", [])])
def test_a_trace_that_ends(at_end: AtEnd, later: list[CheckIn]) -> None:
    """Client 0 is online at its end, and stays so or goes; nobody else comes any more."""
    rows = [[(1, 2), (6, 10)], [(4, 5), (8, 9)]]
    assert check_ins(rows, 10.0, 50.0, at_end) == [(1, 0), (4, 1), (6, 0), (8, 1)]
    assert check_ins(rows, 10.0, 50.0, at_end, from_s=20.0) == later


def test_who_is_not_eligible_never_comes() -> None:
    rows = [[(0, 1), (3, 4)], [(0, 2), (3, 4)], [(3, 4)]]
    assert check_ins(rows, 10.0, 12.0, eligible=[False, True, False]) == [
        (0, 1), (3, 1), (10, 1)
    ]  # fmt: skip
    assert check_ins(rows, 10.0, 12.0, eligible=[False] * 3) == []


def test_who_never_is_online_never_comes() -> None:
    assert check_ins([[], [(3, 4)], []], 10.0, 12.0) == [(3, 1)]


def test_who_is_always_online_comes_once() -> None:
    clock, found = Clock(), list[int]()
    clients = Population(
        clock, AlwaysOnline(3), np.ones(3, np.int64), np.ones(3, bool), {}, queueing=False
    )
    clients.watch_check_ins(found.append)
    clock.run_until(1e9)
    assert found == [0, 1, 2]
    assert check_ins([[(0, 10)]], 10.0, 100.0) == [(0, 0)]


def test_check_ins_are_the_last_thing_of_an_instant() -> None:
    clock, found = Clock(), list[str]()
    clients = population(clock, [[(3, 4)], [(3, 4)]], 10.0)
    clients.watch_check_ins(lambda client: found.append(f"client {client}"))
    clock.at(3.0, Rank.DISPATCH, 5, lambda: found.append("dispatch"))
    clock.run_until(3.0)
    assert found == ["dispatch", "client 0", "client 1"]


def test_what_a_check_in_starts_goes_on_before_the_next_one() -> None:
    """A task that ends at the instant of a check-in comes before the clients that are left."""
    clock, found = Clock(), list[str]()
    clients = population(clock, [[(3, 4)], [(3, 4)]], 10.0)

    def comes(client: int) -> None:
        found.append(f"client {client}")
        clock.at(clock.now, Rank.UPLOAD, client, lambda: found.append(f"upload {client}"))

    clients.watch_check_ins(comes)
    clock.run_until(5.0)
    assert found == ["client 0", "upload 0", "client 1", "upload 1"]


def test_two_that_watch_see_the_same() -> None:
    clock, one, other = Clock(), list[CheckIn](), list[CheckIn]()
    clients = population(clock, [[(0, 2), (5, 6)], [(3, 4)]], 10.0)
    clients.watch_check_ins(lambda client: one.append((clock.now, client)))
    clients.watch_check_ins(lambda client: other.append((clock.now, client)))
    clock.run_until(25.0)
    assert one == other
    assert len(one) == 9


# --- against brute force --------------------------------------------------------------------------

PERIOD = 12


@st.composite
def traces(draw: st.DrawFn) -> list[list[tuple[float, float]]]:
    """Sessions of a few clients in whole seconds, with a second at least between any two."""
    rows = []
    for _ in range(draw(st.integers(1, 5))):
        cuts = sorted(draw(st.sets(st.integers(0, PERIOD), max_size=6)))
        cuts = cuts[: len(cuts) // 2 * 2]
        rows.append([(float(a), float(b)) for a, b in zip(cuts[::2], cuts[1::2], strict=True)])
    return rows


def spans(row: Row, at_end: AtEnd, until_s: float) -> list[tuple[float, float]]:
    """All sessions of a client that start by ``until_s``, those that touch at a seam as one."""
    if not row:
        return []
    if at_end != "wrap":
        last = math.inf if at_end == "hold" and row[-1][1] == PERIOD else row[-1][1]
        return [*row[:-1], (row[-1][0], last)]
    found: list[tuple[float, float]] = []
    for lap in range(int(until_s // PERIOD) + 2):
        for start, end in row:
            a, b = lap * PERIOD + start, lap * PERIOD + end
            if found and found[-1][1] == a:
                found[-1] = (found[-1][0], b)
            else:
                found.append((a, b))
    return found


@given(
    traces(),
    st.sampled_from(["wrap", "hold", "end"]),
    st.lists(st.booleans(), min_size=5, max_size=5),
    st.integers(0, 30),
    st.integers(0, 40),
)
def test_check_ins_are_the_starts_of_all_sessions(
    rows: list[list[tuple[float, float]]],
    at_end: AtEnd,
    eligible: list[bool],
    from_s: int,
    for_s: int,
) -> None:
    may, until_s = eligible[: len(rows)], from_s + for_s
    expected = []
    for client, row in enumerate(rows):
        for start, end in spans(row, at_end, until_s):
            if may[client] and start <= until_s and end > from_s:
                expected.append((max(start, from_s), client))
    assert check_ins(rows, PERIOD, until_s, at_end, may, from_s) == sorted(expected)


# --- who waits for a cohort -----------------------------------------------------------------------


def go_to(clock: Clock, time_s: float) -> None:
    """Let time pass until then."""
    clock.at(time_s, Rank.EVALUATION, action=lambda: None)
    clock.run_until(time_s)


def test_candidates_are_who_has_checked_in_and_is_there() -> None:
    clock, at_work = Clock(), dict[int, object]()
    clients = population(clock, [[(0, 4)], [(0, 9)], [(0, 9)], [(5, 9)]], 10.0, at_work=at_work)
    pool = Pool(clients)
    assert pool.clients == 4
    assert pool.all_available().tolist() == []
    for client in (2, 0, 3):
        pool.enter(client)
    assert pool.all_available().tolist() == [0, 2]
    assert [pool.available(client) for client in range(4)] == [True, False, True, False]
    at_work[2] = "a task"
    assert pool.all_available().tolist() == [0]
    go_to(clock, 4.0)  # client 0 goes
    assert pool.all_available().tolist() == []
    del at_work[2]
    go_to(clock, 5.0)
    assert pool.all_available().tolist() == [2]  # client 3 came too early: it was offline then
    pool.enter(3)
    assert pool.all_available().tolist() == [2, 3]
    pool.leave(2)
    pool.leave(0)
    assert pool.all_available().tolist() == [3]


def test_who_was_offline_is_no_candidate_until_it_checks_in_again() -> None:
    clock = Clock()
    pool = Pool(population(clock, [[(0, 4), (6, 9)]], 10.0))
    pool.enter(0)
    go_to(clock, 7.0)  # it has gone at 4, and is back
    assert not pool.available(0)
    assert pool.all_available().tolist() == []
    pool.enter(0)
    assert pool.available(0)


def test_candidates_are_in_the_order_of_their_numbers() -> None:
    pool = Pool(population(Clock(), [[(0, 9)]] * 12, 10.0))
    for client in (11, 8, 1, 9, 0):
        pool.enter(client)
    assert pool.all_available().tolist() == [0, 1, 8, 9, 11]


def test_who_waits_for_a_check_in_hears_of_the_next_one_only() -> None:
    pool = Pool(population(Clock(), [[(0, 9)]] * 3, 10.0))
    heard: list[str] = []
    pool.at_next_check_in(lambda: heard.append("one"))
    pool.at_next_check_in(lambda: heard.append(f"other {pool.all_available().tolist()}"))
    pool.enter(1)
    assert heard == ["one", "other [1]"]
    pool.enter(2)
    assert heard == ["one", "other [1]"]


def test_who_waits_again_hears_of_the_one_after() -> None:
    pool = Pool(population(Clock(), [[(0, 9)]] * 3, 10.0))
    heard: list[int] = []

    def again() -> None:
        heard.append(len(pool.waiting))
        pool.at_next_check_in(again)

    pool.at_next_check_in(again)
    for client in (2, 0, 1):
        pool.enter(client)
    assert heard == [1, 2, 3]


# --- rest -----------------------------------------------------------------------------------------


def resting(rows: Sequence[Row], period_s: float = 100.0) -> tuple[Clock, Population]:
    """Clients that rest for 10 s after a task."""
    clock, n = Clock(), len(rows)
    availability = Availability(Sessions.from_rows(rows, period_s), range(n), "end")
    may = np.ones(n, bool)
    clients = Population(
        clock, availability, np.ones(n, np.int64), may, {}, queueing=False, rest_s=10.0
    )
    return clock, clients


def who_may_be_asked(
    clock: Clock, clients: Population, times_s: Sequence[float]
) -> list[list[int]]:
    """At each of these instants, after all else that happens there."""
    found: list[list[int]] = []

    def look() -> None:
        found.append(clients.all_available().tolist())
        assert found[-1] == [c for c in range(clients.clients) if clients.available(c)]

    for time_s in times_s:
        clock.at(time_s, Rank.CHECK_IN, clients.clients, look)
    clock.run_until(max(times_s))
    return found


def test_who_has_ended_a_task_rests_until_its_time_is_up_or_its_next_session() -> None:
    """Clients 0 and 1 end a task at 2. Client 0 may be asked again at 12, client 1, which is back
    at 6, then."""
    clock, clients = resting([[(0, 90)], [(0, 4), (6, 90)], [(1, 90)]])
    for client in (0, 1):
        clock.at(2.0, Rank.UPLOAD, client, lambda client=client: clients.rest(client))
    found = who_may_be_asked(clock, clients, [1.5, 2, 5, 6, 11.5, 12])
    assert found == [[0, 1, 2], [2], [2], [1, 2], [1, 2], [0, 1, 2]]


def test_who_ends_another_task_while_it_would_rest_begins_anew() -> None:
    """At 2, and in its next session at 8: it may be asked from 18 on, and not at 12."""
    clock, clients = resting([[(0, 4), (6, 90)]])
    for at_s in (2.0, 8.0):
        clock.at(at_s, Rank.UPLOAD, 0, lambda: clients.rest(0))
    assert who_may_be_asked(clock, clients, [7, 9, 12, 17.5, 18]) == [[0], [], [], [], [0]]


def test_who_is_gone_when_its_task_ends_does_not_rest() -> None:
    clock, clients = resting([[(0, 4), (6, 90)]])
    clock.at(5.0, Rank.OFFLINE, 0, lambda: clients.rest(0))
    assert who_may_be_asked(clock, clients, [5.5, 6]) == [[], [0]]


def test_who_waits_for_somebody_hears_of_a_session_or_of_the_end_of_a_rest_once() -> None:
    """From 3 on: the rest that began at 2 ends at 12, before the session at 20. From 15 on: the
    session comes before the rest that began at 14 ends. From 30 on nobody comes."""
    clock, clients = resting([[(0, 90)], [(20, 90)]])
    heard: list[float] = []
    for at_s in (2.0, 14.0):
        clock.at(at_s, Rank.UPLOAD, 0, lambda: clients.rest(0))
    for at_s in (3.0, 15.0, 30.0):
        clock.at(at_s, Rank.DISPATCH, 0, lambda: clients.at_next_check_in(
            lambda: heard.append(clock.now)
        ))  # fmt: skip
    clock.run_until(90.0)
    assert heard == [12.0, 20.0]


def test_a_rest_that_begins_later_is_heard_of_too() -> None:
    """Who waits since 1 hears of the rest from 2 to 12."""
    clock, clients = resting([[(0, 90)]])
    heard: list[float] = []
    clock.at(1.0, Rank.DISPATCH, 0, lambda: clients.at_next_check_in(
        lambda: heard.append(clock.now)
    ))  # fmt: skip
    clock.at(2.0, Rank.UPLOAD, 0, lambda: clients.rest(0))
    clock.run_until(90.0)
    assert heard == [12.0]
