"""What a sweep runs, under which names, in which order, and who gets whose memo; nothing is run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from emulator.errors import ScenarioError
from emulator.sweep.agenda import Agenda
from emulator.sweep.local import cores, split_cores
from emulator.sweep.plan import PlannedRun, planned
from emulator.sweep.study import Given, read_study, seeds_of

SCENARIO = """\
schema: 1
name: NAME
seed: 99
stop: {sim_time: 10 d, versions: 4}
task:
  dataset: {kind: digits}
  clients: 4
  partition: {kind: iid}
  model: {kind: logistic}
system:
  devices: {kind: scripted, training: 5.0}
  availability: {kind: always}
  network: {client: {down: 20 Mbps, up: 5 Mbps, latency: 0 s}}
local: {epochs: 1, batch_size: 10, optimizer: {kind: sgd, lr: 0.05}}
federation:
  pacing: {kind: synchronous, participants: 3, deadline: none}
evaluation: {every: {versions: 1}}
"""
UP = "system.network.client.up"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return written(tmp_path, "base")


def written(folder: Path, name: str) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(SCENARIO.replace("NAME", name))
    return path


def runs_of(*scenarios: Path, **more: Any) -> list[PlannedRun]:
    return planned(read_study(Given(scenarios, **{"seeds": "1-2", **more})))


def folders(runs: list[PlannedRun]) -> list[str]:
    return [run.directory.rpartition("/")[0] for run in runs if run.seed == runs[0].seed]


# --- seeds, values, names ---------------------------------------------------------------------


def test_seeds_are_ranges_and_single_ones() -> None:
    assert seeds_of("1-3,7, 10-11") == [1, 2, 3, 7, 10, 11]
    for wrong in ("", "5-1", "1-", "x", "1,1", "1-3,2", "-1", "1-100000", str(2**63)):
        with pytest.raises(ValueError):  # noqa: PT011 - each has a text of its own
            seeds_of(wrong)


def test_every_combination_with_every_seed(base: Path, tmp_path: Path) -> None:
    other = written(tmp_path, "other")
    runs = runs_of(base, other, vary=(f"{UP}=1 Mbps,5 Mbps", "local.epochs=1,2"))
    assert len(runs) == 2 * 2 * 2 * 2
    assert [run.seed for run in runs] == [1] * 8 + [2] * 8
    assert runs[1].directory == "base-up-1-Mbps-epochs-2/seed-1"
    assert runs[1].values == {UP: "1 Mbps", "local.epochs": 2}
    for run in runs:
        assert run.directory == f"{run.scenario.name}/seed-{run.scenario.seed}"
        client = run.source.data["system"]["network"]["client"]
        assert client["up"] == run.values[UP]
        assert run.scenario.local.epochs == run.values["local.epochs"]
    assert len({run.directory for run in runs}) == 16


def test_values_may_be_mappings_and_numbers_keep_their_kind(base: Path) -> None:
    runs = runs_of(
        base,
        vary=("task.partition={kind: iid},{kind: dirichlet, alpha: 0.1}",
              "local.optimizer.lr=1e-3,1e-1"),
    )  # fmt: skip
    assert folders(runs) == [
        "base-partition-kind-iid-lr-0.001",
        "base-partition-kind-iid-lr-0.1",
        "base-partition-kind-dirichlet-alpha-0.1-lr-0.001",
        "base-partition-kind-dirichlet-alpha-0.1-lr-0.1",
    ]
    assert runs[3].scenario.local.optimizer.lr == 0.1


def test_keys_of_one_ending_are_told_apart(base: Path) -> None:
    network = "system.network.server={down: 1 Mbps, up: 1 Mbps}"
    runs = runs_of(
        base, overrides=(network,), vary=(f"{UP}=2 Mbps", "system.network.server.up=3 Mbps")
    )
    assert folders(runs) == ["base-client-up-2-Mbps-server-up-3-Mbps"]


def test_names_are_safe_unique_and_do_not_hang_on_the_other_values(base: Path) -> None:
    paths = [f"{{kind: custom, callable: '{'long_' * 20}{n}:make'}}" for n in range(3)]
    runs = runs_of(base, vary=("task.model=" + ",".join(paths),))
    names = folders(runs)
    assert len({name.casefold() for name in names}) == 3
    for name in names:
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,140}", name)
    fewer = folders(runs_of(base, vary=(f"task.model={paths[2]},{paths[0]}",)))
    assert fewer == [names[2], names[0]]


def test_values_that_would_have_one_name_get_an_ending(base: Path) -> None:
    runs = runs_of(base, vary=(f"{UP}=1 Mbps,1  Mbps",))
    assert len(set(folders(runs))) == 2
    assert all(re.fullmatch(r"base-up-1-Mbps-[0-9a-f]{8}", name) for name in folders(runs))


# --- sweep files ------------------------------------------------------------------------------


def sweep_file(folder: Path, **content: Any) -> Path:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({"schema": 1, **content}, sort_keys=False))
    return path


def test_a_sweep_file_is_a_study(base: Path, tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    path = sweep_file(
        tmp_path / "deeper",
        scenarios=["../base.yaml",
                   {"file": "../base.yaml", "name": "two", "set": {"local.epochs": 2}}],
        seeds="3-5", vary={UP: ["1 Mbps", "5 Mbps"]}, set={"stop.versions": 7, "local.epochs": 3},
    )  # fmt: skip
    runs = runs_of(path, seeds=None, overrides=("local.batch_size=5",))
    assert len(runs) == 2 * 2 * 3
    assert folders(runs) == [
        "base-up-1-Mbps", "base-up-5-Mbps", "two-up-1-Mbps", "two-up-5-Mbps",
    ]  # fmt: skip
    assert {run.scenario.stop.versions for run in runs} == {7}
    assert [run.scenario.local.epochs for run in runs[:4]] == [3, 3, 2, 2]
    assert {run.scenario.local.batch_size for run in runs} == {5}
    # The command line's seeds win.
    assert {run.seed for run in runs_of(path, seeds="8")} == {8}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"scenarios": ["base.yaml"], "seeds": [1], "varry": {}},
         "study.yaml:6:1: varry: unknown key (did you mean 'vary'?)"),
        ({"scenarios": ["nothing.yaml"], "seeds": [1]}, "study.yaml:3:3: scenarios.0"),
        ({"scenarios": ["base.yaml"], "seeds": "5-1"}, "study.yaml:4:8: seeds: must count upwards"),
        ({"scenarios": ["base.yaml"], "seeds": [1, 1]}, "study.yaml:5:1: seeds: one seed is there"),
        ({"scenarios": ["base.yaml"]}, "seeds: missing"),
        ({"scenarios": [], "seeds": [1]}, "study.yaml:2:12: scenarios: must have at least 1 item"),
        ({"scenarios": ["base.yaml"], "seeds": [1], "vary": {UP: []}}, "must have at least 1 item"),
        ({"scenarios": ["base.yaml"], "seeds": [1], "set": {"local.epoch": 2}},
         "study.yaml:7:16: local.epoch: unknown key (did you mean 'epochs'?)"),
        ({"scenarios": ["base.yaml"], "seeds": [1], "vary": {UP: ["1 Mbps", "5 Mpbs"]}},
         "study.yaml:9:5: system.network.client.up"),
        ({"scenarios": ["base.yaml", "base.yaml"], "seeds": [1]}, "have one name, 'base'"),
        ({"scenarios": ["base.yaml"], "seeds": [1], "vary": {"seed": [1, 2]}},
         "'seed' cannot vary"),
        ({"scenarios": ["base.yaml"], "seeds": [1], "set": {"seed": 2}}, "'seed' is set"),
        ({"scenarios": ["base.yaml"], "seeds": [1], "vary": {"local.epochs": [1, 1]}},
         "study.yaml:9:5: local.epochs has 1 twice"),
        ({"scenarios": ["base.yaml"], "seeds": [1], "vary": {"local": [{}], "local.epochs": [1]}},
         "'local.epochs' varies, and so does 'local'"),
        ({"scenarios": ["base.yaml"], "seeds": [1], "vary": {"local.epochs": [1]},
          "set": {"local.epochs": 2}}, "'local.epochs' varies, and 'local.epochs' is set"),
    ],
)  # fmt: skip
def test_a_sweep_file_that_cannot_be_run_is_refused_at_its_line(
    content: dict[str, Any], told: str, base: Path, tmp_path: Path
) -> None:
    path = sweep_file(tmp_path, **content)
    with pytest.raises(ScenarioError) as refused:
        runs_of(path, seeds=None)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"seeds": None}, "--seeds is missing"),
        ({"seeds": "2-1"}, "--seeds: must count upwards"),
        ({"vary": ("local.epochs",)}, "--vary local.epochs: write --vary a.b=x,y"),
        ({"vary": ("local.epochs=",)}, "no value after '='"),
        ({"vary": ("local.epochs=1], [2",)}, "--vary local.epochs=1], [2: not valid YAML"),
        ({"vary": ("local.epochs=1,none",)}, "--vary local.epochs='none': local.epochs: must be"),
        ({"vary": ("local.epoch=1",)}, "--vary local.epoch=1: local.epoch: unknown key"),
        ({"vary": ("local.epochs=1",), "overrides": ("local.epochs=2",)}, "is set"),
        ({"seeds": "1-9999", "vary": ("local.epochs=1,2",)}, "more than 10000 runs"),
    ],
)
def test_what_the_command_line_gets_wrong_is_named(
    more: dict[str, Any], told: str, base: Path
) -> None:
    with pytest.raises(ScenarioError) as refused:
        runs_of(base, **more)
    assert told in str(refused.value)


def test_a_sweep_file_stands_alone(base: Path, tmp_path: Path) -> None:
    path = sweep_file(tmp_path, scenarios=["base.yaml"], seeds=[1])
    with pytest.raises(ScenarioError, match="give it alone"):
        runs_of(base, path)


# --- who shares -------------------------------------------------------------------------------

BUFFERED = "federation.pacing={kind: buffered, in_flight: 3, buffer: 2}"


@pytest.mark.parametrize(
    ("vary", "overrides", "families"),
    [
        (f"{UP}=1 Mbps,5 Mbps", (), 1),
        ("system.devices.training=1,2", (), 1),
        ("stop.versions=2,4", (), 1),
        ("stop.versions=2,4", (BUFFERED,), 1),
        # Whom the clock lets in, or what is measured when, decides what is trained.
        (f"{UP}=1 Mbps,5 Mbps", (BUFFERED,), 2),
        (f"{UP}=1 Mbps,5 Mbps", ("federation.pacing.over_commitment=1.3",), 2),
        (f"{UP}=1 Mbps,5 Mbps", ("federation.pacing.deadline=1 h",), 2),
        (f"{UP}=1 Mbps,5 Mbps", ("system.availability={kind: phones}",), 2),
        (f"{UP}=1 Mbps,5 Mbps", ("evaluation.every={sim_time: 1 h}",), 2),
        (f"{UP}=1 Mbps,5 Mbps", ("evaluation.every={sim_time: 1 h}", "memo.keep=versions"), 1),
        ("local.epochs=1,2", (), 2),
        ("evaluation.every={versions: 1},{versions: 2}", (), 2),
        ("federation.objective={kind: plain},{kind: fedmax, beta: 1}", (), 2),
    ],
)  # fmt: skip
def test_runs_that_train_the_same_are_a_family(
    vary: str, overrides: tuple[str, ...], families: int, base: Path
) -> None:
    runs = runs_of(base, seeds="1-2", vary=(vary,), overrides=overrides)
    assert len({run.family for run in runs if run.seed == 1}) == families
    assert {run.family for run in runs if run.seed == 1}.isdisjoint(
        run.family for run in runs if run.seed == 2
    )


def test_without_learning_there_is_nothing_to_share(base: Path) -> None:
    assert {run.family for run in runs_of(base, timing_only=True)} == {None}


# --- who is next ------------------------------------------------------------------------------


def agenda_of(runs: list[PlannedRun]) -> Agenda:
    return Agenda(runs, {run.directory: "waiting" for run in runs})


def started(agenda: Agenda) -> list[tuple[str, str | None]]:
    """All that can start now, and whose memo each gets."""
    found = []
    while (chosen := agenda.next()) is not None:
        run, memo = chosen
        found.append((run.directory, memo and memo.directory))
    return found


def test_the_first_of_a_family_goes_alone(base: Path) -> None:
    agenda = agenda_of(runs_of(base, vary=(f"{UP}=1 Mbps,5 Mbps,9 Mbps",)))
    first = "base-up-1-Mbps/seed-"
    assert started(agenda) == [(f"{first}1", None), (f"{first}2", None)]
    agenda.status[f"{first}2"] = "done"
    assert started(agenda) == [
        ("base-up-5-Mbps/seed-2", f"{first}2"), ("base-up-9-Mbps/seed-2", f"{first}2"),
    ]  # fmt: skip
    # Where it comes to grief, the next one takes its place.
    agenda.status[f"{first}1"] = "failed"
    assert started(agenda) == [("base-up-5-Mbps/seed-1", None)]
    agenda.status["base-up-5-Mbps/seed-1"] = "done"
    assert started(agenda) == [("base-up-9-Mbps/seed-1", "base-up-5-Mbps/seed-1")]
    assert agenda.count({"running"}) == 3


def test_of_a_family_the_shortest_goes_first(base: Path) -> None:
    agenda = agenda_of(runs_of(base, seeds="1", vary=("stop.versions=6,2,4",)))
    order = []
    while found := started(agenda):
        order += found
        agenda.status[found[0][0]] = "done"
    names = [f"base-versions-{n}/seed-1" for n in (2, 4, 6)]
    assert order == list(zip(names, [None, *names[:2]], strict=True))


def test_what_is_over_before_is_not_started_and_gives_its_memo(base: Path) -> None:
    runs = runs_of(base, seeds="1", vary=(f"{UP}=1 Mbps,5 Mbps",))
    agenda = Agenda(runs, {runs[0].directory: "waiting", runs[1].directory: "done"})
    assert started(agenda) == [(runs[0].directory, runs[1].directory)]
    assert started(Agenda(runs, {run.directory: "failed" for run in runs})) == []


# --- cores ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runs", "jobs", "on_gpu", "have", "split"),
    [
        (15, None, False, 8, (8, 1)),
        (3, None, False, 8, (3, 2)),
        (15, 2, False, 8, (2, 4)),
        (15, 3, False, 8, (3, 2)),
        (15, None, True, 8, (1, 8)),
        (0, None, False, 8, (1, 8)),
    ],
)
def test_cores_are_divided_by_a_fixed_rule(
    runs: int, jobs: int | None, on_gpu: bool, have: int, split: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("emulator.sweep.local.cores", lambda: have)
    assert split_cores(runs, jobs, on_gpu=on_gpu) == split
    assert split[0] * split[1] <= have


def test_more_jobs_than_cores_are_refused() -> None:
    with pytest.raises(ScenarioError, match=r"--jobs \d+: more runs at once than the"):
        split_cores(100, cores() + 1, on_gpu=False)
