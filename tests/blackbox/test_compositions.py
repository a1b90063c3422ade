"""Methods of several axes in one run on real data: the log shows the events and bytes of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from commandline import Config, Lab, RunFiles, buffered, digits, links, synchronous, timed

MODEL = 4 * (64 * 10 + 10)
"""Bytes of the logistic model."""
FIRST, SECOND = 4 * (64 * 8 + 8), 4 * (8 * 10 + 10)
"""Bytes of the two layers of the small MLP."""
MLP = {"kind": "mlp", "hidden": [8]}
DIVIDED = {
    "kind": "divide_and_conquer", "header": "0 B", "control": "0 B",
    "split": {"kind": "fixed", "layer": 1},
    "feature_learning": {"epochs": 1, "lr": 0.1}, "fine_tuning": {"epochs": 1, "lr": 0.1},
}  # fmt: skip


def on_digits(model: Config, pacing: Config, structure: Config, **federation: Any) -> Config:
    config = digits(12, pacing, versions=8, training=[5.0 + client for client in range(12)])
    config["task"].update(
        model=model, client_test=0.2, planted={"kind": "label_permutation", "clusters": 2}
    )
    config["federation"].update(structure=structure, **federation)
    own = {"kind": "ftfa", "epochs": 2, "lr": 0.1}
    config["evaluation"] = {"every": {"versions": 8}, "personalization": own}
    return config


def cohorts(**options: Any) -> Config:
    """Two of them, from version 3 on; what a client says and is told takes 7 and 5 bytes."""
    auxo = {"kind": "auxo", "min_participants": 2, "max_cohorts": 2, "partition": {"at": [3, 4]}}
    return {
        "kind": "cohorts", "clustering": auxo, "request_bytes": 7, "feedback_bytes": 5, **options,
    }  # fmt: skip


def in_cohorts(model: Config | None = None, pacing: Config | None = None, **more: Any) -> Config:
    return on_digits(
        model or {"kind": "logistic"}, pacing or synchronous(6), cohorts(), **more
    )  # fmt: skip


def uploads(run: RunFiles) -> Counter[tuple[str, int]]:
    """(part, bytes up) of the updates that were reported."""
    return Counter((row.get("part", ""), int(row["bytes_up"])) for row in run.table("updates")
                   if row["outcome"] == "reported")  # fmt: skip


def values(run: RunFiles, split: str) -> dict[str, tuple[str, float]]:
    """(cohort, last accuracy) on a split, by entity."""
    return {row["entity"]: (row["cohort"], float(row["value"])) for row in run.table("metrics")
            if (row["split"], row["metric"]) == (split, "accuracy")}  # fmt: skip


def personalized(run: RunFiles) -> None:
    """Once the run is over each client has fine-tuned the model that it would be given, and it has
    paid."""
    found, before = values(run, "personalized"), values(run, "test")
    assert set(found) == {"global", *(f"client/{client}" for client in range(12))}
    for entity, (cohort, _) in values(run, "client").items():
        assert found[entity][0] == cohort
    assert found["global"][1] > before["global"][1]
    assert [event["t"] for event in run.of("personalize")] == [run.of("stop")[0]["t"]]


def whole_models(extra: int = 0) -> Callable[[RunFiles], None]:
    def check(run: RunFiles) -> None:
        assert set(uploads(run)) == {("", MODEL + extra)}

    return check


def stale(run: RunFiles) -> None:
    whole_models()(run)
    ages = [float(row["staleness_mean"]) for row in run.table("versions") if row["cohort"] != "c0"]
    assert max(ages) > 0


def halves(run: RunFiles) -> None:
    assert set(uploads(run)) == {("A", FIRST), ("B", SECOND)}
    assert {event["part"] for event in run.of("dispatch")} == {"A", "B"}
    assert run.of("split")


IN_COHORTS: dict[str, tuple[Config, Callable[[RunFiles], None]]] = {
    "plain": (in_cohorts(), whole_models()),
    "fedyogi": (in_cohorts(server_optimizer={"kind": "fedyogi", "lr": 0.1}), whole_models()),
    "fedprox": (in_cohorts(objective={"kind": "fedprox", "mu": 1.0}), whole_models()),
    # The loss at the model that came goes up too: one value of 4 bytes.
    "qfedavg": (in_cohorts(server_optimizer={"kind": "qfedavg", "q": 1.0}), whole_models(4)),
    "buffered": (in_cohorts(pacing=buffered(6, 4)), stale),
    "divide_and_conquer": (in_cohorts(MLP, payload=DIVIDED), halves),
}


@pytest.fixture(scope="module")
def accuracies() -> dict[str, str]:
    """What each method ends with, by name."""
    return {}


@pytest.mark.parametrize("name", IN_COHORTS)
def test_in_cohorts(lab: Lab, name: str, accuracies: dict[str, str]) -> None:
    """Check-ins, feedback and a partition are there, and every byte of them, beside what the
    method itself sends; and what it learns is its own."""
    config, check = IN_COHORTS[name]
    run = lab.run(config)
    assert len(run.of("partition")) == 1
    versions, told = run.table("versions"), run.table("affinity")
    assert {row["cohort"] for row in versions} == {"c0", "c0.0", "c0.1"}
    assert len(told) == sum(int(row["updates"]) for row in versions)
    check(run)
    personalized(run)
    of_tasks = sum(int(row["bytes_down"]) + int(row["bytes_up"]) for row in run.table("updates"))
    in_all = sum(int(row["bytes"]) for row in run.table("clients"))
    assert in_all == of_tasks + 7 * len(run.of("check_in")) + 5 * len(told)
    losses = [row["value"] for row in run.table("metrics") if row["metric"] == "loss"]
    assert losses[-1] not in accuracies.values()
    accuracies[name] = losses[-1]


def test_half_a_model_by_every_hop(lab: Lab) -> None:
    """Divide-and-Conquer in superclients of three, by the server: up goes a half after each turn,
    down comes what the member lacks: both halves to a newcomer, later at times one of them."""
    structure = {
        "kind": "superclients", "grouping": {"kind": "random", "min_samples": 300}, "hop": "relay",
        "absent": {"kind": "abort"},
    }  # fmt: skip
    run = lab.run(on_digits(MLP, synchronous(2), structure, payload=DIVIDED))
    halves(run)
    personalized(run)
    ends = run.of("chain_end")
    assert {event["how"] for event in ends} == {"uploaded"}
    assert sum(len(event["provenance"]) for event in ends) == len(run.of("dispatch"))
    came = [int(row["bytes_down"]) for client in range(12) for row in run.tasks(client)[1:]]
    assert {int(run.tasks(client)[0]["bytes_down"]) for client in range(12)} == {FIRST + SECOND}
    assert set(came) == {FIRST, SECOND, FIRST + SECOND}


# --- superclients in cohorts ----------------------------------------------------------------------


def chains_of(size: int, **options: Any) -> Config:
    absent = {"kind": "abort"}
    return {"size": size, "hop": "relay", "absent": absent, **options}


def chained(
    clients: int, pacing: Config, size: int, *, versions: int, at: list[int], **system: Any
) -> Config:
    """Timing only: 10 s of training and 1 s each way, clusters as planted."""
    config = timed(
        clients, 10.0, pacing, stop={"versions": versions},
        network=links(down="1 MB/s", up="1 MB/s"), **{"drop_notice": "at_once", **system},
    )  # fmt: skip
    config["task"]["planted"] = {"kind": "rotation", "clusters": 2}
    config["federation"]["structure"] = cohorts(
        stand_in="planted", request_bytes=0, superclients=chains_of(size)
    )
    config["federation"]["structure"]["clustering"]["partition"]["at"] = at
    return config


def test_chains_of_a_cohort_by_hand(lab: Lab) -> None:
    """8 clients, 4 a round in two chains of two, 12 s a turn: a version each 24 s. After the third
    each of two cohorts has 2 clients a round, one chain. 1 MB each way a turn, by the server."""
    run = lab.run(chained(8, synchronous(4), 2, versions=6, at=[3]))
    versions = run.table("versions")
    assert [float(row["sim_time_s"]) for row in versions] == [24, 48, 72, 96, 96, 120, 120, 144]
    assert [row["updates"] for row in versions] == ["2"] * 3 + ["1"] * 5
    assert [event["t"] for event in run.of("partition")] == [72.0]
    groups = [len(g) for event in run.of("superclients") for g in event["groups"].values()]
    assert set(groups) == {2}
    told, ends = run.table("affinity"), run.of("chain_end")
    trained = {(event["chain"], client) for event in ends for client in event["provenance"]}
    in_versions = {chain for event in run.of("aggregate") for chain in event["chains"]}
    assert len(told) == sum(chain in in_versions for chain, _ in trained) == 2 * (6 + 5)
    last_s = max(run.times("versions"))
    down, up = (sum(int(row[c]) for row in versions) for c in ("bytes_down", "bytes_up"))
    assert up == 1_000_000 * len(told)
    assert down == up + 5 * sum(float(row["sim_time_s"]) < last_s for row in told)
    dispatches = run.of("dispatch")
    assert {event["source"] for event in dispatches} == {"server"}
    assert {event["cohort"] for event in dispatches} == {"c0", "c0.0", "c0.1"}


def test_chains_of_one_are_a_star(lab: Lab) -> None:
    """To the second and to the byte."""
    config = chained(8, synchronous(4), 1, versions=8, at=[3])
    chains = lab.run(config, out="chains")
    del config["federation"]["structure"]["superclients"]
    star = lab.run(config, out="star")
    assert chains.table("versions") == star.table("versions")
    columns = ("cohort", "version", "dispatched_s", "uploaded_s", "bytes_up", "outcome")
    tasks = [Counter(tuple(row[column] for column in columns) for row in run.table("updates"))
             for run in (chains, star)]  # fmt: skip
    assert tasks[0] == tasks[1]


@pytest.mark.parametrize("stragglers", ["cancel", "finish"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_client_is_in_one_chain_at_a_time(lab: Lab, stragglers: str, fails: bool) -> None:
    """Clients that come and go, more of them asked than are needed, a deadline: who is in a chain
    is in no other one until its outcome is final, and every task has one outcome; so too where the
    servers of cohorts die, and their chains with them."""
    pacing = {
        **synchronous(8, over_commitment=1.5), "deadline": "50 s", "too_few": "proceed",
        "stragglers": stragglers,
    }  # fmt: skip
    config = chained(24, pacing, 3, versions=24, at=[4])
    config["system"]["devices"]["training"] = [5.0 + client for client in range(24)]
    config["system"]["availability"] = {
        "kind": "renewal", "horizon": "1 d", "at_end": "wrap",
        "on": {"dist": "exponential", "mean": 90}, "off": {"dist": "exponential", "mean": 40},
    }  # fmt: skip
    structure = config["federation"]["structure"]
    structure.update(
        window="10 s", superclients=chains_of(3, absent={"kind": "skip", "timeout": "5 s"})
    )
    if fails:
        failures = {"kind": "exponential", "mean": "3 min", "restart": "15 s"}
        config["federation"]["faults"] = {"cohort_failures": failures}
    run = lab.run(config)
    ended = Counter(row["outcome"] for row in run.table("updates"))
    assert {"reported", "dropped_training", "late"} <= set(ended)
    assert ("server_failed" in ended) == fails
    assert sum(ended.values()) == len(run.of("dispatch"))
    assert len(run.of("partition")) == 1
    members: dict[int, list[int]] = {}
    in_chains: set[int] = set()
    for event in run.events:
        if event["type"] == "superclients":
            for number, clients in event["groups"].items():
                assert len(clients) <= 3
                assert in_chains.isdisjoint(clients), event
                members[int(number)] = clients
                in_chains.update(clients)
        elif event["type"] == "chain_end":
            assert set(event["provenance"]) <= set(members[event["chain"]])
            in_chains.difference_update(members[event["chain"]])
        elif event["type"] in ("check_in", "dispatch"):
            client = int(event["entity"].removeprefix("client/"))
            assert (client in in_chains) == (event["type"] == "dispatch"), event


def test_superclients_in_cohorts_of_digits(lab: Lab) -> None:
    """Members are told what they have done on their own: planted clusters are found through chains
    of both, and the log has the events of both methods."""
    config = on_digits({"kind": "logistic"}, synchronous(6), cohorts(superclients=chains_of(3)))
    config["system"]["devices"]["training"] = 5.0
    run = lab.run(config)
    (split,) = run.of("partition")
    assert split["sides"] == [6, 6]
    mixed = [event for event in run.of("superclients") if event["entity"] == "cohort/c0"]
    told = [row for row in run.table("affinity") if row["cohort"] == "c0"]
    assert len(told) == 3 * len(mixed) * 2
    metrics = [float(row["value"]) for row in run.table("metrics")
               if row["metric"] == "adjusted_rand_index"]  # fmt: skip
    assert metrics[-1] == 1.0
    assert set(uploads(run)) == {("", MODEL)}
    assert {row["loss"] for row in run.table("clustering")} != {""}
    assert len(run.of("chain")) == len(run.of("chain_end")) == len(run.table("chains"))
