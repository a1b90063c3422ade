"""Closed queueing networks, through ``selection: {kind: random, busy: queue}``.

Each of n clients serves its tasks first come first served, in exponential times; m tasks are in
flight, and every upload sends a new task to a client drawn uniformly. That is a closed Jackson
network with visit ratios 1/n, and mean value analysis is exact for it:

    R_i(m) = (1 + L_i(m-1)) / μ_i,   X(m) = m / mean_i R_i(m),   L_i(m) = X(m) R_i(m) / n

(Reiser and Lavenberg 1980); with equal rates X = n μ m / (m + n - 1).
"""

from __future__ import annotations

import numpy as np
import pytest
from laws import EXPONENTIAL, Floats, Simulate, assert_agrees, batch_means, devices, rate, scenario

SEEDS = [1, 2]
WARM_UP = 0.05


def throughput_by_mva(rates_per_s: Floats, tasks: int) -> float:
    """Tasks a second, by mean value analysis."""
    length = np.zeros(len(rates_per_s))
    throughput = 0.0
    for m in range(1, tasks + 1):
        visit_s = (1 + length) / rates_per_s
        throughput = m / float(visit_s.mean())
        length = throughput * visit_s / len(rates_per_s)
    return throughput


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("rates_per_s", "tasks", "uploads"),
    [([1.0] * 4, 4, 24_000), ([1.0] * 4, 20, 30_000), ([2.0] * 2 + [0.5] * 2, 4, 44_000)],
    ids=["equal rates", "equal rates, many tasks", "two rates"],
)
def test_throughput(
    simulate: Simulate, seed: int, rates_per_s: list[float], tasks: int, uploads: int
) -> None:
    rates = np.array(rates_per_s)
    n = len(rates)
    run = simulate(
        scenario(
            seed=seed,
            clients=n,
            system={"devices": devices((1 / rates).tolist(), EXPONENTIAL)},
            pacing={"kind": "buffered", "in_flight": tasks, "buffer": 1},
            selection={"kind": "random", "busy": "queue"},
            stop={"versions": uploads},
        )
    )
    throughput = throughput_by_mva(rates, tasks)
    if (rates == rates[0]).all():
        assert throughput == pytest.approx(n * rates[0] * tasks / (tasks + n - 1), rel=1e-12)

    updates, end_s = run.updates, run.simulated_s
    reported = updates["outcome"] == "reported"
    uploaded_s = updates["uploaded_s"][reported]
    found = rate(uploaded_s, WARM_UP * end_s, end_s)
    assert_agrees(found, throughput, "uploads a second")

    settled = reported & (updates["dispatched_s"] > WARM_UP * end_s)
    assert_agrees(batch_means(updates["staleness"][settled]), tasks - 1, "E[τ]")
