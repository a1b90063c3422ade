"""The discrete Little's law of staleness, through the product's own pacing.

A task reads the version at its dispatch. While it is in flight, each new version adds 1 to its lag,
and its staleness is the lag with which it arrives; waiting in the buffer adds nothing, as the next
version takes all that waits. With a slot refilled at once, m - 1 tasks are in flight whenever a
version is made (the one whose arrival fills the buffer has left, its successor comes after). Hence,
for every run as integers, whatever the law of service (as long as no two tasks arrive at once):

    sum of staleness of all N arrivals, those in the buffer included
      + lag of the tasks in flight at the end = (m - 1) floor(N / K)

and a lost task counts with the lag at its loss. Refilled at the aggregation: m - K for m - 1.
"""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction

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
    ratio,
    scenario,
)

from analysis.run_reader import Run

NOISES = {"exponential": EXPONENTIAL, "lognormal": lognormal(1.5), "uniform": UNIFORM}
SEEDS = [1, 2]


def buffered(in_flight: int, buffer: int, refill: str = "at_once") -> Document:
    return {"kind": "buffered", "in_flight": in_flight, "buffer": buffer, "refill": refill}


def lag_of_lost(run: Run) -> int:
    """The versions that lost tasks had fallen behind by when they were lost, from the event log."""
    version, total = 0, 0
    base: dict[int, int] = {}
    for line in (run.directory / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["type"] == "dispatch":
            base[event["task"]] = event["version"]
        elif event["type"] == "aggregate":
            version = event["version"]
        elif event["type"] == "end":
            total += version - base[event["task"]]
    return total


def accounted(run: Run, buffer: int) -> tuple[int, int]:
    """(sum of staleness + lag in flight + lag of the lost, number of versions), both exact."""
    updates = run.updates
    reported = updates["outcome"] == "reported"
    in_flight = updates["outcome"] == "in_flight"
    arrivals_s = updates["uploaded_s"][reported]
    assert len(np.unique(arrivals_s)) == len(arrivals_s), "the law excludes arrivals at one instant"
    arrivals, versions = int(reported.sum()), len(run.versions["version"])
    assert versions == arrivals // buffer
    stale = sum(as_ints(updates["staleness"][reported]))
    lag = sum(versions - version for version in as_ints(updates["version"][in_flight]))
    return stale + lag + lag_of_lost(run), versions


class TestPathwise:
    """Equalities of integers, for one run each."""

    @pytest.mark.parametrize("noise", NOISES)
    @pytest.mark.parametrize(
        ("in_flight", "buffer"), [(20, 1), (20, 5), (20, 7), (20, 20), (20, 30), (1, 3)]
    )
    def test_slots_refilled_at_once(
        self, simulate: Simulate, noise: str, in_flight: int, buffer: int
    ) -> None:
        run = simulate(
            scenario(
                seed=3,
                clients=200,
                system={"devices": devices(1.0, NOISES[noise])},
                pacing=buffered(in_flight, buffer),
                stop={"sim_time": 101.0 if in_flight > 1 else 1001.0},
            )
        )
        total, versions = accounted(run, buffer)
        assert versions > 20
        assert (run.updates["outcome"] == "in_flight").sum() == in_flight
        assert total == (in_flight - 1) * versions

    @pytest.mark.parametrize("noise", NOISES)
    @pytest.mark.parametrize("buffer", [1, 7, 20])
    def test_slots_refilled_at_the_aggregation(
        self, simulate: Simulate, noise: str, buffer: int
    ) -> None:
        run = simulate(
            scenario(
                seed=4,
                clients=200,
                system={"devices": devices(1.0, NOISES[noise])},
                pacing=buffered(20, buffer, "at_aggregation"),
                stop={"sim_time": 203.0},
            )
        )
        total, versions = accounted(run, buffer)
        assert versions > 10
        assert total == (20 - buffer) * versions

    def test_a_run_that_stops_at_a_version(self, simulate: Simulate) -> None:
        """The freed slot is not filled any more: m - 1 tasks are in flight."""
        run = simulate(
            scenario(
                seed=5,
                clients=200,
                system={"devices": devices(1.0, EXPONENTIAL)},
                pacing=buffered(20, 5),
                stop={"versions": 300},
            )
        )
        assert (run.updates["outcome"] == "in_flight").sum() == 19
        assert accounted(run, 5) == (19 * 300, 300)

    @pytest.mark.parametrize(
        "losses",
        [
            {"task_failure": 0.25},
            {
                "on_offline": "drop",
                "availability": {
                    "kind": "renewal",
                    "on": {"dist": "exponential", "mean": 3.0},
                    "off": {"dist": "lognormal", "median": 2.0, "sigma": 1.0},
                    "horizon": 200.0,
                    "at_end": "wrap",
                },
            },
        ],
        ids=["failures", "clients go offline"],
    )
    def test_lost_tasks_count_with_their_lag(self, simulate: Simulate, losses: Document) -> None:
        run = simulate(
            scenario(
                seed=6,
                clients=400,
                system={"devices": devices(1.0, EXPONENTIAL), **losses},
                pacing=buffered(20, 5),
                stop={"sim_time": 150.0},
            )
        )
        lost = (run.updates["outcome"] == "dropped_training").sum()
        assert 0.15 < lost / len(run.updates["outcome"]) < 0.45
        total, versions = accounted(run, 5)
        assert total == 19 * versions

    @pytest.mark.parametrize(("in_flight", "buffer"), [(10, 1), (10, 5), (40, 5), (40, 1)])
    def test_tasks_that_queue_on_their_device(
        self, simulate: Simulate, in_flight: int, buffer: int
    ) -> None:
        """A queued task holds its slot; also with more tasks than clients."""
        run = simulate(
            scenario(
                seed=7,
                clients=10,
                system={"devices": devices([0.5] * 5 + [2.0] * 5, EXPONENTIAL)},
                pacing=buffered(in_flight, buffer),
                selection={"kind": "random", "busy": "queue"},
                stop={"sim_time": 300.0},
            )
        )
        total, versions = accounted(run, buffer)
        assert total == (in_flight - 1) * versions

    @pytest.mark.parametrize("noise", NOISES)
    def test_transfers_over_a_shared_link(self, simulate: Simulate, noise: str) -> None:
        run = simulate(
            scenario(
                seed=8,
                clients=200,
                system={
                    "devices": devices(10.0, NOISES[noise]),
                    "network": {
                        "client": {"down": "3 MB/s", "up": "1 MB/s", "latency": "50 ms"},
                        "server": {"down": "5 MB/s", "up": "2 MB/s"},
                    },
                },
                pacing=buffered(20, 7),
                stop={"sim_time": 1500.0},
            )
        )
        total, versions = accounted(run, 7)
        assert versions > 100
        assert total == 19 * versions


class TestDeterministic:
    """Service without noise: the distribution of staleness itself is exact."""

    def test_staggered_arrivals(self, simulate: Simulate) -> None:
        """m - 1 = qK + r: q with probability 1 - r/K, q + 1 with r/K; here 19 = 2·7 + 5.

        Client i comes online at second i and every task takes 20 s, so one upload comes every
        second. Each task sees 19 others arrive, and K·m = 140 in a row see every phase of the
        buffer equally often.
        """
        always = 1e9
        run = simulate(
            scenario(
                seed=9,
                clients=20,
                system={
                    "devices": devices(20.0),
                    "availability": {
                        "kind": "scripted",
                        "sessions": [[[float(i), always]] for i in range(20)],
                        "period": always,
                        "at_end": "hold",
                    },
                },
                pacing=buffered(20, 7),
                stop={"versions": 400},
            )
        )
        updates = run.updates
        settled = (updates["outcome"] == "reported") & (updates["dispatched_s"] >= 20.0)
        order = np.argsort(updates["uploaded_s"][settled])
        staleness = as_ints(updates["staleness"][settled][order][:1400])
        assert Counter(staleness) == {2: 400, 3: 1000}
        assert Fraction(sum(staleness), len(staleness)) == Fraction(20 - 1, 7)

    def test_simultaneous_arrivals(self, simulate: Simulate) -> None:
        """All m arrive at one instant: m/K versions of K each, then all start from the newest."""
        run = simulate(
            scenario(
                seed=10,
                clients=200,
                system={"devices": devices(1.0)},
                pacing=buffered(20, 5),
                stop={"sim_time": 10.5},
            )
        )
        assert run.versions["sim_time_s"].tolist() == [
            float(t) for t in range(1, 11) for _ in range(4)
        ]
        assert run.versions["staleness_mean"].tolist() == [0.0, 1.0, 2.0, 3.0] * 10
        assert run.versions["staleness_max"].tolist() == [0.0, 1.0, 2.0, 3.0] * 10


@pytest.mark.parametrize("seed", SEEDS)
def test_distribution_with_exponential_service(simulate: Simulate, seed: int) -> None:
    """P(τ ≥ t) = (m/K) ρ^((t-1)K+1) (1 - ρ^K), ρ = 1 - 1/m; and E[τ | s] = (m-1) s / (K E[S])."""
    m, k = 20, 5
    run = simulate(
        scenario(
            seed=seed,
            clients=200,
            system={"devices": devices(1.0, EXPONENTIAL)},
            pacing=buffered(m, k),
            stop={"versions": 4_000},
        )
    )
    updates = run.updates
    reported = updates["outcome"] == "reported"
    staleness = updates["staleness"][reported]
    service_s = (updates["uploaded_s"] - updates["dispatched_s"])[reported]
    assert_agrees(batch_means(staleness), (m - 1) / k, "E[τ]")
    rho = 1 - 1 / m
    for t in (1, 2, 3, 4):
        exact = m / k * rho ** ((t - 1) * k + 1) * (1 - rho**k)
        assert_agrees(batch_means(staleness >= t), exact, f"P(τ ≥ {t})")
    for low_s, high_s in ((0.3, 1.0), (1.0, 2.0), (2.0, np.inf)):
        chosen = (service_s >= low_s) & (service_s < high_s)
        slope = ratio(staleness[chosen], service_s[chosen])
        assert_agrees(slope, (m - 1) / k, f"E[τ | s] / s for s in [{low_s}, {high_s})")


@pytest.mark.parametrize("seed", SEEDS)
def test_failures_shift_staleness_to_the_lost(simulate: Simulate, seed: int) -> None:
    """Failing tasks stop at a uniform fraction of their work, so slots turn over faster.

    The other slots report at rate (1-p) / (E[S] (1 - p/2)) each, so E[τ of the reported] =
    (m-1) (1-p) / (K (1 - p/2)) by the law given s, as work and failure are independent.
    """
    m, k, p = 20, 5, 0.25
    run = simulate(
        scenario(
            seed=seed,
            clients=200,
            system={"devices": devices(1.0, UNIFORM), "task_failure": p},
            pacing=buffered(m, k),
            stop={"versions": 1000},
        )
    )
    outcomes = run.updates["outcome"]
    reported = outcomes == "reported"
    exact = (m - 1) * (1 - p) / (k * (1 - p / 2))
    assert_agrees(batch_means(run.updates["staleness"][reported]), exact, "E[τ of the reported]")
    total, versions = accounted(run, k)
    assert total == (m - 1) * versions


@pytest.mark.parametrize("seed", SEEDS)
def test_every_client_in_its_own_slot(simulate: Simulate, seed: int) -> None:
    """E[τ_i] = E[S_i] (X - X_i) with X_i = 1 / E[S_i], for buffers of one."""
    training_s = [0.5] * 4 + [1.0] * 4 + [2.0] * 4
    run = simulate(
        scenario(
            seed=seed,
            clients=12,
            system={"devices": devices(training_s, UNIFORM)},
            pacing=buffered(12, 1),
            selection={"kind": "all"},
            stop={"versions": 9_000},
        )
    )
    updates = run.updates
    reported = updates["outcome"] == "reported"
    service_s = np.array(training_s)[updates["client"].astype(int)]
    throughput = sum(1 / s for s in training_s)
    for mean_s in (0.5, 1.0, 2.0):
        exact = mean_s * (throughput - 1 / mean_s)
        own = updates["staleness"][reported & (service_s == mean_s)]
        assert_agrees(batch_means(own), exact, f"E[τ] of a client with E[S] = {mean_s} s")
