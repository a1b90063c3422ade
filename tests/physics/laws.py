"""What the tests of laws share: a scenario, an interval for a mean, and how the two must agree.

An estimate agrees with an exact value when its 95 % interval (±2 standard errors, from 50 batch
means) reaches no further than 2 % of the value to either side, and the value is not more than 4
standard errors away. A right program misses that for about one seed in ten thousand; the seeds are
fixed, so a test does not flicker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.run_reader import Run

Floats = NDArray[np.float64]
Document = dict[str, Any]
Simulate = Callable[[Document], Run]
"""The fixture of this name: run a scenario timing-only, open its run directory."""

BATCHES = 50
WIDEST = 0.02
FOREVER = "1e12 s"


def scenario(
    *,
    seed: int,
    clients: int,
    system: Document,
    pacing: Document,
    stop: Document,
    selection: Document | None = None,
) -> Document:
    """A scenario for a timing-only run. ``stop.sim_time`` is without effect unless it is given."""
    return {
        "schema": 1,
        "name": "law",
        "seed": seed,
        "stop": {"sim_time": FOREVER, **stop},
        "task": {
            "dataset": {"kind": "declared", "samples_per_client": 10},
            "clients": clients,
            "model": {
                "kind": "declared",
                "size": 999_000,  # with the payload's header of 1000 bytes, 1 MB each way
                "forward_macs": 1,
                "backward_macs": 2,
            },
        },
        "system": {
            "availability": {"kind": "always"},
            "network": {"kind": "none"},
            **system,
        },
        "local": {"epochs": 1, "batch_size": 10, "optimizer": {"kind": "sgd", "lr": 0.1}},
        "federation": {"pacing": pacing, "selection": selection or {"kind": "random"}},
        "evaluation": {"every": {"versions": 1_000_000}},
    }


MESSAGE_BYTES = 1_000_000


def devices(training: Any = 1.0, noise: Document | None = None) -> Document:
    """Training times: seconds (one, or one a client) times a factor drawn for every task."""
    section = {"kind": "scripted", "training": training}
    return section if noise is None else {**section, "noise": noise}


EXPONENTIAL: Document = {"dist": "exponential", "mean": 1.0}
UNIFORM: Document = {"dist": "uniform", "low": 0.5, "high": 1.5}


def lognormal(sigma: float) -> Document:
    """The median is 1, the mean exp(sigma²/2)."""
    return {"dist": "lognormal", "median": 1.0, "sigma": sigma}


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its standard error."""

    mean: float
    standard_error: float


def batch_means(values: ArrayLike) -> Estimate:
    """The mean of a stationary sequence, in order; batches far longer than its memory."""
    return ratio(values, None)


def ratio(numerator: ArrayLike, denominator: ArrayLike | None) -> Estimate:
    """Sum over sum of two sequences in the same order (of ones, when None), by batches."""
    top = np.asarray(numerator, dtype=np.float64)
    bottom = np.ones_like(top) if denominator is None else np.asarray(denominator, np.float64)
    tops = np.array([part.sum() for part in np.array_split(top, BATCHES)])
    bottoms = np.array([part.sum() for part in np.array_split(bottom, BATCHES)])
    mean = tops.sum() / bottoms.sum()
    residuals = tops - mean * bottoms
    variance = (residuals**2).sum() / (BATCHES - 1) / BATCHES
    return Estimate(float(mean), float(np.sqrt(variance) / bottoms.mean()))


def rate(instants_s: Floats, from_s: float, to_s: float) -> Estimate:
    """Events a simulated second in a window, from counts in equal parts of it."""
    counts, edges = np.histogram(instants_s, bins=BATCHES, range=(from_s, to_s))
    return batch_means(counts / np.diff(edges))


def time_at_most(most: int, from_s: Floats, to_s: Floats, window: tuple[float, float]) -> Estimate:
    """The share of time in a window in which at most ``most`` of the spans are open."""
    instants = np.concatenate([from_s, to_s])
    steps = np.concatenate([np.ones(len(from_s)), -np.ones(len(to_s))])
    order = np.argsort(instants, kind="stable")
    instants, open_spans = instants[order], np.cumsum(steps[order])
    edges = np.linspace(*window, BATCHES + 1)
    # Cut at the batch edges too, so that each piece of constant count lies in one batch.
    cuts = np.unique(np.concatenate([instants, edges]))
    cuts = cuts[(cuts >= window[0]) & (cuts <= window[1])]
    at = np.searchsorted(instants, cuts[:-1], side="right") - 1
    matching = np.where(at >= 0, open_spans[np.maximum(at, 0)], 0.0) <= most
    batch = np.searchsorted(edges, cuts[:-1], side="right") - 1
    held_s = np.bincount(batch, weights=np.diff(cuts) * matching, minlength=BATCHES)
    return batch_means(held_s / np.diff(edges))


def assert_agrees(estimate: Estimate, exact: float, what: str) -> None:
    """See the module."""
    half_width = 2 * estimate.standard_error
    found = f"{what}: {estimate.mean:.6g} ± {half_width:.2g} (95 %), exact {exact:.6g}"
    assert half_width <= WIDEST * abs(exact), f"{found}: the interval is too wide to tell"
    assert abs(estimate.mean - exact) <= 2 * half_width, found


def harmonic(n: int) -> float:
    """H_n."""
    return float(sum(1 / i for i in range(1, n + 1)))


def as_ints(column: Iterable[float]) -> list[int]:
    """A column of whole numbers, exactly."""
    whole = [int(value) for value in column]
    assert whole == list(column)
    return whole
