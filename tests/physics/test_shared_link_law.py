"""Asynchronous clients behind one shared link, against the closed network of queueing theory.

m slots download, compute for times of any law, and upload; each direction of the server's link is
shared equally among the transfers in it, one alone takes D seconds down and U up. That is an
infinite server and two processor-sharing ones: a network of product form, in which the laws count
through their means only (Baskett, Chandy, Muntz, Palacios 1975). When client i keeps its own slot
and computes for Z_i seconds on average, the states in which a slots upload and b download have

    p(a, b) ∝ (a+b)! e_{a+b}(1/Z_1, …, 1/Z_m) U^a D^b

with e_k the elementary symmetric polynomial, and slots that are all alike are the special case
p(a, b) ∝ m!/(m-a-b)! (U/Z)^a (D/Z)^b. Throughput is X = P(a > 0)/U, and by Little's law an upload
takes E[a]/X on average, a download E[b]/X.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from laws import (
    MESSAGE_BYTES,
    UNIFORM,
    Document,
    Floats,
    Simulate,
    assert_agrees,
    batch_means,
    devices,
    lognormal,
    rate,
    scenario,
    time_at_most,
)

from analysis.run_reader import Run

SEEDS = [1, 2]
WARM_UP = 0.05
UPLOAD_S = 1.0
SLOTS = 8


def world(training: float | list[float], noise: Document, download_s: float) -> Document:
    """Clients' own links have the server's rates, so that only sharing slows a transfer down."""
    rates = {"down": MESSAGE_BYTES / download_s, "up": MESSAGE_BYTES / UPLOAD_S}
    return {
        "devices": devices(training, noise),
        "network": {"client": {**rates, "latency": 0}, "server": rates},
    }


def transferring(computing_s: list[float], download_s: float) -> Floats:
    """p(a, b) [m + 1, m + 1]."""
    m = len(computing_s)
    symmetric = np.zeros(m + 1)
    symmetric[0] = 1.0
    for mean_s in computing_s:
        symmetric[1:] += symmetric[:-1] / mean_s
    law = np.zeros((m + 1, m + 1))
    for a in range(m + 1):
        for b in range(m + 1 - a):
            law[a, b] = math.factorial(a + b) * symmetric[a + b] * UPLOAD_S**a * download_s**b
    return law / float(law.sum())


def assert_product_form(run: Run, law: Floats) -> None:
    """Throughput, transfer times and the law of the number of uploads, after a warm-up."""
    updates, end_s = run.updates, run.simulated_s
    window = (WARM_UP * end_s, end_s)
    uploading, downloading = law.sum(axis=1), law.sum(axis=0)
    throughput = (1 - uploading[0]) / UPLOAD_S
    numbers = np.arange(len(law))

    assert_agrees(rate(updates["uploaded_s"], *window), throughput, "uploads a second")
    reported = (updates["outcome"] == "reported") & (updates["dispatched_s"] > window[0])
    up_s = (updates["uploaded_s"] - updates["trained_s"])[reported]
    down_s = (updates["downloaded_s"] - updates["dispatched_s"])[reported]
    assert_agrees(batch_means(up_s), uploading @ numbers / throughput, "seconds of an upload")
    assert_agrees(batch_means(down_s), downloading @ numbers / throughput, "seconds of a download")

    begun = ~np.isnan(updates["trained_s"])
    from_s = updates["trained_s"][begun]
    to_s = np.nan_to_num(updates["uploaded_s"][begun], nan=np.inf)
    for most in (1, 2):
        found = time_at_most(most, from_s, to_s, window)
        assert_agrees(found, uploading[: most + 1].sum(), f"P(at most {most} uploads under way)")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("noise", "noise_mean"),
    [(lognormal(0.7), math.exp(0.7**2 / 2)), (UNIFORM, 1.0)],
    ids=["lognormal", "uniform"],
)
def test_any_law_of_computing(
    simulate: Simulate, seed: int, noise: Document, noise_mean: float
) -> None:
    """The download is a thousand times as fast as the upload, and counted all the same."""
    computing_s, download_s = 8.0, 0.001
    run = simulate(
        scenario(
            seed=seed,
            clients=200,
            system=world(computing_s / noise_mean, noise, download_s),
            pacing={"kind": "buffered", "in_flight": SLOTS, "buffer": 3},
            stop={"versions": 7000},
        )
    )
    law = transferring([computing_s] * SLOTS, download_s)
    assert_product_form(run, law)


@pytest.mark.parametrize("seed", SEEDS)
def test_unequal_clients(simulate: Simulate, seed: int) -> None:
    """Clients that keep their slots, 16 times apart; both directions are loaded."""
    download_s = 0.5
    means_s = [2.0] * 2 + [8.0] * 4 + [32.0] * 2
    run = simulate(
        scenario(
            seed=seed,
            clients=SLOTS,
            system=world(means_s, UNIFORM, download_s),
            pacing={"kind": "buffered", "in_flight": SLOTS, "buffer": 3},
            selection={"kind": "all"},
            stop={"versions": 3000},
        )
    )
    law = transferring(means_s, download_s)
    assert_product_form(run, law)
