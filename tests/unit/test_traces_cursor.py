"""FedScale's cursor for a population, against the one for a client, written as FedScale's."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces import Availability, CursorAvailability, Sessions
from traces.fedscale_cursor import FedScaleCursor

ACTIVE = [12788, 100044, 188992, 271372, 276663, 352625, 356267, 441193]
INACTIVE = [65881, 133574, 208292, 276575, 295006, 356236, 400906, 475099]
FINISH = 518400


def population(rows: list[list[tuple[float, float]]], period_s: float) -> CursorAvailability:
    sessions = Sessions.from_rows(rows, period_s)
    return CursorAvailability(Availability(sessions, range(len(rows)), "wrap"))


def key_3834() -> CursorAvailability:
    return population(
        [[(float(a), float(b)) for a, b in zip(ACTIVE, INACTIVE, strict=True)]], FINISH
    )


def test_golden_answers_of_selections() -> None:
    clients = key_3834()
    assert [bool(clients.online_mask(t)[0]) for t in (60e3, 67e3, 60e3)] == [True, False, False]
    again = clients.rewound()
    assert [again.online(0, t) for t in (60e3, 67e3, 60e3)] == [True, False, False]
    assert bool(clients.rewound().online_mask(60e3)[0])


@pytest.mark.parametrize(("look_ahead_s", "wrong_share"), [(0, 0.229), (150, 0.069)])
def test_golden_share_of_wrong_answers(look_ahead_s: float, wrong_share: float) -> None:
    clients = key_3834()
    truth = Availability(
        Sessions.from_rows([list(zip(ACTIVE, INACTIVE, strict=True))], FINISH), [0], "wrap"
    )
    wrong, times = 0, range(0, 3 * FINISH, 120)
    for t in times:
        online = clients.online_until(0, t) >= t
        if look_ahead_s and online:
            clients.stays_until(0, t, t + look_ahead_s)
        wrong += online != truth.online(0, t)
    assert wrong / len(times) == pytest.approx(wrong_share, abs=0.0005)


rows = st.lists(
    st.lists(st.integers(0, 50), min_size=2, max_size=10, unique=True).map(
        lambda times: list(zip(sorted(times)[::2], sorted(times)[1::2], strict=False))
    ),
    min_size=1,
    max_size=4,
)
questions = st.lists(
    st.tuples(st.integers(0, 200), st.integers(0, 60), st.integers(0, 3), st.booleans()),
    max_size=30,
)


@given(rows, questions)
@settings(max_examples=80, deadline=None)
def test_each_client_answers_as_its_own_cursor_does(
    rows: list[list[tuple[float, float]]], questions: list[tuple[int, int, int, bool]]
) -> None:
    clients = population(rows, 50.0)
    cursors = [FedScaleCursor([a for a, _ in row], [b for _, b in row], 50.0) for row in rows]
    asked = None
    for t, ahead, client, looks_ahead in questions:
        if t != asked:
            expected = [cursor.online(t) for cursor in cursors]
        asked = t
        assert clients.online_mask(float(t)).tolist() == expected
        client %= len(rows)
        assert (clients.online_until(client, float(t)) >= t) == expected[client]
        if looks_ahead:
            stays = cursors[client].online(t + ahead)
            until = clients.stays_until(client, float(t), float(t + ahead))
            assert until == (math.inf if stays else math.nextafter(t + ahead, -math.inf))


def test_answers_of_an_instant_stay_and_sessions_that_end_in_it_are_no_use() -> None:
    clients = population([[(0, 10), (20, 30)], []], 100.0)
    assert clients.online_mask(10.0).tolist() == [True, False]
    assert clients.online_mask(math.nextafter(10.0, 11)).tolist() == [False, False]
    assert clients.online_until(0, 10.0) == 10.0
    assert clients.online_mask(10.0, np.array([1, 0])).tolist() == [False, True]
    assert clients.online_mask(15.0).tolist() == [False, False]
    assert clients.online_until(0, 125.0) == 130.0
    assert clients.online_until(1, 125.0) == -math.inf
    assert not clients.online(1, 5.0)


def test_the_next_start_is_the_traces_and_asks_no_cursor() -> None:
    clients = population([[(2, 10), (20, 30)], []], 100.0)
    assert clients.next_online(0, 0.0) == 2.0
    assert clients.next_online(0, 2.0) == 2.0
    assert clients.next_online(0, 5.0) == 20.0, "within a session, of which no cursor was asked"
    assert clients.next_online(0, 25.0) == 102.0
    assert clients.next_online(1, 25.0) == math.inf
    clients.online_mask(5.0)
    assert clients.next_online_many(5.0).tolist() == [5.0, math.inf]
    assert clients.next_online_many(5.0, np.array([1])).tolist() == [math.inf]
    assert clients.online_seconds(0, 0.0, 25.0) == 13.0


def test_each_session_of_the_file_is_a_step_even_one_of_no_length() -> None:
    # The store holds [0, 10] and [20, 30]; the file has [15, 15] between them.
    truth = Availability(Sessions.from_rows([[(0, 10), (20, 30)]], 100.0), [0], "wrap")
    filed = (np.array([0.0, 15, 20]), np.array([10.0, 15, 30]), np.array([0, 3]))
    clients = CursorAvailability(truth, filed)
    cursor = FedScaleCursor([0, 15, 20], [10, 15, 30], 100)
    for t, online in ((5.0, True), (25.0, False), (26.0, True)):
        assert clients.online(0, t) is cursor.online(t) is online
    assert CursorAvailability(truth).online(0, 25.0), "without that session, one step is enough"
