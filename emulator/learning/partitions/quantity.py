"""Clients that differ in how much they hold, and in nothing else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from emulator.learning.partitions.dirichlet import divided
from emulator.learning.partitions.owners import Indices, check_alpha


def quantity(
    labels: NDArray[np.int64],
    clients: int,
    rng: np.random.Generator,
    *,
    alpha: float,
    min_samples: int = 1,
    attempts: int = 100,
) -> list[Indices]:
    """All samples divided among the clients in Dirichlet(alpha) proportions, labels at random.

    Li, Diao, Chen, He (NIID-Bench, ICDE 2022), section IV-D, "quantity skew": only the sizes
    differ. Sizes are drawn again until every client holds ``min_samples``. Raises ScenarioError
    when the floor cannot be met, or was not in so many attempts.
    """
    check_alpha(alpha, "the smaller, the more the sizes differ")
    one_label = np.zeros_like(labels)
    return divided("quantity", one_label, clients, rng, alpha, min_samples, attempts)
