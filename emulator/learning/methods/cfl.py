"""CFL (Sattler et al., "Clustered Federated Learning: Model-Agnostic Distributed Multitask
Optimization under Privacy Constraints", 2020, Algorithm 3): a cluster whose model has come to rest
although its clients still pull, each its own way, is cut in two,

    ‖1/n Σ Δ_i‖ < ε1   and   max_i ‖Δ_i‖ > ε2,

so that clients of different parts point apart as far as can be. The authors' code cuts by complete
linkage of the negative cosine similarity; the paper's optimal cut, which minimizes the largest
similarity across, is single linkage.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def norms(updates: Floats) -> tuple[float, float]:
    """(‖mean of Δ [n, P]‖, the largest ‖Δ_i‖)."""
    return (
        float(np.linalg.norm(updates.mean(axis=0))),
        float(np.linalg.norm(updates, axis=1).max()),
    )


def bipartition(updates: Floats, linkage: str) -> list[int]:
    """The part, 0 or 1, of each of two or more clients' Δ [n, P]."""
    # Loaded where it is used: scikit-learn takes a second.
    from sklearn.cluster import AgglomerativeClustering
    from sklearn.metrics.pairwise import cosine_similarity

    apart = 1.0 - cosine_similarity(updates)
    found = AgglomerativeClustering(2, metric="precomputed", linkage=linkage).fit_predict(apart)
    return [int(label) for label in found]
