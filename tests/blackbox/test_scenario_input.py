"""What a scenario file and ``--set`` may say, and what the command line answers to the rest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commandline import Lab, buffered, fedclock, synchronous, timed

SCENARIO = """\
schema: 1
name: written-by-hand
seed: 1
stop: {sim_time: 1 h, versions: 1}
task:
  dataset: {kind: declared, samples_per_client: 10}
  clients: 10
  model: {kind: declared, size: 1 MB, forward_macs: 1, backward_macs: 2}
system:
  devices: {kind: scripted, training: 5 s}
  availability: {kind: always}
  network: {kind: none}
local: {epochs: 1, batch_size: 10, optimizer: {kind: sgd, lr: 0.05}}
federation:
  pacing:
    kind: synchronous
    participants: 4
    deadline: 10 min
evaluation: {every: {versions: 1}}
"""


def _edited(lab: Lab, old: str, new: str) -> Path:
    assert SCENARIO.count(old) == 1
    path = lab.folder / "scenario.yaml"
    path.write_text(SCENARIO.replace(old, new))
    return path


def _refused(path: Path, *args: str) -> str:
    """What ``validate`` says, and ``run`` in the same words without leaving anything behind."""
    validated = fedclock("validate", path, *args)
    out = path.parent / "refused"
    ran = fedclock("run", path, "--timing-only", "--out", out, *args)
    assert (validated.exit_code, ran.exit_code) == (2, 2)
    assert validated.err == ran.err
    assert not out.exists()
    return validated.err


def test_the_scenario_is_good(lab: Lab) -> None:
    run = lab.run(_edited(lab, "seed: 1", "seed: 1"))
    assert run.times("versions") == [5.0]


# --- --set --------------------------------------------------------------------------------------


def test_an_override_is_applied_and_written_down(lab: Lab) -> None:
    path = lab.write(timed(10, 1, buffered(5, 3), stop={"versions": 2}))
    run = lab.run(path, "--set", "federation.pacing.buffer=7", "--set", "stop.versions=1")
    assert run.resolved["federation"]["pacing"]["buffer"] == 7
    assert run.resolved["stop"]["versions"] == 1
    assert run.column("versions", "updates") == ["7"]
    assert fedclock("validate", run.path / "resolved.yaml").exit_code == 0


def test_a_run_says_which_overrides_it_was_given(lab: Lab) -> None:
    path = lab.write(timed(10, 1, buffered(5, 3), stop={"versions": 2}))
    run = lab.run(path, "--set", "federation.pacing.buffer=7")
    written = "".join((run.path / name).read_text() for name in ("manifest.json", "resolved.yaml"))
    assert "federation.pacing.buffer=7" in written


def test_every_default_is_written_down(lab: Lab) -> None:
    run = lab.run(_edited(lab, "seed: 1", "seed: 1"))
    resolved = run.resolved
    assert resolved["system"]["on_offline"] == "drop"
    assert resolved["federation"]["pacing"]["too_few"] == "wait"
    assert resolved["federation"]["pacing"]["deadline"] == 600.0
    assert resolved["task"]["model"]["size"] == 1_000_000
    assert (run.path / "scenario.yaml").read_text() == (lab.folder / "scenario.yaml").read_text()


@pytest.mark.parametrize(
    ("override", "reasons"),
    [
        ("federation.pacing.participant=7", ["did you mean 'participants'?"]),
        ("federation.pacing.buffer=7", ["unknown key", "buffered"]),
        ("federatoin.pacing.participants=7", ["did you mean 'federation'?"]),
        ("federation.pacing.participants", ["write --set a.b=value"]),
        ("federation.pacing.participants=", ["no value after '='"]),
        ("federation.pacing.participants=seven", ["must be a whole number, found 'seven'"]),
        ("federation.pacing.participants=0", ["at least 1"]),
        ("name.first=x", ["neither a mapping nor a list"]),
    ],
)
def test_an_override_that_cannot_be_applied_is_refused(
    lab: Lab, override: str, reasons: list[str]
) -> None:
    said = _refused(_edited(lab, "seed: 1", "seed: 1"), "--set", override)
    assert f"--set {override}" in said
    assert all(reason in said for reason in reasons), said


def test_seed_is_a_short_form_of_set(lab: Lab) -> None:
    path = lab.write(timed(10, 1, buffered(5, 3), stop={"versions": 1}))
    assert lab.run(path, "--seed", "9").manifest["seed"] == 9
    assert lab.try_run(path, "--seed", "-1", out="other").exit_code == 2


# --- keys and values ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "place", "reasons"),
    [
        (
            "    participants: 4\n",
            "    participants: 4\n    over_comitment: 1.3\n",
            "18:5",
            ["federation.pacing.over_comitment", "did you mean 'over_commitment'?"],
        ),
        ("seed: 1", "seed: 1\nexecutoin: {}", "4:1", ["did you mean 'execution'?"]),
        ("kind: synchronous", "kind: synchronus", "16:11", ["did you mean 'synchronous'?"]),
        (
            "    deadline: 10 min\n",
            "    deadline: 10 minutes\n",
            "18:15",
            ["unknown unit 'minutes'", "did you mean 'min'?"],
        ),
        ("lr: 0.05", "lr: .nan", "13:63", [".nan"]),
        ("lr: 0.05", "lr: .inf", "13:63", [".inf"]),
        ("lr: 0.05", "lr: 0", "13:63", ["greater than 0"]),
        ("lr: 0.05", "lr: '0.05'", "13:63", ["must be a number, found '0.05'"]),
        ("participants: 4", "participants: true", "17:19", ["must be a whole number, found true"]),
        ("participants: 4", "participants: 4.5", "17:19", ["must be a whole number, found 4.5"]),
        ("deadline: 10 min", "deadline: 12:30:00", "18:15", ["12:30:00", "min"]),
        ("participants: 4", "participants: 017", "17:19", ["017"]),
        (
            "    participants: 4\n",
            "    participants: 4\n    participants: 5\n",
            "18:5",
            ["duplicate key 'participants' (first on line 17)"],
        ),
        ("seed: 1", "seed: -1", "3:7", ["at least 0"]),
        ("schema: 1", "schema: 2", "1:9", ["2 is not allowed", "1"]),
        ("sim_time: 1 h", "sim_time: 0", "4:18", ["greater than 0"]),
    ],
)
def test_a_fault_is_told_at_its_place(
    lab: Lab, old: str, new: str, place: str, reasons: list[str]
) -> None:
    path = _edited(lab, old, new)
    said = _refused(path)
    assert f"{path}:{place}: " in said
    assert all(reason in said for reason in reasons), said
    assert len(said.strip().splitlines()) == 1


def test_a_number_in_scientific_notation_is_one(lab: Lab) -> None:
    run = lab.run(_edited(lab, "lr: 0.05", "lr: 1e-3"))
    assert run.resolved["local"]["optimizer"]["lr"] == 0.001


@pytest.mark.parametrize("key", ["deadline: 10 min", "network: {kind: none}", "batch_size: 10,"])
def test_what_changes_time_or_learning_has_no_silent_default(lab: Lab, key: str) -> None:
    said = _refused(_edited(lab, key, ""))
    assert re.search(rf"\.{key.partition(':')[0]}: (missing|.*required)", said), said


def test_all_faults_are_told_at_once(lab: Lab) -> None:
    path = _edited(lab, "    participants: 4\n", "    participants: 0\n    buffr: 3\n")
    said = _refused(path, "--set", "seed=x")
    assert [line.count(f"{path}:") for line in said.splitlines()] == [1, 1, 0]
    assert "--set seed=x" in said


def test_a_combination_that_makes_no_sense_is_refused_with_its_reason(lab: Lab) -> None:
    path = _edited(lab, "participants: 4", "participants: 9\n    over_commitment: 1.3")
    assert "floor(9 × 1.3) = 11 clients are asked each round, more than the 10" in _refused(path)


def test_declared_data_cannot_be_learned_from(lab: Lab) -> None:
    path = _edited(lab, "seed: 1", "seed: 1")
    said = fedclock("run", path, "--out", lab.folder / "run")
    assert said.exit_code == 2
    assert "add --timing-only" in said.err


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "{", "\tname: x\n", "name: *nobody\n"])
def test_a_file_that_is_no_scenario_is_refused(lab: Lab, text: str) -> None:
    path = lab.folder / "scenario.yaml"
    path.write_text(text)
    assert f"{path}:1:" in _refused(path)


def test_a_file_that_is_not_there_is_refused(lab: Lab) -> None:
    path = lab.folder / "nothing.yaml"
    assert f"{path}: cannot be read" in _refused(path)


# --- paths --------------------------------------------------------------------------------------


def test_paths_are_relative_to_the_scenario_file(lab: Lab) -> None:
    home, elsewhere = lab.folder / "home", lab.folder / "elsewhere"
    (home / "traces").mkdir(parents=True)
    elsewhere.mkdir()
    (home / "traces" / "sessions.csv").write_text(
        "client,start_s,end_s,period_s\n0,0,90,100\n1,0,90,100\n"
    )
    config = timed(2, 3, synchronous(2), stop={"versions": 1})
    config["system"]["availability"] = {
        "kind": "fedscale",
        "path": "traces/sessions.csv",
        "at_end": "wrap",
    }
    lab.write(config, "home/scenario.yaml")
    said = fedclock("run", "../home/scenario.yaml", "--timing-only", "--out", "run", cwd=elsewhere)
    assert said.exit_code == 0, said
    run = lab.folder / "elsewhere" / "run"
    assert (run / "versions.csv").read_text().splitlines()[1].startswith("3.0,1,")
    # The resolved scenario can be run from anywhere: its path is whole.
    assert str(home / "traces" / "sessions.csv") in (run / "resolved.yaml").read_text()
    assert fedclock("validate", run / "resolved.yaml", cwd=lab.folder).exit_code == 0


def test_a_path_that_leads_nowhere_is_told_with_its_place(lab: Lab) -> None:
    path = _edited(lab, "{kind: always}", "{kind: fedscale, path: gone.csv, at_end: wrap}")
    said = _refused(path)
    assert f"{path}:11:40: system.availability.path: " in said
    assert str(lab.folder / "gone.csv") in said
