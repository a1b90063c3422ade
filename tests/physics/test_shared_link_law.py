"""Asynchronous clients behind one shared link, against the closed network of queueing theory.

m slots compute for times of any law and then upload S = B/C seconds' worth of bytes through the
server's link, which is shared equally: an infinite server and a processor-sharing one. Such a
network has product form and depends on the laws through their means only (Baskett, Chandy, Muntz,
Palacios 1975). With k slots uploading, p_k ∝ m!/(m-k)! (S/Z)^k; with clients that keep their own
slots and mean times Z_i, p_k ∝ k! e_k(S/Z_1, …, S/Z_m), e_k the elementary symmetric polynomial.
Throughput (1 - p_0)/S, mean transfer time m/X - Z by Little's law.

The download goes the other way over a link a billion times as fast: at most 2e-8 s.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from conftest import Simulate
from laws import (
    EXPONENTIAL,
    MESSAGE_BYTES,
    UNIFORM,
    Document,
    Floats,
    assert_agrees,
    batch_means,
    devices,
    lognormal,
    rate,
    scenario,
    time_average,
)

from analysis.run_reader import Run

SEEDS = [1, 2]
WARM_UP = 0.05
TRANSFER_S = 1.0  # alone on the link: 1 MB at 1 MB/s


def world(training: float | list[float], noise: Document) -> Document:
    unlimited = 1e15
    return {
        "devices": devices(training, noise),
        "network": {
            "client": {"down": unlimited, "up": unlimited, "latency": 0},
            "server": {"down": unlimited, "up": MESSAGE_BYTES / TRANSFER_S},
        },
    }


def uploading_law(demands: list[float]) -> Floats:
    """p_k for k = 0 … m; ``demands`` are the S/Z_i."""
    symmetric = np.zeros(len(demands) + 1)
    symmetric[0] = 1.0
    for demand in demands:
        symmetric[1:] += demand * symmetric[:-1]
    weights = symmetric * [math.factorial(k) for k in range(len(symmetric))]
    law: Floats = weights / weights.sum()
    return law


def settled(run: Run) -> tuple[Floats, Floats, tuple[float, float]]:
    """(start, end) of every upload in order of its end, and the window after the warm-up."""
    window = (WARM_UP * run.simulated_s, run.simulated_s)
    begun = ~np.isnan(run.updates["trained_s"])
    from_s = run.updates["trained_s"][begun]
    to_s = np.nan_to_num(run.updates["uploaded_s"][begun], nan=np.inf)
    order = np.argsort(to_s, kind="stable")
    return from_s[order], to_s[order], window


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("mean_s", "noise", "noise_mean"),
    [
        (20.0, EXPONENTIAL, 1.0),
        (20.0, lognormal(1.0), math.exp(0.5)),
        (20.0, UNIFORM, 1.0),
    ],
    ids=["exponential", "lognormal", "uniform"],
)
def test_any_law_of_computing(
    simulate: Simulate, seed: int, mean_s: float, noise: Document, noise_mean: float
) -> None:
    m = 20
    run = simulate(
        scenario(
            seed=seed,
            clients=200,
            system=world(mean_s / noise_mean, noise),
            pacing={"kind": "buffered", "in_flight": m, "buffer": 5},
            stop={"versions": 8000},
        )
    )
    law = uploading_law([TRANSFER_S / mean_s] * m)
    check(run, law, m / ((1 - law[0]) / TRANSFER_S) - mean_s)


def check(run: Run, law: Floats, transfer_s: float) -> None:
    from_s, to_s, window = settled(run)
    throughput = (1 - law[0]) / TRANSFER_S
    print(rate(to_s, *window), throughput)
    inside = (from_s > window[0]) & (to_s < window[1])
    print(batch_means((to_s - from_s)[inside]), transfer_s)
    for k in range(6):
        print(k, time_average(from_s, to_s, window, k), law[k])
