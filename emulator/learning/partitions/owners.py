"""What all partitions share: the form of the result, and the checks on numbers."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ScenarioError

Indices = NDArray[np.int64]


def by_owner(owner: Indices, clients: int) -> list[Indices]:
    """The samples of each client, ascending, from the client of each sample; -1 is nobody."""
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner + 1, minlength=clients + 1))
    return np.split(order, ends[:-1])[1:]


def check_positive(option: str, value: int) -> None:
    """Refuse anything but an integer from 1 up."""
    if type(value) is not int or value < 1:
        raise ScenarioError(f"task.partition: {option} is {value!r}; write an integer from 1 up")


def check_alpha(alpha: float, instead: str) -> None:
    """Refuse what is no concentration; ``instead`` says what stands for alpha 0."""
    if type(alpha) not in (int, float) or not math.isfinite(alpha) or alpha < 1e-6:
        raise ScenarioError(
            f"task.partition.alpha: {alpha!r} is not allowed; write a finite number of at least "
            f"1e-6 ({instead})"
        )


def check_counts(labels: NDArray[np.int64], clients: int, pieces: int) -> None:
    """Refuse what would leave clients without samples in silence."""
    check_positive("clients", clients)
    if len(labels) < pieces:
        raise ScenarioError(
            f"task.partition: {len(labels)} samples cannot be cut into {pieces} pieces for "
            f"{clients} clients; take fewer clients (or shards), or set holders: to let only the "
            "first clients hold data"
        )
