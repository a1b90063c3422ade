"""FedAdam (Reddi et al., ICLR 2021, Algorithm 2), without bias correction.

m ← β1 m + (1 − β1) Δ̄;  v ← β2 v + (1 − β2) Δ̄²;  w ← w + η m / (√v + τ).
"""

from __future__ import annotations

import torch
from torch import Tensor


def fedadam(
    model: Tensor,
    delta: Tensor,
    m: Tensor | None,
    v: Tensor | None,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    tau: float,
    v0: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(w, m, v) after one step, all [P]; without m and v they start at 0 and ``v0``."""
    m = torch.zeros_like(model) if m is None else m
    v = torch.full_like(model, v0) if v is None else v
    m = beta1 * m + (1 - beta1) * delta
    v = beta2 * v + (1 - beta2) * delta.square()
    return model + lr * m / (v.sqrt() + tau), m, v
