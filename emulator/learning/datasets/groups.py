"""Data sets whose samples come from people: one group each, put together in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.learning.datasets.dataset import Dataset, count_option


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """One natural client: its samples for training, at least one, and for testing."""

    name: str
    train_x: NDArray[np.float32] | NDArray[np.int64]
    train_y: NDArray[np.int64]
    test_x: NDArray[np.float32] | NDArray[np.int64]
    test_y: NDArray[np.int64]


def joined(name: str, groups: Sequence[Group], classes: int) -> Dataset:
    """The data set of all groups, one after the other."""
    numbers = np.arange(len(groups))
    return Dataset(
        name=name,
        train_x=np.concatenate([group.train_x for group in groups]),
        train_y=np.concatenate([group.train_y for group in groups]),
        test_x=np.concatenate([group.test_x for group in groups]),
        test_y=np.concatenate([group.test_y for group in groups]),
        classes=classes,
        train_group=np.repeat(numbers, [len(group.train_y) for group in groups]),
        test_group=np.repeat(numbers, [len(group.test_y) for group in groups]),
        group_names=tuple(group.name for group in groups),
    )


def check_client_limits(train: int | None, test: int | None) -> None:
    """Refuse limits on a client's samples that are no integers from 1 up."""
    for split, limit in (("train", train), ("test", test)):
        if limit is not None:
            count_option(f"{split}_samples_per_client", limit)
