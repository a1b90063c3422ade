"""FlexCFL (Duan et al., "Flexible Clustered Federated Learning for Client-Level Data Distribution
Shift", TPDS 2021; FedGroup, the same authors, 2021): some clients train for a while from the
initial model, and their updates ΔW [n, P] are grouped before the first round. Of two measures,

    EDC: the cosine of an update to each of the k main directions of ΔW (its right singular
         vectors), and k-means of these;
    MADC(i, j) = 1/(n − 2) Σ_{z ≠ i, j} |cos(i, z) − cos(j, z)|, and complete linkage.

A client that comes later trains as they have, and joins the group whose mean update is nearest:
argmin_g (1 − cos(Δ, Δ_g)) / 2. Inter-group aggregation draws the models to each other,

    w_g ← (w_g + η Σ_{j ≠ g} w_j / ‖w_j‖) / (1 + η Σ_{j ≠ g} 1 / ‖w_j‖).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from torch import Tensor

Floats = NDArray[np.float64]
ROUNDS_OF_KMEANS = 20
"""As in the authors' code."""


def decomposed_cosine(updates: Floats, k: int) -> Floats:
    """EDC [n, k] of ΔW [n, P]."""
    _, _, directions = np.linalg.svd(updates, full_matrices=False)
    lengths = np.linalg.norm(updates, axis=1, keepdims=True)
    found: Floats = updates @ directions[:k].T / np.where(lengths > 0, lengths, 1.0)
    return found


def madc(updates: Floats) -> Floats:
    """MADC [n, n] of ΔW [n, P]; 0 for two clients, whom no third tells apart."""
    from sklearn.metrics.pairwise import cosine_similarity

    cosine = cosine_similarity(updates)
    own = np.abs(np.diag(cosine)[:, None] - cosine)  # the term of z = i, and transposed of z = j
    total = cdist(cosine, cosine, "cityblock") - own - own.T
    found: Floats = np.maximum(total, 0.0) / max(1, len(cosine) - 2)
    return found


def group(updates: Floats, k: int, measure: str, seed: int) -> list[int]:
    """The group of each client's ΔW [n, P]; no more groups than clients."""
    # Loaded where it is used: scikit-learn takes a second.
    from sklearn.cluster import AgglomerativeClustering, KMeans

    k = min(k, len(updates))
    if k < 2:
        return [0] * len(updates)
    if measure == "madc":
        clustering = AgglomerativeClustering(k, metric="precomputed", linkage="complete")
        return [int(label) for label in clustering.fit_predict(madc(updates))]
    kmeans = KMeans(k, n_init=10, max_iter=ROUNDS_OF_KMEANS, random_state=seed)
    return [int(label) for label in kmeans.fit_predict(decomposed_cosine(updates, k))]


def nearest(update: Floats, references: Floats) -> int:
    """The group g of an update Δ [P] among mean updates Δ_g [k, P]."""
    lengths = np.linalg.norm(references, axis=1) * np.linalg.norm(update)
    cosine = references @ update / np.where(lengths > 0, lengths, 1.0)
    return int(np.argmin((1.0 - cosine) / 2.0))


def inter_group(models: Tensor, rate: float) -> Tensor:
    """The models w_g [k, P] after inter-group aggregation with η = ``rate``: means, in which a
    group's own model has weight 1 and another one η / ‖w_j‖ (0 if it is all zeros)."""
    exact = models.double()
    lengths = torch.linalg.vector_norm(exact, dim=1)
    weights = (rate * torch.where(lengths > 0, 1.0 / lengths, 0.0)).repeat(len(models), 1)
    weights.fill_diagonal_(1.0)
    return (weights / weights.sum(1, keepdim=True) @ exact).to(models.dtype)
