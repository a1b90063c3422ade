import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from traces import Availability, TraceError, duty_cycle, read_behaviour, read_capacity

# First five keys of FedScale's client_device_capacity.
CAPACITY = {
    1: {"computation": 153.0, "communication": 2209.61598233},
    2: {"computation": 39.0, "communication": 18437.31198565},
    3: {"computation": 22.0, "communication": 22915.49484774},
    4: {"computation": 149.0, "communication": 13507.69600015},
    5: {"computation": 29.0, "communication": 6924.40728313},
}
# Keys 3834 and 107740 of its client_behave_trace; the second holds a zero-length session.
BEHAVIOUR = {
    3834: {
        "duration": 211625,
        "inactive": [65881, 133574, 208292, 276575, 295006, 356236, 400906, 475099],
        "finish_time": 518400,
        "active": [12788, 100044, 188992, 271372, 276663, 352625, 356267, 441193],
        "model": "CPH1801",
    },
    107740: {
        "duration": 1,
        "inactive": [88494, 93284],
        "finish_time": 518400,
        "active": [88494, 93283],
        "model": "?",
    },
}


def stored(path: Path, data: Any, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(data, protocol))
    return path


def behaviour(**fields: Any) -> dict[int, dict[str, Any]]:
    entry = {"active": [1, 5], "inactive": [2, 6], "finish_time": 10, "duration": 2, "model": "x"}
    entry |= fields
    good = {"active": [0], "inactive": [1], "finish_time": 10, "duration": 1, "model": "y"}
    return {11: good, 7: {name: value for name, value in entry.items() if value is not ...}}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_capacity_golden_rows(tmp_path: Path, protocol: int) -> None:
    table = read_capacity(stored(tmp_path / "client_device_capacity", CAPACITY, protocol))
    assert len(table) == 5
    assert table.computation_ms_per_sample.tolist() == [153, 39, 22, 149, 29]
    assert table.communication_kbps[0] == 2209.61598233


def test_client_c_is_key_c_plus_1_whatever_the_order_of_the_file(tmp_path: Path) -> None:
    backwards = dict(reversed(CAPACITY.items()))
    table = read_capacity(stored(tmp_path / "c.pkl", backwards))
    assert table.computation_ms_per_sample.tolist() == [153, 39, 22, 149, 29]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({3: {"communication": 5.0}}, r"client 3 \(row 2\), field 'computation': is missing"),
        ({3: {"computation": 5.0}}, r"client 3 \(row 2\), field 'communication': is missing"),
        ({2: {"computation": 0, "communication": 1}}, r"client 2 .*'computation': 0.0 must be"),
        ({2: {"computation": -4, "communication": 1}}, r"client 2 .*'computation': -4.0 must be"),
        ({2: {"computation": 1, "communication": float("nan")}}, "'communication': nan must be"),
        ({2: {"computation": 1, "communication": float("inf")}}, "'communication': inf must be"),
        ({2: {"computation": 1, "communication": 0}}, "client 2 .*'communication': 0.0 must be"),
        ({2: {"computation": "1", "communication": 1}}, "'computation': '1' is a str, not a numb"),
        ({2: {"computation": None, "communication": 1}}, "'computation': None is a NoneType"),
        ({2: {"computation": True, "communication": 1}}, "'computation': True is a bool"),
        ({2: {"computation": 10**400, "communication": 1}}, "the number is too large"),
        ({2: [1, 2]}, r"client 2 \(row 1\) is a list; it must be a dict"),
        ({7: {"computation": 1, "communication": 1}}, "client 6 is missing, while .* key 7"),
        ({"6": {"computation": 1, "communication": 1}}, "client 6 is missing, while .* key '6'"),
        ({0: {"computation": 1, "communication": 1}}, "client 6 is missing, while .* key 0"),
    ],
)
def test_capacity_errors_name_client_and_field(
    tmp_path: Path, change: dict[Any, Any], message: str
) -> None:
    path = stored(tmp_path / "c.pkl", CAPACITY | change)
    with pytest.raises(TraceError, match=message) as caught:
        read_capacity(path)
    assert str(path) in str(caught.value)
    assert len(caught.value.args) == 1


@pytest.mark.parametrize("read", [read_capacity, read_behaviour])
@pytest.mark.parametrize(
    ("data", "message"),
    [([1, 2], "holds a list"), ({}, "holds no client"), (None, "holds a NoneType")],
)
def test_not_a_dict_of_clients(tmp_path: Path, read: Any, data: Any, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read(stored(tmp_path / "c.pkl", data))


def test_behaviour_golden(tmp_path: Path) -> None:
    trace = read_behaviour(stored(tmp_path / "client_behave_trace", BEHAVIOUR))
    assert trace.keys == (3834, 107740)
    assert trace.report.zero_length == 1
    assert trace.report.changed
    assert trace.sessions.row(1) == [(93283.0, 93284.0)]
    assert trace.sessions.period_s.tolist() == [518400.0, 518400.0]
    assert duty_cycle(trace.sessions)[0] == pytest.approx(0.408, abs=5e-4)
    phones = Availability(trace.sessions, [0, 1], "wrap")
    assert phones.online_seconds(0, 0, 518400) == 211625
    assert [phones.online(0, t) for t in (12788, 65881, 65882)] == [True, True, False]
    assert phones.online(0, 518400 + 12788)


def test_without_repair_a_zero_length_session_is_an_error(tmp_path: Path) -> None:
    path = stored(tmp_path / "b.pkl", BEHAVIOUR)
    with pytest.raises(TraceError, match=r"client 107740 \(row 1\), session 0: starts and ends at"):
        read_behaviour(path, repair=False)
    mended = {"duration": 1, "active": [93283], "inactive": [93284], "finish_time": 518400}
    trace = read_behaviour(stored(path, BEHAVIOUR | {107740: mended}), repair=False)
    assert not trace.report.changed
    assert trace.sessions.counts.tolist() == [8, 1]


REPAIRABLE = [
    ({"active": [5, 1], "inactive": [6, 2]}, "session 1: starts at 1.0 s, before", "unsorted"),
    ({"active": [1, 2], "inactive": [3, 6]}, "session 1: starts at 2.0 s, before", "overlapping"),
    ({"active": [1, 3], "inactive": [3, 6]}, "session 1: starts at 3.0 s, where", "touching"),
    ({"active": [1, 3], "inactive": [1, 6]}, "session 0: starts and ends at 1.0", "zero_length"),
]


@pytest.mark.parametrize(("fields", "message", "kind"), REPAIRABLE)
def test_what_repair_mends(tmp_path: Path, fields: dict[str, Any], message: str, kind: str) -> None:
    path = stored(tmp_path / "b.pkl", behaviour(**fields))
    assert getattr(read_behaviour(path).report, kind) == 1
    with pytest.raises(TraceError, match=rf"client 7 \(row 1\), {message}"):
        read_behaviour(path, repair=False)


@pytest.mark.parametrize("repair", [True, False])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"active": [], "inactive": []}, "'active' and 'inactive' are empty"),
        ({"active": [1], "inactive": [2, 3]}, "'active' has 1 times, 'inactive' 2"),
        ({"active": [1, float("nan")]}, "session 1: start is NaN"),
        ({"inactive": [2, float("nan")]}, "session 1: end is NaN"),
        ({"active": [-1, 5]}, "session 0: start -1.0 s is negative"),
        ({"inactive": [2, 4]}, "session 1: ends at 4.0 s, before its start at 5.0 s"),
        ({"inactive": [2, 11]}, "session 1: ends at 11.0 s, beyond the trace length of 10.0 s"),
        ({"inactive": [2, float("inf")]}, "session 1: ends at inf s, beyond"),
        ({"finish_time": ...}, "field 'finish_time': is missing"),
        ({"finish_time": 0}, "field 'finish_time': 0.0 must be"),
        ({"finish_time": float("nan")}, "field 'finish_time': nan must be"),
        ({"finish_time": "10"}, "field 'finish_time': '10' is a str"),
        ({"active": ...}, "field 'active': is missing"),
        ({"inactive": ...}, "field 'inactive': is missing"),
        ({"active": "15"}, "field 'active': is a str; it must be a list"),
        ({"active": [1, "5"]}, r"field 'active'\[1\]: '5' is a str"),
        ({"active": [1, [5]]}, r"field 'active'\[1\]: \[5\] is a list"),
        ({"active": [1, True]}, r"field 'active'\[1\]: True is a bool"),
        ({"active": [1, 10**400]}, r"field 'active'\[1\]: the number is too large"),
        ({"active": [1, [10**9999]]}, r"field 'active'\[1\]: a huge list is a list"),
    ],
)
def test_other_malformations_are_errors_that_name_key_and_row(
    tmp_path: Path, fields: dict[str, Any], message: str, repair: bool
) -> None:
    path = stored(tmp_path / "b.pkl", behaviour(**fields))
    with pytest.raises(TraceError, match=rf"b\.pkl: client 7 \(row 1\).*{message}"):
        read_behaviour(path, repair)


def test_keys_must_be_integers(tmp_path: Path) -> None:
    for key, shown in (("7", "'7'"), (10**9999, "a huge int")):
        with pytest.raises(TraceError, match=f"row 0 has the key {shown}"):
            read_behaviour(stored(tmp_path / "b.pkl", {key: behaviour()[7]}))


class Hostile:
    """Leaves a file behind when a plain unpickler loads it."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("read", [read_capacity, read_behaviour])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_hostile_pickle_runs_nothing(tmp_path: Path, read: Any, protocol: int) -> None:
    target = tmp_path / "owned"
    path = stored(tmp_path / "c.pkl", {1: Hostile(target)}, protocol)
    with pytest.raises(TraceError, match=r"asks for \w+\.mkdir"):
        read(path)
    assert not target.exists()
    pickle.loads(path.read_bytes())
    assert target.exists(), "the pickle is hostile indeed"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"id,comp\n1,2\n",
        pickle.dumps(CAPACITY)[:-20],
        b"\x80\x04Pjunk\n.",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"]]a(i__main__\nX\n.",
        b"Pid\n.",
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "c.pkl"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=r"c\.pkl: "):
        read_capacity(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        read_behaviour(tmp_path / "b.pkl")
    with pytest.raises(TraceError, match="cannot be read: Is a directory"):
        read_behaviour(tmp_path)
