"""IFCA (Ghosh et al., "An Efficient Framework for Clustered Federated Learning", NeurIPS 2020,
Algorithm 1): each participant is sent the models of all k clusters, and trains the one that has the
smallest loss on its own samples,

    j = argmin_{j ∈ [k]} F_i(w_j).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def choose(losses: Sequence[float]) -> int:
    """j of F_i(w_j) [k]; a loss that is no number is the largest of all, of equal ones the first
    is taken."""
    found = np.asarray(losses, dtype=np.float64)
    return int(np.argmin(np.where(np.isnan(found), np.inf, found)))
