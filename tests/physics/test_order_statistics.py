"""A synchronous round that asks n and takes k lasts as long as the k-th of n order statistics.

For exponential times the mean is (H_n - H_(n-k)) / λ. In general E = ∫ P(fewer than k of n are
done by t) dt, the number done being binomial with F(t). When each client fails with probability
p, j ~ Binomial(n, 1-p) of them return; given j ≥ k (the round made its version of k updates), the
mean is the mixture of the k-th of j over those j.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from laws import (
    EXPONENTIAL,
    Document,
    Simulate,
    assert_agrees,
    batch_means,
    devices,
    harmonic,
    lognormal,
    scenario,
)
from scipy.integrate import quad
from scipy.stats import binom, norm

from analysis.run_reader import Run

SEEDS = [1, 2]


def rounds(
    simulate: Simulate, seed: int, noise: Document, take: int, ask: int, count: int, p: float = 0.0
) -> Run:
    return simulate(
        scenario(
            seed=seed,
            clients=2 * ask,
            system={"devices": devices(1.0, noise), "task_failure": p},
            pacing={
                "kind": "synchronous",
                "participants": take,
                "over_commitment": ask / take,
                "deadline": "none",
            },
            stop={"versions": count},
        )
    )


def kth_of_n(cdf: Callable[[float], float], k: int, n: int) -> float:
    """The mean of the k-th smallest of n."""
    mean, _ = quad(lambda t: binom.cdf(k - 1, n, cdf(t)), 0, math.inf, limit=400, epsabs=1e-9)
    return float(mean)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("take", "ask", "count"),
    [(5, 5, 4000), (10, 13, 1600), (100, 130, 200)],
)
def test_exponential(simulate: Simulate, seed: int, take: int, ask: int, count: int) -> None:
    run = rounds(simulate, seed, EXPONENTIAL, take, ask, count)
    exact = harmonic(ask) - harmonic(ask - take)
    assert exact == pytest.approx(kth_of_n(lambda t: -math.expm1(-t), take, ask), rel=1e-7)
    durations_s = run.versions["round_duration_s"]
    assert_agrees(batch_means(durations_s), exact, f"{take} of {ask}")
    # Rounds follow each other without a gap.
    assert np.cumsum(durations_s) == pytest.approx(run.versions["sim_time_s"], rel=1e-12)
    assert (run.versions["updates"] == take).all()
    outcomes = run.updates["outcome"]
    assert (outcomes == "cancelled").sum() == (ask - take) * count


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("sigma", "take", "ask", "count"), [(0.3, 100, 130, 50), (1.0, 100, 130, 250)]
)
def test_lognormal(
    simulate: Simulate, seed: int, sigma: float, take: int, ask: int, count: int
) -> None:
    run = rounds(simulate, seed, lognormal(sigma), take, ask, count)
    exact = kth_of_n(lambda t: norm.cdf(math.log(t) / sigma) if t > 0 else 0.0, take, ask)
    assert_agrees(batch_means(run.versions["round_duration_s"]), exact, f"{take} of {ask}")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("p", "take", "ask", "count"), [(0.1, 10, 13, 4000)])
def test_failures(simulate: Simulate, seed: int, p: float, take: int, ask: int, count: int) -> None:
    run = rounds(simulate, seed, EXPONENTIAL, take, ask, count, p)
    full = run.versions["updates"] == take
    assert_agrees(
        batch_means(full), float(binom.sf(take - 1, ask, 1 - p)), f"P(at least {take} return)"
    )
    returning = np.arange(take, ask + 1)
    weights = binom.pmf(returning, ask, 1 - p)
    means = [harmonic(j) - harmonic(j - take) for j in returning.tolist()]
    exact = float(np.average(means, weights=weights))
    durations_s = run.versions["round_duration_s"][full]
    assert_agrees(batch_means(durations_s), exact, f"{take} of {ask}, each failing with {p}")
