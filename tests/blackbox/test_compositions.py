"""Methods of several axes in one run on real data: the log shows the events and bytes of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from commandline import Config, Lab, RunFiles, buffered, digits, synchronous

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
    config["evaluation"] = {"every": {"versions": 8}}
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
    ends = run.of("chain_end")
    assert {event["how"] for event in ends} == {"uploaded"}
    assert sum(len(event["provenance"]) for event in ends) == len(run.of("dispatch"))
    came = [int(row["bytes_down"]) for client in range(12) for row in run.tasks(client)[1:]]
    assert {int(run.tasks(client)[0]["bytes_down"]) for client in range(12)} == {FIRST + SECOND}
    assert set(came) == {FIRST, SECOND, FIRST + SECOND}
