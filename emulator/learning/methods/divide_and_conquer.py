"""Divide-and-Conquer (Chandran, Bhat, Chakravarthy, Chandar, "Weight Divergence Driven
Divide-and-Conquer Approach for Optimal Federated Learning from non-IID Data"): how far apart the
collaborators are in a layer.

``pairwise``: the mean of 1 − cos(w_i, w_j) over all i ≠ j. ``to_mean``: Σ_k p_k (1 − cos(w_k, w̄)),
w̄ = Σ_k p_k w_k. In both who has trained on nothing, p_k = 0, is left out. A vector of zeros has no
direction: it counts as orthogonal to all that have one, and as equal to another of zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def divergence(vectors: Tensor, metric: str, weights: Sequence[float]) -> float | None:
    """The cosine distance of ``vectors`` [collaborators, d], float64; p_k by ``weights``. None
    where fewer than two of them have a weight: there is nobody to be compared with."""
    p = torch.tensor(weights, dtype=torch.float64, device=vectors.device)
    vectors, p = vectors[p > 0], p[p > 0]
    n = len(vectors)
    if n < 2:
        return None
    if metric == "pairwise":
        distances = _distances(vectors, vectors)
        return float((distances.sum() - distances.diagonal().sum()) / (n * (n - 1)))
    p /= p.sum()
    return float(p @ _distances(vectors, (p @ vectors)[None])[:, 0])


def _distances(these: Tensor, those: Tensor) -> Tensor:
    """1 − cos of every two [these, those]."""
    one, other = these.norm(dim=1, keepdim=True), those.norm(dim=1, keepdim=True)
    zero = (one == 0) & (other == 0).T
    cosine = (these / one.clamp_min(1e-300)) @ (those / other.clamp_min(1e-300)).T
    return torch.where(zero, 0.0, 1.0 - cosine)
