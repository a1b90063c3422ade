"""Samples dealt out at random."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from emulator.learning.partitions.owners import Indices, by_owner, check_counts


def iid(labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> list[Indices]:
    """Samples dealt out at random, whatever their label.

    Sizes differ by one at most: the first ``samples % clients`` clients hold one more.
    Raises ScenarioError with more clients than samples.
    """
    check_counts(labels, clients, clients)
    owner = np.empty(len(labels), np.int64)
    owner[rng.permutation(len(labels))] = np.arange(len(labels)) % clients
    return by_owner(owner, clients)
