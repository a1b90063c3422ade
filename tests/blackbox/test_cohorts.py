"""Cohorts on the clock: who checks in where, what splits when, and that nothing is lost by it."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from commandline import Config, Lab, buffered, digits, links, timed
from test_resume import COMPARED, planted_phones, run, same_files, undisturbed

SYNCHRONOUS = {"kind": "synchronous", "participants": 4, "deadline": "none"}
TABLES = (
    *(name for name in COMPARED if not name.startswith("model")),
    "affinity.csv", "clustering.csv", "cohorts.csv",
)  # fmt: skip


def clustering(**options: Any) -> Config:
    return {"kind": "auxo", "min_participants": 2, **options}


def planted(
    clients: int, pacing: Config, *, versions: int, at: list[int], clusters: int = 2, **options: Any
) -> Config:
    """Timing only: clusters as planted, splits at these versions."""
    config = timed(clients, 10.0, pacing, stop={"versions": versions}, size="1 MB")
    config["task"]["planted"] = {"kind": "rotation", "clusters": clusters}
    config["federation"]["structure"] = {
        "kind": "cohorts", "stand_in": "planted", "clustering": clustering(partition={"at": at}),
        **options,
    }  # fmt: skip
    return config


def cohort_of(event: Config) -> str:
    return str(event["entity"].removeprefix("cohort/"))


# --- the protocol ---------------------------------------------------------------------------------


def test_a_cohort_splits_and_its_clients_go_on_in_its_children(lab: Lab) -> None:
    """8 clients, all online, half of them in each round of 10 s. After version 3 the cohort splits;
    each child has 2 participants a round, of its own planted cluster once it is known."""
    run = lab.run(planted(8, SYNCHRONOUS, versions=8, at=[3]))
    (split,) = run.of("partition")
    assert (split["t"], split["entity"], split["version"]) == (30.0, "cohort/c0", 3)
    assert split["children"] == ["c0.0", "c0.1"]
    by_cohort = Counter(row["cohort"] for row in run.table("versions"))
    # Both children begin at version 3, rounds last 10 s, and the first at version 8 ends the run.
    assert by_cohort == {"c0": 3, "c0.0": 5, "c0.1": 4}
    assert run.manifest["versions"] == 8
    assert {row["updates"] for row in run.table("versions") if row["cohort"] != "c0"} == {"2"}
    rows = {row["cohort"]: row for row in run.table("cohorts")}
    assert (rows["c0"]["born_s"], rows["c0"]["split_s"]) == ("0.0", "30.0")
    assert [rows[c]["parent"] for c in ("c0.0", "c0.1")] == ["c0", "c0"]
    assert rows["c0.0"]["first_version"] == "3"


def test_a_client_serves_one_cohort_at_a_time(lab: Lab) -> None:
    run = lab.run(planted(12, SYNCHRONOUS, versions=12, at=[2, 4], clusters=4))
    assert len(run.of("partition")) == 3
    for client in range(12):
        tasks = run.tasks(client)
        for before, after in itertools.pairwise(tasks):
            assert float(before["uploaded_s"]) <= float(after["dispatched_s"])
        # It trains where its last check-in, or the split of its cohort since, has led.
        for task in tasks:
            ins = [e for e in run.of("check_in") if e["entity"] == f"client/{client}"]
            led = [e["cohort"] for e in ins if e["t"] <= float(task["dispatched_s"])][-1]
            assert task["cohort"] == led or task["cohort"].startswith(f"{led}.")


def test_who_is_known_comes_back_to_its_own(lab: Lab) -> None:
    """Once it has been told, a client without exploration trains with its own kind only."""
    options = {"exploration": {"epsilon": 0.0, "floor": 0.0}}
    config = planted(8, SYNCHRONOUS, versions=20, at=[6])
    config["federation"]["structure"]["clustering"].update(options)
    run = lab.run(config)
    told = run.table("affinity")
    homes: dict[str, str] = {}
    for row in told:
        if row["cohort"] != "c0" and float(row["reward"]) > 0:
            homes.setdefault(row["client"], row["cohort"])
    assert len(homes) == 8
    for row in told:
        if row["cohort"] != "c0" and float(row["sim_time_s"]) > 100:
            assert row["cohort"] == homes[row["client"]]
            assert float(row["reward"]) > 0


def test_the_bytes_of_affinity_messages(lab: Lab) -> None:
    """1 MB each way for each task, 20 bytes up for each check-in, 12 down for each feedback."""
    run = lab.run(
        planted(8, SYNCHRONOUS, versions=6, at=[3], request_bytes=20, feedback_bytes=12)
    )  # fmt: skip
    check_ins, told = run.of("check_in"), run.table("affinity")
    versions = run.table("versions")
    merged = sum(int(row["updates"]) for row in versions)
    last_s = max(run.times("versions"))
    # A row tells of what was sent before it; what comes of the last version is in clients.csv.
    assert sum(int(row["bytes_up"]) for row in versions) == (
        1_000_000 * merged + 20 * sum(event["t"] < last_s for event in check_ins)
    )
    assert sum(int(row["bytes_down"]) for row in versions) == (
        1_000_000 * merged + 12 * sum(float(row["sim_time_s"]) < last_s for row in told)
    )
    of_tasks = sum(int(row["bytes_down"]) + int(row["bytes_up"]) for row in run.table("updates"))
    total = sum(int(row["bytes"]) for row in run.table("clients"))
    assert total == of_tasks + 20 * len(check_ins) + 12 * len(told)


def test_a_request_takes_the_time_of_its_link(lab: Lab) -> None:
    """100 ms and 16 bytes at 128 bit/s: 1.1 s after the session starts the client is there."""
    config = planted(4, {**SYNCHRONOUS, "participants": 2}, versions=1, at=[9])
    config["system"]["network"] = links(down="1 Gbps", up="128 bps", latency="100 ms")
    config["task"]["model"]["size"] = "1 B"
    run = lab.run(config)
    assert {event["t"] for event in run.of("check_in")} == {1.1}
    assert {event["t"] for event in run.of("dispatch")} == {1.1}


def test_a_client_rests_before_it_checks_in_again(lab: Lab) -> None:
    """Each of 4 clients trains 10 s and rests 25: a round of all of them begins every 35 s."""
    config = planted(4, SYNCHRONOUS, versions=4, at=[9], retry="25 s")
    run = lab.run(config)
    assert sorted({event["t"] for event in run.of("dispatch")}) == [0.0, 35.0, 70.0, 105.0]


def test_what_is_in_flight_at_a_split_goes_to_the_children(lab: Lab) -> None:
    """Buffered: 8 in flight with times of their own; the cohort splits in the middle."""
    config = planted(12, buffered(8, 4), versions=12, at=[3])
    config["system"]["devices"] = {"kind": "scripted", "training": [7.0 + c for c in range(12)]}
    run = lab.run(config)
    (split,) = run.of("partition")
    under_way = [
        row for row in run.table("updates")
        if row["cohort"] == "c0" and float(row["dispatched_s"]) < split["t"]
        and row["outcome"] == "reported" and float(row["uploaded_s"]) > split["t"]
    ]  # fmt: skip
    assert under_way
    merged = Counter(task for event in run.of("aggregate") for task in event["tasks"])
    assert set(merged.values()) == {1}, "no update is merged twice"
    of_children = {
        task for event in run.of("aggregate") if cohort_of(event) != "c0" for task in event["tasks"]
    }
    dispatched = {event["task"]: event for event in run.of("dispatch")}
    inherited = [task for task in of_children if dispatched[task]["cohort"] == "c0"]
    assert inherited, "the children merge what was under way"
    ended = Counter(row["outcome"] for row in run.table("updates"))
    assert sum(ended.values()) == len(dispatched)
    # Never more at work than the budget.
    starts = [(e["t"], 1) for e in run.of("dispatch")]
    stops = [(e["t"], -1) for e in run.of("upload")]
    at_work = 0
    for _, change in sorted(starts + stops):
        at_work += change
        assert at_work <= 8


# --- learning -------------------------------------------------------------------------------------


def learning(*, versions: int, planted: Config | None, **options: Any) -> Config:
    config = digits(12, {**SYNCHRONOUS, "participants": 8}, versions=versions)
    config["task"]["client_test"] = 0.2
    if planted:
        config["task"]["planted"] = planted
    config["federation"]["structure"] = {"kind": "cohorts", "clustering": clustering(**options)}
    return config


PERMUTED = {"kind": "label_permutation", "clusters": 2}
SOON = {
    "min_rounds": 4, "window": 2, "settled": 10.0, "known_share": 0.2, "min_participants": 2,
}  # fmt: skip


def test_permuted_labels_are_found_and_pay(lab: Lab) -> None:
    """Two kinds of clients with other names for the digits: two cohorts, and a model for each."""
    run = lab.run(learning(versions=24, planted=PERMUTED, partition=SOON, max_cohorts=2))
    assert len(run.of("partition")) == 1
    last = {
        (row["entity"], row["split"], row["metric"]): float(row["value"])
        for row in run.table("metrics")
    }
    assert last["global", "members", "adjusted_rand_index"] == 1.0
    alone = lab.run(learning(versions=24, planted=PERMUTED, max_cohorts=1), out="alone")
    accuracy = [
        float(row["value"]) for row in alone.table("metrics")
        if (row["entity"], row["split"], row["metric"]) == ("global", "test", "accuracy")
    ]  # fmt: skip
    assert last["global", "members", "accuracy"] > accuracy[-1] + 0.1
    for name in ("model-c0.0.safetensors", "model-c0.1.safetensors"):
        assert (run.path / name).exists()
    assert not (run.path / "model.safetensors").exists()


def test_alike_clients_stay_together(lab: Lab) -> None:
    several = {**SOON, "window": 5, "gain": 1.7}
    run = lab.run(learning(versions=20, planted=None, partition=several))
    assert not run.of("partition")
    assert (run.path / "model.safetensors").exists()
    assert {row["unmet"] for row in run.table("clustering")[12:]} == {"gain"}


def test_half_a_model_in_each_cohort(lab: Lab) -> None:
    """Divide-and-Conquer inside cohorts: up goes a part; a client that comes from another cohort
    has nothing of this one's model, and gets all of it."""
    # The small second part does not tell its clients apart as the first one does.
    soon = {**SOON, "agreement": 0.5}
    config = learning(versions=16, planted=PERMUTED, partition=soon, max_cohorts=2)
    config["task"]["model"] = {"kind": "mlp", "hidden": [8]}
    config["federation"]["payload"] = {
        "kind": "divide_and_conquer", "header": "0 B", "control": "0 B",
        "split": {"kind": "fixed", "layer": 1},
        "feature_learning": {"epochs": 1, "lr": 0.1}, "fine_tuning": {"epochs": 1, "lr": 0.1},
    }  # fmt: skip
    run = lab.run(config)
    assert len(run.of("partition")) == 1
    first, second = 4 * (64 * 8 + 8), 4 * (8 * 10 + 10)
    last_at: dict[str, str] = {}
    movers = 0
    for row in sorted(run.table("updates"), key=lambda row: float(row["dispatched_s"])):
        if row["outcome"] == "reported":
            assert int(row["bytes_up"]) == (first if row["part"] == "A" else second)
        before = last_at.get(row["client"])
        came_from_elsewhere = before is not None and not row["cohort"].startswith(before)
        if came_from_elsewhere and row["outcome"] == "reported":
            movers += 1
            assert int(row["bytes_down"]) == first + second
        last_at[row["client"]] = row["cohort"]
    assert movers > 0


# --- again and again ------------------------------------------------------------------------------

SCENARIO = planted_phones("""
federation:
  pacing: PACING
  server_optimizer: {kind: fedyogi, lr: 0.05, tau: 0.1}
  structure:
    kind: cohorts
    retry: 1 min
    clustering:
      kind: auxo
      min_participants: 2
      max_cohorts: 3
      partition: {at: [6, 12]}
evaluation: {every: {versions: 4}}
""", versions=30, clients=24, clusters=3, on_offline="pause")  # fmt: skip
PACINGS = {
    "rounds": "{kind: synchronous, participants: 9, deadline: none}",
    "buffers": "{kind: buffered, in_flight: 9, buffer: 6}",
    "chains": "{kind: synchronous, participants: 9, deadline: none}",
}


CHAINS = "{size: 2, passes: 2, hop: relay, absent: {kind: swap, timeout: 10 min}}"


def write_scenario(folder: Path, pacing: str, executor: str) -> Path:
    path = folder / f"{pacing}-{executor}.yaml"
    text = SCENARIO.replace("PACING", PACINGS[pacing]).replace("EXECUTOR", executor)
    if pacing == "chains":
        text = text.replace("    retry:", f"    superclients: {CHAINS}\n    retry:")
    path.write_text(text)
    return path


@pytest.fixture(scope="module", params=sorted(PACINGS))
def whole(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, tuple[str, ...]]:
    """(pacing, run directory, files to compare) of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    scenario = write_scenario(folder, request.param, "inline")
    return request.param, *undisturbed(scenario, folder, 3, TABLES)


def test_killed_with_three_cohorts_and_run_again(
    whole: tuple[str, Path, tuple[str, ...]], tmp_path: Path
) -> None:
    """Killed with three cohorts in flight: same log, tables and weights."""
    pacing, expected, files = whole
    lines = (expected / "events.jsonl").read_text().splitlines()
    splits = [number for number, line in enumerate(lines) if '"type":"partition"' in line]
    assert len(splits) == 2
    scenario = write_scenario(tmp_path, pacing, "inline")
    assert run(scenario, tmp_path / "again", "event", splits[-1] + 60)[0] == -9
    assert run(scenario, tmp_path / "again")[0] == 0
    same_files(expected, tmp_path / "again", files)


@pytest.mark.parametrize("workers", [1, 2])
def test_processes_give_the_same(
    whole: tuple[str, Path, tuple[str, ...]], workers: int, tmp_path: Path
) -> None:
    pacing, expected, files = whole
    if pacing != "rounds":
        pytest.skip("that of rounds is enough: what is computed is the same")
    scenario = write_scenario(tmp_path, pacing, "processes")
    assert run(scenario, tmp_path / "run", workers=workers)[0] == 0
    same_files(expected, tmp_path / "run", files)
