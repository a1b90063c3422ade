import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces import RepairReport, Sessions, TraceError, duty_cycle, online_share_by_hour

DAY_S = 86400.0


def test_rows_come_back_and_an_empty_row_is_allowed() -> None:
    rows = [[(0.0, 1.5), (2.0, 10.0)], [], [(3.0, 4.0)]]
    sessions = Sessions.from_rows(rows, 10.0)
    assert len(sessions) == 3
    assert sessions.counts.tolist() == [2, 0, 1]
    assert [sessions.row(r) for r in range(3)] == rows
    assert sessions.period_s.tolist() == [10.0, 10.0, 10.0]


def test_arrays_are_read_only_and_the_callers_stay_writable() -> None:
    starts = np.array([1.0])
    sessions = Sessions(starts, np.array([2.0]), np.array([0, 1]), np.array([5.0]))
    with pytest.raises(ValueError, match="read-only"):
        sessions.starts_s[0] = 7.0
    starts[0] = 1.25


@pytest.mark.parametrize(
    ("rows", "period", "message"),
    [
        ([[(0, 1)], [(2, 3), (float("nan"), 9)]], 10, "row 1, session 1: start is NaN"),
        ([[(0, 1)], [(2, float("nan"))]], 10, "row 1, session 0: end is NaN"),
        ([[(0, 1)], [], [(-2, 3)]], 10, "row 2, session 0: start -2.0 s is negative"),
        ([[(0, 1), (5, 4)]], 10, "row 0, session 1: ends at 4.0 s, before its start at 5.0 s"),
        ([[(0, 1)], [(5, 5)]], 10, "row 1, session 0: starts and ends at 5.0 s"),
        ([[], [(5, 6), (1, 2)]], 10, "row 1, session 1: starts at 1.0 s, before the session in"),
        ([[(5, 7), (6, 8)]], 10, "row 0, session 1: starts at 6.0 s, before .* ends at 7.0 s"),
        ([[(5, 7), (7, 8)]], 10, "row 0, session 1: starts at 7.0 s, where the session in front"),
        ([[(5, 7)], [(5, 11)]], 10, "row 1, session 0: ends at 11.0 s, beyond .* of 10.0 s"),
        ([[(5, float("inf"))]], 10, "row 0, session 0: ends at inf s, beyond"),
        ([[(5, 7)], []], [10, 0], "row 1: trace length 0.0 s"),
        ([[(5, 7)]], [float("nan")], "row 0: trace length nan s"),
        ([[(5, 7)]], [float("inf")], "row 0: trace length inf s"),
        ([[(5, "x")]], 10, r"row 0, session 0: \(5, 'x'\) is not a pair of numbers"),
        ([[(5, 6, 7)]], 10, "is not a pair of numbers"),
        ([[(5, 7)]], [10, 10], "2 values of period_s for 1 rows"),
        ([[(5, 7)]], ["long"], "period_s holds something that is not a number"),
    ],
)
def test_each_malformation_has_its_own_message(rows, period, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TraceError, match=message) as caught:
        Sessions.from_rows(rows, period)
    assert len(caught.value.args) == 1


def test_neighbours_of_different_rows_are_not_compared() -> None:
    Sessions.from_rows([[(8, 9)], [], [(1, 2)], [(2, 3)]], 10.0)


@pytest.mark.parametrize("offsets", [[0, 1], [1, 2], [0, 2, 1, 2], [0, 3], []])
def test_offsets_must_fit(offsets: list[int]) -> None:
    with pytest.raises(TraceError, match="offsets"):
        Sessions(np.array([1.0, 3]), np.array([2.0, 4]), np.array(offsets), np.array([5.0]))


def test_repair_counts_each_kind() -> None:
    rows: list[list[tuple[float, float]]] = [
        [(0, 0), (1, 2)],  # zero length
        [(5, 6), (1, 2)],  # unsorted
        [(1, 4), (2, 3), (3.5, 5)],  # overlapping, one inside another
        [(1, 2), (2, 3), (4, 5)],  # touching
        [(3, 3)],  # nothing is left
        [(1, 2)],
    ]
    flat = [pair for row in rows for pair in row]
    offsets = np.cumsum([0] + [len(row) for row in rows])
    starts, ends = np.array(flat, float).T
    sessions, report = Sessions.repaired(starts, ends, offsets, 10.0)
    assert [sessions.row(r) for r in range(6)] == [
        [(1, 2)],
        [(1, 2), (5, 6)],
        [(1, 5)],
        [(1, 3), (4, 5)],
        [],
        [(1, 2)],
    ]
    assert report == RepairReport(
        zero_length=2, unsorted=1, overlapping=2, touching=1, emptied_rows=1
    )
    assert report.changed
    assert starts[0] == 0.0
    assert ends[3] == 2.0, "the caller's arrays are left alone"


def test_repair_of_a_good_trace_changes_nothing() -> None:
    sessions, report = Sessions.repaired([1.0, 3.0], [2.0, 4.0], [0, 2], 5.0)
    assert sessions.row(0) == [(1, 2), (3, 4)]
    assert not report.changed


@pytest.mark.parametrize(
    ("starts", "ends", "message"),
    [
        ([1.0, np.nan], [2.0, 4.0], "session 1: start is NaN"),
        ([1.0, 3.0], [2.0, 2.5], "session 1: ends at 2.5 s, before"),
        ([1.0, -3.0], [2.0, 4.0], "session 1: start -3.0 s is negative"),
        ([1.0, 3.0], [2.0, 6.0], "session 1: ends at 6.0 s, beyond"),
    ],
)
def test_repair_mends_nothing_else(starts: list[float], ends: list[float], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        Sessions.repaired(starts, ends, [0, 2], 5.0)


pairs = st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda p: (p[0], p[0] + p[1]))


@given(st.lists(st.lists(pairs, max_size=6), min_size=1, max_size=4))
def test_repair_keeps_the_union(rows: list[list[tuple[int, int]]]) -> None:
    flat = [pair for row in rows for pair in row]
    starts = [float(a) for a, _ in flat]
    ends = [float(b) for _, b in flat]
    offsets = np.cumsum([0] + [len(row) for row in rows])
    sessions, _ = Sessions.repaired(starts, ends, offsets, 40.0)
    for number, row in enumerate(rows):
        solid = [pair for pair in row if pair[0] < pair[1]]
        for half in range(80):
            t = half / 2
            before = any(a <= t <= b for a, b in solid)
            assert before == any(a <= t <= b for a, b in sessions.row(number))


def test_duty_cycle_of_rows_with_and_without_sessions() -> None:
    sessions = Sessions.from_rows([[], [(0, 2), (4, 5)], [], [], [(0, 8)], []], [4, 10, 5, 5, 8, 5])
    assert duty_cycle(sessions).tolist() == [0.0, 0.3, 0.0, 0.0, 1.0, 0.0]
    assert duty_cycle(Sessions.from_rows([[]], 5.0)).tolist() == [0.0]


def test_online_share_by_hour_over_whole_days() -> None:
    # Day 1 from 23:30 to 01:15 of day 2, and all of hour 5 of day 2, by one of two clients.
    rows = [[(23.5 * 3600, 25.25 * 3600), (29 * 3600.0, 30 * 3600.0)], []]
    share = online_share_by_hour(Sessions.from_rows(rows, 2 * DAY_S))
    expected = np.zeros(24)
    expected[[23, 0, 1, 5]] = [0.5 / 4, 1.0 / 4, 0.25 / 4, 1.0 / 4]
    np.testing.assert_allclose(share, expected, atol=1e-12)


def test_hours_beyond_a_short_trace_are_unknown() -> None:
    share = online_share_by_hour(Sessions.from_rows([[(0, 900)]], 5400.0))
    assert share[:2].tolist() == [0.25, 0.0]
    assert np.isnan(share[2:]).all()


def test_a_long_online_stretch_fills_every_hour() -> None:
    share = online_share_by_hour(Sessions.from_rows([[(0, 3 * DAY_S)]], 3 * DAY_S))
    np.testing.assert_allclose(share, 1.0)
