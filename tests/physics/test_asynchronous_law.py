"""FedAsync's staleness, and the length of rounds whose deadline is a quantile.

With every upload a version, m - 1 tasks are in flight whenever a version is made, so the sum of
staleness of all N uploads plus the lag of the tasks in flight at the end is (m - 1) N, for every
run and as integers (see ``test_staleness_law.py``).
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from laws import (
    EXPONENTIAL,
    UNIFORM,
    Document,
    Simulate,
    as_ints,
    assert_agrees,
    batch_means,
    devices,
    lognormal,
    scenario,
)

NOISES = {"exponential": EXPONENTIAL, "lognormal": lognormal(1.5), "uniform": UNIFORM}


def asynchronous(in_flight: int, **options: object) -> Document:
    return {"kind": "asynchronous", "in_flight": in_flight, **options}


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("in_flight", [1, 2, 20])
def test_the_lag_of_all_tasks_adds_up(simulate: Simulate, noise: str, in_flight: int) -> None:
    run = simulate(
        scenario(
            seed=11,
            clients=100,
            system={"devices": devices(1.0, NOISES[noise])},
            pacing=asynchronous(in_flight),
            stop={"sim_time": 2001.0 / in_flight},
        )
    )
    updates, versions = run.updates, len(run.versions["version"])
    reported = updates["outcome"] == "reported"
    in_flight_at_end = updates["outcome"] == "in_flight"
    assert len(np.unique(updates["uploaded_s"][reported])) == reported.sum() == versions > 300
    stale = sum(as_ints(updates["staleness"][reported]))
    lag = sum(versions - version for version in as_ints(updates["version"][in_flight_at_end]))
    assert in_flight_at_end.sum() == in_flight
    assert stale + lag == (in_flight - 1) * versions


def test_staleness_is_geometric_with_exponential_service(simulate: Simulate) -> None:
    """P(τ ≥ t) = ρ^t, ρ = 1 - 1/m: each upload is the task's own with probability 1/m."""
    m = 10
    run = simulate(
        scenario(
            seed=1,
            clients=100,
            system={"devices": devices(1.0, EXPONENTIAL)},
            pacing=asynchronous(m, staleness={"kind": "hinge", "a": 10.0, "b": 4.0}),
            stop={"versions": 14_000},
        )
    )
    staleness = run.versions["staleness_max"]
    assert_agrees(batch_means(staleness), m - 1, "E[τ]")
    for t in (1, 3, 9):
        assert_agrees(batch_means(staleness >= t), (1 - 1 / m) ** t, f"P(τ ≥ {t})")


@pytest.mark.parametrize(("q", "exact_s"), [(0.5, 1.0), (0.9, 1.8)])
def test_a_quantile_deadline_finds_the_quantile(
    simulate: Simulate, q: float, exact_s: float
) -> None:
    """Durations uniform in (0, 2): those of all tasks, as stragglers may finish.

    The k-th of n order statistics has mean 2 k/(n + 1), with n = 99 and k = ceil(99 q) just 2 q.
    """
    run = simulate(
        scenario(
            seed=12,
            clients=400,
            system={"devices": devices(1.0, {"dist": "uniform", "low": 1e-9, "high": 2.0})},
            pacing={
                "kind": "synchronous",
                "participants": 20,
                "deadline": {"kind": "quantile", "q": q, "of_last": 99, "initial": 2.0},
                "stragglers": "finish",
            },
            stop={"versions": 700},
        )
    )
    lines = (run.directory / "events.jsonl").read_text().splitlines()
    rounds = [event for event in map(json.loads, lines) if event["type"] == "round"]
    deadlines_s = np.array([event["deadline_s"] for event in rounds])
    assert (deadlines_s[:5] == 2.0).all()
    assert_agrees(batch_means(deadlines_s[20:]), exact_s, "E[deadline]")
