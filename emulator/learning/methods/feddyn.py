"""FedDyn (Acar et al., ICLR 2021, Algorithm 1), as in the paper.

Client k keeps ∇_k (zeros at first) and minimizes L_k(w) − ⟨∇_k, w⟩ + (α/2)·‖w − w_t‖²; then
∇_k ← ∇_k − α (w_k − w_t), which is its own gradient at w_k. Server: h ← h − (α/N) Σ_{k∈S}
(w_k − w_t), N all clients; w_{t+1} = (1/|S|) Σ_{k∈S} w_k − h/α. So h stays the mean of all ∇_k.

The server's step is written with updates, Δ_k = w_k − w_t: (1/|S|) Σ w_k = w_t + (1/|S|) Σ Δ_k.
Where a buffer holds updates of several versions, each is taken from the version that it started
from, and h is still the mean of all ∇_k.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from emulator.learning.methods import GradientTerm


def feddyn(alpha: float, gradient: Sequence[Tensor]) -> GradientTerm:
    """g ← g − ∇_k + α (w − w_t), with ``gradient`` = ∇_k in the parameters' shapes."""

    def term(
        gradients: Sequence[Tensor], parameters: Sequence[Tensor], anchor: Sequence[Tensor]
    ) -> None:
        with torch.no_grad():
            drift = torch._foreach_sub(list(parameters), list(anchor))
            torch._foreach_add_(list(gradients), drift, alpha=alpha)
            torch._foreach_sub_(list(gradients), list(gradient))

    return term


def next_gradient(gradient: Tensor, delta: Tensor, alpha: float) -> Tensor:
    """∇_k⁺ [P] from delta = w_k − w_t."""
    return gradient.sub(delta, alpha=alpha)


def feddyn_step(
    model: Tensor, h: Tensor | None, deltas: Sequence[Tensor], *, alpha: float, clients: int
) -> tuple[Tensor, Tensor]:
    """(w, h), both [P], after one step; without h it starts at 0. ``clients`` is N."""
    total = torch.zeros_like(model)
    for delta in deltas:
        total.add_(delta)
    h = torch.zeros_like(model) if h is None else h
    h = h.sub(total, alpha=alpha / clients)
    return model.add(total, alpha=1.0 / len(deltas)).sub_(h, alpha=1.0 / alpha), h
