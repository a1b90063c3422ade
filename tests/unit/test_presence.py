"""What a run tells of who was online, against sessions that are written down."""

from __future__ import annotations

import pytest

from emulator.recording import presence
from traces.availability import AlwaysOnline, Availability
from traces.sessions import Sessions

ROWS = [[(0.0, 10.0), (60.0, 100.0)], [(20.0, 30.0)], []]


def availability() -> Availability:
    return Availability(Sessions.from_rows(ROWS, 100.0), [0, 1, 2], "wrap")


def test_counts_are_of_all_clients_from_begin_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "STEPS", 4)
    rows = presence.online_rows(availability(), 3, 100.0)
    assert rows == [(0.0, 1, 3), (25.0, 1, 3), (50.0, 0, 3), (75.0, 1, 3), (100.0, 1, 3)]
    assert presence.online_rows(availability(), 3, 0.0) == [(0.0, 1, 3)]


def test_of_many_clients_every_second_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "COUNTED_CLIENTS", 2)
    assert presence.online_rows(availability(), 3, 0.0) == [(0.0, 1, 2)]


def test_sessions_go_over_the_seam_and_are_cut_at_the_end() -> None:
    # The last session of the trace and the first of the next lap are one.
    assert presence.session_rows(availability(), [0, 1], 125.0) == [
        (0, 0.0, 10.0), (0, 60.0, 110.0), (1, 20.0, 30.0), (1, 120.0, 125.0),
    ]  # fmt: skip
    assert presence.session_rows(availability(), [0], 60.0) == [(0, 0.0, 10.0)]
    assert presence.session_rows(AlwaysOnline(2), [1], 9.0) == [(1, 0.0, 9.0)]


def test_who_is_left_out_is_left_out_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "MOST_SESSIONS", 3)
    assert presence.session_rows(availability(), [0, 1], 125.0) == [
        (0, 0.0, 10.0), (0, 60.0, 110.0),
    ]  # fmt: skip
    monkeypatch.setattr(presence, "SHOWN_CLIENTS", 1)
    assert presence.session_rows(availability(), [1, 0], 50.0) == [(1, 20.0, 30.0)]
