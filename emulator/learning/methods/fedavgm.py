"""FedAvgM (Hsu, Qi, Brown 2019, arXiv 1909.06335, section 4.3): momentum on the server.

m ← β m + Δ̄;  w ← w + η m.
"""

from __future__ import annotations

import torch
from torch import Tensor


def fedavgm(
    model: Tensor, delta: Tensor, m: Tensor | None, *, lr: float, beta: float
) -> tuple[Tensor, Tensor]:
    """(w, m) after one step, both [P]; without m it starts at 0."""
    m = delta.clone() if m is None else torch.add(delta, m, alpha=beta)
    return model.add(m, alpha=lr), m
