"""When the server acts.

A pacing says whom to ask how often, and which uploads make a version; what a version is, the
:class:`emulator.federation.server.Server` knows.
"""

from __future__ import annotations

from collections.abc import Callable

StalenessFunction = Callable[[int], float]


def polynomial(exponent: float) -> StalenessFunction:
    """s(τ) = (1 + τ)^−a; FedBuff's 1/√(1 + τ) is a = 0.5 (Nguyen et al. 2022)."""
    return lambda staleness: float((1 + staleness) ** -exponent)


def constant(staleness: int) -> float:
    """s(τ) = 1."""
    return 1.0
