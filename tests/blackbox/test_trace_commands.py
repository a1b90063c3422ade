"""``fedclock trace``, and the scenario options that came with it."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commandline import Config, Lab, RunFiles, buffered, fedclock, links, synchronous, timed

from emulator.assembly import World, build_world, fresh_availability
from emulator.errors import ScenarioError
from emulator.scenario import load_scenario
from traces import read_devices, read_sessions

HEADER = "client,start_s,end_s,period_s\n"


def refused(*args: object) -> str:
    """The message of a command that must refuse: one, and no traceback."""
    said = fedclock("trace", *args)
    assert said.exit_code == 2, said
    assert "Traceback" not in said.err
    return said.err


def done(*args: object) -> str:
    said = fedclock("trace", *args)
    assert said.exit_code == 0, said
    return said.out


# --- inspect ------------------------------------------------------------------------------------


def test_inspect_shows_figures_and_all_malformations(lab: Lab) -> None:
    path = lab.folder / "client_behave_trace"
    good = {"active": [0, 7200], "inactive": [3600, 10800], "finish_time": 86400}
    data = {1: good, 2: good | {"active": []}, 3: good | {"active": [0, math.nan]}, 4: "[bold]"}
    path.write_bytes(pickle.dumps(data))
    out = done("inspect", path)
    for text in (
        "availability", "8.33 %", "1 h", "lengths differ", "NaN", "wrong type",
        "client 3 (row 2), session 1: start is", "malformed, not counted below",
    ):  # fmt: skip
        assert text in out
    # Hour 0 and hour 2 are online, hour 1 is not.
    hours = {line.split("│")[1].strip(): line for line in out.splitlines() if "│" in line}
    assert "100.0 %" in hours["0"]
    assert "█" in hours["2"]
    assert "█" not in hours["1"]


def test_inspect_of_a_file_without_a_well_formed_client(lab: Lab) -> None:
    path = lab.folder / "b.pkl"
    path.write_bytes(pickle.dumps({1: {"active": [], "inactive": [], "finish_time": 1}}))
    assert "no session" in done("inspect", path)
    plot = lab.folder / "p.png"
    assert "no well-formed client to plot" in refused("inspect", path, "--plot", plot)
    assert not plot.exists()


@pytest.mark.parametrize(
    ("kind", "suffix", "magic"),
    [
        ("availability", "png", b"\x89PNG"),
        ("devices", "svg", b"<?xml"),
        ("devices", "pdf", b"%PDF"),
    ],
)
def test_plots(lab: Lab, kind: str, suffix: str, magic: bytes) -> None:
    table, plot = lab.folder / "t.csv", lab.folder / f"t.{suffix}"
    done("synthesize", kind, table, "--clients", 30, "--seed", 1)
    assert kind in done("inspect", table, "--kind", kind, "--plot", plot)
    first = plot.read_bytes()
    assert first.startswith(magic)
    if suffix == "svg":
        done("inspect", table, "--plot", plot)
        assert plot.read_bytes() == first


def test_a_plot_of_hardly_anything(lab: Lab) -> None:
    table, plot = lab.folder / "s.csv", lab.folder / "p.png"
    table.write_text(HEADER + "0,,,10\n")
    assert "never online" in done("inspect", table, "--plot", plot)
    devices = lab.folder / "d.csv"
    devices.write_text("client_id,computation_ms_per_sample,communication_kbps\n1,3,3\n")
    assert "undefined" in done("inspect", devices, "--plot", plot)


def test_inspect_refuses_what_it_cannot_do(lab: Lab) -> None:
    table = lab.folder / "s.csv"
    table.write_text("client,start_s,end_s\n0,1,2\n")
    assert "how long is the trace" in refused("inspect", table)
    assert "10 s" in done("inspect", table, "--period", "10 s")
    assert "unknown unit 'days'" in refused("inspect", table, "--period", "1 days")
    assert "greater than 0" in refused("inspect", table, "--period", "0")
    assert "is a trace of availability" in refused("inspect", table, "--kind", "devices")
    assert "ends in .svg, .pdf, .png" in refused("inspect", table, "--plot", "p.jpg")
    assert "No such file" in refused("inspect", lab.folder / "none.csv")
    assert fedclock("trace", "inspect", table, "--kind", "phones").exit_code == 2


# --- convert ------------------------------------------------------------------------------------


def test_convert_there_and_back(lab: Lab) -> None:
    table, pickled, back = (lab.folder / name for name in ("a.csv", "a.pkl", "b.csv.gz"))
    table.write_text(HEADER + "0,0.0,1.5,10.0\n1,2.0,3.0,20.0\n")
    assert "2 clients written, 0 left out" in done("convert", table, pickled)
    done("convert", pickled, back)
    assert "is there already" in refused("convert", pickled, back)
    done("convert", back, table, "--force")
    assert table.read_text() == HEADER + "0,0.0,1.5,10.0\n1,2.0,3.0,20.0\n"


def test_convert_repairs_when_told_and_tells(lab: Lab) -> None:
    source, target = lab.folder / "a.csv", lab.folder / "b.csv"
    source.write_text(HEADER + "0,5,6,10\n0,1,2,10\n1,3,2,10\n")
    assert "--repair" in refused("convert", source, target)
    assert "ends at 2.0 s, before its start" in refused(
        "convert", source, target, "--repair", "mend"
    )
    out = done("convert", source, target, "--repair", "drop")
    assert "unsorted: 1 in 1 clients; first: line 3 (client 0, session 1)" in out
    assert "1 clients written, 1 left out" in out
    assert "unknown suffix" in refused("convert", source, lab.folder / "c.parquet")


# --- synthesize ---------------------------------------------------------------------------------


def _phones(clients: int) -> Config:
    config = timed(clients, 1, synchronous(4, over_commitment=1.25), stop={"versions": 12})
    config["seed"] = 31
    config["system"] |= {
        "devices": {"kind": "phones"},
        "availability": {"kind": "phones", "days": 3, "duty": 0.3},
        "network": links(down="devices", up="devices"),
    }
    return config


def _updates(run: RunFiles) -> list[str]:
    return run.lines("updates.csv")


def test_a_scenario_stays_what_it_was_on_the_frozen_traces(lab: Lab) -> None:
    config = _phones(50)
    drawn = _updates(lab.run(config, out="drawn"))
    devices, sessions = lab.folder / "d.csv", lab.folder / "s.csv.gz"
    done("synthesize", "devices", devices, "--clients", 50, "--seed", 31)
    done(
        "synthesize", "availability", sessions, "--clients", 50, "--seed", 31, "--days", 3,
        "--duty", 0.3,
    )  # fmt: skip
    config["system"]["devices"] = {"kind": "fedscale", "path": str(devices)}
    config["system"]["availability"] = {
        "kind": "fedscale", "path": str(sessions), "at_end": "wrap",
    }  # fmt: skip
    assert len(drawn) > 12
    assert _updates(lab.run(config, out="frozen")) == drawn


def test_a_renewal_process_is_that_of_the_scenario(lab: Lab) -> None:
    on, off = "{dist: exponential, mean: 10 min}", "{dist: lognormal, median: 1 h, sigma: 1}"
    table = lab.folder / "r.csv"
    done(
        "synthesize", "availability", table, "--kind", "renewal", "--clients", 20, "--seed", 5,
        "--on", on, "--off", off, "--horizon", "2 d",
    )  # fmt: skip
    config = timed(20, 1, synchronous(2))
    config["seed"] = 5
    config["system"]["availability"] = {
        "kind": "renewal",
        "on": {"dist": "exponential", "mean": "10 min"},
        "off": {"dist": "lognormal", "median": "1 h", "sigma": 1.0},
        "horizon": "2 d",
        "at_end": "wrap",
    }
    world = _world(lab, config)
    frozen = read_sessions(table).sessions
    drawn = world.availability.sessions  # type: ignore[attr-defined]
    assert np.array_equal(frozen.starts_s, drawn.starts_s)
    assert np.array_equal(frozen.ends_s, drawn.ends_s)
    assert np.array_equal(frozen.offsets, drawn.offsets)


def test_one_seed_one_file(lab: Lab) -> None:
    one, two, other = (lab.folder / f"{name}.csv.gz" for name in ("one", "two", "other"))
    for path, seed in ((one, 3), (two, 3), (other, 4)):
        done("synthesize", "availability", path, "--clients", 9, "--seed", seed)
    assert one.read_bytes() == two.read_bytes()
    assert one.read_bytes() != other.read_bytes()
    assert "is there already" in refused(
        "synthesize", "availability", one, "--clients", 9, "--seed", 3
    )
    # The first of more clients are the same ones.
    more = lab.folder / "more.csv"
    done("synthesize", "devices", other, "--clients", 9, "--seed", 3, "--force")
    done("synthesize", "devices", more, "--clients", 12, "--seed", 3)
    assert np.array_equal(
        read_devices(more).communication_kbps[:9], read_devices(other).communication_kbps
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("availability", "--days", 0), "--days: Input should be greater than or equal to 1"),
        (("availability", "--duty", 1.5), "--duty: Input should be less than"),
        (("availability", "--on", "{dist: x}"), "--on: goes with another --kind than phones"),
        (("availability", "--kind", "renewal"), "--horizon: Field required"),
        (("availability", "--kind", "renewal", "--horizon", "[1"), "--horizon"),
        (("devices", "--days", 3), "--days: goes with availability"),
        (("devices", "--kind", "renewal"), "--kind renewal: goes with availability"),
    ],
)
def test_synthesize_refuses(lab: Lab, args: tuple[object, ...], message: str) -> None:
    target = lab.folder / "t.csv"
    what, *options = args
    assert message in refused("synthesize", what, target, "--clients", 3, "--seed", 1, *options)
    assert not target.exists()


@pytest.mark.parametrize("command", ["inspect", "convert", "synthesize"])
def test_help_has_an_example(command: str) -> None:
    assert f"Example: fedclock trace {command} " in done(command, "--help")


# --- FedScale's cursor --------------------------------------------------------------------------

ACTIVE = [12788, 100044, 188992, 271372, 276663, 352625, 356267, 441193]
INACTIVE = [65881, 133574, 208292, 276575, 295006, 356236, 400906, 475099]


def _world(lab: Lab, config: Config, samples: list[int] | None = None) -> World:
    scenario, _ = load_scenario(lab.write(config))
    return build_world(scenario, np.array(samples or [10] * config["task"]["clients"]))


def _with_cursor(
    path: Path, clients: int, training: Any, pacing: Config, cursor: str = "fedscale"
) -> Config:
    config = timed(clients, training, pacing, stop={"versions": 2})
    config["system"]["availability"] = {
        "kind": "fedscale", "path": str(path), "at_end": "wrap", "cursor": cursor,
    }  # fmt: skip
    return config


def test_golden_answers_through_the_option(lab: Lab) -> None:
    path = lab.folder / "behaviour.pkl"
    entry = {"active": ACTIVE, "inactive": INACTIVE, "finish_time": 518400}
    path.write_bytes(pickle.dumps({3834: entry}))
    for cursor, expected in (
        ("fedscale", [True, False, False]),
        ("stateless", [True, False, True]),
    ):
        world = _world(lab, _with_cursor(path, 1, 5, synchronous(1), cursor))
        for _ in range(2):  # each simulation starts anew
            availability = fresh_availability(world)
            answers = [bool(availability.online_mask(t)[0]) for t in (60e3, 67e3, 60e3)]
            assert answers == expected


def _tasks(run: RunFiles) -> list[tuple[str, float, str]]:
    rows = run.table("updates")
    return sorted((row["client"], float(row["dispatched_s"]), row["outcome"]) for row in rows)


def test_a_phone_that_leaves_and_returns_counts_as_there(lab: Lab) -> None:
    # Online in [0, 10] and [20, 30] of each 100 s; a task takes 22 s.
    path = lab.folder / "s.csv"
    path.write_text(HEADER + "0,0,10,100\n0,20,30,100\n")
    run = lab.run(_with_cursor(path, 1, 22, synchronous(1)))
    # Done at 22 s, when it is back; the next one would be done at 44 s, when it is away.
    assert _tasks(run)[:2] == [("0", 0.0, "reported"), ("0", 22.0, "dropped_training")]
    (end,) = [event for event in run.of("end") if event["t"] < 50]
    assert end["t"] == math.nextafter(44.0, 0.0)
    plain = lab.run(_with_cursor(path, 1, 22, synchronous(1), "stateless") | {
        "stop": {"sim_time": 15}}, out="plain")  # fmt: skip
    assert [event["t"] for event in plain.of("end")] == [10.0]


def test_a_look_ahead_leaves_the_cursor_behind(lab: Lab) -> None:
    # Client 0, online until 50 s, would be done at 55 s: the cursor moves on to [60, 70]. The
    # round ends with client 1 at 10 s; client 0 is free and online, but FedScale does not find it.
    path = lab.folder / "s.csv"
    path.write_text(HEADER + "0,0,50,100\n0,60,70,100\n1,0,100,100\n")
    pacing = synchronous(1, over_commitment=2.0, too_few="proceed")
    asked = {}
    for cursor in ("fedscale", "stateless"):
        run = lab.run(_with_cursor(path, 2, [55, 10], pacing, cursor), out=cursor)
        asked[cursor] = [event["asked"] for event in run.of("round")][:2]
        assert run.resolved["system"]["availability"]["cursor"] == cursor
    assert asked == {"fedscale": [2, 1], "stateless": [2, 2]}


def test_a_run_waits_while_no_cursor_finds_anyone(lab: Lab) -> None:
    # At 22 s and 44 s as above; from 44 s on it waits for starts of sessions: 100 s, where the
    # cursor stands at [20, 30] still, and 120 s, where it is right.
    path = lab.folder / "s.csv"
    path.write_text(HEADER + "0,0,10,100\n0,20,30,100\n")
    config = _with_cursor(path, 1, 22, synchronous(1))
    config["stop"] = {"sim_time": 150}
    run, again = lab.run(config, out="one"), lab.run(config, out="two")
    assert [t for _, t, _ in _tasks(run)] == [0.0, 22.0, 120.0]
    assert run.manifest["events_sha256"] == again.manifest["events_sha256"]
    assert not [e for e in run.of("dispatch") if e["t"] == 100.0]


def test_the_cursor_goes_with_fedscales_rounds_only(lab: Lab) -> None:
    path = lab.folder / "s.csv"
    path.write_text(HEADER + "0,0,50,100\n")
    config = _with_cursor(path, 1, 5, buffered(1, 1))
    config["system"] |= {"on_offline": "pause", "network": links(
        down="1 MB/s", up="1 MB/s", server="1 MB/s")}  # fmt: skip
    config["system"]["availability"]["at_end"] = "hold"
    said = fedclock("validate", lab.write(config))
    assert said.exit_code == 2
    for reason in (
        "at_end must be wrap", "on_offline must be drop", "leave system.network.server out",
        "goes with synchronous pacing",
    ):  # fmt: skip
        assert reason in said.err
    config = _with_cursor(path, 1, 5, synchronous(1), "compat")
    assert "stateless" in fedclock("validate", lab.write(config)).err


# --- data and devices ---------------------------------------------------------------------------


def _correlated(clients: int, correlation: Config | None) -> Config:
    config = timed(clients, 1, synchronous(1))
    config["system"]["devices"] = {"kind": "phones"}
    if correlation is not None:
        config["system"]["devices"]["data_correlation"] = correlation
    return config


def test_devices_go_with_data_as_far_as_is_said(lab: Lab) -> None:
    n = 2000
    samples = np.random.default_rng(4).integers(1, 1000, n).tolist()
    plain = _world(lab, _correlated(n, None), samples)
    assert plain.table is not None
    speeds = {}
    for rho in (-1.0, -0.5, 0.0, 0.5):
        world = _world(lab, _correlated(n, {"kind": "rank", "rho": rho}), samples)
        (note,) = world.notes
        assert world.table is not None
        speed = 1 / world.table.computation_ms_per_sample
        # Who has which device changes, and a device keeps its bandwidth.
        pairs = [
            sorted(zip(t.computation_ms_per_sample, t.communication_kbps, strict=True))
            for t in (world.table, plain.table)
        ]
        assert pairs[0] == pairs[1]
        ranks = [np.argsort(np.argsort(x, kind="stable")) for x in (samples, speed)]
        achieved = np.corrcoef(*ranks)[0, 1]
        assert achieved == pytest.approx(rho, abs=0.06)
        told = float(note.split(" is ")[1].split(" ")[0])
        assert told == pytest.approx(achieved, abs=0.01)  # ties are ranked in another way here
        assert f"(rho: {rho})" in note
        speeds[rho] = speed
    by_samples = speeds[-1.0][np.argsort(samples, kind="stable")]
    ordered = np.sort(samples)
    for size in (ordered[100], ordered[1500]):
        assert by_samples[ordered < size].min() >= by_samples[ordered > size].max()
    assert np.array_equal(speeds[0.0], 1 / plain.table.computation_ms_per_sample)
    independent = _world(lab, _correlated(n, {"kind": "independent"}), samples)
    assert independent.notes == []
    assert independent.table is not None
    assert np.array_equal(independent.table.communication_kbps, plain.table.communication_kbps)


def test_no_correlation_with_a_constant(lab: Lab) -> None:
    with pytest.raises(ScenarioError, match="all clients hold 10 samples"):
        _world(lab, _correlated(5, {"kind": "rank", "rho": 0.5}))
    said = lab.failed_run(_correlated(5, {"kind": "rank", "rho": 0.5}))
    assert "system.devices.data_correlation" in said
    said = lab.failed_run(_correlated(5, {"kind": "rank", "rho": 1.5}))
    assert "rho" in said
