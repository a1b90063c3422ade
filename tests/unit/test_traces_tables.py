import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest

from traces import (
    DeviceTable,
    Sessions,
    TraceError,
    read_devices,
    read_sessions,
    write_devices,
    write_sessions,
)

DEVICES = "client_id,computation_ms_per_sample,communication_kbps\n"
REAL = Path(__file__).parents[3].joinpath("shared", "data", "fedscale_capacity_first51496.csv.gz")


def text(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_devices_survive_to_the_bit(tmp_path: Path, suffix: str) -> None:
    rng = np.random.default_rng(3)
    table = DeviceTable(rng.lognormal(size=50), rng.lognormal(size=50) * 1e4)
    path = tmp_path / f"devices{suffix}"
    write_devices(path, table)
    again = read_devices(path)
    assert again.computation_ms_per_sample.tolist() == table.computation_ms_per_sample.tolist()
    assert again.communication_kbps.tolist() == table.communication_kbps.tolist()
    before = path.read_bytes()
    write_devices(path, again)
    assert path.read_bytes() == before


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_sessions_survive_to_the_bit(tmp_path: Path, suffix: str) -> None:
    rows = [[], [(0.1, 1 / 3), (0.7, 9.0)], [], [(1e-9, 2.0)], []]
    sessions = Sessions.from_rows(rows, [10.0, 9.0, 8.0, 7.5, 6.0])
    path = tmp_path / f"sessions{suffix}"
    write_sessions(path, sessions)
    trace = read_sessions(path)
    assert [trace.sessions.row(r) for r in range(5)] == rows
    assert trace.sessions.period_s.tolist() == [10.0, 9.0, 8.0, 7.5, 6.0]
    assert trace.keys == (0, 1, 2, 3, 4)
    assert not trace.report.changed


def test_pickles_by_suffix(tmp_path: Path) -> None:
    capacity = {1: {"computation": 3, "communication": 4}}
    entry = {"active": [1, 1], "inactive": [1, 2], "finish_time": 5, "duration": 1, "model": ""}
    for name in ("c.pkl", "c.pickle", "capacity"):
        path = tmp_path / name
        path.write_bytes(pickle.dumps(capacity))
        assert read_devices(path).communication_kbps.tolist() == [4.0]
        path.write_bytes(pickle.dumps({9: entry}))
        trace = read_sessions(path)
        assert trace.sessions.row(0) == [(1.0, 2.0)]
        assert (trace.keys, trace.report.zero_length) == ((9,), 1)
        with pytest.raises(TraceError, match="has its own lengths"):
            read_sessions(path, period_s=5.0)
    with pytest.raises(TraceError, match=r"unknown suffix; a table ends in \.csv"):
        read_devices(tmp_path / "c.parquet")
    with pytest.raises(TraceError, match=r"a table must end in \.csv"):
        write_devices(tmp_path / "c.pkl", DeviceTable(np.ones(1), np.ones(1)))


def test_ids_from_0_or_1_blank_lines_and_byte_order_mark(tmp_path: Path) -> None:
    path = text(tmp_path / "d.csv", "\ufeff" + DEVICES + "0,1,2\n\n1, 3 ,4\r\n")
    assert read_devices(path).computation_ms_per_sample.tolist() == [1.0, 3.0]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("1,1,2\n2,0,2\n", "line 3, column computation_ms_per_sample: '0' must be finite and > 0"),
        ("1,1,2\n2,1,-2\n", "line 3, column communication_kbps: '-2' must be a number >= 0"),
        ("1,nan,2\n", "line 2, column computation_ms_per_sample: 'nan' must be a number >= 0"),
        ("1,1,inf\n", "line 2, column communication_kbps: 'inf' must be finite and > 0"),
        ("1,,2\n", "line 2, column computation_ms_per_sample: '' is not a number"),
        ("1,1_0,2\n", "line 2, column computation_ms_per_sample: '1_0' is not a number"),
        ("1,1\n", "line 2: 2 values; the header has 3"),
        ("1,1,2\n3,1,2\n", "line 3, column client_id: 3 follows 1"),
        ("1,1,2\n1,1,2\n", "line 3, column client_id: 1 follows 1"),
        ("2,1,2\n", "line 2, column client_id: the first client is 2; numbers start at 0 or 1"),
        ("a,1,2\n", "line 2, column client_id: 'a' is not a whole number"),
        ("-1,1,2\n", "line 2, column client_id: '-1' is not a whole number"),
        ("", "holds no device"),
    ],
)
def test_device_errors_name_line_column_and_value(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(TraceError, match=rf"d\.csv.*{message}"):
        read_devices(text(tmp_path / "d.csv", DEVICES + body))


SESSION_ERRORS = [
    ("0,1,2\n1,4,3\n", r"line 3 \(client 1, session 0\): ends at 3.0 s, before its start"),
    ("0,1,2\n1,4,4\n", r"line 3 \(client 1, session 0\): starts and ends at 4.0 s"),
    ("0,4,5\n0,1,2\n", r"line 3 \(client 0, session 1\): starts at 1.0 s, before the session in"),
    ("0,1,5\n0,4,6\n", r"line 3 \(client 0, session 1\): starts at 4.0 s, .* ends at 5.0 s"),
    ("0,1,5\n0,5,6\n", r"line 3 \(client 0, session 1\): starts at 5.0 s, where"),
    ("0,1,11\n", r"line 2 \(client 0, session 0\): ends at 11.0 s, beyond .* 10.0 s"),
    ("0,,\n1,1,2\n2,1,11\n", r"line 4 \(client 2, session 0\): ends at 11.0 s, beyond"),
    ("0,1,nan\n", "line 2, column end_s: 'nan' must be a number >= 0"),
    ("0,-1,2\n", "line 2, column start_s: '-1' must be a number >= 0"),
    ("0,1,x\n", "line 2, column end_s: 'x' is not a number"),
    ("0,1,\n", "line 2, column end_s: '' is not a number"),
    ("0,1,2\n2,1,2\n", "line 3, column client: 2 follows 0"),
    ("0,1,2\n1,1,2\n0,4,5\n", "line 4, column client: 0 follows 1"),
    ("0,,\n0,1,2\n", "line 3, column start_s: client 0 has a line without a session"),
    ("0,1,2\n0,,\n", "line 3, column start_s: client 0 has a line without a session"),
    ("5,1,2\n", "line 2, column client: the first client is 5"),
    ("", "holds no session"),
]


@pytest.mark.parametrize(("body", "message"), SESSION_ERRORS)
def test_session_errors_name_line_column_and_value(tmp_path: Path, body: str, message: str) -> None:
    path = text(tmp_path / "s.csv", "client,start_s,end_s\n" + body)
    with pytest.raises(TraceError, match=rf"s\.csv.*{message}"):
        read_sessions(path, period_s=10.0)


def test_the_length_of_the_trace_is_said_once(tmp_path: Path) -> None:
    bare = text(tmp_path / "s.csv", "client,start_s,end_s\n1,1,2\n")
    assert read_sessions(bare, period_s=9.0).sessions.period_s.tolist() == [9.0]
    with pytest.raises(TraceError, match="how long is the trace"):
        read_sessions(bare)
    with pytest.raises(TraceError, match=r"the setting period_s: 0\.0 must be"):
        read_sessions(bare, period_s=0.0)
    header = "client,start_s,end_s,period_s\n"
    full = text(tmp_path / "p.csv", header + "0,1,2,9\n")
    with pytest.raises(TraceError, match="has a column period_s; leave the setting"):
        read_sessions(full, period_s=9.0)
    for body, message in (
        ("0,1,2,9\n0,3,4,8\n", "line 3, column period_s: '8', but 9.0 on the first line"),
        ("0,1,2,0\n", "line 2, column period_s: 0.0 must be finite and > 0"),
        ("0,1,2,inf\n", "line 2, column period_s: inf must be finite and > 0"),
    ):
        with pytest.raises(TraceError, match=message):
            read_sessions(text(tmp_path / "p.csv", header + body))


def test_wrong_headers_and_files(tmp_path: Path) -> None:
    path = text(tmp_path / "s.csv", "client,start,end\n")
    wanted = "the header is 'client,start,end'; it must be 'client,start_s,end_s' or"
    with pytest.raises(TraceError, match=wanted):
        read_sessions(path, period_s=1.0)
    with pytest.raises(TraceError, match="line 1: the header is ''"):
        read_devices(text(path, ""))
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        read_devices(tmp_path / "none.csv")
    with pytest.raises(TraceError, match="cannot be written: No such file"):
        write_devices(tmp_path / "no" / "d.csv", DeviceTable(np.ones(1), np.ones(1)))
    packed = tmp_path / "d.csv.gz"
    packed.write_bytes(b"client_id")
    with pytest.raises(TraceError, match="cannot be read"):
        read_devices(packed)
    packed.write_bytes(gzip.compress((DEVICES + "1,1,2\n" * 500).encode())[:-12])
    with pytest.raises(TraceError, match=r"d\.csv\.gz"):
        read_devices(packed)
    path.write_bytes(DEVICES.encode() + b"1,\xff,2\n")
    with pytest.raises(TraceError, match="is not a whole CSV table"):
        read_devices(path)


@pytest.mark.skipif(not REAL.exists(), reason=f"FedScale's capacity table is not at {REAL}")
def test_fedscales_own_rows() -> None:
    table = read_devices(REAL)
    assert len(table) == 51496
    assert table.computation_ms_per_sample[:5].tolist() == [153, 39, 22, 149, 29]
    expected = [2209.6160, 18437.3120, 22915.4948, 13507.6960, 6924.4073]
    assert table.communication_kbps[:5].tolist() == expected
