"""The clients that the data come from."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ScenarioError
from emulator.learning.partitions.owners import Indices, by_owner, check_positive


def natural(
    groups: NDArray[np.int64] | None,
    clients: int,
    rng: np.random.Generator,
    *,
    order: Literal["listed", "random"] = "listed",
) -> list[Indices]:
    """One client for each of the data set's groups, from the group of each sample.

    With fewer clients than groups, the other groups hold no client's data. ``listed``: client c
    is the data set's group c. ``random``: client c is the c-th of a permutation of all groups,
    so that one client more changes no other's. Raises ScenarioError for data without groups, and
    for more clients than groups.
    """
    check_positive("clients", clients)
    if order not in ("listed", "random"):
        raise ScenarioError(f"task.partition.order: {order!r} is not allowed; listed or random")
    if groups is None:
        raise ScenarioError(
            "task.partition: 'natural' needs a data set that says whose samples are whose (hapt, "
            "shakespeare); use another partition"
        )
    found = int(groups.max()) + 1
    if clients > found:
        raise ScenarioError(
            f"task.clients: {clients} clients, and the data set has {found} natural ones; take "
            f"{found} at most, or set holders: {found} to let only the first clients hold data"
        )
    client_of_group = np.full(found, -1)
    chosen = np.arange(found) if order == "listed" else rng.permutation(found)
    client_of_group[chosen[:clients]] = np.arange(clients)
    return by_owner(client_of_group[groups], clients)


def natural_test(
    parts: list[Indices], train_group: NDArray[np.int64], test_group: NDArray[np.int64]
) -> list[Indices]:
    """Each natural client's positions in the test set, from its samples in the training set."""
    groups = max(int(train_group.max()), int(test_group.max(initial=-1))) + 1
    of_group = by_owner(test_group, groups)
    nothing = np.empty(0, np.int64)
    return [of_group[train_group[part[0]]] if len(part) else nothing for part in parts]
