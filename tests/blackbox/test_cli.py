"""The commands beside their results: what they print, leave, refuse and resume."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from commandline import Config, Lab, RunFiles, buffered, digits, fedclock, synchronous, timed

SMALL = timed(3, 1, buffered(2, 2), stop={"versions": 3})
MODULE = (sys.executable, "-m", "emulator")


def _contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()}


# --- validate, list, schema ---------------------------------------------------------------------

WITHOUT_TORCH = """
import sys
from emulator.cli import main

for arguments in (["validate", sys.argv[1]], ["list"], ["schema"]):
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as stop:
        assert not stop.code
heavy = {"torch", "simpy", "sklearn", "matplotlib"} & set(sys.modules)
sys.exit(f"loaded {heavy}" if heavy else 0)
"""


def test_validate_list_and_schema_load_nothing_heavy(lab: Lab) -> None:
    path = lab.write(SMALL)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{path}: valid (scenario 'scripted', seed 1)\n" in done.stdout


def test_validate_takes_overrides(lab: Lab) -> None:
    said = fedclock("validate", lab.write(SMALL), "--set", "seed=12", "--set", "name=other")
    assert said.exit_code == 0
    assert said.out.endswith("valid (scenario 'other', seed 12)\n")


def test_list_shows_every_axis_with_its_options(lab: Lab) -> None:
    said = fedclock("list")
    assert said.exit_code == 0
    axes = [line[:-1] for line in said.out.splitlines() if not line.startswith(" ")]
    assert axes[:3] == ["pacing", "selection", "structure"]
    pacing = fedclock("list", "pacing")
    assert pacing.out in said.out
    for line in (
        "  synchronous: ",
        "      deadline  (required)",
        "      over_commitment  [default: 1.0]",
        "  buffered: ",
        "      refill  [default: at_once]",
    ):
        assert any(shown.startswith(line) for shown in pacing.out.splitlines()), line
    assert "availability:" not in pacing.out
    # What an option takes stands below it.
    shown = fedclock("list", "payload").out.splitlines()
    split = shown.index("      split  (required)")
    rule = next(i for i, line in enumerate(shown) if line.startswith("        threshold: "))
    assert split < rule < shown.index("      prepass  [default: None]")
    assert shown[rule + 1] == "            rho  [default: 0.5]"


def test_list_names_the_nearest_axis() -> None:
    said = fedclock("list", "pacng")
    assert said.exit_code == 2
    assert "did you mean 'pacing'?" in said.err


def test_schema_is_one_for_scenarios() -> None:
    said = fedclock("schema")
    schema = json.loads(said.out)
    assert said.exit_code == 0
    assert {"schema", "name", "seed", "stop", "federation"} <= set(schema["required"])
    assert schema["additionalProperties"] is False
    assert "Synchronous" in schema["$defs"]


@pytest.mark.parametrize(
    "arguments",
    [["rum"], ["run"], ["run", "x.yaml", "--no-such-option"], ["run", "x.yaml", "--workers", "-1"]],
)
def test_wrong_usage_is_exit_2(arguments: list[str]) -> None:
    said = fedclock(*arguments)
    assert said.exit_code == 2
    assert said.err


# --- run ----------------------------------------------------------------------------------------


def test_a_run_prints_its_headline_numbers_and_its_directory(lab: Lab) -> None:
    path = lab.write(digits(4, synchronous(4), versions=2))
    said = fedclock("run", path, "--out", lab.folder / "run")
    assert said.exit_code == 0, said
    accuracy = RunFiles(lab.folder / "run").table("metrics")[-2]
    assert accuracy["metric"] == "accuracy"
    for shown in ("done (versions)", "10 s", f"{float(accuracy['value']):.2%}".replace("%", " %")):
        assert shown in said.out
    assert said.out.endswith(f"Run directory: {lab.folder / 'run'}\n")
    assert (lab.folder / "run" / "time_to_accuracy.png").read_bytes()[1:4] == b"PNG"


def test_quiet_prints_nothing(lab: Lab) -> None:
    said = lab.try_run(SMALL)
    assert (said.exit_code, said.out, said.err) == (0, "", "")


def test_without_out_the_run_goes_where_its_name_says(lab: Lab) -> None:
    said = fedclock("run", lab.write(SMALL), "--timing-only", "--seed", 7, cwd=lab.folder)
    assert said.exit_code == 0, said
    assert (lab.folder / "runs" / "scripted-seed7" / "manifest.json").exists()


def test_a_finished_run_is_left_alone(lab: Lab) -> None:
    config = digits(4, synchronous(4), versions=2)
    run = lab.run(config)
    before = _contents(run.path)
    modified = {p.name: p.stat().st_mtime_ns for p in run.path.iterdir() if p.name != ".lock"}
    assert lab.try_run(config).exit_code == 0
    assert _contents(run.path) == before
    assert modified == {
        p.name: p.stat().st_mtime_ns for p in run.path.iterdir() if p.name != ".lock"
    }


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--seed", "2"], "holds a run of another scenario ('scripted', seed 1)"),
        (["--set", "system.devices.training=2"], "holds a run of another scenario"),
    ],
)
def test_another_scenario_does_not_get_into_a_runs_directory(
    lab: Lab, arguments: list[str], reason: str
) -> None:
    run = lab.run(SMALL)
    before = _contents(run.path)
    said = lab.failed_run(SMALL, *arguments)
    assert reason in said
    assert "--restart" in said
    assert _contents(run.path) == before


def test_timing_only_and_learning_do_not_mix(lab: Lab) -> None:
    config = digits(4, synchronous(4), versions=2)
    lab.run(config, "--timing-only")
    assert "holds a run with --timing-only" in lab.failed_run(config)


def test_restart_begins_anew(lab: Lab) -> None:
    run = lab.run(SMALL)
    (run.path / "notes.txt").write_text("mine")
    other = lab.run(SMALL, "--restart", "--set", "system.devices.training=2")
    assert other.times("versions") == [2.0, 4.0, 6.0]
    assert other.manifest["earlier"] == []
    assert (run.path / "notes.txt").read_text() == "mine"


def test_a_run_can_be_named_by_its_directory(lab: Lab) -> None:
    run = lab.run(digits(4, synchronous(4), versions=2))
    before = _contents(run.path)
    said = fedclock("run", run.path)
    assert said.exit_code == 0, said
    assert "done (versions)" in said.out
    after = _contents(run.path)
    del after["time_to_accuracy.png"]
    assert after == before


def test_a_timing_only_run_can_be_named_by_its_directory(lab: Lab) -> None:
    # What it was begun with is written there; it need not be said again.
    run = lab.run(SMALL)
    said = fedclock("run", run.path)
    assert said.exit_code == 0, said
    assert "done (versions)" in said.out


def test_the_scenario_as_given_outlives_a_run_by_directory(lab: Lab) -> None:
    # One client holds data and three are wanted: the run fails, and can be tried again.
    config = digits(5, synchronous(3), versions=1)
    config["task"]["partition"]["holders"] = 1
    config["local"]["short_clients"] = "skip"
    lab.failed_run(config, exit_code=1)
    run = RunFiles(lab.folder / "run")
    given = (run.path / "scenario.yaml").read_text()
    assert given == (lab.folder / "scenario.yaml").read_text()
    assert fedclock("run", run.path, "--quiet").exit_code == 1
    assert (run.path / "scenario.yaml").read_text() == given


def test_a_log_that_was_tampered_with_is_not_continued(lab: Lab) -> None:
    # A version a second until 5 s; there the run fails, and would fail again.
    config = timed(1, 1, buffered(1, 1), sessions=[[[0, 5]]], at_end="end")
    lab.failed_run(config, exit_code=1)
    log = lab.folder / "run" / "events.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    assert lines[2].startswith('{"t":1.0,"type":"upload"')
    lines[2] = lines[2].replace("1.0", "1.5")
    log.write_text("".join(lines))
    said = lab.failed_run(config, exit_code=1)
    assert f"{log}:3: " in said
    assert 'on disk:  {"t":1.5,"type":"upload"' in said
    assert 'replayed: {"t":1.0,"type":"upload"' in said
    assert RunFiles(lab.folder / "run").manifest["status"] == "failed"


def test_a_directory_that_is_no_run_is_refused(lab: Lab) -> None:
    said = fedclock("run", lab.folder)
    assert said.exit_code == 2
    assert "directory without a run's manifest" in said.err


def test_a_file_where_the_directory_should_be_is_refused(lab: Lab) -> None:
    (lab.folder / "run").write_text("")
    assert f"--out {lab.folder / 'run'}: cannot be made a directory" in lab.failed_run(SMALL)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused(lab: Lab) -> None:
    config = digits(4, synchronous(4), versions=2)
    assert "torch finds no CUDA device here" in lab.failed_run(config, "--device", "cuda")


def test_what_if_on_the_memo_of_another_run_trains_nothing(lab: Lab) -> None:
    # Twice as slow, same participants and order: the same models at other times.
    config = digits(4, synchronous(4), versions=3)
    first = lab.run(config, out="first")
    slower = ("--set", "system.devices.training=10")
    second = lab.run(config, "--memo", first.path, *slower, out="second")
    assert second.manifest["trainings"] == {"run": 0, "aggregated": 12, "reused": 12}
    assert second.times("versions") == [10.0, 20.0, 30.0]
    assert second.column("metrics", "value") == first.column("metrics", "value")
    models = [(run.path / "model.safetensors").read_bytes() for run in (first, second)]
    assert models[0] == models[1]


# --- Ctrl-C -------------------------------------------------------------------------------------

GATED = """
import pathlib, time
import torch


class Gated(torch.nn.Module):
    # Stays in a forward pass of its training for as long as a file is there.
    def __init__(self, inputs, classes, gate, passes):
        super().__init__()
        self.linear = torch.nn.Linear(inputs, classes)
        self.gate, self.passes, self.passed = pathlib.Path(gate), passes, 0

    def forward(self, x):
        self.passed += self.training
        if self.passed > self.passes and self.gate.exists():
            self.gate.with_suffix(".reached").touch()
            while self.gate.exists():
                time.sleep(0.01)
        return self.linear(x.flatten(1))


def gated(input_shape, classes, *, gate, passes):
    return Gated(torch.Size(input_shape).numel(), classes, gate, passes)
"""


def _gated(lab: Lab, executor: str) -> Config:
    """5 clients of 20 a round, each 8 batches: held up in round 3 of 8."""
    (lab.folder / "gated_model.py").write_text(GATED)
    config = digits(20, synchronous(5), versions=8)
    config["task"]["model"] = {
        "kind": "custom",
        "callable": "gated_model:gated",
        "options": {"gate": str(lab.folder / "gate"), "passes": 100},
    }
    config["memo"] = {"checkpoint_every": "0 s"}
    config["execution"] = {"executor": executor}
    return config


@contextmanager
def _held_up(lab: Lab, path: Path, out: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that runs the scenario, as the leader of a group, and is in its third round."""
    gate = lab.folder / "gate"
    gate.touch()
    process = subprocess.Popen(
        [*MODULE, "run", str(path), "--out", str(out), "--workers", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(lab.folder)},
        start_new_session=True,
    )
    try:
        while not gate.with_suffix(".reached").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait()


def _interrupt(process: subprocess.Popen[str]) -> str:
    """Ctrl-C: the signal goes to the whole group. Returns stderr."""
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, (out, err)
    assert "Traceback" not in err
    assert out == ""
    return err


def test_an_interrupted_run_is_readable_and_goes_on(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = lab.write(_gated(lab, "inline")), lab.folder / "run"
    with _held_up(lab, path, out) as process:
        # Nobody else may write there meanwhile.
        monkeypatch.syspath_prepend(str(lab.folder))
        said = fedclock("run", path, "--out", out)
        assert said.exit_code == 2
        assert "another fedclock process" in said.err
        err = _interrupt(process)
    assert "interrupted" in err
    assert str(out) in err

    interrupted = RunFiles(out)
    assert interrupted.manifest["status"] == "interrupted"
    assert interrupted.times("versions")[:2] == [5.0, 10.0]
    assert "2" in interrupted.column("metrics", "version")
    assert len(interrupted.of("dispatch")) >= 15
    assert interrupted.table("updates")
    assert list((out / "checkpoints").glob("*.safetensors"))
    assert not list(out.rglob("*.part"))

    (lab.folder / "gate").unlink()
    monkeypatch.syspath_prepend(str(lab.folder))
    by_name = lab.folder / "by_name"
    shutil.copytree(out, by_name)
    reference = lab.run(path, out="reference")
    # The same command, or the directory as the scenario.
    assert fedclock("run", path, "--out", out, "--quiet").exit_code == 0
    assert fedclock("run", by_name, "--quiet").exit_code == 0
    for folder in (out, by_name):
        for name, content in _contents(reference.path).items():
            if name not in ("manifest.json", "memo.sqlite", ".lock", "scenario.yaml"):
                assert (folder / name).read_bytes() == content, (folder, name)
        manifest = RunFiles(folder).manifest
        assert manifest["events_sha256"] == reference.manifest["events_sha256"]
        assert manifest["earlier"][0]["status"] == "interrupted"
        # Of 8 rounds of 5, two were complete at the interrupt.
        assert manifest["trainings"]["run"] <= 30
        assert manifest["trainings"]["aggregated"] == 40


def test_ctrl_c_ends_the_worker_processes_too(lab: Lab) -> None:
    path, out = lab.write(_gated(lab, "processes")), lab.folder / "run"
    with _held_up(lab, path, out) as process:
        _interrupt(process)
        # The group is empty soon: no worker outlives its run.
        for _ in range(500):
            try:
                os.killpg(process.pid, 0)
            except ProcessLookupError:
                break
            time.sleep(0.02)
        else:
            pytest.fail("a worker process is still there")
    assert RunFiles(out).manifest["status"] == "interrupted"
    assert list((out / "checkpoints").glob("*.safetensors"))


def test_ctrl_c_before_the_run_begins_is_exit_130_too(lab: Lab) -> None:
    fifo = lab.folder / "scenario.yaml"
    os.mkfifo(fifo)
    process = subprocess.Popen(
        [*MODULE, "validate", str(fifo)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # Opening waits for the reader; then it waits for what is never written.
    with open(fifo, "w"):
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_a_refused_extension_leaves_a_finished_run_whole(lab: Lab, tmp_path: Path) -> None:
    run = lab.run(digits(4, synchronous(4), versions=2))
    before = _contents(run.path)
    config = digits(4, synchronous(4), versions=3)
    said = lab.failed_run(config, "--memo", str(tmp_path / "nothing"))
    assert "no memo.sqlite" in said
    assert "own directory" in lab.failed_run(config, "--memo", str(run.path))
    assert "own directory" in lab.failed_run(config, "--memo", str(run.path), "--restart")
    assert _contents(run.path) == before


def test_an_earlier_stop_is_refused(lab: Lab) -> None:
    run = lab.run(timed(4, 10, synchronous(4), stop={"versions": 5}))
    before = _contents(run.path)
    said = lab.failed_run(timed(4, 10, synchronous(4), stop={"versions": 3}))
    assert "has reached versions 5, beyond the stop at 3" in said
    assert _contents(run.path) == before


def test_values_that_a_memo_has_lost_are_computed_again(lab: Lab) -> None:
    config = digits(4, synchronous(4), versions=4)
    whole = lab.run(config, out="whole")
    lab.run(digits(4, synchronous(4), versions=2))
    connection = sqlite3.connect(lab.folder / "run" / "memo.sqlite")
    with connection:
        connection.execute("DELETE FROM value WHERE json LIKE '%nonfinite%'")
    connection.close()
    again = lab.run(config)
    for name in ("events.jsonl", "metrics.csv", "model.safetensors"):
        assert (again.path / name).read_bytes() == (whole.path / name).read_bytes()
