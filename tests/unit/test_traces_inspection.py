import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from traces import Sessions, TraceError, read_sessions
from traces import table_blocks as blocks_module
from traces.findings import Finding
from traces.inspection import check_trace, device_figures, session_figures
from traces.statistics import absence_s, gaps_s, mean_ranks, pearson_correlation, rank_correlation
from traces.unchecked import CheckedDevices, CheckedSessions

NAN, INF = math.nan, math.inf


def stored(path: Path, data: Any) -> Path:
    path.write_bytes(pickle.dumps(data))
    return path


def sessions_of(path: Path, **options: Any) -> CheckedSessions:
    checked = check_trace(path, **options)
    assert isinstance(checked, CheckedSessions)
    return checked


def devices_of(path: Path) -> CheckedDevices:
    checked = check_trace(path)
    assert isinstance(checked, CheckedDevices)
    return checked


def counts(findings: tuple[Finding, ...]) -> dict[str, tuple[int, int]]:
    return {f.kind: (f.count, f.clients) for f in findings}


def entry(**fields: Any) -> dict[str, Any]:
    good = {"active": [1, 5], "inactive": [2, 6], "finish_time": 10, "duration": 2, "model": "x"}
    return {name: value for name, value in (good | fields).items() if value is not ...}


# Each client with one malformation; the kind that it is, or None where nothing is wrong.
BEHAVIOUR: list[tuple[Any, Any, str | None]] = [
    (1, entry(), None),
    (2, entry(active=[], inactive=[]), "no session"),
    (3, entry(active=[5, 1], inactive=[6, 2]), "unsorted"),
    (4, entry(active=[1, 2], inactive=[3, 6], duration=6), "overlapping"),
    (5, entry(active=[1, 3], inactive=[3, 6], duration=5), "touching"),
    (6, entry(active=[1, 5], inactive=[1, 6], duration=1), "zero-length"),
    (7, entry(active=[1, NAN]), "NaN"),
    (8, entry(inactive=[2, NAN]), "NaN"),
    (9, entry(active=[-1, 5]), "negative"),
    (10, entry(inactive=[2, 4]), "reversed"),
    (11, entry(inactive=[2, 11]), "beyond"),
    (12, entry(inactive=[2, INF]), "beyond"),
    (13, entry(inactive=[2]), "lengths differ"),
    (14, entry(active=[1]), "lengths differ"),
    (15, entry(active=[1, 5, 7], inactive=[2]), "lengths differ"),
    (16, entry(active=...), "missing field"),
    (17, entry(inactive=...), "missing field"),
    (18, entry(finish_time=...), "missing field"),
    (19, entry(finish_time=0), "trace length"),
    (20, entry(finish_time=NAN), "trace length"),
    (21, entry(finish_time=-5), "trace length"),
    (22, entry(finish_time="10"), "wrong type"),
    (23, entry(active="15"), "wrong type"),
    (24, entry(active=[1, "5"]), "wrong type"),
    (25, entry(active=[1, True]), "wrong type"),
    (26, entry(active=[1, 10**400]), "wrong type"),
    (27, entry(active=None), "wrong type"),
    (28, [1, 2], "wrong type"),
    (29, entry(duration=7), "duration"),
    ("30", entry(), "client number"),
    (2**70, entry(), "client number"),
    (31, entry(duration=...), None),
]


def test_a_pickle_with_every_malformation(tmp_path: Path) -> None:
    path = stored(tmp_path / "b.pkl", {key: value for key, value, _ in BEHAVIOUR})
    checked = sessions_of(path)
    expected: dict[str, tuple[int, int]] = {}
    for _, _, kind in BEHAVIOUR:
        if kind is not None:
            n = expected.get(kind, (0, 0))[0] + 1
            expected[kind] = (n, n)
    assert counts(checked.findings) == expected
    harmless = {None, "unsorted", "overlapping", "touching", "zero-length", "duration"}
    sound = [row for row, (_, _, kind) in enumerate(BEHAVIOUR) if kind in harmless]
    assert checked.rows.tolist() == sound
    by_kind = {f.kind: f for f in checked.findings}
    assert by_kind["wrong type"].examples == (
        "client 22 (row 21): 'finish_time' is '10', not a number",
        "client 23 (row 22): 'active' is a str; it must be a list of seconds",
        "client 24 (row 23), session 1: 'active' is '5', not a number",
    )
    assert "the last session is open" in by_kind["lengths differ"].examples[0]
    assert "client 11 (row 10), session 1: ends at 11.0 s" in by_kind["beyond"].examples[0]
    assert by_kind["zero-length"].remedy == "mend"
    assert by_kind["NaN"].remedy == "drop"
    # Sorted, merged, dropped.
    rows = {int(r): checked.sessions.row(i) for i, r in enumerate(checked.rows)}
    assert rows[2] == [(1, 2), (5, 6)]
    assert rows[3] == [(1, 6)]
    assert rows[4] == [(1, 6)]
    assert rows[5] == [(5, 6)]


def test_a_client_can_have_several_malformations(tmp_path: Path) -> None:
    bad = entry(active=[3, 1, 1, NAN, -1], inactive=[9, 4, 1, 5], duration=...)
    checked = sessions_of(stored(tmp_path / "b.pkl", {1: bad}))
    assert counts(checked.findings) == {
        "lengths differ": (1, 1),
        "NaN": (1, 1),
        "zero-length": (1, 1),
        "unsorted": (1, 1),
        "overlapping": (1, 1),
    }
    assert session_figures(checked) is None


HEADER = "client,start_s,end_s,period_s\n"
TABLE = [
    ("0,1,2,10", None),
    ("0,5,6,10", None),
    ("1,5,6,10", None),
    ("1,1,2,10", "unsorted"),
    ("2,1,3,10", None),
    ("2,2,6,10", "overlapping"),
    ("3,1,3,10", None),
    ("3,3,6,10", "touching"),
    ("4,1,1,10", "zero-length"),
    ("5,nan,2,10", "NaN"),
    ("6,-1,2,10", "negative"),
    ("7,3,2,10", "reversed"),
    ("8,3,12,10", "beyond"),
    ("9,3,x,10", "wrong type"),
    ("10,1_0,2,10", "wrong type"),
    ("11,5,,10", "open session"),
    ("12,5,6", "number of values"),
    ("13,5,6,10,1", "number of values"),
    ("14,5,6,inf", "trace length"),
    ("15,5,6,0", "trace length"),
    ("16,5,6,ten", "wrong type"),
    ("17,1,2,10", None),
    ("17,5,6,11", "trace length"),
    ("18,,,10", None),
    ("19,,,10", None),
    ("19,5,6,10", "empty line"),
    ("x,5,6,10", "client number"),
    ("-1,5,6,10", "client number"),
    ("22,5,6,10", "numbering"),
    ("21,5,6,10", "numbering"),
    ("3,8,9,10", "repeated client"),
]


def test_a_table_with_every_malformation(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text(HEADER + "\n".join(line for line, _ in TABLE) + "\n")
    checked = sessions_of(path)
    expected: dict[str, int] = {}
    for _, kind in TABLE:
        if kind is not None:
            expected[kind] = expected.get(kind, 0) + 1
    assert {f.kind: f.count for f in checked.findings} == expected
    by_kind = {f.kind: f.examples[0] for f in checked.findings}
    assert by_kind["unsorted"].startswith("line 5 (client 1, session 1): starts at 1.0 s")
    assert by_kind["open session"] == "line 17, column end_s: is empty, and start_s is not"
    assert by_kind["number of values"] == "line 18: 3 values; the header has 4"
    assert by_kind["numbering"].startswith("line 30, column client: 22 where 20 should come")
    assert by_kind["repeated client"].startswith("line 32, column client: client 3 was there")
    # 0 to 4 are well formed or mended; 18 is never online; 22 and 21 are only misnumbered.
    assert checked.rows.tolist() == [0, 1, 2, 3, 4, 18, 22, 23]
    assert checked.sessions.counts.tolist() == [2, 2, 1, 1, 0, 0, 1, 1]


DEVICES: list[tuple[Any, Any, list[str]]] = [
    (1, {"computation": 3.0, "communication": 10.0}, []),
    (2, {"communication": 10.0}, ["missing field"]),
    (3, {"computation": 3.0}, ["missing field"]),
    (4, {"computation": 0, "communication": -1.0}, ["zero", "negative"]),
    (5, {"computation": INF, "communication": NAN}, ["infinite", "NaN"]),
    (6, {"computation": "3", "communication": True}, ["wrong type", "wrong type"]),
    (7, [3.0, 10.0], ["wrong type"]),
    (9, {"computation": 3.0, "communication": 10.0}, ["numbering"]),
    ("10", {"computation": 3.0, "communication": 10.0}, ["client number"]),
]


def test_a_pickle_of_devices_with_every_malformation(tmp_path: Path) -> None:
    data = {key: value for key, value, _ in reversed(DEVICES)}
    checked = devices_of(stored(tmp_path / "d.pkl", data))
    kinds = [kind for _, _, found in DEVICES for kind in found]
    assert {f.kind: f.count for f in checked.findings} == {k: kinds.count(k) for k in kinds}
    assert checked.rows.tolist() == [0, 7]
    assert {f.kind: f.remedy for f in checked.findings}["numbering"] == "renumber"


def test_a_table_of_devices_with_every_malformation(tmp_path: Path) -> None:
    lines = ["1,3,10", "2,0,10", "3,3,-1", "4,inf,nan", "5,x,10", "6,,10", "7,3", "9,3,10", "q,3,1"]
    path = tmp_path / "d.csv"
    path.write_text("client_id,computation_ms_per_sample,communication_kbps\n" + "\n".join(lines))
    checked = devices_of(path)
    assert {f.kind: f.count for f in checked.findings} == {
        "zero": 1, "negative": 1, "infinite": 1, "NaN": 1, "wrong type": 2,
        "number of values": 1, "numbering": 1, "client number": 1,
    }  # fmt: skip
    assert checked.rows.tolist() == [0, 7]
    zero = next(f for f in checked.findings if f.kind == "zero")
    assert zero.examples == (
        "line 3, column computation_ms_per_sample: '0' must be finite and > 0",
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"id,comp,comm\n1,2,3\n", "neither a trace of devices nor"),
        ("t.csv", b"", "neither a trace of devices nor"),
        ("t.csv", b"client,start_s,end_s,period_s\n", "holds no session"),
        ("t.csv", b"client_id,computation_ms_per_sample,communication_kbps\n", "holds no device"),
        ("t.csv", b"client,start_s,end_s\n0,1,2\n", "how long is the trace"),
        ("t.csv", b"client,start_s,end_s,period_s\n0,\xff,2,9\n", "is not a whole CSV table"),
        ("t.csv.gz", b"client,start_s\n", "is not a whole CSV table"),
        ("t.pkl", b"client,start_s\n", "is not a whole pickle"),
        ("t.pkl", pickle.dumps([1]), "holds a list"),
        ("t.pkl", pickle.dumps({}), "holds no client"),
        ("t.pkl", pickle.dumps({1: {"speed": 3}}), "neither a trace of devices nor"),
        ("t.txt", b"", "unknown suffix"),
    ],
)
def test_what_is_no_trace(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message):
        check_trace(path)


def test_the_kind_is_told_by_the_content_and_may_be_asked_for(tmp_path: Path) -> None:
    path = stored(tmp_path / "t", {1: "?", 2: {"communication": 3.0}})
    assert counts(devices_of(path).findings) == {"wrong type": (1, 1), "missing field": (1, 1)}
    with pytest.raises(TraceError, match="is a trace of devices, not of availability"):
        check_trace(path, "availability")
    with pytest.raises(TraceError, match="--period is for tables"):
        check_trace(path, period_s=5.0)


def test_figures_of_sessions_worked_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    # Two days each. Client 0: [0 h, 1 h] and [47 h, 48 h]; client 1: [12 h, 18 h]; 2: never.
    path.write_text(
        HEADER + "0,0,3600,172800\n0,169200,172800,172800\n1,43200,64800,172800\n2,,,172800\n"
    )
    figures = session_figures(sessions_of(path))
    assert figures is not None
    assert (figures.clients, figures.sessions, figures.never_online) == (3, 3, 1)
    assert figures.length_s is not None
    assert figures.length_s.mean == pytest.approx(28_800 / 3)
    assert figures.length_s.quantiles[5] == 3600
    assert figures.gap_s is not None
    assert figures.gap_s.quantiles == (165_600.0,) * 11
    assert figures.sessions_per_client.quantiles[0] == 0
    assert figures.sessions_per_client.quantiles[5] == 1
    assert figures.duty.quantiles[-1] == pytest.approx(6 / 48)
    assert figures.online_share == pytest.approx(8 / 144)
    # Client 1 is away from 18 h to 12 h two days later: 42 h; client 0 for 46 h.
    assert (figures.longest_absence_s, figures.longest_absence_row) == (46 * 3600, 0)
    # Hour 0: one hour of six; hours 12 to 17: one hour of six; hour 23: one of six.
    by_hour = np.zeros(24)
    by_hour[[0, 12, 13, 14, 15, 16, 17, 23]] = 1 / 6
    assert figures.online_by_hour == pytest.approx(by_hour)


def test_absences_and_gaps() -> None:
    sessions = Sessions.from_rows(
        [[], [(2, 3)], [(0, 10)], [(1, 2), (4, 9)], []], [10.0, 10, 10, 10, 10]
    )
    assert gaps_s(sessions).tolist() == [2.0]
    assert absence_s(sessions).tolist() == [-1.0, 9.0, 0.0, 2.0, -1.0]
    assert absence_s(Sessions.from_rows([[]], 10.0)).tolist() == [-1.0]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=40))
@settings(max_examples=60, deadline=None)
def test_rank_correlation_is_spearmans_with_ties(pairs: list[tuple[int, int]]) -> None:
    x, y = np.array(pairs, float).T
    found = rank_correlation(x, y)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert found is None
    else:
        assert found == pytest.approx(spearmanr(x, y).statistic, abs=1e-12)


def test_correlations_by_hand() -> None:
    assert mean_ranks(np.array([7.0, 1.0, 7.0, 3.0])).tolist() == [3.5, 1.0, 3.5, 2.0]
    x = np.array([1.0, 2.0, 3.0])
    assert pearson_correlation(x, np.array([2.0, 1.0, 3.0])) == pytest.approx(0.5)
    assert pearson_correlation(x, x * 5e307) == pytest.approx(1.0)
    assert pearson_correlation(x[:1], x[:1]) is None


def test_figures_of_devices_worked_by_hand(tmp_path: Path) -> None:
    rows = [(10.0, 100.0), (20.0, 50.0), (10.0, 100.0), (30.0, 10.0)]
    data = {i: {"computation": a, "communication": b} for i, (a, b) in enumerate(rows, start=1)}
    figures = device_figures(devices_of(stored(tmp_path / "d", data)))
    assert figures is not None
    assert figures.duplicates == 1
    assert figures.computation_ms_per_sample.mean == 17.5
    assert figures.communication_kbps.quantiles[0] == 10
    assert figures.spearman == pytest.approx(-1.0)
    a, b = np.array(rows).T
    assert figures.pearson == pytest.approx(np.corrcoef(a, b)[0, 1])


cell = st.sampled_from(
    ["0", "1", "2", "3", "5.5", "7", "1e1", "-1", "", " 2", "nan", "x", "1_0", "+3", "1.", ".",
     "1e", "9" * 20, "4-", "1.2.3", "inf", "1e999"]
)  # fmt: skip
good = st.sampled_from(["0", "1", "2", "4", "6.5", "8e0", "10"])
line = st.one_of(
    st.lists(good, min_size=3, max_size=3),
    st.just(["", "", "10"]),
    st.lists(cell, min_size=2, max_size=4),
)


@given(st.lists(st.tuples(st.integers(0, 1), line), max_size=8), st.booleans())
@settings(max_examples=120, deadline=None)
def test_a_block_at_once_says_what_cell_by_cell_says(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[int, list[str]]], newline: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "property.csv"
    client, text = 0, []
    for step, cells in lines:
        client += step
        text.append(",".join([str(client), *cells]))
    path.write_text(HEADER + "\n".join(text) + "\n" * newline)

    def said() -> Any:
        try:
            checked = sessions_of(path)
        except TraceError as error:
            return str(error)
        s = checked.sessions
        arrays = (checked.rows, s.starts_s, s.ends_s, s.offsets, s.period_s)
        return checked.clients, checked.findings, [array.tolist() for array in arrays]

    at_once = said()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks_module, "_numeric", lambda raw, width: None)
        assert said() == at_once
    # And what the strict reader takes has no finding, and the other way round.
    try:
        strict = read_sessions(path).sessions
    except TraceError:
        assert isinstance(at_once, str) or at_once[1]
    else:
        assert at_once[1] == ()
        assert at_once[2][1:3] == [strict.starts_s.tolist(), strict.ends_s.tolist()]


def test_blocks_meet_in_the_middle_of_a_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [[(float(3 * k), 3.0 * k + 1) for k in range(n)] for n in (5, 1, 7, 3)]
    path = tmp_path / "s.csv"
    lines = [f"{c},{a},{b},100" for c, row in enumerate(rows) for a, b in row]
    lines.insert(9, "")
    path.write_text(HEADER + "\n".join(lines) + "\n3,50,40,100\n")
    monkeypatch.setattr(blocks_module, "BLOCK_BYTES", 24)
    checked = sessions_of(path)
    assert [checked.sessions.row(r) for r in range(3)] == rows[:3]
    assert [f.examples for f in checked.findings] == [
        ("line 19 (client 3, session 3): ends at 40.0 s, before its start at 50.0 s",)
    ]
