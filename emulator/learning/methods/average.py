"""Averaging of updates: FedAvg (McMahan et al. 2017) and FedBuff (Nguyen et al. 2022).

With weights p_k (samples, or 1) and discounts s_k = s(τ_k), Δ̄ = Σ p_k s_k Δ_k / D, where D is
Σ p_k (FedAvg; FedBuff's 1/K) or Σ p_k s_k; then w ← w + η Δ̄. With s_k = 1 and η = 1 this is the
weighted average of the clients' models.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def coefficients(
    weights: Sequence[float], discounts: Sequence[float], normalise: str
) -> list[float]:
    """p_k s_k / D for each update; all zero when D is zero (nobody had a sample)."""
    products = [p * s for p, s in zip(weights, discounts, strict=True)]
    divisor = sum(products) if normalise == "discounted" else sum(weights)
    return [product / divisor if divisor > 0 else 0.0 for product in products]


def mean_delta(deltas: Sequence[Tensor], factors: Sequence[float]) -> Tensor:
    """Δ̄ [P], summed in the given order."""
    total = torch.zeros_like(deltas[0])
    for delta, factor in zip(deltas, factors, strict=True):
        total.add_(delta, alpha=factor)
    return total


def average(model: Tensor, delta: Tensor, lr: float) -> Tensor:
    """w + η Δ̄."""
    return model.add(delta, alpha=lr)
