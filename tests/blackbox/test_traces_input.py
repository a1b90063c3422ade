"""Traces and devices that come from outside: what is refused, and how a trace ends."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from commandline import Config, Lab, RunFiles, buffered, fedclock, links, synchronous, timed

HEADER = "client,start_s,end_s,period_s\n"


def _with_sessions(path: Path, clients: int = 2, **options: Any) -> Config:
    config = timed(clients, 3, buffered(1, 1), stop={"versions": 1})
    config["system"]["availability"] = {
        "kind": "fedscale",
        "path": str(path),
        "at_end": "wrap",
        **options,
    }
    return config


@pytest.mark.parametrize(
    ("rows", "place", "reason"),
    [
        ("", "", "holds no session"),
        ("0,0,10,99\n1,0,10,99\n1,5,20,99\n", "line 4 (client 1, session 1)", "merge"),
        ("0,0,10,99\n1,50,60,99\n1,5,20,99\n", "line 4 (client 1, session 1)", "sort"),
        ("0,0,10,99\n1,nan,20,99\n", "line 3, column start_s", "'nan' must be a number >= 0"),
        ("0,0,10,99\n1,-5,20,99\n", "line 3, column start_s", "'-5' must be a number >= 0"),
        ("0,0,10,99\n1,5,,99\n", "line 3, column end_s", "'' is not a number"),
        ("0,0,10,99\n1,20,5,99\n", "line 3 (client 1, session 0)", "before its start"),
        ("0,0,10,99\n1,5,5,99\n", "line 3 (client 1, session 0)", "zero length"),
        ("0,0,10,99\n1,5,200,99\n", "line 3 (client 1, session 0)", "beyond the trace length"),
        ("0,0,10,99\n2,5,20,99\n", "line 3, column client", "2 follows 0"),
        ("0,0,10,inf\n1,5,20,inf\n", "line 2, column period_s", "inf"),
    ],
)
def test_a_malformed_table_of_sessions_is_refused(
    lab: Lab, rows: str, place: str, reason: str
) -> None:
    table = lab.folder / "sessions.csv"
    table.write_text(HEADER + rows)
    said = lab.failed_run(_with_sessions(table))
    assert (f"{table}, {place}" if place else str(table)) in said
    assert reason in said


def _behaviour(**fields: Any) -> Config:
    return {"active": [0, 50], "inactive": [10, 60], "finish_time": 99, **fields}


@pytest.mark.parametrize(
    ("trace", "place", "reason"),
    [
        ({}, "", "holds no client"),
        ({0: _behaviour(), 1: _behaviour(inactive=[10])}, "client 1 (row 1)", "a start and an end"),
        ({0: _behaviour(), 1: _behaviour(active=[], inactive=[])}, "client 1 (row 1)", "empty"),
        ({0: _behaviour(), 1: _behaviour(active=[0, float("nan")])}, "client 1 (row 1)", "NaN"),
        ({0: _behaviour(), 1: _behaviour(active=[-1, 50])}, "client 1 (row 1)", "negative"),
        ({0: _behaviour(), 1: _behaviour(finish_time=0)}, "finish_time", "finite and > 0"),
    ],
)
def test_a_malformed_pickle_of_sessions_is_refused(
    lab: Lab, trace: Config, place: str, reason: str
) -> None:
    path = lab.folder / "behaviour.pkl"
    path.write_bytes(pickle.dumps(trace))
    said = lab.failed_run(_with_sessions(path))
    assert str(path) in said
    assert place in said
    assert reason in said


class _Calls:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("called",)


def test_a_pickle_that_calls_something_is_refused(lab: Lab) -> None:
    path = lab.folder / "behaviour.pkl"
    path.write_bytes(pickle.dumps({0: _behaviour(), 1: _Calls()}))
    said = lab.try_run(_with_sessions(path))
    assert said.exit_code == 2
    assert "builtins.print" in said.err
    assert "called" not in said.out


def test_what_was_mended_in_a_pickle_is_told(lab: Lab) -> None:
    # FedScale's own file has sessions of no length; they, overlaps and disorder are mended.
    path = lab.folder / "behaviour.pkl"
    trace = {0: _behaviour(active=[0, 5, 70], inactive=[10, 20, 70]), 1: _behaviour()}
    path.write_bytes(pickle.dumps(trace))
    config = _with_sessions(path)
    said = lab.try_run(config)
    assert said.exit_code == 0, said
    manifest = (lab.folder / "run" / "manifest.json").read_text()
    told = (said.err + manifest).lower().replace("-", "_").replace(" ", "_")
    assert "overlapping" in told
    assert "zero_length" in told


def test_a_row_of_its_own_for_each_client_or_a_reason(lab: Lab) -> None:
    table = lab.folder / "sessions.csv"
    table.write_text(HEADER + "0,0,90,100\n1,0,90,100\n")
    said = lab.failed_run(_with_sessions(table, clients=3))
    assert "3 clients and 2 rows" in said
    assert "assign: random" in said
    config = _with_sessions(table, clients=3, assign="stratified")
    assert "3 clients and 2 rows" in lab.failed_run(config, out="stratified")
    lab.run(_with_sessions(table, clients=3, assign="random"), out="random")


@pytest.mark.parametrize(
    ("sessions", "reason"),
    [
        ([[[0, 10]], [[0, 10], [5, 20]]], "merge"),
        ([[[0, 10]], [[50, 60], [5, 20]]], "sort"),
        ([[[0, 10]], [[5, 2000]]], "beyond the trace length"),
        ([[[0, 10]], [[20, 5]]], "before its start"),
    ],
)
def test_malformed_sessions_in_the_scenario_are_refused_at_their_place(
    lab: Lab, sessions: list[list[list[float]]], reason: str
) -> None:
    config = timed(2, 3, buffered(1, 1), sessions=sessions, stop={"versions": 1})
    said = lab.failed_run(config)
    assert reason in said
    assert "scenario.yaml" in said
    assert "system.availability.sessions" in said


def test_validate_looks_at_the_sessions_of_the_scenario(lab: Lab) -> None:
    config = timed(2, 3, buffered(1, 1), sessions=[[[0, 10]], [[0, 10], [5, 20]]])
    said = fedclock("validate", lab.write(config))
    assert said.exit_code == 2, said
    assert "merge" in said.err


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        ("[-1, 10]", "0 or more"),
        ("[.nan, 10]", ".nan"),
        ("[0, .inf]", ".inf"),
        ("[0]", "system.availability.sessions.1.0"),
        ("['12', 13]", "unit"),
    ],
)
def test_sessions_that_are_no_times_are_refused_at_their_line(
    lab: Lab, pair: str, reason: str
) -> None:
    sessions = [[[0, 10]], ["PAIR"]]
    path = lab.write(timed(2, 3, buffered(1, 1), sessions=sessions, stop={"versions": 1}))
    before, _, after = path.read_text().partition("PAIR")
    path.write_text(before + pair + after)
    line = before.count("\n") + 1
    said = fedclock("validate", path)
    assert said.exit_code == 2
    assert f"{path}:{line}:" in said.err
    assert reason in said.err


def test_one_list_of_sessions_a_client(lab: Lab) -> None:
    said = lab.failed_run(timed(3, 3, buffered(1, 1), sessions=[[[0, 10]], [[0, 10]]]))
    assert "system.availability.sessions lists 2 clients, the task has 3" in said


# --- the end of a trace -------------------------------------------------------------------------


def _laps(lab: Lab, session: list[float], at_end: str, until_s: float = 33) -> list[float]:
    """When a client of that session in every 10 s makes a version; a task takes 3 s, also when
    the session ends meanwhile."""
    config = timed(
        1,
        3,
        buffered(1, 1),
        sessions=[[session]],
        period_s=10,
        at_end=at_end,
        on_offline="continue",
        stop={"sim_time": until_s},
    )
    said = lab.try_run(config)
    # Where nobody comes any more, the run says so; what it did until then is there all the same.
    assert said.exit_code in (0, 1), said
    assert said.exit_code == 0 or "nothing is left to happen" in said.err
    return RunFiles(lab.folder / "run").times("versions")


@pytest.mark.parametrize(
    ("session", "at_end", "versions_s"),
    [
        # Asked at 0 and 3 s in each lap.
        ([0, 4], "wrap", [3.0, 6.0, 13.0, 16.0, 23.0, 26.0, 33.0]),
        # Offline at the end of the trace, and so for ever.
        ([0, 4], "hold", [3.0, 6.0]),
        ([0, 4], "end", [3.0, 6.0]),
        # From 6 s to the end of each lap: asked at 6 and 9 s.
        ([6, 10], "wrap", [9.0, 12.0, 19.0, 22.0, 29.0, 32.0]),
        # Online at the end of the trace, and so for ever; or gone with it.
        ([6, 10], "hold", [9.0, 12.0, 15.0, 18.0, 21.0, 24.0, 27.0, 30.0, 33.0]),
        ([6, 10], "end", [9.0, 12.0]),
        # The whole lap: one session without an end, or until 10 s, when a task is under way.
        ([0, 10], "wrap", [3.0 * n for n in range(1, 12)]),
        ([0, 10], "end", [3.0, 6.0, 9.0, 12.0]),
    ],
)
def test_what_comes_after_the_end_of_a_trace_is_said(
    lab: Lab, session: list[float], at_end: str, versions_s: list[float]
) -> None:
    assert _laps(lab, session, at_end) == versions_s


def test_a_session_goes_on_across_the_seam_of_two_laps(lab: Lab) -> None:
    # From 8 s to 2 s of the next lap; a task of 3.5 s that begins at 8 s is done at 11.5 s, and
    # the next one is dropped at 12 s. So in each lap of 10 s.
    config = timed(
        1, 3.5, buffered(1, 1), sessions=[[[0, 2], [8, 10]]], period_s=10, stop={"sim_time": 25}
    )
    run = lab.run(config)
    ends = [(row["dispatched_s"], row["outcome"]) for row in run.table("updates")]
    assert ends == [
        ("0.0", "dropped_training"),
        ("8.0", "reported"),
        ("11.5", "dropped_training"),
        ("18.0", "reported"),
        ("21.5", "dropped_training"),
    ]
    assert [event["t"] for event in run.of("end")] == [2.0, 12.0, 22.0]
    assert run.times("versions") == [11.5, 21.5]


# --- devices and links --------------------------------------------------------------------------

DEVICES = "client_id,computation_ms_per_sample,communication_kbps\n"


def _with_devices(path: Path) -> Config:
    config = timed(2, 1, buffered(1, 1), stop={"versions": 4})
    config["system"]["devices"] = {"kind": "fedscale", "path": str(path)}
    config["system"]["network"] = links(down="devices", up="devices")
    return config


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ("1,,500", "computation_ms_per_sample"),
        ("1,0,500", "computation_ms_per_sample"),
        ("1,-3,500", "computation_ms_per_sample"),
        ("1,inf,500", "computation_ms_per_sample"),
        ("1,nan,500", "computation_ms_per_sample"),
        ("1,30,0", "communication_kbps"),
        ("1,30,-1", "communication_kbps"),
        ("1,30,inf", "communication_kbps"),
        ("1,30", "2 values"),
    ],
)
def test_a_device_that_has_no_speed_is_refused(lab: Lab, row: str, column: str) -> None:
    table = lab.folder / "devices.csv"
    table.write_text(f"{DEVICES}0,30,500\n{row}\n")
    said = lab.failed_run(_with_devices(table))
    assert f"{table}, line 3" in said
    assert column in said


@pytest.mark.parametrize(
    ("device", "field"),
    [
        ({"communication": 500.0}, "'computation'"),
        ({"computation": 0.0, "communication": 500.0}, "'computation'"),
        ({"computation": 30.0, "communication": float("inf")}, "'communication'"),
        ({"computation": "30", "communication": 500.0}, "'computation'"),
    ],
)
def test_a_device_of_a_pickle_that_has_no_speed_is_refused(
    lab: Lab, device: Config, field: str
) -> None:
    path = lab.folder / "capacity"
    good = {"computation": 30.0, "communication": 500.0}
    path.write_bytes(pickle.dumps({1: good, 2: device}))
    said = lab.failed_run(_with_devices(path))
    assert f"{path}: client 2 (row 1), field {field}" in said


def test_a_device_trace_gives_times_by_fedscales_formula(lab: Lab) -> None:
    # 1 MB at 500 kbit/s = 62,500 B/s: 16 s each way. Training 3 × 10 samples × 30 ms = 0.9 s.
    table = lab.folder / "devices.csv"
    table.write_text(f"{DEVICES}0,30,500\n1,30,500\n")
    run = lab.run(_with_devices(table))
    task = run.table("updates")[0]
    assert float(task["downloaded_s"]) == 16.0
    assert float(task["trained_s"]) == pytest.approx(16.9, rel=1e-12)
    assert float(task["uploaded_s"]) == pytest.approx(32.9, rel=1e-12)


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("system.devices.training=0", "system.devices.training"),
        ("system.devices.training=[1, 0]", "system.devices.training.1"),
        ("system.devices.training=-1 s", "system.devices.training"),
        ("system.devices.training={dist: uniform, low: 0, high: 2}", "low"),
        ("system.network.client.down=0", "system.network.client.down"),
        ("system.network.client.down=[1 MB/s, 0 Mbps]", "system.network.client.down.1"),
        ("system.network.server={down: 0 Mbps, up: 1 Mbps}", "system.network.server.down"),
        ("system.network.client.latency=-1 ms", "system.network.client.latency"),
    ],
)
def test_no_speed_of_the_scenario_may_be_zero(lab: Lab, override: str, key: str) -> None:
    config = timed(2, 1, buffered(1, 1), network=links(down="1 MB/s", up="1 MB/s"))
    said = fedclock("validate", lab.write(config), "--set", override)
    assert said.exit_code == 2
    assert key in said.err
    assert "not allowed" in said.err or "greater than" in said.err


def test_a_list_of_training_times_has_one_for_each_client(lab: Lab) -> None:
    said = lab.failed_run(timed(3, [1, 2], buffered(1, 1)))
    assert "system.devices.training lists 2 clients, the task has 3" in said


def test_a_task_that_takes_no_time_is_an_error(lab: Lab) -> None:
    # No sample, so no training time on a real device; and no network.
    config = timed(2, 1, synchronous(2), stop={"versions": 1})
    config["task"]["dataset"]["samples_per_client"] = 0
    config["system"]["devices"] = {"kind": "phones"}
    said = lab.failed_run(config, exit_code=1)
    assert "a task of client 0 would take 0.0 s" in said
    assert "every task must move the clock" in said


def test_every_task_of_phones_takes_time(lab: Lab) -> None:
    config = timed(200, 1, buffered(20, 10), stop={"versions": 30})
    config["system"]["devices"] = {
        "kind": "phones",
        "noise": {"dist": "lognormal", "median": 1, "sigma": 2},
    }
    config["system"]["network"] = links(down="devices", up="devices")
    for row in lab.run(config).table("updates"):
        if row["outcome"] == "reported":
            stamps = [float(row[c]) for c in ("dispatched_s", "downloaded_s", "trained_s")]
            assert stamps[0] < stamps[1] < stamps[2] < float(row["uploaded_s"])


def test_a_trace_that_was_mended_can_be_run_by_the_same_command(lab: Lab) -> None:
    table = lab.folder / "sessions.csv"
    table.write_text(HEADER + "0,0,90,100\n1,20,5,100\n")
    lab.failed_run(_with_sessions(table))
    table.write_text(HEADER + "0,0,90,100\n1,5,20,100\n")
    assert lab.run(_with_sessions(table)).times("versions") == [3.0]


def test_a_scenario_that_was_refused_leaves_no_run_behind(lab: Lab) -> None:
    # The fault may lie in the scenario: the mended one is another, and may have the directory.
    table = lab.folder / "sessions.csv"
    table.write_text(HEADER + "0,0,90,100\n1,0,90,100\n")
    lab.failed_run(_with_sessions(table, clients=3))
    manifest = lab.folder / "run" / "manifest.json"
    assert not manifest.exists() or RunFiles(lab.folder / "run").manifest["status"] != "running"
    lab.run(_with_sessions(table, clients=3, assign="random"))
