"""Faults on the clock: servers that fail, records that are lost, and what becomes of the tasks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from commandline import Config, Lab, RunFiles, buffered, digits, links, synchronous, timed
from test_cohorts import SYNCHRONOUS, TABLES, planted
from test_resume import planted_phones, same_files
from test_resume import run as execute


def with_faults(config: Config, **faults: Any) -> Config:
    config["federation"]["faults"] = faults
    return config


def whole(run: RunFiles) -> None:
    """Every dispatch has one outcome, and no version takes what was lost."""
    rows = run.table("updates")
    assert len(rows) == len(run.of("dispatch"))
    merged = Counter(task for event in run.of("aggregate") for task in event["tasks"])
    assert set(merged.values()) == {1}
    lost = {event["task"] for event in run.of("end")}
    assert not lost & set(merged)


def test_a_cohort_that_fails_redoes_its_round(lab: Lab) -> None:
    """8 clients, rounds of 4 that take 10 and 12 s (two clients each of the first four are slower).

    The first round begins at 0 with some 4 of 8; at 11 s, when the fast ones have reported, the
    process dies, and it is back at 31 s: the round is done again from version 0.
    """
    config = planted(8, SYNCHRONOUS, versions=3, at=[9])
    config["system"]["devices"]["training"] = [10.0, 12.0] * 4
    failures = {"kind": "scripted", "at": ["11 s"], "restart": "20 s"}
    run = lab.run(with_faults(config, cohort_failures=failures))
    (failed,), (back,) = run.of("cohort_failed"), run.of("cohort_restarted")
    assert (failed["t"], failed["entity"], failed["version"]) == (11.0, "cohort/c0", 0)
    assert (back["t"], back["version"]) == (31.0, 0)
    first = [event["task"] for event in run.of("dispatch") if event["t"] == 0.0]
    assert sorted(failed["under_way"] + failed["received"]) == first
    assert failed["under_way"]
    assert failed["received"]
    lost = [row for row in run.table("updates") if row["outcome"] == "server_failed"]
    assert len(lost) == 4
    # Their 11 or 10 s are wasted, and what has been received is charged in full, as is what came.
    assert sorted(float(row["wasted_s"]) for row in lost) == sorted(
        [11.0] * len(failed["under_way"]) + [10.0] * len(failed["received"])
    )
    assert [float(row["dispatched_s"]) for row in run.table("updates")
            if row["outcome"] == "reported"][:4] == [31.0] * 4  # fmt: skip
    assert [event["t"] for event in run.of("round")][:2] == [0.0, 31.0]
    # A lost task shifts nobody's draws: the same training has the same name.
    updates = {(event["entity"], event["version"]): set[str]() for event in run.of("dispatch")}
    for event in run.of("dispatch"):
        updates[event["entity"], event["version"]].add(event["update"])
    assert all(len(found) == 1 for found in updates.values())
    whole(run)


def test_bytes_of_what_a_failed_server_was_sent(lab: Lab) -> None:
    """1 MB at 8 Mbps takes 1 s: down until 1 s, training until 11, up until 12; cut at 11.25."""
    config = planted(4, {**SYNCHRONOUS, "participants": 4}, versions=1, at=[9], request_bytes=0)
    config["system"]["network"] = links(down="8 Mbps", up="8 Mbps")
    failures = {"kind": "scripted", "at": ["11.25 s"], "restart": "1 s"}
    run = lab.run(with_faults(config, cohort_failures=failures))
    lost = [row for row in run.table("updates") if row["outcome"] == "server_failed"]
    assert {(row["bytes_down"], row["bytes_up"], row["wasted_s"]) for row in lost} == {
        ("1000000", "250000", "11.25")
    }
    assert len(lost) == 4
    # It is back at 12.25 s, and the next round is over 12 s later.
    assert run.times("versions") == [24.25]


def test_buffered_cohorts_lose_their_buffers(lab: Lab) -> None:
    """What was inherited at the split is lost with the heir; nothing is counted twice."""
    config = planted(12, buffered(8, 4), versions=11, at=[6], clusters=4)
    config["system"]["devices"] = {"kind": "scripted", "training": [7.0 + c for c in range(12)]}
    config["system"]["drop_notice"] = "timeout"
    config["system"]["drop_timeout"] = "5 s"
    config["system"]["task_failure"] = 0.1
    config["stop"]["sim_time"] = "1 h"
    failures = {"kind": "exponential", "mean": "25 s", "restart": "5 s"}
    run = lab.run(with_faults(config, cohort_failures=failures))
    failed = run.of("cohort_failed")
    assert {event["entity"] for event in failed} == {"cohort/c0", "cohort/c0.0", "cohort/c0.1"}
    assert any(event["received"] for event in failed)
    assert len(failed) - len(run.of("cohort_restarted")) in (0, 1, 2)
    whole(run)
    rows = run.table("updates")
    lost = [row for row in rows if row["outcome"] == "server_failed"]
    assert len(lost) == sum(len(e["under_way"]) + len(e["received"]) for e in failed)
    # Never more at work than the budget, whatever is lost.
    ends = [(e["t"], -1) for e in run.of("upload")]
    ends += [(float(row["dispatched_s"]) + float(row["wasted_s"]), -1) for row in rows
             if row["outcome"] != "reported" and not row["uploaded_s"]]  # fmt: skip
    at_work = 0
    for _, change in sorted(ends + [(e["t"], 1) for e in run.of("dispatch")]):
        at_work += change
        assert at_work <= 8


def test_a_coordinator_that_fails_hears_nobody(lab: Lab) -> None:
    """Rounds of 10 s with 2 of 6 clients; down from 15 s until 45 s. The first round's two have
    checked in again at 10 s, those that are free later have not been heard until 45 + 3."""
    config = planted(6, {**SYNCHRONOUS, "participants": 2}, versions=6, at=[3], retry="3 s")
    failures = {"kind": "scripted", "at": ["15 s"], "restart": "30 s"}
    run = lab.run(with_faults(config, coordinator_failures=failures))
    (failed,), (back,) = run.of("coordinator_failed"), run.of("coordinator_restarted")
    assert (failed["t"], back["t"]) == (15.0, 45.0)
    heard, ignored = run.of("check_in"), run.of("check_in_ignored")
    assert not [event for event in heard if 15.0 <= event["t"] < 45.0]
    # Rounds end at 20, 30 and 40; who has trained in them comes 3 s later, in vain.
    assert [event["t"] for event in ignored] == [23.0, 23.0, 33.0, 33.0, 43.0, 43.0]
    assert run.times("versions")[:4] == [10.0, 20.0, 30.0, 40.0]
    assert sorted(event["t"] for event in heard if event["t"] > 40.0)[:6] == [48.0] * 6
    # Version 3 of 30 s is where the cohort splits: it does at the first version after the restart.
    (postponed,), (split,) = run.of("partition_postponed"), run.of("partition")
    assert (postponed["t"], postponed["entity"]) == (30.0, "cohort/c0")
    assert split["version"] == 5
    assert split["t"] == 58.0
    unmet = [row["unmet"] for row in run.table("clustering")][:5]
    assert unmet == ["at knowledge", "at", "coordinator", "coordinator", ""]
    whole(run)


def test_lost_records_are_explored_anew(lab: Lab) -> None:
    """With probability 1 every check-in after the first feedback comes with nothing."""
    config = planted(8, SYNCHRONOUS, versions=10, at=[2])
    faults = {"kind": "at_check_in", "probability": 1.0}
    run = lab.run(with_faults(config, lost_records=faults))
    lost = run.of("records_lost")
    assert len(lost) > 8
    assert {event["requested"] for event in run.of("check_in")} == {None}
    some = lab.run(
        with_faults(config, lost_records={"kind": "at_check_in", "probability": 0.3}), out="some"
    )
    check_ins = len(some.of("check_in"))
    assert 0.1 * check_ins < len(some.of("records_lost")) < 0.5 * check_ins
    assert {event["requested"] for event in some.of("check_in")} > {None}


def test_some_clients_lose_their_records_every_time_and_others_never(lab: Lab) -> None:
    config = planted(8, SYNCHRONOUS, versions=10, at=[2])
    losers = []
    for share in (0.0, 0.3, 0.6, 1.0):
        faults = {"kind": "at_check_in", "probability": 1.0, "share": share}
        run = lab.run(with_faults(config, lost_records=faults), out=f"share-{share}")
        losers.append({event["entity"] for event in run.of("records_lost")})
        asked = {e["entity"] for e in run.of("check_in") if e["requested"] is not None}
        assert not asked & losers[-1]
    assert losers[0] == set()
    assert losers[0] < losers[1] < losers[2] < losers[3]


# --- learning -------------------------------------------------------------------------------------

SCENARIO = planted_phones("""
federation:
  pacing: {kind: buffered, in_flight: 9, buffer: 6}
  structure:
    kind: cohorts
    retry: 1 min
    clustering:
      kind: auxo
      min_participants: 2
      max_cohorts: 2
      partition: {at: [6]}
      blacklist: {margin: 1.5, times: 3}
  faults:
    label_flips: {kind: random_class, share: 0.2, claims: wrong}
    local_dp: {kind: gaussian, clip: 0.5, sigma: 0.01}
    lost_records: {kind: at_check_in, probability: 0.1}
    cohort_failures: {kind: exponential, mean: 2 min, restart: 20 s}
    coordinator_failures: {kind: exponential, mean: 5 min, restart: 1 min}
evaluation: {every: {versions: 8}}
""", versions=24, clients=24, clusters=2, on_offline="pause")  # fmt: skip


def scenario_for(folder: Path, executor: str) -> Path:
    path = folder / f"{executor}.yaml"
    path.write_text(SCENARIO.replace("EXECUTOR", executor))
    return path


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> RunFiles:
    """A run with all faults, which nobody has disturbed."""
    folder = tmp_path_factory.mktemp("faulty")
    assert execute(scenario_for(folder, "inline"), folder / "run")[0] == 0
    return RunFiles(folder / "run")


def test_all_faults_in_one_log(faulty: RunFiles) -> None:
    for kind in (
        "label_flips", "records_lost", "cohort_failed", "cohort_restarted", "coordinator_failed",
        "coordinator_restarted", "check_in_ignored", "blacklist",
    ):  # fmt: skip
        assert faulty.of(kind), kind
    whole(faulty)


def test_who_claims_another_side_is_blacklisted(faulty: RunFiles) -> None:
    """Only corrupted clients lie, and are found out; nobody asks them from then on."""
    (flips,) = faulty.of("label_flips")
    assert (flips["t"], flips["entity"], flips["flip"]) == (0.0, "population", "random_class")
    assert len(flips["clients"]) == 4
    for event in faulty.of("blacklist"):
        client = int(event["entity"].removeprefix("client/"))
        assert client in flips["clients"]
        tasks = faulty.tasks(client)
        assert all(float(task["dispatched_s"]) <= event["t"] for task in tasks)


@pytest.mark.parametrize(("executor", "workers"), [("inline", 1), ("processes", 2)])
def test_faults_are_the_same_again(
    faulty: RunFiles, executor: str, workers: int, tmp_path: Path
) -> None:
    """Killed amid the failures and run again; and by two workers."""
    scenario = scenario_for(tmp_path, executor)
    if executor == "inline":
        failed = [n for n, e in enumerate(faulty.events) if e["type"] == "cohort_failed"]
        assert execute(scenario, tmp_path / "run", "event", failed[-1] + 5)[0] == -9
    assert execute(scenario, tmp_path / "run", workers=workers)[0] == 0
    models = sorted(path.name for path in faulty.path.glob("model*.safetensors"))
    same_files(faulty.path, tmp_path / "run", (*TABLES, *models))


def test_noise_costs_accuracy(lab: Lab) -> None:
    config = digits(10, synchronous(5), versions=6)
    accuracy = {}
    for sigma in (0.0, 2.0):
        faults = {"local_dp": {"kind": "gaussian", "clip": 0.3, "sigma": sigma}}
        run = lab.run(with_faults(config, **faults), out=f"sigma-{sigma}")
        accuracy[sigma] = float(run.column("metrics", "value")[-2])
        assert not run.of("privacy_exceeded")
    assert accuracy[2.0] < accuracy[0.0] - 0.2


def test_reports_beyond_the_budget_are_named(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """8 rounds of 2 of 4 clients, accounted for 3 reports of each."""
    monkeypatch.setattr("emulator.federation.faults.local_dp._calibrated", lambda *budget: 1.5)
    faults = {"kind": "gaussian", "clip": 1.0, "epsilon": 8.0, "delta": 1e-6, "reports": 3}
    run = lab.run(with_faults(timed(4, 10.0, synchronous(2), stop={"versions": 8}),
                              local_dp=faults))  # fmt: skip
    reported = Counter(event["entity"] for event in run.of("upload"))
    exceeded = {event["entity"]: event for event in run.of("privacy_exceeded")}
    assert set(exceeded) == {client for client, n in reported.items() if n > 3}
    assert {event["reports"] for event in exceeded.values()} == {4}
    assert any("take sigma 1.5" in note for note in run.manifest["notes"])
