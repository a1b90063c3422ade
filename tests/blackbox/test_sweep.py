"""``fedclock sweep``: killed in the middle and started again, failures, Ctrl-C, what is shared."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commandline import Config, Lab, RunFiles, buffered, digits, fedclock, links, synchronous, timed

SEEDS = 5
HOST_COLUMNS = ("trainings_run", "host_s")
"""What hangs on the host, and on how often a run was begun."""


def table(out: Path) -> list[dict[str, str]]:
    """``sweep.csv`` without what the host adds."""
    with (out / "sweep.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if k not in HOST_COLUMNS} for row in rows]


def noted(out: Path) -> dict[str, Config]:
    """The runs of ``sweep.json`` by directory; none before there is one."""
    try:
        found = json.loads((out / "sweep.json").read_text())
    except FileNotFoundError:
        return {}
    return {run["directory"]: run for run in found["runs"]}


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Time of change and content of every file below, and of the folders the time."""
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b""
        )
        for path in sorted(folder.rglob("*"))
    }  # fmt: skip


def until(condition: Callable[[], Any], what: str) -> None:
    give_up = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < give_up, f"never came: {what}"
        time.sleep(0.03)


def in_state(out: Path, status: str) -> list[str]:
    """Directories of runs whose own manifest has this status."""
    found = []
    for path in out.rglob("manifest.json"):
        if json.loads(path.read_text())["status"] == status:
            found.append(path.parent.relative_to(out).as_posix())
    return found


# --- three scenarios, five seeds, kill -9 -----------------------------------------------------


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep file of three scenarios that learn, with five seeds."""
    lab = Lab(tmp_path_factory.mktemp("sweep"))
    pacings = {"sync": synchronous(4), "fedbuff": buffered(3, 2), "fast": synchronous(4)}
    for name, pacing in pacings.items():
        config = digits(
            8, pacing, versions=6, training=5.0 if name == "fast" else [5.0 + n for n in range(8)]
        )
        config["name"] = name
        config["memo"] = {"checkpoint_every": "0 s"}
        lab.write(config, f"{name}.yaml")
    content = {
        "schema": 1, "scenarios": [f"{name}.yaml" for name in pacings], "seeds": f"1-{SEEDS}",
        "set": {"execution.executor": "inline"},
    }  # fmt: skip
    return lab.write(content, "study.yaml")


@pytest.fixture(scope="module")
def whole(study: Path) -> Path:
    """The folder of a sweep that nobody disturbed."""
    out = study.parent / "whole"
    said = fedclock("sweep", study, "--out", out)
    assert said.exit_code == 0, said
    assert "15 of 15 runs  done" in said.err
    for name in ("sync", "fedbuff", "fast"):
        assert sum(line.startswith(f"{name} ") for line in said.out.splitlines()) == SEEDS
    return out


def test_killed_in_the_middle_and_started_again(study: Path, whole: Path) -> None:
    out = study.parent / "killed"
    command = [sys.executable, "-m", "emulator", "sweep", str(study), "--out", str(out), "--quiet"]
    sweep = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def in_the_middle() -> bool:
        done = [key for key, run in noted(out).items() if run["status"] == "done"]
        return len(done) >= 4 and bool(in_state(out, "running"))

    until(in_the_middle, "a run that is running while four are done")
    sweep.send_signal(signal.SIGKILL)
    sweep.communicate()
    finished = in_state(out, "done")
    assert 4 <= len(finished) < 3 * SEEDS
    before = {key: files(out / key) for key in finished}

    said = fedclock("sweep", study, "--out", out)
    assert said.exit_code == 0, said
    assert " of 15 runs are there already" in said.err
    # A run may have come to its end between the kill and the first look.
    assert all(files(out / key) == found for key, found in before.items())
    assert table(out) == table(whole)
    for row in table(whole):
        for name in ("events.jsonl", "metrics.csv", "model.safetensors"):
            killed, undisturbed = (folder / row["directory"] / name for folder in (out, whole))
            assert killed.read_bytes() == undisturbed.read_bytes()


def test_the_table_holds_what_the_runs_say(whole: Path) -> None:
    rows = table(whole)
    assert [row["seed"] for row in rows] == [str(n) for n in range(1, 6) for _ in range(3)]
    for row in rows:
        run = RunFiles(whole / row["directory"])
        accuracies = [r for r in run.table("metrics") if r["metric"] == "accuracy"]
        assert row["accuracy"] == accuracies[-1]["value"]
        assert row["events_sha256"] == run.manifest["events_sha256"]
        assert float(row["sim_time_s"]) == run.manifest["sim_time_s"]
        reached = [r["sim_time_s"] for r in accuracies if float(r["value"]) >= 0.7]
        assert row["time_to_70_s"] == (reached[0] if reached else "")
        assert (row["status"], row["versions"]) == ("done", "6")
    assert len({row["events_sha256"] for row in rows}) == 15


def test_a_finished_sweep_is_left_alone(study: Path, whole: Path) -> None:
    before = {row["directory"]: files(whole / row["directory"]) for row in table(whole)}
    rows = table(whole)
    # Another seed of one scenario goes beside them; the table tells of what was asked for.
    said = fedclock("sweep", study.parent / "sync.yaml", "--seeds", "4-6", "--out", whole,
                    "--set", "execution.executor=inline", "--quiet")  # fmt: skip
    assert (said.exit_code, said.out, said.err) == (0, "", "")
    assert {key: files(whole / key) for key in before} == before
    assert [row["directory"] for row in table(whole)] == [f"sync/seed-{n}" for n in (4, 5, 6)]
    assert table(whole)[0] in rows


# --- what is shared ---------------------------------------------------------------------------


def test_runs_that_train_the_same_train_once(lab: Lab) -> None:
    # 3 rounds of 4; then 2 rounds more by whoever goes on; twice for another link and nothing.
    config = digits(4, synchronous(4), versions=3)
    config["system"]["network"] = links(down="1 Mbps", up="1 Mbps")
    config["execution"] = {"executor": "inline"}
    said = fedclock(
        "sweep", lab.write(config), "--seeds", "1", "--out", lab.folder / "out",
        "--vary", "system.network.client.up=1 Mbps,100 kbps", "--vary", "stop.versions=5,3",
    )  # fmt: skip
    assert said.exit_code == 0, said
    runs = noted(lab.folder / "out")
    trained = {key.partition("/")[0]: run["trainings_run"] for key, run in runs.items()}
    assert trained == {
        "digits-up-1-Mbps-versions-3": 12, "digits-up-100-kbps-versions-3": 0,
        "digits-up-1-Mbps-versions-5": 8, "digits-up-100-kbps-versions-5": 0,
    }  # fmt: skip
    accuracy = {key: run["accuracy"] for key, run in runs.items()}
    assert len(set(accuracy.values())) == 2
    assert len({run["sim_time_s"] for run in runs.values()}) == 4
    # The same as without any memo.
    alone = lab.run(
        lab.write(config), "--set", "system.network.client.up=100 kbps", "--set", "stop.versions=5",
        "--set", "seed=1", "--set", "name=digits-up-100-kbps-versions-5",
    )  # fmt: skip
    shared = lab.folder / "out" / "digits-up-100-kbps-versions-5" / "seed-1"
    for name in ("events.jsonl", "metrics.csv", "model.safetensors"):
        assert (alone.path / name).read_bytes() == (shared / name).read_bytes()


# --- what fails -------------------------------------------------------------------------------


def swept(lab: Lab, config: Config, *args: object, out: str = "out") -> Any:
    path = lab.write(config)
    return fedclock("sweep", path, "--out", lab.folder / out, "--timing-only", *args)


def test_what_fails_is_listed_and_tried_again_only_when_asked(lab: Lab) -> None:
    # With one session of 5 s there is nothing left to happen then, and the stop is not met.
    config = timed(1, 1, buffered(1, 1), sessions=[[[0, 5]]], at_end="end", stop={"versions": 3})
    more = ("--seeds", "1-2", "--vary", "stop.versions=3,30")
    said = swept(lab, config, *more)
    assert said.exit_code == 1
    assert "fedclock: 2 runs are not done:" in said.err
    assert "  scripted-versions-30/seed-1: failed: nothing is left to happen" in said.err
    assert "--retry-failed tries again" in said.err
    out = lab.folder / "out"
    assert [row["status"] for row in table(out)] == ["done", "failed"] * 2
    assert json.loads((out / "sweep.json").read_text())["status"] == "failed"

    failed = out / "scripted-versions-30" / "seed-1"
    before = files(failed)
    again = swept(lab, config, *more)
    assert again.exit_code == 1
    assert "  scripted-versions-30/seed-1: failed: nothing is left to happen" in again.err
    assert files(failed) == before
    tried = swept(lab, config, *more, "--retry-failed")
    assert tried.exit_code == 1
    assert files(failed) != before
    assert RunFiles(failed).manifest["earlier"][0]["status"] == "failed"


ENDLESS = timed(1, 1, buffered(1, 1), stop={"sim_time": "1000000 d"})
"""Goes on until somebody stops it."""


def running_children(out: Path, runs: int) -> None:
    until(lambda: len(in_state(out, "running")) == runs, f"{runs} running")


def run_processes() -> list[int]:
    """The process ids of the runs that a sweep in this process has started."""
    return [p.pid for p in multiprocessing.active_children() if p.pid and "seed-" in p.name]


def test_a_run_that_is_killed_takes_nobody_along_and_goes_on(lab: Lab) -> None:
    out = lab.folder / "out"

    def kill() -> None:
        running_children(out, 1)
        for pid in run_processes():
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    more = ("--seeds", "1", "--jobs", "1", "--vary", "stop.sim_time=1000000 d,3 s")
    said = swept(lab, ENDLESS, *more)
    killer.join()
    assert said.exit_code == 1
    assert "seed-1: killed: its process was killed by SIGKILL" in said.err
    assert "The same command goes on with what was killed." in said.err
    assert [row["status"] for row in table(out)] == ["killed", "done"]
    assert [row["versions"] for row in table(out)][1] == "3"


def test_ctrl_c_leaves_everything_readable(lab: Lab) -> None:
    out = lab.folder / "out"

    def interrupt() -> None:
        events = out / "scripted" / "seed-1" / "events.jsonl"
        until(lambda: events.exists() and events.stat().st_size, "an event")
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    more = ("--seeds", "1-2", "--jobs", "1")
    said = swept(lab, ENDLESS, *more)
    interrupter.join()
    assert said.exit_code == 130
    assert "the same command goes on from there" in said.err
    assert json.loads((out / "sweep.json").read_text())["status"] == "interrupted"
    assert [row["status"] for row in table(out)] == ["interrupted", "waiting"]
    run = RunFiles(out / "scripted" / "seed-1")
    assert run.manifest["status"] == "interrupted"
    assert run.lines("events.jsonl")
    assert run_processes() == []


def test_two_sweeps_do_not_get_into_one_folder(lab: Lab) -> None:
    import fcntl

    out = lab.folder / "out"
    out.mkdir()
    with open(out / ".sweep.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = swept(lab, ENDLESS, "--seeds", "1")
    assert said.exit_code == 2
    assert "another sweep is running there" in said.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--seeds", "1", "--jobs", "1", "--dask", "tcp://x:1"], "--jobs is for this machine"),
        (
            ["--seeds", "1", "--set", "local.epochs=0"],
            "--set local.epochs=0: local.epochs: must be",
        ),
        (["--seeds", "1", "--vary", "local.epochs=1,0"], "--vary local.epochs=0: local.epochs"),
    ],
)
def test_what_cannot_be_run_is_said_before_anything_is(
    arguments: list[str], told: str, lab: Lab
) -> None:
    said = swept(lab, ENDLESS, *arguments)
    assert said.exit_code == 2
    assert told in said.err
    assert not (lab.folder / "out").exists()
