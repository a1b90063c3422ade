"""The data sets, by the ``kind`` of a scenario."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from emulator.learning.datasets.cifar import cifar10, cifar100
from emulator.learning.datasets.dataset import Dataset
from emulator.learning.datasets.digits import digits
from emulator.learning.datasets.emnist import emnist
from emulator.learning.datasets.hapt import hapt
from emulator.learning.datasets.mnist_family import fashion_mnist, idx, mnist
from emulator.learning.datasets.shakespeare import shakespeare
from emulator.learning.registry import call_registered

__all__ = ["DATASETS", "Dataset", "load_dataset"]

DATASETS: dict[str, Callable[..., Dataset]] = {
    "digits": digits,
    "fashion_mnist": fashion_mnist,
    "mnist": mnist,
    "idx": idx,
    "emnist": emnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "hapt": hapt,
    "shakespeare": shakespeare,
}


def load_dataset(kind: str, **options: Any) -> Dataset:
    """The data set of this kind, in memory; options limit how much of it is kept.

    Raises ScenarioError for an unknown kind or option, and for data that are missing or damaged.
    """
    return call_registered("task.dataset", DATASETS, kind, options)
