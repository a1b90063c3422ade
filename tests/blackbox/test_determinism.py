"""The same scenario gives the same bits, and what is added for one client changes no other."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from commandline import Config, Lab, RunFiles, buffered, digits, synchronous, timed

COMPARED = (
    "events.jsonl",
    "versions.csv",
    "updates.csv",
    "metrics.csv",
    "clients.csv",
    "online.csv",
    "sessions.csv",
    "model.safetensors",
)


def _same(one: RunFiles, two: RunFiles, names: tuple[str, ...] = COMPARED) -> None:
    for name in names:
        assert (one.path / name).read_bytes() == (two.path / name).read_bytes(), name


def _asynchronous(versions: int = 6) -> Config:
    """Learning under dropouts, noise and failures."""
    config = digits(30, buffered(8, 4), versions=versions)
    config["task"]["partition"] = {"kind": "dirichlet", "alpha": 0.5}
    config["system"] = {
        "devices": {"kind": "phones", "noise": {"dist": "lognormal", "median": 1, "sigma": 0.3}},
        "availability": {"kind": "phones", "duty": 0.4},
        "network": {
            "client": {"down": "devices", "up": "devices", "latency": "55 ms"},
            "server": {"down": "100 kbps", "up": "100 kbps"},
        },
        "task_failure": 0.3,
    }
    config["federation"]["objective"] = {"kind": "scaffold"}
    return config


def test_the_same_scenario_twice(lab: Lab) -> None:
    one, two = (lab.run(_asynchronous(), out=out) for out in ("one", "two"))
    assert len(set(one.column("updates", "outcome"))) >= 3
    assert one.manifest["events_sha256"] == two.manifest["events_sha256"]
    _same(one, two)


def test_another_seed_is_another_run(lab: Lab) -> None:
    one = lab.run(_asynchronous(2), "--timing-only", out="one")
    other = lab.run(_asynchronous(2), "--timing-only", "--seed", 2, out="other")
    assert one.times("versions") != other.times("versions")


def test_any_number_of_workers(lab: Lab) -> None:
    config = _asynchronous()
    config["execution"] = {"executor": "processes"}
    one = lab.run(config, "--workers", 1, out="one")
    two = lab.run(config, "--workers", 2, out="two")
    _same(one, two)
    outcomes = one.column("updates", "outcome")
    assert len(one.of("dispatch")) == len(outcomes)
    assert "dropped_training" in outcomes


def test_timing_only_has_the_times_of_the_full_run(lab: Lab) -> None:
    full = lab.run(_asynchronous(), out="full")
    timing = lab.run(_asynchronous(), "--timing-only", out="timing")
    _same(full, timing, ("versions.csv", "updates.csv", "clients.csv", "events.jsonl"))
    assert timing.table("metrics") == []
    assert not (timing.path / "model.safetensors").exists()


# --- nobody else's draws ------------------------------------------------------------------------


def _many_draws(clients: int, pacing: Config, **system: Any) -> Config:
    """Everything that is drawn: devices, links, noise, failures, selection; no data."""
    config = timed(clients, 1, pacing, stop={"versions": 30}, task_failure=0.1, **system)
    config["system"]["devices"] = {
        "kind": "phones",
        "noise": {"dist": "lognormal", "median": 1, "sigma": 0.5},
    }
    config["system"]["network"] = {
        "client": {
            "down": {"dist": "lognormal", "median": "20 Mbps", "sigma": 1},
            "up": {"dist": "uniform", "low": "1 Mbps", "high": "9 Mbps"},
            "latency": "55 ms",
        },
        "server": {"down": "100 Mbps", "up": "20 Mbps"},
    }
    return config


def _sessions(clients: int, absent: int) -> Config:
    """Scripted sessions for some, and none for the rest."""
    rows: list[list[list[float]]] = [[[30.0 * (c % 3), 50_000.0 + c]] for c in range(clients)]
    return {
        "kind": "scripted",
        "sessions": rows + [[] for _ in range(absent)],
        "period": 100_000,
        "at_end": "wrap",
    }


@pytest.mark.parametrize(
    "pacing", [buffered(10, 5), synchronous(8, over_commitment=1.25, deadline="5 min")]
)
def test_one_more_client_that_never_comes_changes_nothing(lab: Lab, pacing: Config) -> None:
    with_50 = _many_draws(50, pacing)
    with_50["system"]["availability"] = _sessions(50, absent=0)
    with_51 = _many_draws(51, pacing)
    with_51["system"]["availability"] = _sessions(50, absent=1)
    one, two = lab.run(with_50, out="50"), lab.run(with_51, out="51")
    assert len(one.table("updates")) > 100
    _same(one, two, ("updates.csv", "versions.csv"))
    assert two.lines("clients.csv")[:-1] == one.lines("clients.csv")
    assert two.lines("clients.csv")[-1] == "50,0,0,,0.0,0.0,0"


def test_one_more_client_without_data_changes_no_batch(lab: Lab) -> None:
    # The 20 holders keep their data; the new client is never there.
    def config(clients: int) -> Config:
        made = digits(clients, synchronous(5), versions=4)
        made["task"]["partition"] = {"kind": "dirichlet", "alpha": 0.5, "holders": 20}
        made["system"]["availability"] = _sessions(20, absent=clients - 20)
        return made

    one, two = lab.run(config(20), out="20"), lab.run(config(21), out="21")
    _same(one, two, ("metrics.csv", "updates.csv", "versions.csv", "model.safetensors"))


def test_more_measurements_change_nothing(lab: Lab) -> None:
    seldom = _asynchronous()
    seldom["evaluation"] = {"every": {"versions": 3}}
    often = _asynchronous()
    often["evaluation"] = {"every": {"sim_time": "5 s"}}
    one, two = lab.run(seldom, out="seldom"), lab.run(often, out="often")
    _same(one, two, ("updates.csv", "versions.csv", "clients.csv", "model.safetensors"))
    assert len(two.table("metrics")) > len(one.table("metrics"))

    def without_evaluations(run: RunFiles) -> list[Config]:
        return [event for event in run.events if event["type"] != "evaluate"]

    assert without_evaluations(one) == without_evaluations(two)
    # A version has one accuracy, whenever it is measured.
    values: dict[tuple[str, str], set[str]] = {}
    for row in one.table("metrics") + two.table("metrics"):
        values.setdefault((row["version"], row["metric"]), set()).add(row["value"])
    assert {len(found) for found in values.values()} == {1}


def test_a_client_that_is_lost_shifts_nobodys_batches(lab: Lab) -> None:
    # Client 9 is asked in both, and lost in one of them: the other nine train as they did.
    def config(client_9_until_s: float) -> Config:
        made = digits(10, synchronous(10, too_few="proceed"), versions=3)
        made["system"]["availability"] = {
            "kind": "scripted",
            "sessions": [[[0, 90_000]] for _ in range(9)] + [[[0, client_9_until_s]]],
            "period": 100_000,
            "at_end": "end",
        }
        # Client 9 holds nothing, so that its report weighs nothing either.
        made["task"]["partition"] = {"kind": "iid", "holders": 9}
        return made

    there, lost = lab.run(config(90_000), out="there"), lab.run(config(4), out="lost")
    assert there.tasks(9)[0]["outcome"] == "reported"
    assert lost.tasks(9)[0]["outcome"] == "dropped_training"
    _same(there, lost, ("metrics.csv", "model.safetensors"))


# --- long runs ----------------------------------------------------------------------------------

LONG = """
import resource, sys
from emulator.cli import main

scenario, folder = sys.argv[1:]

def peak_memory_kB(versions, out):
    sys.argv = ["fedclock", "run", scenario, "--timing-only", "--quiet", "--out",
                f"{folder}/{out}", "--set", f"stop.versions={versions}"]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

print(peak_memory_kB(100, "short"), peak_memory_kB(2000, "long"))
"""


def test_memory_is_flat_over_2000_rounds(lab: Lab) -> None:
    config = timed(
        10_000,
        {"dist": "lognormal", "median": "2 min", "sigma": 1},
        synchronous(10, over_commitment=1.3, deadline="30 min"),
        stop={"sim_time": "1000 d"},
        network={"client": {"down": "35 Mbps", "up": "8 Mbps", "latency": "55 ms"}},
    )
    config["system"]["availability"] = {
        "kind": "renewal",
        "on": {"dist": "exponential", "mean": "8 h"},
        "off": {"dist": "exponential", "mean": "2 h"},
        "horizon": "2 d",
        "at_end": "wrap",
    }
    path = lab.write(config)
    done = subprocess.run(
        [sys.executable, "-c", LONG, str(path), str(lab.folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    short_kB, long_kB = map(int, done.stdout.split())
    run = RunFiles(lab.folder / "long")
    assert len(run.table("versions")) == 2000
    # 24,700 participations more: a kilobyte kept of each would be 25 MB.
    assert len(run.of("dispatch")) == 26_000
    assert long_kB - short_kB < 12_000
