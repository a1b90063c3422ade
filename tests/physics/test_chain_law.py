"""How long chains of clients take: a round waits for the largest of sums, a free walker for none.

Times are drawn anew for every task, so that sums and maxima are those of independent draws.
"""

from __future__ import annotations

import math

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
from scipy import integrate
from scipy.stats import erlang


def chains(
    pacing: Document, noise: Document | None, *, size: int, superclients: int, **stop: int
) -> Document:
    document = scenario(
        seed=21, clients=size * superclients, system={"devices": devices(1.0, noise)},
        pacing=pacing, stop=stop,
    )  # fmt: skip
    document["federation"]["structure"] = {
        "kind": "superclients", "hop": "p2p", "absent": {"kind": "abort"},
        "grouping": {"kind": "random", "min_samples": 10 * size, "max_clients": size},
    }  # fmt: skip
    return document


def rounds_of(participants: int) -> Document:
    return {"kind": "synchronous", "participants": participants, "deadline": "none"}


def walkers(number: int, mode: str = "free_hops") -> Document:
    return {"kind": "fedseqinter", "mode": mode, "walkers": number}


@pytest.mark.parametrize("pacing", [rounds_of(3), walkers(3), walkers(3, "lockstep")])
def test_without_noise_a_chain_takes_its_length(simulate: Simulate, pacing: Document) -> None:
    run = simulate(chains(pacing, None, size=8, superclients=6, versions=4))
    assert run.chains is not None
    durations = run.chains["uploaded_s"] - run.chains["dispatched_s"]
    np.testing.assert_allclose(durations, 8.0, rtol=1e-12)
    rounds = 1 if pacing["kind"] == "synchronous" else 6
    np.testing.assert_allclose(run.versions["round_duration_s"], 8.0 * rounds, rtol=1e-12)


def test_a_round_is_the_largest_of_erlang_sums(simulate: Simulate) -> None:
    """Chains of n exponential times are Erlang(n); E max = ∫ 1 − F(t)^m dt."""
    size, together = 4, 3
    exact = integrate.quad(lambda t: 1 - erlang.cdf(t, size) ** together, 0, np.inf)[0]
    run = simulate(chains(rounds_of(together), EXPONENTIAL, size=size, superclients=9,
                          versions=1600))  # fmt: skip
    assert_agrees(batch_means(run.versions["round_duration_s"]), exact, "a round")


def test_one_client_a_chain_is_a_star(simulate: Simulate) -> None:
    """Superclients of one: the largest of m exponential times, H_m."""
    run = simulate(chains(rounds_of(5), EXPONENTIAL, size=1, superclients=20, versions=3000))
    assert_agrees(batch_means(run.versions["round_duration_s"]), harmonic(5), "a round")


def test_lockstep_waits_for_the_slowest_and_free_hops_do_not(simulate: Simulate) -> None:
    """A free hop lasts n on average, whatever the others do; one in lockstep as long as the
    largest of m Erlang(n) sums."""
    size, together = 4, 3
    exact = integrate.quad(lambda t: 1 - erlang.cdf(t, size) ** together, 0, np.inf)[0]
    lockstep = simulate(chains(walkers(together, "lockstep"), EXPONENTIAL, size=size,
                               superclients=9, versions=180))  # fmt: skip
    period = batch_means(lockstep.versions["round_duration_s"] / 9)
    assert_agrees(period, exact, "a hop in lockstep")
    free = simulate(chains(walkers(together), EXPONENTIAL, size=size, superclients=9,
                           versions=180))  # fmt: skip
    assert free.chains is not None
    hops = free.chains["uploaded_s"] - free.chains["dispatched_s"]
    assert_agrees(batch_means(hops[~np.isnan(hops)]), size, "a free hop")


def test_the_papers_size_with_lognormal_times(simulate: Simulate) -> None:
    """12 of 62 chains of 8, log-sd 0.6: S = 2.942 times the slowest of 100, which is 4.6635."""
    run = simulate(chains(rounds_of(12), lognormal(0.6), size=8, superclients=62, versions=400))
    assert_agrees(batch_means(run.versions["round_duration_s"]), 2.942 * 4.6635, "a round")
    free = simulate(chains(walkers(12), lognormal(0.6), size=8, superclients=62, versions=2))
    assert free.chains is not None
    hops = free.chains["uploaded_s"] - free.chains["dispatched_s"]
    exact = 8 * math.exp(0.6**2 / 2)
    assert_agrees(batch_means(hops[~np.isnan(hops)]), exact, "a free hop")
