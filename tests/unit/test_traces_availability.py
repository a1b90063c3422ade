import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from traces import AlwaysOnline, AtEnd, Availability, Sessions, TraceError, duty_cycle

INF = math.inf

# FedScale's client_behave_trace, key 3834.
KEY_3834: list[tuple[float, float]] = list(
    zip(
        [12788, 100044, 188992, 271372, 276663, 352625, 356267, 441193],
        [65881, 133574, 208292, 276575, 295006, 356236, 400906, 475099],
        strict=True,
    )
)


def one_row(rows: list[tuple[float, float]], period: float, at_end: AtEnd) -> Availability:
    return Availability(Sessions.from_rows([rows], period), [0], at_end)


def test_fedscale_key_3834() -> None:
    sessions = Sessions.from_rows([KEY_3834], 518400.0)
    phone = Availability(sessions, [0], "wrap")
    assert not phone.online(0, 12787)
    assert phone.online(0, 12788)
    assert phone.online(0, 65881)
    assert not phone.online(0, 65882)
    assert phone.online(0, 518400 + 12788)
    assert phone.online_seconds(0, 0, 518400) == 211625
    assert duty_cycle(sessions)[0] == pytest.approx(0.408, abs=5e-4)


def test_answers_do_not_depend_on_earlier_questions() -> None:
    # FedScale's stateful cursor answers F to the third.
    phone = one_row(KEY_3834, 518400.0, "wrap")
    assert [phone.online(0, t) for t in (60000, 67000, 60000)] == [True, False, True]


def test_wrap_joins_the_seam() -> None:
    phone = one_row([(0, 2), (5, 6), (8, 10)], 10.0, "wrap")
    assert phone.online_until(0, 1) == 2
    assert phone.online_until(0, 8) == 12
    assert phone.online_until(0, 10) == 12
    assert phone.online_until(0, 29.5) == 32
    assert phone.next_online(0, 12) == 12
    assert phone.next_online(0, 12.5) == 15
    assert phone.next_online(0, 17) == 18
    assert phone.online_until(0, 13) == -INF


def test_wrap_without_a_seam() -> None:
    ends = one_row([(8, 10)], 10.0, "wrap")
    assert ends.online_until(0, 9) == 10
    assert ends.online(0, 10)
    assert ends.online_until(0, 10) == 10
    assert ends.online_mask(10.0).tolist() == [True]
    assert ends.next_online_many(10.0).tolist() == [10.0]
    assert not ends.online(0, 10.25)
    assert ends.next_online(0, 10.25) == 18
    starts = one_row([(0, 2)], 10.0, "wrap")
    assert starts.next_online(0, 2.5) == 10
    assert not starts.online(0, 9.75)
    assert starts.online_until(0, 10) == 12


def test_online_all_the_time() -> None:
    for at_end, until in (("wrap", INF), ("hold", INF), ("end", 10.0)):
        phone = one_row([(0, 10)], 10.0, at_end)  # type: ignore[arg-type]
        assert phone.online_until(0, 3) == until


def test_hold_and_end() -> None:
    touching = [(1.0, 2.0), (8.0, 10.0)]
    held = one_row(touching, 10.0, "hold")
    assert held.online_until(0, 9) == INF
    assert held.online(0, 1e9)
    assert held.online_until(0, 1e9) == INF
    assert held.next_online(0, 3) == 8
    assert held.online_seconds(0, 0, 100) == 93
    assert held.online_seconds(0, 50, 60) == 10
    ended = one_row(touching, 10.0, "end")
    assert ended.online_until(0, 9) == 10
    assert ended.online(0, 10)
    assert not ended.online(0, 10.25)
    assert ended.next_online(0, 10.25) == INF
    assert ended.online_seconds(0, 0, 100) == 3
    for at_end in ("hold", "end"):
        short = one_row([(1, 2)], 10.0, at_end)
        assert not short.online(0, 11.5)
        assert short.next_online(0, 2.5) == INF
        assert short.online_seconds(0, 0, 100) == 1


@pytest.mark.parametrize("at_end", ["wrap", "hold", "end"])
def test_a_row_without_sessions_is_never_online(at_end: AtEnd) -> None:
    phone = Availability(Sessions.from_rows([[], [(0, 1)], []], 10.0), [0, 1, 2], at_end)
    for client in (0, 2):
        assert not phone.online(client, 0)
        assert phone.next_online(client, 30) == INF
        assert phone.online_until(client, 30) == -INF
        assert phone.online_seconds(client, 0, 100) == 0
    assert phone.online_mask(0.5).tolist() == [False, True, False]
    assert phone.next_online_many(0.5).tolist() == [INF, 0.5, INF]
    nobody = Availability(Sessions.from_rows([[], []], 10.0), [1], at_end)
    assert nobody.online_mask(3.0).tolist() == [False]
    assert nobody.next_online_many(3.0).tolist() == [INF]


def test_clients_share_rows() -> None:
    sessions = Sessions.from_rows([[(0, 1)], [(5, 6)]], [10.0, 7.0])
    phones = Availability(sessions, [1, 0, 1], "wrap")
    assert phones.n_clients == 3
    assert phones.online_mask(5.5).tolist() == [True, False, True]
    assert phones.online_mask(5.5, np.array([1, 2])).tolist() == [False, True]
    assert phones.next_online_many(6.5, np.array([2, 1])).tolist() == [12.0, 10.0]
    assert phones.online_mask(0.0, np.array([], np.int64)).tolist() == []


@pytest.mark.parametrize("row", [-1, 2])
def test_a_row_that_is_not_there(row: int) -> None:
    sessions = Sessions.from_rows([[(0, 1)], []], 10.0)
    with pytest.raises(TraceError, match=f"client 1 is given row {row}, .* rows 0 to 1"):
        Availability(sessions, [0, row], "wrap")


def test_unknown_policy() -> None:
    with pytest.raises(TraceError, match="at_end: 'loop' is unknown; one of wrap, hold, end"):
        one_row([(0, 1)], 10.0, "loop")  # type: ignore[arg-type]


@pytest.mark.parametrize("t", [-1.0, math.nan, INF])
def test_a_time_that_is_none(t: float) -> None:
    phone = one_row([(0, 1)], 10.0, "wrap")
    for question in (phone.online, phone.online_until, phone.next_online):
        with pytest.raises(TraceError, match="finite and >= 0"):
            question(0, t)
    for many in (phone.online_mask, phone.next_online_many):
        with pytest.raises(TraceError, match="finite and >= 0"):
            many(t)


@pytest.mark.parametrize("span", [(-1.0, 2.0), (3.0, 2.0), (0.0, INF), (math.nan, 1.0)])
def test_a_span_that_is_none(span: tuple[float, float]) -> None:
    for phone in (one_row([(0, 1)], 10.0, "wrap"), AlwaysOnline(1)):
        with pytest.raises(TraceError, match="span"):
            phone.online_seconds(0, *span)


def test_always_online_answers_the_same_questions() -> None:
    public = {name for name in dir(Availability) if not name.startswith("_")}
    assert public == {name for name in dir(AlwaysOnline) if not name.startswith("_")} | {
        "n_clients"
    }
    phones = AlwaysOnline(3)
    assert phones.n_clients == 3
    assert phones.online(2, 1e9)
    assert phones.online_until(2, 5.0) == INF
    assert phones.next_online(2, 5.0) == 5.0
    assert phones.online_seconds(2, 5.0, 7.0) == 2.0
    assert phones.online_mask(5.0).tolist() == [True] * 3
    assert phones.next_online_many(5.0, np.array([1])).tolist() == [5.0]
    with pytest.raises(TraceError, match="0 clients"):
        AlwaysOnline(0)


# ---------------------------------------------------------------- against a naive reference

LAPS = 6
at_ends = st.sampled_from(["wrap", "hold", "end"])


@st.composite
def rows_of_quarters(draw: st.DrawFn) -> tuple[list[tuple[float, float]], float]:
    """A canonical row whose numbers are multiples of 1/4, so that sums are exact."""
    period = draw(st.integers(1, 40))
    cuts = draw(st.lists(st.integers(0, period), unique=True, max_size=10).map(sorted))
    cuts = cuts[: len(cuts) // 2 * 2]
    rows = [(a / 4, b / 4) for a, b in zip(cuts[::2], cuts[1::2], strict=True)]
    return rows, period / 4


def unrolled(rows: list[tuple[float, float]], period: float, at_end: str) -> list[list[float]]:
    """The sessions of LAPS laps in absolute time, merged where they touch."""
    if at_end != "wrap":
        merged = [[a, b] for a, b in rows]
        if at_end == "hold" and merged and merged[-1][1] == period:
            merged[-1][1] = INF
        return merged
    merged = []
    for lap in range(LAPS):
        for a, b in rows:
            start, end = lap * period + a, lap * period + b
            if merged and merged[-1][1] == start:
                merged[-1][1] = end
            else:
                merged.append([start, end])
    if rows == [(0.0, period)]:
        return [[0.0, INF]]
    return merged


@settings(max_examples=120, deadline=None)
@given(rows_of_quarters(), at_ends, st.data())
def test_agrees_with_a_naive_reference(
    row: tuple[list[tuple[float, float]], float], at_end: AtEnd, data: st.DataObject
) -> None:
    rows, period = row
    # A neighbour on each side: an answer must not leak over the ends of a row.
    sessions = Sessions.from_rows([[(0, 1)], rows, [(0, 1)]], [1.0, period, 2.0])
    phone = Availability(sessions, [1], at_end)
    naive = unrolled(rows, period, at_end)
    # Two laps short of the end, so that the reference knows what comes next.
    instants = st.integers(0, int((LAPS - 2) * period * 8)).map(lambda k: k / 8)
    t = data.draw(instants)
    holding = [end for start, end in naive if start <= t <= end]
    later = [start for start, _ in naive if start > t]
    assert phone.online(0, t) == bool(holding)
    assert phone.online_until(0, t) == (holding[0] if holding else -INF)
    expected = t if holding else min(later, default=INF)
    assert phone.next_online(0, t) == expected
    assert phone.online_mask(t).tolist() == [bool(holding)]
    assert phone.next_online_many(t).tolist() == [expected]
    t1 = t + data.draw(st.integers(0, int(period * 8))) / 8
    seconds = sum(max(0.0, min(end, t1) - max(start, t)) for start, end in naive)
    assert phone.online_seconds(0, t, t1) == pytest.approx(seconds, abs=1e-12)


def test_a_start_that_rounds_beyond_the_lap() -> None:
    period, lap = 13.522987986828882, 868
    start = math.nextafter(period, 0.0)
    assert lap * period + start > (lap + 1) * period, "the case this test is about"
    phone = one_row([(1.0, 2.0), (start, period)], period, "wrap")
    t = lap * period + 5.0
    following = phone.next_online(0, t)
    assert following == (lap + 1) * period
    assert phone.online(0, following)
    assert phone.online_until(0, following) == following
    assert phone.next_online_many(t).tolist() == [following]
    assert phone.online_mask(following).tolist() == [True]


@st.composite
def rows_of_floats(draw: st.DrawFn) -> tuple[list[tuple[float, float]], float]:
    period = draw(st.floats(0.1, 1e6))
    shares = draw(st.lists(st.floats(0, 1), unique=True, min_size=2, max_size=12).map(sorted))
    cuts = sorted({min(share * period, period) for share in shares})
    cuts = cuts[: len(cuts) // 2 * 2]
    return list(zip(cuts[::2], cuts[1::2], strict=True)), period


@settings(max_examples=60, deadline=None)
@given(
    st.lists(rows_of_floats(), min_size=1, max_size=4),
    at_ends,
    st.integers(0, 10**6),
    st.floats(0, 1),
)
@example([([(39871.88261635288, 39871.88261635289)], 39871.88261635289)], "wrap", 430884, 0.0)
def test_answers_agree_with_each_other_after_many_laps(
    rows: list[tuple[list[tuple[float, float]], float]], at_end: AtEnd, lap: int, share: float
) -> None:
    sessions = Sessions.from_rows([row for row, _ in rows], [period for _, period in rows])
    phones = Availability(sessions, np.arange(len(rows)), at_end)
    for client, (row, period) in enumerate(rows):
        # Instants near every edge of a session, where rounding decides.
        edges = [lap * period + x for pair in row for x in pair] + [lap * period]
        around = [math.nextafter(x, way) for x in edges for way in (0.0, INF)]
        for t in [(lap + share) * period, *edges, *around]:
            online = phones.online(client, t)
            until = phones.online_until(client, t)
            start = phones.next_online(client, t)
            assert online == (start == t) == (until >= t)
            assert start >= t
            if math.isfinite(start):
                assert phones.online(client, start)
                assert phones.online_until(client, start) >= start
            if online and math.isfinite(until):
                assert phones.online(client, until)
            assert bool(phones.online_mask(t)[client]) == online
            assert phones.next_online_many(t)[client] == start
            if at_end == "wrap":
                # A session's own start, in absolute time, is online; where rounding would put it
                # beyond its lap it is the lap's end.
                lap_ends = (lap + 1) * period
                starts = [min(lap * period + a, lap_ends) for a, _ in row]
                assert all(phones.online(client, start) for start in starts)


@settings(max_examples=100, deadline=None)
@given(rows_of_floats(), at_ends, st.lists(st.floats(0, 50), min_size=3, max_size=3).map(sorted))
def test_online_seconds_add_up(
    row: tuple[list[tuple[float, float]], float], at_end: AtEnd, laps: list[float]
) -> None:
    rows, period = row
    phone = one_row(rows, period, at_end)
    a, b, c = (lap * period for lap in laps)
    parts = phone.online_seconds(0, a, b) + phone.online_seconds(0, b, c)
    whole = phone.online_seconds(0, a, c)
    assert whole == pytest.approx(parts, rel=1e-9, abs=1e-9 * period)
    assert 0 <= whole <= (c - a) + 1e-9 * period
