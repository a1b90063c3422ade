"""q-FedAvg (Li, Sanjabi, Beirami, Smith, ICLR 2020, Algorithm 2): who loses more counts more.

F_k is the loss of the received model on all of the client's samples (+ 1e-10, as in the authors'
code), L = 1/η of the clients' SGD, and with Δw_k = L (w_t − w_k):

    Δ_k = F_k^q Δw_k;  h_k = q F_k^(q−1) ‖Δw_k‖² + L F_k^q;  w ← w − Σ_k Δ_k / Σ_k h_k

The paper draws clients in proportion to their samples and adds them up alike, as with weights
p_k = 1. Where clients are drawn uniformly, weights p_k do the same: Σ p_k Δ_k / Σ p_k h_k. A stale
update's Δ_k is discounted by s_k, and its h_k with it or not, as the divisor of the average is:
q = 0 is that average.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_POSITIVE = 1e-10


def qfedavg(
    model: Tensor,
    deltas: Sequence[Tensor],
    losses: Sequence[float],
    products: Sequence[float],
    divisors: Sequence[float],
    *,
    q: float,
    lipschitz: float,
) -> Tensor:
    """w [P] after one step from Δ = w_k − w_t [P] and F_k of each update.

    ``products`` are p_k s_k, one of them above 0; ``divisors`` what the h_k are weighted by: p_k,
    or p_k s_k.
    """
    direction = torch.zeros_like(model)
    h = 0.0
    # Both sums divided by the largest F^q, which may be too large for a float.
    largest = max(loss for loss, p in zip(losses, products, strict=True) if p > 0) + _POSITIVE
    for delta, loss, product, divisor in zip(deltas, losses, products, divisors, strict=True):
        f = loss + _POSITIVE
        relative = (f / largest) ** q if product > 0 else 0.0
        squared = lipschitz**2 * float(delta.double().square().sum())
        # −Δ_k = F_k^q L (w_k − w_t)
        direction.add_(delta, alpha=product * relative * lipschitz)
        h += divisor * relative * (q * squared / f + lipschitz)
    return model.add(direction, alpha=1.0 / h)
