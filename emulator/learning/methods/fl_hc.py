"""FL+HC (Briggs et al., "Federated Learning with Hierarchical Clustering of Local Updates to
Improve Training on Non-IID Data", IJCNN 2020, Algorithm 1): after some rounds of federated
averaging every client trains once from the common model, and its update Δ_i is put together with
those near it, by agglomerative clustering up to a distance or down to a number of clusters.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def agglomerate(
    updates: Floats, *, metric: str, linkage: str, clusters: int | None, threshold: float | None
) -> list[int]:
    """The cluster of each client's Δ [n, P]; no more clusters than clients."""
    # Loaded where it is used: scikit-learn takes a second.
    from sklearn.cluster import AgglomerativeClustering
    from sklearn.metrics.pairwise import cosine_distances

    n = len(updates)
    if n < 2:
        return [0] * n
    if clusters is not None:
        clusters = min(clusters, n)
    rows = updates
    if metric == "cosine":  # with 1 to all for who has not moved: its cosine is none
        rows, metric = cosine_distances(updates), "precomputed"
    found = AgglomerativeClustering(
        clusters, metric=metric, linkage=linkage, distance_threshold=threshold
    ).fit_predict(rows)
    return [int(label) for label in found]
