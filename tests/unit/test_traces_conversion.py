import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces import (
    DeviceTable,
    Sessions,
    TraceError,
    read_behaviour,
    read_capacity,
    read_devices,
    read_sessions,
    write_devices,
    write_sessions,
)
from traces.conversion import convert


def equal(a: Sessions, b: Sessions) -> bool:
    return all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for name in ("starts_s", "ends_s", "offsets", "period_s")
    )


instants = st.one_of(st.integers(0, 90), st.floats(0, 90, allow_subnormal=False))
rows_of_sessions = st.lists(
    st.lists(instants, min_size=2, max_size=8, unique=True).map(
        lambda times: list(zip(sorted(times)[::2], sorted(times)[1::2], strict=False))
    ),
    min_size=1,
    max_size=5,
)


@given(rows_of_sessions, st.floats(90, 1e6))
@settings(max_examples=40, deadline=None)
def test_there_and_back_gives_equal_sessions(
    tmp_path_factory: pytest.TempPathFactory, rows: Any, period_s: float
) -> None:
    folder = tmp_path_factory.getbasetemp()
    sessions = Sessions.from_rows(rows, period_s)
    table, pickled, back = (folder / name for name in ("a.csv", "a.pkl", "back.csv"))
    write_sessions(table, sessions)
    convert(table, pickled, force=True)
    convert(pickled, back, force=True)
    assert equal(read_behaviour(pickled, repair=False).sessions, sessions)
    assert equal(read_sessions(back).sessions, sessions)
    assert table.read_bytes() == back.read_bytes()


def test_a_pickle_is_as_fedscale_has_it(tmp_path: Path) -> None:
    write_sessions(tmp_path / "a.csv", Sessions.from_rows([[(1, 2.5), (4, 6)]], 10.0))
    convert(tmp_path / "a.csv", tmp_path / "client_behave_trace")
    assert pickle.loads((tmp_path / "client_behave_trace").read_bytes()) == {
        0: {
            "active": [1, 4],
            "inactive": [2.5, 6],
            "finish_time": 10,
            "duration": 3.5,
            "model": "unknown",
        }
    }
    write_devices(tmp_path / "d.csv", DeviceTable(np.array([3.0, 4.5]), np.array([1e3, 2e3])))
    convert(tmp_path / "d.csv", tmp_path / "d.pkl")
    assert pickle.loads((tmp_path / "d.pkl").read_bytes()) == {
        1: {"computation": 3.0, "communication": 1000.0},
        2: {"computation": 4.5, "communication": 2000.0},
    }
    assert read_capacity(tmp_path / "d.pkl").computation_ms_per_sample.tolist() == [3.0, 4.5]


BEHAVIOUR = {
    7: {"active": [1, 5, 5], "inactive": [2, 5, 6], "finish_time": 10},
    8: {"active": [1, math.nan], "inactive": [2, 6], "finish_time": 10},
    9: {"active": [3], "inactive": [3], "finish_time": 10},
    10: {"active": [8], "inactive": [9], "finish_time": 20},
}


def test_malformed_input_is_refused_until_its_repair_is_said(tmp_path: Path) -> None:
    source, target = tmp_path / "b.pkl", tmp_path / "out.csv"
    source.write_bytes(pickle.dumps(BEHAVIOUR))
    with pytest.raises(TraceError, match=r"2 zero-length, 1 NaN\); first: client 7 \(row 0\), se"):
        convert(source, target)
    with pytest.raises(TraceError, match=r"malformed \(1 NaN\).*--repair drop"):
        convert(source, target, repair="mend")
    assert not target.exists()
    done = convert(source, target, repair="drop")
    assert (done.written, done.dropped, done.silent) == (3, 1, 0)
    assert {f.kind: f.count for f in done.findings} == {"zero-length": 2, "NaN": 1}
    sessions = read_sessions(target).sessions
    assert [sessions.row(r) for r in range(3)] == [[(1, 2), (5, 6)], [], [(8, 9)]]
    assert sessions.period_s.tolist() == [10, 10, 20]


def test_mending_alone_where_nothing_else_is_wrong(tmp_path: Path) -> None:
    source, target = tmp_path / "s.csv", tmp_path / "out.csv.gz"
    source.write_text("client,start_s,end_s\n0,5,6\n0,1,5\n")
    with pytest.raises(TraceError, match="1 touching, 1 unsorted"):
        convert(source, target, period_s=10.0)
    assert convert(source, target, period_s=10.0, repair="mend").written == 1
    assert read_sessions(target).sessions.row(0) == [(1, 6)]


def test_fedscales_file_has_no_client_that_is_never_online(tmp_path: Path) -> None:
    source, target = tmp_path / "s.csv", tmp_path / "out.pkl"
    write_sessions(source, Sessions.from_rows([[], [(1, 2)], []], 10.0))
    with pytest.raises(TraceError, match=r"2 clients are never online \(first: row 0\)"):
        convert(source, target)
    assert not target.exists()
    done = convert(source, target, repair="drop")
    assert (done.written, done.dropped, done.silent) == (1, 2, 2)
    assert read_behaviour(target).sessions.row(0) == [(1, 2)]


def test_devices_are_dropped_and_numbered_anew(tmp_path: Path) -> None:
    source, target = tmp_path / "d.pkl", tmp_path / "d.csv"
    good = {"computation": 2.0, "communication": 3.0}
    source.write_bytes(pickle.dumps({1: {"computation": 0, "communication": 1}, 5: good}))
    for repair in (None, "mend"):
        with pytest.raises(TraceError, match="malformed"):
            convert(source, target, repair=repair)  # type: ignore[arg-type]
    done = convert(source, target, repair="drop")
    assert (done.written, done.dropped) == (1, 1)
    assert read_devices(target).communication_kbps.tolist() == [3.0]
    source.write_bytes(pickle.dumps({1: {"computation": 0, "communication": 1}}))
    with pytest.raises(TraceError, match="none of its 1 clients is well formed"):
        convert(source, target, repair="drop", force=True)


def test_a_file_that_is_there_stays_unless_forced(tmp_path: Path) -> None:
    source, target = tmp_path / "s.csv", tmp_path / "t.csv"
    write_sessions(source, Sessions.from_rows([[(1, 2)]], 10.0))
    target.write_text("mine")
    with pytest.raises(TraceError, match=r"is there already; --force"):
        convert(source, target)
    assert target.read_text() == "mine"
    convert(source, target, force=True)
    assert target.read_bytes() == source.read_bytes()
    # In place, too: the new file takes the old one's place when it is whole.
    convert(source, source, force=True)
    assert target.read_bytes() == source.read_bytes()


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "t.csv"
    target.write_text("mine")

    def fails(self: Sessions, row: int) -> list[tuple[float, float]]:
        raise OSError(28, "No space left on device")

    sessions = Sessions.from_rows([[(1, 2)]], 10.0)
    monkeypatch.setattr(Sessions, "row", fails)
    with pytest.raises(TraceError, match="cannot be written: No space left"):
        write_sessions(target, sessions)
    assert target.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]
    with pytest.raises(TraceError, match="cannot be written: No such file"):
        write_devices(tmp_path / "no" / "d.csv", DeviceTable(np.ones(1), np.ones(1)))
