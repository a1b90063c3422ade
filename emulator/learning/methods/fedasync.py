"""FedAsync (Xie, Koyejo, Gupta 2019, arXiv 1903.03934, Algorithm 1): one model at a time.

w ← (1 − α_t) w + α_t w_k with α_t = α · s(τ), where α never changes.
"""

from __future__ import annotations

from torch import Tensor


def fedasync(model: Tensor, received: Tensor, discount: float, *, mixing: float) -> Tensor:
    """w [P] after mixing in the client's trained model ``received`` [P]; ``discount`` is s(τ)."""
    alpha = mixing * discount
    return model.mul(1.0 - alpha).add_(received, alpha=alpha)
