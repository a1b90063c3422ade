"""Distributions of a scenario, drawn by inverse CDF from one uniform number.

F⁻¹(u): lognormal median·exp(σ Φ⁻¹(u)) · exponential −mean·ln(1 − u) · uniform low + u (high − low).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

_NORMAL = NormalDist()

Ppf = Callable[[float], float]
Floats = NDArray[np.float64]


def ppf(distribution: Any) -> Ppf:
    """The inverse CDF of a distribution section (``dist: …``) of the scenario."""
    match distribution.dist:
        case "constant":
            value = distribution.value
            return lambda u: value
        case "lognormal":
            median, sigma = distribution.median, distribution.sigma
            inverse = _NORMAL.inv_cdf
            return lambda u: median * math.exp(sigma * inverse(u))
        case "exponential":
            mean = distribution.mean
            return lambda u: -mean * math.log1p(-u)
        case _:
            low, width = distribution.low, distribution.high - distribution.low
            return lambda u: low + u * width


def ppf_many(distribution: Any) -> Callable[[Floats], Floats]:
    """:func:`ppf` for arrays."""
    match distribution.dist:
        case "constant":
            return lambda u: np.full(len(u), float(distribution.value))
        case "lognormal":
            median, sigma = distribution.median, distribution.sigma
            return lambda u: median * np.exp(sigma * ndtri(u))
        case "exponential":
            return lambda u: -distribution.mean * np.log1p(-u)
        case _:
            low, width = distribution.low, distribution.high - distribution.low
            return lambda u: low + u * width


def mean(distribution: Any) -> float:
    """The expectation."""
    match distribution.dist:
        case "constant":
            return float(distribution.value)
        case "lognormal":
            return float(distribution.median * math.exp(distribution.sigma**2 / 2))
        case "exponential":
            return float(distribution.mean)
        case _:
            return float(distribution.low + distribution.high) / 2
