"""When the server acts.

A pacing says whom to ask how often, and which uploads make a version; what a version is, the
:class:`emulator.federation.server.Server` knows.
"""

from __future__ import annotations

from collections.abc import Callable

from emulator.scenario import schema

StalenessFunction = Callable[[int], float]


def polynomial(exponent: float) -> StalenessFunction:
    """s(τ) = (1 + τ)^−a; FedBuff's 1/√(1 + τ) is a = 0.5 (Nguyen et al. 2022)."""
    return lambda staleness: float((1 + staleness) ** -exponent)


def hinge(a: float, b: float) -> StalenessFunction:
    """s(τ) = 1 where τ ≤ b, else 1/(a·(τ − b) + 1) (FedAsync, Xie et al. 2019)."""
    return lambda staleness: 1.0 if staleness <= b else 1.0 / (a * (staleness - b) + 1.0)


def constant(staleness: int) -> float:
    """s(τ) = 1."""
    return 1.0


def staleness_function(section: schema.Staleness) -> StalenessFunction:
    """What ``federation.pacing.staleness`` says."""
    match section:
        case schema.PolynomialStaleness():
            return polynomial(section.exponent)
        case schema.HingeStaleness():
            return hinge(section.a, section.b)
        case schema.ConstantStaleness():
            return constant
