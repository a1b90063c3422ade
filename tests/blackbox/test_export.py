"""Exports of small runs: every span against the tables, by hand where it is paused or handed on."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from commandline import Config, Lab, RunFiles, buffered, fedclock, links, synchronous, timed
from matplotlib.colors import to_hex
from matplotlib.patches import PathPatch
from pyarrow import parquet

from analysis import client_timeline, perfetto
from analysis.client_timeline import AWAY_GRAY, plot_client_timeline, plot_presence
from analysis.errors import AnalysisError
from analysis.parquet import WHOLE
from analysis.plots import PALETTE
from analysis.run_reader import TEXT_COLUMNS, read_run
from emulator.recording import tables

Trace = list[dict[str, Any]]

NETWORK = links(down="1 MB/s", up="0.5 MB/s")
AWAY = [[[0, 0.5], [10, 13], [20, 24], [60, 110]], [[5, 100]]]
US = 1_000_000


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("export"))


@pytest.fixture(scope="module")
def paused(lab: Lab) -> RunFiles:
    """Two clients of 1 s down, 4 s of training, 2 s up; away in between."""
    stop = {"sim_time": 120}
    return lab.run(
        timed(2, 4, buffered(2, 2), sessions=AWAY, network=NETWORK, on_offline="pause", stop=stop),
        out="paused",
    )


@pytest.fixture(scope="module")
def rounds(lab: Lab) -> RunFiles:
    """Rounds that end at the third upload of four, or after 20 s; one client leaves at 8.5 s."""
    pacing = synchronous(3, over_commitment=1.34, deadline="20 s", too_few="proceed")
    sessions = [[[0, 900]], [[0, 900]], [[0, 900]], [[0, 8.5]]]
    config = timed(
        4, [4, 6, 30, 8], pacing, sessions=sessions, network=NETWORK, stop={"sim_time": 70}
    )
    return lab.run(config, out="rounds")


@pytest.fixture(scope="module")
def chains(lab: Lab) -> RunFiles:
    """Superclients of three whose members hand the model on themselves."""
    config: Config = timed(
        6, [1, 2, 3, 4, 5, 6], synchronous(1, over_commitment=2.0), network=NETWORK,
        stop={"sim_time": 60},
    )  # fmt: skip
    config["federation"]["structure"] = {
        "kind": "superclients", "passes": 2, "hop": "p2p", "absent": {"kind": "wait"},
        "grouping": {"kind": "random", "min_samples": 30, "max_clients": 3},
    }  # fmt: skip
    return lab.run(config, out="chains")


def exported(run: RunFiles, name: str = "trace.json") -> Trace:
    said = fedclock("export", run.path, "--to", "perfetto", "--out", run.path / name)
    assert said.exit_code == 0, said
    whole = json.loads((run.path / name).read_text())
    assert whole["displayTimeUnit"] == "ms"
    assert set(whole["otherData"]) >= {"run", "seed", "events_sha256", "notes"}
    events: Trace = whole["traceEvents"]
    return events


def spans(trace: Trace, category: str = "phase") -> Trace:
    return [event for event in trace if event["ph"] == "X" and event["cat"] == category]


def check_format(trace: Trace) -> None:
    """The fields that each type of event must have, and time that goes forward on each track."""
    needed = {
        "X": {"ts", "dur", "cat"}, "i": {"ts", "s"}, "C": {"ts", "args"}, "M": {"args"},
        "s": {"ts", "id", "cat"}, "f": {"ts", "id", "cat", "bp"},
    }  # fmt: skip
    last: dict[tuple[int, int], int] = defaultdict(int)
    stacks: dict[tuple[int, int], list[int]] = defaultdict(list)
    for event in trace:
        assert event.keys() >= {"name", "ph", "pid", "tid"} | needed[event["ph"]], event
        if event["ph"] == "M":
            continue
        track = event["pid"], event["tid"]
        assert isinstance(event["ts"], int)
        assert event["ts"] >= last[track], event
        last[track] = event["ts"]
        if event["ph"] == "X":
            assert event["dur"] >= 0
            stack = stacks[track]
            while stack and stack[-1] <= event["ts"]:
                stack.pop()
            end = event["ts"] + event["dur"]
            assert not stack or end <= stack[-1], f"{event} is neither in nor after another span"
            stack.append(end)
    flows = Counter((event["id"], event["ph"]) for event in trace if event["ph"] in "sf")
    assert set(flows.values()) <= {1}
    assert {n for n, ph in flows if ph == "s"} == {n for n, ph in flows if ph == "f"}


def check_sums(run: RunFiles, trace: Trace) -> None:
    """The phases of each task add up to its row of updates.csv, to the microsecond."""
    by_task: dict[int, dict[str, int]] = defaultdict(dict)
    for span in spans(trace):
        assert span["name"] not in by_task[span["args"]["task"]]
        by_task[span["args"]["task"]][span["name"]] = span["dur"]
    task_of: dict[tuple[str, float], list[int]] = defaultdict(list)
    for event in run.of("dispatch"):
        task_of[event["entity"], event["t"]].append(event["task"])
    rows = run.table("updates")
    assert rows
    for row in rows:
        dispatched_s = float(row["dispatched_s"])
        (task,) = task_of[f"client/{row['client']}", dispatched_s]
        took = by_task[task]
        at = round(US * dispatched_s)
        for name, phases in (
            ("downloaded_s", ("queued", "download")),
            ("trained_s", ("train",)),
            ("uploaded_s", ("hold model", "upload")),
        ):
            if row[name]:
                reached = round(US * float(row[name]))
                assert sum(took.get(phase, 0) for phase in phases) == reached - at, (row, took)
                at = reached
        if row["outcome"] not in ("reported", "in_flight") and "pause" not in run.path.name:
            work = ("download", "train", "upload")
            assert sum(took.get(phase, 0) for phase in work) == pytest.approx(
                US * float(row["wasted_s"]), abs=2
            )


@pytest.mark.parametrize("name", ["paused", "rounds", "chains"])
def test_a_trace_is_well_formed_and_adds_up(name: str, request: pytest.FixtureRequest) -> None:
    run: RunFiles = request.getfixturevalue(name)
    trace = exported(run)
    check_format(trace)
    check_sums(run, trace)
    assert [e["args"]["name"] for e in trace if e["name"] == "process_name"] == [
        "scripted: server and clients"
    ]
    versions = [e["ts"] for e in trace if e["name"] == "aggregation"]
    assert versions == [round(US * t) for t in run.times("versions")]


def test_a_pause_is_inside_its_phase(paused: RunFiles) -> None:
    trace = exported(paused)
    threads = {e["args"]["name"]: e["tid"] for e in trace if e["name"] == "thread_name"}
    first = [
        (e["name"], e["ts"] / US, e["dur"] / US)
        for e in trace
        if e["ph"] == "X" and e["tid"] == threads["client 0"] and e["ts"] < 24 * US
    ]
    assert first == [
        ("download", 0.0, 10.5),
        ("offline, paused", 0.5, 9.5),
        ("train", 10.5, 11.0),
        ("offline, paused", 13.0, 7.0),
        ("upload", 21.5, 2.0),
        ("wait", 23.5, 2.5),
    ]
    waits = {(e["ts"] + e["dur"]) / US for e in spans(trace) if e["name"] == "wait"}
    assert waits <= set(paused.times("versions"))  # what no version has taken waits for none
    online = [(e["ts"], e["args"]["online"]) for e in trace if e["name"].startswith("clients onl")]
    assert len(online) == 201
    assert (online[0], online[50], online[-1]) == ((0, 1), (30 * US, 1), (120 * US, 0))


def test_deadlines_drops_and_tasks_in_flight(rounds: RunFiles) -> None:
    trace = exported(rounds)
    instants = [(e["name"], e["ts"] / US) for e in trace if e["ph"] == "i"]
    # Two have uploaded at 9 s, and one of the others has gone: the round waits for its time.
    assert ("dropped in training", 8.5) in instants
    assert ("late", 20.0) in instants
    assert [at for name, at in instants if name == "deadline"] == [20.0, 40.0, 60.0]
    flight = {e["ts"] / US: e["args"]["tasks"] for e in trace if e["name"] == "tasks in flight"}
    assert [flight[at] for at in (0.0, 7.0, 8.5, 9.0, 20.0)] == [4, 3, 2, 1, 3]
    assert sum(e["ph"] == "s" for e in trace) == len(rounds.of("dispatch"))


def test_a_model_goes_from_client_to_client(chains: RunFiles) -> None:
    trace = exported(chains)
    hops = [e for e in trace if e["ph"] == "f" and e["name"] == "from client to client"]
    from_clients = [e for e in chains.of("dispatch") if e["source"] != "server"]
    came = [row for row in chains.table("updates")
            if row["source"] not in ("", row["client"]) and row["downloaded_s"]]  # fmt: skip
    assert len(hops) == len(came) > 4
    assert [e["ts"] for e in hops if e["id"] == from_clients[0]["task"]] == [
        round(US * from_clients[0]["t"])
    ]


def test_too_many_clients_are_sampled_and_it_says_so(
    rounds: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perfetto, "MOST_CLIENTS", 2)
    said = fedclock("export", rounds.path, "--to", "perfetto", "--out", rounds.path / "few.json")
    words = "only 2 of the 4 clients that took part are shown"
    assert words in said.err
    few = json.loads((rounds.path / "few.json").read_text())
    assert words in few["otherData"]["notes"]
    names = [e["args"]["name"] for e in few["traceEvents"] if e["name"] == "thread_name"]
    assert names == ["server", "client 0", "client 2"]
    check_format(few["traceEvents"])
    monkeypatch.setattr(perfetto, "MOST_EVENTS", 1)
    assert perfetto.export_perfetto(read_run(rounds.path), rounds.path / "1.json").clients == 1


def test_parquet_round_trips(chains: RunFiles) -> None:
    said = fedclock("export", chains.path, "--to", "parquet")
    assert said.exit_code == 0, said
    folder = chains.path / "parquet"
    assert {path.stem for path in folder.iterdir()} == {
        "versions", "updates", "metrics", "clients", "superclients", "chains", "online",
        "sessions", "events",
    }  # fmt: skip
    for path in folder.iterdir():
        if path.stem == "events":
            continue
        table = parquet.read_table(path)
        as_text = [
            {name: "" if value is None else str(value) for name, value in row.items()}
            for row in table.to_pylist()
        ]
        assert as_text == chains.table(path.stem), path
    updates = parquet.read_schema(folder / "updates.parquet")
    types = [updates.field(name).type for name in ("client", "trained_s", "outcome", "cohort")]
    assert types == [pyarrow.int64(), pyarrow.float64(), pyarrow.string(), pyarrow.string()]
    events = parquet.read_table(folder / "events.parquet").to_pylist()
    together = [{k: e[k] for k in ("t", "type", "entity")} | json.loads(e["fields"])
                for e in events]  # fmt: skip
    assert together == chains.events


def test_every_column_has_a_type() -> None:
    named = {
        column
        for value in vars(tables).values()
        if isinstance(value, tuple) and all(isinstance(name, str) for name in value)
        for column in value
    }
    shares = {
        "staleness_mean", "value", "accuracy", "balance_ratio", "intra_distance", "inter_distance",
        "cosine", "divergence", "reward", "margin", "spread", "spread_of_sides", "loss",
        "correlation", "agreement",
    }  # fmt: skip
    left = named - TEXT_COLUMNS - WHOLE - shares
    assert {name for name in left if not name.endswith("_s")} == set()


def test_what_cannot_be_exported(
    paused: RunFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*args: object) -> str:
        said = fedclock("export", *args)
        assert said.exit_code == 2, said
        return said.err

    assert "does not exist" in refused(tmp_path / "none", "--to", "perfetto")
    assert "'perfetto', 'parquet'" in refused(paused.path, "--to", "csv")
    said = refused(paused.path, "--to", "perfetto", "--out", tmp_path / "no" / "x.json")
    assert "no/x.json: cannot be written (there is no folder" in said
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'fedclock[parquet]'" in refused(paused.path, "--to", "parquet")


def test_a_damaged_log_names_its_line(paused: RunFiles, tmp_path: Path) -> None:
    for file in paused.path.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    log = tmp_path / "events.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    for broken, told in (
        ([lines[0], "[1, 2]\n", *lines[1:]], "events.jsonl, line 2: is no event"),
        (lines[:1], "updates.csv, line 2: client 1, dispatched at 5.0 s"),
        ([lines[0], lines[1].replace("client/0", "client")], "a damaged event"),
    ):
        log.write_text("".join(broken))
        said = fedclock("export", tmp_path, "--to", "perfetto")
        assert said.exit_code == 2
        assert told in said.err


def test_a_timeline_shows_phases_pauses_and_absences(paused: RunFiles) -> None:
    axes = plot_client_timeline(read_run(paused.path), to_s=26.0)
    assert axes.get_xlim() == (0.0, 26.0)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1"]
    drawn = {
        to_hex(patch.get_facecolor()): [
            (float(low[1] + high[1]) / 2, float(low[0]), float(high[0]))
            for low, high in zip(patch.get_path().vertices[::5], patch.get_path().vertices[2::5],
                                 strict=True)
        ]
        for patch in axes.patches
        if isinstance(patch, PathPatch)
    }  # fmt: skip
    offline = [(0, 0.5, 10), (0, 13, 20), (0, 24, 26), (1, 0, 5)]
    assert drawn[to_hex(AWAY_GRAY)] == offline
    trained = [(0, 10.5, 21.5), (1, 6, 10), (1, 13, 17), (1, 20, 24)]
    assert sorted(drawn[to_hex(PALETTE[0])]) == trained
    stood_still = [(0, 0.5, 10), (0, 13, 20), (0, 24, 60)]
    assert sorted(drawn["#ffffff"]) == stood_still
    assert "the first 26 s" in axes.get_title(loc="left")


def test_a_timeline_samples_clients_and_marks_losses(
    rounds: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = read_run(rounds.path)
    axes = plot_client_timeline(run, clients=2)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "3"]
    assert "2 of 4" in axes.get_title(loc="left")
    (lost,) = axes.lines
    assert lost.get_xydata().tolist() == [[8.5, 1.0]]  # client 3 left then
    monkeypatch.setattr(client_timeline, "MOST_BARS", 6)
    assert plot_client_timeline(run).get_xlim()[1] < 70
    with pytest.raises(AnalysisError, match="nobody took part from 900"):
        plot_client_timeline(run, from_s=900.0, to_s=901.0)


def test_who_is_online_and_at_work(rounds: RunFiles) -> None:
    axes = plot_presence(read_run(rounds.path))
    at_work, online = axes.lines
    # A step of the figure is 0.175 s.
    assert at_work.get_ydata()[[0, 45, 60]].tolist() == [4.0, 3.0, 1.0]
    assert dict(online.get_xydata()[[0, 20, 100, 200]].tolist()) == {
        0.0: 4.0, 7.0: 4.0, 35.0: 3.0, 70.0: 3.0,
    }  # fmt: skip
