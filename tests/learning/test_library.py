"""The library of scenarios: complete, comparable, and doing what its pages say."""

from __future__ import annotations

import csv
import importlib.util
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.numpy import load_file

from emulator.cli import main as command_line
from emulator.sweep.plan import planned
from emulator.sweep.study import Given, read_study

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
STUDIES = SCENARIOS / "studies"
FILES = sorted(SCENARIOS.rglob("*.yaml"))
SWEEPS = [path for path in FILES if "\nscenarios:" in path.read_text()]
ALL = [path for path in FILES if path not in SWEEPS]
GROUPS = {  # folder: (base, what its files vary)
    "pacing": ("sync", {"pacing"}),
    "methods": ("fedavg", {"objective", "server_optimizer"}),
}
PACINGS = sorted(path.stem for path in (SCENARIOS / "pacing").glob("*.yaml"))

# Small enough for a test: handwritten digits, and enough phones online for the rounds of 40.
SMALL = (
    "task.dataset={kind: digits}",
    "task.clients=80",
    "task.partition={kind: iid}",
    "task.model.hidden=[32]",
    "system.availability={kind: phones, duty: 0.9, days: 1}",
    "local.epochs=5",
    "local.optimizer.lr=0.3",
)
# The clients of the library as its clock sees them: 120 samples each, which nobody looks at.
UNSEEN = (
    "system.availability.days=1",
    "task.partition=null",
    "task.dataset={kind: declared, samples_per_client: 120, input_shape: SHAPE, classes: 10}",
)


def fedclock(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    """``fedclock ARGUMENTS`` in this process; raises unless it succeeds."""
    monkeypatch.setattr("sys.argv", ["fedclock", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        command_line()
    assert ended.value.code in (0, None)


def given(path: Path) -> dict[str, Any]:
    found = yaml.safe_load(path.read_text())
    assert isinstance(found, dict)
    return found


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def main_of(study: str) -> Callable[[Sequence[str]], None]:
    """The ``main`` of a study's script."""
    spec = importlib.util.spec_from_file_location(study, STUDIES / study / "study.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[[Sequence[str]], None] = module.main
    return found


def setting(overrides: Sequence[str]) -> list[str]:
    return [word for override in overrides for word in ("--set", override)]


# --- the files ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(SCENARIOS)))
def test_a_scenario_is_valid_and_its_head_says_how_to_run_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given_data = []
    if "cifar" in path.stem:  # the reader's own file, of which only its being there is looked at
        given_data = ["--set", f"task.dataset.path={tmp_path}"]
    if path.stem == "pretrained":  # what another scenario leaves
        given_data = ["--set", f"task.pretrained.path={tmp_path}"]
    fedclock(monkeypatch, "validate", path, *given_data)
    head = path.read_text().partition("schema:")[0]
    assert f"fedclock run scenarios/{path.relative_to(SCENARIOS).as_posix()}" in head


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: str(path.relative_to(SCENARIOS)))
def test_a_sweep_file_is_valid_and_its_head_says_how_to_run_it(path: Path) -> None:
    assert len(planned(read_study(Given([path])))) >= 3
    head = path.read_text().partition("schema:")[0]
    assert f"fedclock sweep scenarios/{path.relative_to(SCENARIOS).as_posix()}" in head


def test_names_tell_the_run_directories_apart() -> None:
    assert len(ALL) >= 19
    assert max(Counter(given(path)["name"] for path in ALL).values()) == 1


@pytest.mark.parametrize("group", GROUPS)
def test_the_files_of_a_group_differ_only_in_what_it_varies(group: str) -> None:
    base_name, varied = GROUPS[group]
    base = given(SCENARIOS / group / f"{base_name}.yaml")
    for path in (SCENARIOS / group).glob("*.yaml"):
        config = given(path)
        federation, base_federation = config["federation"], base["federation"]
        if path.stem != base_name:
            assert federation != base_federation, path
        assert {k: v for k, v in federation.items() if k not in varied} == {
            k: v for k, v in base_federation.items() if k not in varied
        }, path
        assert {**config, "federation": 0, "name": 0} == {**base, "federation": 0, "name": 0}, path


def test_the_lines_of_fedseqs_comparison_differ_in_three_axes() -> None:
    """And in how updates are weighed, which FedDyn has uniform."""
    base = given(SCENARIOS / "fedseq" / "fedavg.yaml")
    paths = [path for path in (SCENARIOS / "fedseq").glob("*.yaml") if "cifar" not in path.stem]
    assert len(paths) == 10
    structures = []
    for path in paths:
        config = given(path)
        federation = config["federation"]
        assert set(federation) <= {"pacing", "structure", "objective"}, path
        if path.stem == "scaffold":  # which learns nothing at the others' rate
            config["local"]["optimizer"]["lr"] = base["local"]["optimizer"]["lr"]
        assert {**config, "federation": 0, "name": 0} == {**base, "federation": 0, "name": 0}, path
        if path.stem.startswith("fedseq"):
            structures.append(federation["structure"])
    assert len(structures) == 6
    assert all(structure == structures[0] for structure in structures)


def test_the_lines_of_divide_and_conquers_comparison_differ_in_three_axes() -> None:
    base = given(SCENARIOS / "divide_and_conquer" / "fedavg.yaml")
    for name in ("divide_and_conquer", "fedprox", "fedmax", "fedma"):
        config = given(SCENARIOS / "divide_and_conquer" / f"{name}.yaml")
        federation = config["federation"]
        assert len(set(federation) & {"payload", "objective", "server_optimizer"}) == 1, name
        assert federation["pacing"] == base["federation"]["pacing"]
        same = {"federation": 0, "name": 0, "evaluation": 0}
        assert {**config, **same} == {**base, **same}, name


def test_the_lines_of_auxos_comparison_differ_in_three_axes() -> None:
    """Where clients do not check in by themselves, they rest as long as those that do."""
    base = given(SCENARIOS / "auxo" / "fedyogi.yaml")
    retry = base["federation"]["structure"]["retry"]
    same = dict.fromkeys(("objective", "server_optimizer", "structure"), 0)
    for path in (SCENARIOS / "auxo").glob("*fed*.yaml"):
        config = given(path)
        if config["federation"]["structure"]["kind"] != "cohorts":
            assert config["federation"].pop("selection") == {"kind": "random", "rest": retry}, path
        assert {**config["federation"], **same} == {**base["federation"], **same}, path
        assert {**config, "federation": 0, "name": 0} == {**base, "federation": 0, "name": 0}, path


def test_the_pages_name_every_scenario() -> None:
    page = (SCENARIOS / "README.md").read_text()
    for path in ALL:
        assert f"`{path.relative_to(SCENARIOS).as_posix()}`" in page, path


# --- pacing, by the clock alone --------------------------------------------------------------


@pytest.fixture(scope="module")
def paced(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """40 simulated minutes of every pacing, without learning."""
    folder = tmp_path_factory.mktemp("paced")
    unseen = [override.replace("SHAPE", "[1, 28, 28]") for override in UNSEEN]
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in PACINGS:
            fedclock(
                monkeypatch, "run", SCENARIOS / "pacing" / f"{name}.yaml", "--out", folder / name,
                "--timing-only", "--quiet", *setting([*unseen, "stop.sim_time=40 min"]),
            )  # fmt: skip
    return {name: folder / name for name in PACINGS}


def outcomes(run: Path) -> Counter[str]:
    return Counter(row["outcome"] for row in rows(run / "updates.csv"))


def column(run: Path, name: str) -> list[float]:
    """A column of ``versions.csv``."""
    return [float(row[name]) for row in rows(run / "versions.csv")]


def asked(run: Path) -> list[dict[str, Any]]:
    """The events of rounds that began."""
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [event for event in events if event["type"] == "round"]


def most_in_flight(run: Path) -> int:
    """The most clients at work at once, by the event log."""
    in_flight = most = 0
    for event in map(json.loads, (run / "events.jsonl").read_text().splitlines()):
        in_flight += (event["type"] == "dispatch") - (event["type"] in ("upload", "end"))
        most = max(most, in_flight)
    return most


def test_no_pacing_has_more_than_40_in_flight_and_each_has_40(paced: dict[str, Path]) -> None:
    late_ones_finish = "deadline_quantile"
    assert {n: most_in_flight(run) for n, run in paced.items() if n != late_ones_finish} == {
        name: 40 for name in PACINGS if name != late_ones_finish
    }


def test_rounds_wait_for_all_that_report(paced: dict[str, Path]) -> None:
    found = outcomes(paced["sync"])
    assert found["late"] == found["cancelled"] == found["discarded"] == 0
    assert max(column(paced["sync"], "updates")) == 40


def test_over_committed_rounds_take_32_of_40(paced: dict[str, Path]) -> None:
    run = paced["over_committed"]
    assert {event["asked"] for event in asked(run)} == {40}
    assert set(column(run, "updates")) == {32}
    assert outcomes(run)["cancelled"] >= 5 * len(column(run, "updates"))


def test_a_deadline_ends_rounds_and_loses_the_slow(paced: dict[str, Path]) -> None:
    run = paced["deadline"]
    assert max(column(run, "round_duration_s")) == 90
    late, reported = outcomes(run)["late"], outcomes(run)["reported"]
    assert 0.05 < late / (late + reported) < 0.6


def test_the_quantile_sets_the_deadline_after_200_uploads(paced: dict[str, Path]) -> None:
    run = paced["deadline_quantile"]
    deadlines_s = [event["deadline_s"] for event in asked(run)]
    assert deadlines_s[0] == 180
    assert len(set(deadlines_s)) >= 5
    # Of five uploads one takes longer than the deadline, so most rounds last to the end of it.
    late, reported = outcomes(run)["late"], outcomes(run)["reported"]
    assert 0.1 < late / (late + reported) < 0.3


def test_asynchronous_pacings_make_versions_of_ten_and_of_one(paced: dict[str, Path]) -> None:
    assert set(column(paced["fedbuff"], "updates")) == {10}
    assert set(column(paced["fedasync"], "updates")) == {1}
    # Little's law: with 40 in flight, 39 other uploads come during a task, on average.
    steady = column(paced["fedasync"], "staleness_mean")[400:]
    assert sum(steady) / len(steady) == pytest.approx(39, rel=0.1)


def test_versions_per_simulated_hour(paced: dict[str, Path]) -> None:
    versions = {name: len(column(run, "updates")) for name, run in paced.items()}
    ranked = ("sync", "over_committed", "fedbuff", "fedasync")
    assert [versions[name] for name in ranked] == sorted(versions[name] for name in ranked)
    assert versions["fedasync"] > 9 * versions["fedbuff"] > 36 * versions["sync"]


@pytest.mark.parametrize(("name", "shape"), [("hapt", "[6, 128]"), ("shakespeare", "[80]")])
def test_natural_scenarios_by_the_clock_alone(
    name: str, shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = SCENARIOS / "natural" / f"{name}.yaml"
    unseen = [override.replace("SHAPE", shape) for override in UNSEEN]
    fedclock(
        monkeypatch, "run", path, "--out", tmp_path / name, "--timing-only", "--quiet",
        *setting([*unseen, "evaluation.clients=never"]),
    )  # fmt: skip
    assert len(rows(tmp_path / name / "versions.csv")) == given(path)["stop"]["versions"]


# --- methods and studies, on digits ----------------------------------------------------------


def test_every_method_learns_and_is_another_one(tmp_path: Path) -> None:
    """And the table of the library holds what the runs say."""
    results, out = tmp_path / "results.csv", tmp_path / "runs"
    small = [*SMALL, "stop.versions=24", "evaluation.every.versions=12"]
    main_of("library")(
        ["--out", str(out), "--results", str(results), "--only", "methods", *setting(small)]
    )
    table = {row["scenario"].removeprefix("methods/"): row for row in rows(results)}
    assert set(table) == {path.stem for path in (SCENARIOS / "methods").glob("*.yaml")}
    for name, row in table.items():
        assert float(row["final_accuracy"]) >= 0.4, (name, row["final_accuracy"])
        assert float(row["worst_tenth_accuracy"]) < float(row["final_accuracy"]), name
        assert row["versions"] == "24", name
    models = {name: load_file(out / f"methods-{name}" / "model.safetensors") for name in table}
    weights = {b"".join(model[key].tobytes() for key in sorted(model)) for model in models.values()}
    assert len(weights) == len(table)
    down = {name: int(row["bytes_down"]) for name, row in table.items()}
    assert down["scaffold"] == pytest.approx(2 * down["fedavg"], rel=0.1)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of a small study, and what its script was given."""
    folder = tmp_path_factory.mktemp("study")
    small = [*SMALL, "stop.sim_time=6 min", "evaluation.every.sim_time=10 s"]
    arguments = [
        "--out", str(folder / "runs"), "--results", str(folder), "--seeds", "1", "2",
        "--targets", "0.6", "0.999", *setting(small),
    ]  # fmt: skip
    main_of("sync_fedbuff_fedasync")(arguments)
    return folder, arguments


def test_every_pacing_reaches_a_small_target_and_a_miss_is_censored(
    study: tuple[Path, list[str]],
) -> None:
    folder, _ = study
    table = rows(folder / "results.csv")
    assert len(table) == 2 * 3 * 2
    for row in table:
        run = folder / "runs" / f"{row['method']}-seed{row['seed']}"
        updates = rows(run / "updates.csv")
        of_all = sum(int(update["bytes_down"]) for update in updates)
        over = sum(int(u["bytes_down"]) for u in updates if u["outcome"] != "in_flight")
        if row["target"] == "0.6":
            assert row["reached"] == "yes"
            assert float(row["sim_time_s"]) < 360
            assert 0 < int(row["bytes_down"]) < of_all
        else:
            assert row["reached"] == "no"
            assert float(row["sim_time_s"]) == 360
            assert over <= int(row["bytes_down"]) <= of_all
            assert int(row["versions"]) == len(rows(run / "versions.csv"))
            assert int(row["participations"]) == len(updates)
    assert (folder / "accuracy.png").stat().st_size > 10_000


def test_as_many_are_asked_as_make_the_rounds_alike() -> None:
    """Of times with median 40 s, those below 60 s are Φ(ln 1.5 / √(σ² + 0.3²)): 0.9117, 0.6511 and
    0.5795 of them."""
    asked = main_of("system_heterogeneity").__globals__["asked"]  # type: ignore[attr-defined]
    assert [asked(sigma, 200) for sigma in (0.0, 1.0, 2.0)] == [22, 31, 35]
    assert asked(2.0, 50) == 17


def test_asynchronous_pacings_make_more_versions_and_waste_less(
    study: tuple[Path, list[str]],
) -> None:
    missed = [row for row in rows(study[0] / "results.csv") if row["target"] == "0.999"]
    for seed in ("1", "2"):
        of = {row["method"]: row for row in missed if row["seed"] == seed}
        versions = {method: int(row["versions"]) for method, row in of.items()}
        assert versions["fedasync"] > 9 * versions["fedbuff"] > 9 * versions["sync"]
        wasted = {method: float(row["wasted_s"]) for method, row in of.items()}
        assert wasted["sync"] > 10 * wasted["fedbuff"]
        assert wasted["fedbuff"] == wasted["fedasync"]  # the same phones, asked at the same times


def test_a_study_that_is_finished_is_not_run_again(study: tuple[Path, list[str]]) -> None:
    folder, arguments = study
    files = [folder / "results.csv", *folder.rglob("events.jsonl"), *folder.rglob("manifest.json")]
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in files]
    main_of("sync_fedbuff_fedasync")(arguments)
    assert [path.read_bytes() for path in files] == [content for content, _ in before]
    assert [path.stat().st_mtime_ns for path in files[1:]] == [ns for _, ns in before[1:]]
