"""Clients that train on wrong labels, as a scenario says."""

from __future__ import annotations

import dataclasses

from emulator.learning.datasets import Dataset
from emulator.learning.methods.label_flips import corrupted, flipped
from emulator.learning.partitions import Indices
from emulator.scenario.schema import Scenario


def corrupted_clients(scenario: Scenario) -> tuple[int, ...]:
    """Those that train on flipped labels, ascending."""
    flips = scenario.federation.faults.label_flips
    return corrupted(scenario.seed, scenario.task.clients, flips.share) if flips else ()


def corrupt(dataset: Dataset, parts: list[Indices], scenario: Scenario) -> Dataset:
    """The data set with the labels of these clients' training samples flipped."""
    clients, flips = corrupted_clients(scenario), scenario.federation.faults.label_flips
    if not clients or flips is None:
        return dataset
    y, classes, seed = dataset.train_y, dataset.classes, scenario.seed
    labels = flipped(y, parts, clients, flips.kind, classes=classes, root_seed=seed)
    return dataclasses.replace(dataset, train_y=labels)
