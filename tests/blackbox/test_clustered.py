"""IFCA, CFL, FL+HC and FlexCFL on the clock: what a task and a pass take, who goes where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commandline import Config, Lab, RunFiles, digits, links, synchronous
from test_resume import COMPARED, planted_phones, run, same_files, undisturbed

MODEL_BYTES = 4 * 650
"""Digits' logistic regression: 64 × 10 weights and 10 biases."""
SECOND = {"down": f"{MODEL_BYTES} B/s", "up": f"{MODEL_BYTES} B/s"}
"""Links that take a second for a model."""


def clustered(structure: Config, *, versions: int, clients: int = 12, **task: Any) -> Config:
    """Two kinds of clients with other names for the digits, 8 a round; a task trains 6 s."""
    config = digits(clients, synchronous(8), versions=versions, training=6.0)
    config["task"].update(
        client_test=0.2, planted={"kind": "label_permutation", "clusters": 2}, **task
    )
    config["local"]["epochs"] = 2
    config["federation"]["structure"] = structure
    return config


def homes(run: RunFiles) -> dict[str, str]:
    """Which cohort's model each client was measured by last."""
    return {row["entity"]: row["cohort"] for row in run.table("metrics") if row["split"] == "client"
            and row["entity"] != "global"}  # fmt: skip


def partition(run: RunFiles) -> set[frozenset[str]]:
    found = homes(run)
    return {frozenset(c for c, home in found.items() if home == cohort)
            for cohort in found.values()}  # fmt: skip


def agreement(run: RunFiles) -> float:
    """The last adjusted Rand index with the planted clusters."""
    found = [float(row["value"]) for row in run.table("metrics")
             if row["metric"] == "adjusted_rand_index"]  # fmt: skip
    return found[-1]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("clustered"))


@pytest.fixture(scope="module")
def ifca(shared: Lab) -> RunFiles:
    """Client 11 comes when the run is over."""
    config = clustered({"kind": "ifca", "clusters": 2}, versions=9)
    config["system"]["network"] = links(**SECOND)
    config["system"]["availability"] = {
        "kind": "scripted", "sessions": [[[0.0, 1000.0]]] * 11 + [[[900.0, 1000.0]]],
        "period": 1000.0, "at_end": "wrap",
    }  # fmt: skip
    config["system"].update(on_offline="drop", drop_notice="at_once")
    config["evaluation"]["every"] = {"versions": 9}
    return shared.run(config, out="ifca")


@pytest.fixture(scope="module")
def cfl(shared: Lab) -> RunFiles:
    structure = {"kind": "cfl", "min_rounds": 4, "max_clusters": 2,
                 "thresholds": {"kind": "relative", "mean": 0.9, "ratio": 1.05}}  # fmt: skip
    return shared.run(clustered(structure, versions=10), out="cfl")


@pytest.fixture(scope="module")
def flexcfl(shared: Lab) -> RunFiles:
    structure = {"kind": "flexcfl", "clusters": 2, "clients": 8, "steps": 10}
    config = clustered(structure, versions=8)
    config["system"]["network"] = links(**SECOND)
    return shared.run(config, out="flexcfl")


# --- a task ---------------------------------------------------------------------------------------


def test_what_a_task_of_ifca_takes(ifca: RunFiles) -> None:
    """Two models come in two seconds. Two epochs take 6 s, a forward pass a third of an epoch's 3,
    and there are two; up goes a model and four bytes."""
    first = ifca.tasks(int(ifca.table("updates")[0]["client"]))[0]
    assert (first["bytes_down"], first["bytes_up"]) == (str(2 * MODEL_BYTES), str(MODEL_BYTES + 4))
    times = [float(first[f"{name}_s"]) for name in ("dispatched", "downloaded", "trained")]
    assert times == pytest.approx([0.0, 2.0, 2.0 + 6.0 + 2 * 1.0])
    assert float(first["uploaded_s"]) == pytest.approx(10.0 + (MODEL_BYTES + 4) / MODEL_BYTES)
    for version in ifca.table("versions"):
        n = int(version["updates"])
        assert int(version["bytes_down"]) == n * 2 * MODEL_BYTES
        assert int(version["bytes_up"]) == n * (MODEL_BYTES + 4)


def test_every_client_has_the_model_that_it_would_choose(ifca: RunFiles, cfl: RunFiles) -> None:
    """That of its kind; so has the one that nobody has asked."""
    assert agreement(ifca) == 1.0
    assert ifca.tasks(11) == []
    assert set(homes(ifca).values()) == {"c0", "c1"}
    assert len(homes(ifca)) == 12
    assert partition(ifca) == partition(cfl)
    kinds = homes(ifca)
    for row in ifca.table("updates")[-8:]:
        assert row["cohort"] == kinds[f"client/{row['client']}"]
    assert [(row["cohort"], row["parent"], row["split_s"]) for row in ifca.table("cohorts")] == [
        ("c0", "", ""), ("c1", "", "")
    ]  # fmt: skip
    assert sorted(path.name for path in ifca.path.glob("*.safetensors")) == [
        "model-c0.safetensors", "model-c1.safetensors"
    ]  # fmt: skip


def test_a_newcomer_of_flexcfl_pays_for_two_trainings(flexcfl: RunFiles) -> None:
    """10 mini-batches of 10 are so much of the 6 s as of the samples of two epochs; each training
    has its download and its upload."""
    survey, split = flexcfl.of("survey")[0], flexcfl.of("partition")[0]
    assert (survey["t"], survey["clients"], survey["wanted"]) == (0.0, 12, 8)
    known = {e["entity"] for e in flexcfl.of("dispatch") if e.get("phase") == "cold_start"}
    assert len(known) == 8
    # Not simply those with the smallest numbers.
    assert known != {f"client/{client}" for client in range(8)}
    newcomers = 0
    for client in range(12):
        cold_s = 6.0 * 100 / (2 * int(flexcfl.tasks(client)[0]["samples"]))
        for number, task in enumerate(flexcfl.tasks(client)):
            took = [float(task["downloaded_s"]) - float(task["dispatched_s"]),
                    float(task["trained_s"]) - float(task["downloaded_s"]),
                    float(task["uploaded_s"]) - float(task["trained_s"])]  # fmt: skip
            first, is_known = number == 0, f"client/{client}" in known
            newcomers += first and not is_known
            n = 2 if first and not is_known else 1
            train_s = cold_s * first + 6.0 * (not first or not is_known)
            assert took == pytest.approx([n, train_s, n])
            assert task["bytes_down"] == task["bytes_up"] == str(n * MODEL_BYTES)
            if first and is_known:
                assert task["cohort"] == "c0"
                assert float(task["uploaded_s"]) <= split["t"]
            else:
                assert task["cohort"] in ("c0.0", "c0.1")
    assert newcomers == 4


def test_groups_of_flexcfl_are_the_planted_ones(flexcfl: RunFiles, cfl: RunFiles) -> None:
    """Each begins with the mean of what its clients have made of the first model: version 1."""
    assert agreement(flexcfl) == 1.0
    assert partition(flexcfl) == partition(cfl)
    first = [row for row in flexcfl.table("versions") if row["version"] == "1"]
    assert [row["cohort"] for row in first] == ["c0.0", "c0.1"]
    assert sum(int(row["updates"]) for row in first) == 8
    assert sum(int(row["bytes_down"]) for row in first) == 8 * MODEL_BYTES


def test_another_network_trains_nothing_again(flexcfl: RunFiles, shared: Lab) -> None:
    structure = {"kind": "flexcfl", "clusters": 2, "clients": 8, "steps": 10}
    again = shared.run(
        clustered(structure, versions=8), "--memo", flexcfl.path, out="what-if"
    )  # fmt: skip
    assert "train" in flexcfl.manifest["host"]["by_operation_s"]
    assert not {"train", "group", "nearest"} & set(again.manifest["host"]["by_operation_s"])
    assert again.column("metrics", "value") == flexcfl.column("metrics", "value")


def test_groups_are_drawn_to_each_other_after_each_round(flexcfl: RunFiles, shared: Lab) -> None:
    """And only with ``inter_group``: the versions that the pass makes are the same."""
    structure = {"kind": "flexcfl", "clusters": 2, "clients": 8, "steps": 10, "inter_group": 0.1}
    near = shared.run(
        clustered(structure, versions=2), "--memo", flexcfl.path, out="inter-group"
    )  # fmt: skip
    assert "inter_group" in near.manifest["host"]["by_operation_s"]
    assert "inter_group" not in flexcfl.manifest["host"]["by_operation_s"]
    states = [{(e["version"], e["entity"]): e["state"] for e in run.of("aggregate")}
              for run in (flexcfl, near)]  # fmt: skip
    for cohort in ("cohort/c0.0", "cohort/c0.1"):
        assert states[0][1, cohort] == states[1][1, cohort]
        assert states[0][2, cohort] != states[1][2, cohort]


# --- a pass ---------------------------------------------------------------------------------------


def test_cfl_cuts_by_what_members_have_sent(cfl: RunFiles) -> None:
    """All 12 train once, 6 s, and the version that comes of it has two models."""
    assert agreement(cfl) == 1.0
    (split,) = cfl.of("partition")
    v = split["version"]
    assert v >= 4
    assert (split["t"], split["parent"], split["children"], split["clients"]) == (
        6.0 * (v + 1), "c0", ["c0.0", "c0.1"], 12
    )  # fmt: skip
    made = [row for row in cfl.table("versions") if int(row["version"]) == v + 1]
    assert [int(row["updates"]) for row in made] == split["sizes"] == [6, 6]
    assert {row["round_duration_s"] for row in made} == {"6.0"}
    assert sum(int(row["bytes_up"]) for row in made) == 12 * MODEL_BYTES
    ends = [(row["cohort"], row["parent"], row["split_s"], row["first_version"])
            for row in cfl.table("cohorts")]  # fmt: skip
    t = str(split["t"])
    assert ends == [("c0", "", t, "0"), ("c0.0", "c0", "", str(v)), ("c0.1", "c0", "", str(v))]
    # What is measured before a cut is not measured a second time.
    assert [e["version"] for e in cfl.of("evaluate")] == list(range(11))


@pytest.mark.parametrize(("mean", "splits"), [(1e3, 1), (1e-6, 0)])
def test_cfl_cuts_by_absolute_norms(mean: float, splits: int, lab: Lab) -> None:
    structure = {"kind": "cfl", "min_rounds": 2, "max_clusters": 2, "linkage": "single",
                 "thresholds": {"kind": "absolute", "mean": mean, "largest": 1e-3}}  # fmt: skip
    run = lab.run(clustered(structure, versions=3, clients=8))
    assert [event["version"] for event in run.of("partition")] == [2] * splits


def test_every_cluster_at_rest_is_cut_before_the_next_round(lab: Lab) -> None:
    """Two passes one after the other, of the two clusters that are at rest at once."""
    structure = {"kind": "cfl", "min_rounds": 1, "max_clusters": 4,
                 "thresholds": {"kind": "absolute", "mean": 1e3, "largest": 1e-3}}  # fmt: skip
    config = clustered(structure, versions=5)
    config["federation"]["pacing"]["participants"] = 12
    run = lab.run(config)
    kinds = [e["type"] for e in run.events if e["type"] in ("round", "survey")]
    assert kinds == ["round", "survey", "round", "survey", "survey"]
    assert [event["parent"] for event in run.of("partition")] == ["c0", "c0.0", "c0.1"]


def passing(**options: Any) -> Config:
    """8 clients that train 5 s, the last one 10. One of them comes after 100 s; the last one goes
    in the middle of its task, and comes again after 50."""
    structure = {"kind": "fl_hc", "after_rounds": 1, "clusters": 2, **options}
    config = clustered(structure, versions=2, clients=8)
    config["federation"]["pacing"]["participants"] = 3
    config["system"]["devices"]["training"] = [5.0] * 7 + [10.0]
    config["system"]["availability"] = {
        "kind": "scripted", "period": 1000.0, "at_end": "wrap",
        "sessions": [[[0.0, 1000.0]]] * 6 + [[[100.0, 1000.0]], [[0.0, 12.0], [50.0, 1000.0]]],
    }  # fmt: skip
    config["system"].update(on_offline="drop", drop_notice="at_once")
    return config


def of_pass(run: RunFiles) -> list[dict[str, str]]:
    begun_s = run.of("survey")[0]["t"]
    until_s = run.of("partition")[0]["t"]
    return [row for row in run.table("updates") if begun_s <= float(row["dispatched_s"]) < until_s]


def test_a_pass_waits_for_the_last_and_asks_the_lost_again(lab: Lab) -> None:
    """Until 100 + 5 s; the one that is lost at 12 is done at 60."""
    run = lab.run(passing())
    (split,) = run.of("partition")
    assert (split["t"], split["clients"], sum(split["sizes"])) == (105.0, 8, 8)
    rows = of_pass(run)
    assert [row["outcome"] for row in rows].count("reported") == 8
    (lost,) = [row for row in rows if row["outcome"] != "reported"]
    assert (lost["client"], lost["outcome"], lost["cohort"]) == ("7", "dropped_training", "c0")
    assert float(run.tasks(7)[-1]["uploaded_s"]) >= 60.0
    assert [event["t"] for event in run.of("end")] == [12.0]
    # The children begin as their parent stands: no version comes of the pass.
    assert {int(row["version"]) for row in run.table("versions")} == {1, 2}
    assert float(run.of("round")[1]["t"]) == 105.0


def test_who_has_not_come_by_the_deadline_goes_with_the_larger_cluster(lab: Lab) -> None:
    run = lab.run(passing(deadline=47.0))
    begun_s, (split,) = run.of("survey")[0]["t"], run.of("partition")
    assert begun_s in (5.0, 10.0)
    assert (split["t"], split["clients"], sum(split["sizes"])) == (begun_s + 47.0, 6, 6)
    outcomes = {row["client"]: row["outcome"] for row in of_pass(run)}
    assert outcomes["7"] == "cancelled"
    assert "6" not in outcomes
    sizes = dict(zip(split["children"], split["sizes"], strict=True))
    largest = max(sizes, key=lambda name: (sizes[name], name == "c0.0"))
    assert homes(run)["client/6"] == homes(run)["client/7"] == largest


def test_a_pass_that_waits_for_ever_says_for_whom(lab: Lab) -> None:
    config = passing()
    sessions = config["system"]["availability"]["sessions"]
    sessions[:] = [[[0.0, 200.0]]] * 6 + [[], []]
    config["system"]["availability"]["at_end"] = "end"
    said = lab.failed_run(config, exit_code=1)
    assert "the server is at version 1 and waits for the clustering of 2 clients (6, 7)" in said


# --- updates that are not finite ------------------------------------------------------------------


def test_where_no_update_is_finite_the_first_model_stays(lab: Lab) -> None:
    config = clustered({"kind": "flexcfl", "clusters": 2, "clients": 4}, versions=1, clients=8)
    config["local"]["optimizer"]["lr"] = 1e38
    run = lab.run(config)
    (split,) = run.of("partition")
    assert (split["children"], split["sizes"]) == (["c0"], [0])
    assert [(row["version"], row["cohort"]) for row in run.table("versions")] == [("1", "c0")]
    assert len(run.of("nonfinite")) == 4 + 8
    assert (run.path / "model.safetensors").exists()
    config["federation"]["on_nonfinite"] = "stop"
    said = lab.failed_run(config, exit_code=3, out="stopped")
    assert "trained from version 0 and dispatched at simulated time 0.0 s, is not finite" in said


# --- again and again ------------------------------------------------------------------------------

SCENARIO = planted_phones("""
federation:
  pacing: {kind: synchronous, participants: 6, over_commitment: 1.2, deadline: none,
           stragglers: finish}
  server_optimizer: {kind: fedyogi, lr: 0.05, tau: 0.1}
  structure: STRUCTURE
evaluation: {every: {versions: 2}}
""", versions=5, clients=16, clusters=2, on_offline="drop")  # fmt: skip
STRUCTURES = {
    "ifca": "{kind: ifca, clusters: 2}",
    "cfl": "{kind: cfl, min_rounds: 2, max_clusters: 2, "
           "thresholds: {kind: absolute, mean: 1000, largest: 0.001}}",
    "flexcfl": "{kind: flexcfl, clusters: 2, clients: 8, steps: 5, inter_group: 0.1}",
}  # fmt: skip
TABLES = (*(name for name in COMPARED if not name.startswith("model")), "cohorts.csv")


def write_scenario(folder: Path, structure: str, executor: str) -> Path:
    path = folder / f"{structure}-{executor}.yaml"
    text = SCENARIO.replace("STRUCTURE", STRUCTURES[structure])
    path.write_text(text.replace("EXECUTOR", executor))
    return path


@pytest.fixture(scope="module", params=sorted(STRUCTURES))
def whole(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, tuple[str, ...]]:
    """(structure, run directory, files to compare) of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    scenario = write_scenario(folder, request.param, "inline")
    return request.param, *undisturbed(scenario, folder, 2, TABLES)


def test_killed_in_the_middle_of_a_pass_and_run_again(
    whole: tuple[str, Path, tuple[str, ...]], tmp_path: Path
) -> None:
    structure, expected, files = whole
    lines = (expected / "events.jsonl").read_text().splitlines()
    # IFCA has no pass: its first version is made by then.
    begins = '"type":"survey"' if structure != "ifca" else '"type":"aggregate"'
    (first, *_) = [number for number, line in enumerate(lines) if begins in line]
    scenario = write_scenario(tmp_path, structure, "inline")
    assert run(scenario, tmp_path / "again", "event", first + 12)[0] == -9
    if structure != "ifca":
        so_far = (tmp_path / "again" / "events.jsonl").read_text()
        assert '"type":"partition"' not in so_far
    assert run(scenario, tmp_path / "again")[0] == 0
    same_files(expected, tmp_path / "again", files)


@pytest.mark.parametrize("workers", [1, 2])
def test_processes_give_the_same(
    whole: tuple[str, Path, tuple[str, ...]], workers: int, tmp_path: Path
) -> None:
    structure, expected, files = whole
    if structure == "cfl" or (structure == "ifca" and workers == 1):
        pytest.skip("those of the others are enough: what is computed is the same")
    scenario = write_scenario(tmp_path, structure, "processes")
    assert run(scenario, tmp_path / "run", workers=workers)[0] == 0
    same_files(expected, tmp_path / "run", files)
