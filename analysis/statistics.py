"""The statistics of comparisons: medians of censored times, intervals of means of a few seeds."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
Method = Literal["BCa", "percentile"]

CONFIDENCE = 0.95
RESAMPLES = 9_999
FEWEST_RESAMPLED = 6
_METHODS: tuple[Method, ...] = ("BCa", "percentile")
_SEED = 20_250_101  # of the resampling: the same values give the same interval


@dataclass(frozen=True, slots=True)
class Median:
    """The median of amounts of which some are only known to be greater.

    ``value`` is the median, or where ``is_bound`` only what it is greater than.
    """

    value: float
    is_bound: bool


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval of a mean; ``method`` says how it was found."""

    low: float
    high: float
    method: str


def censored_median(amounts: Sequence[float], reached: Sequence[bool]) -> Median:
    """Kaplan and Meier's median of amounts, right-censored where not ``reached``.

    It is where the curve first falls below one half; where it is one half for a while, the middle
    of that while, as for whole samples. If the curve never falls so far, the median is greater than
    all amounts (than the last that was reached, where the curve ends at one half).
    """
    amount = np.asarray(amounts, dtype=np.float64)
    known = np.asarray(reached, dtype=np.bool_)
    if not known.any():
        return Median(float(amount.max()), True)
    data = stats.CensoredData(uncensored=amount[known], right=amount[~known])
    survival = stats.ecdf(data).sf
    at, left = survival.quantiles, survival.probabilities
    half = np.isclose(left, 0.5, rtol=0, atol=1e-9)
    below = np.flatnonzero((left < 0.5) & ~half)
    flat = np.flatnonzero(half)
    if flat.size and below.size:
        return Median(float(at[flat[0]] + at[below[0]]) / 2, False)
    if flat.size:
        return Median(float(at[flat[0]]), True)
    if below.size:
        return Median(float(at[below[0]]), False)
    return Median(float(amount.max()), True)


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """A confidence interval of the mean of independent values; None for fewer than two.

    From six values on, the bias-corrected and accelerated bootstrap (BCa), see ``resampled``. Two
    fallbacks, named in ``method``: no resample of n values leaves their range, which misses a
    median once in 2^(n - 1), so that fewer than six get Student's interval; and where BCa is
    degenerate, the bootstrap's percentiles are taken. Values that are all equal are an interval of
    no length.
    """
    sample = np.asarray(values, dtype=np.float64)
    n = len(sample)
    if n < 2:
        return None
    if np.ptp(sample) == 0:
        return Interval(float(sample[0]), float(sample[0]), "all equal")
    if n < FEWEST_RESAMPLED:
        half = stats.t.ppf(0.5 + confidence / 2, n - 1) * sample.std(ddof=1) / math.sqrt(n)
        return Interval(float(sample.mean() - half), float(sample.mean() + half), "Student's t")
    for method in _METHODS:
        low, high = (float(end) for end in resampled(sample, confidence, method))
        if math.isfinite(low) and math.isfinite(high):
            return Interval(low, high, f"{method} bootstrap")
    raise AssertionError("percentiles of finite values are finite")


def resampled(
    samples: Floats, confidence: float = CONFIDENCE, method: Method = "BCa"
) -> tuple[Floats, Floats]:
    """Bootstrap intervals of the means of samples [..., n]: low and high ends [...].

    BCa is Efron's (1987). Resampling knows nothing of the n - 1 degrees of freedom, so that its
    intervals are too short for few values; it is therefore asked for the level at which intervals
    of normal values would be as long as Student's (the expanded percentiles of Hesterberg, 2015,
    The American Statistician 69 (4)). An end is NaN where the method is degenerate.
    """
    level = expanded_level(samples.shape[-1], confidence)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is degenerate shows in the result
        found = stats.bootstrap(
            (samples,), _mean, axis=-1, confidence_level=level, method=method,
            n_resamples=RESAMPLES, batch=500, vectorized=True, rng=np.random.default_rng(_SEED),
        ).confidence_interval  # fmt: skip
    return np.asarray(found.low), np.asarray(found.high)


def _mean(values: Any, axis: int = -1) -> Any:
    return np.mean(values, axis=axis)


def expanded_level(n: int, confidence: float) -> float:
    """The level at which percentiles of n values' bootstrap means are as far apart as Student's."""
    tail = (1 - confidence) / 2
    reach = math.sqrt(n / (n - 1)) * stats.t.ppf(1 - tail, n - 1)
    return float(1 - 2 * stats.norm.sf(reach))
