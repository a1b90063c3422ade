"""Clusters planted on real data: clients of one cluster hold samples that are changed alike.

Rotations (Ghosh et al. 2020, IFCA), permuted labels (Sattler et al. 2021, CFL), affine shifts
(Reisizadeh et al. 2020), groups of classes. Of the common test set every cluster gets an equal
share, changed as its clients' samples are; but natural clients have test samples of their own,
which are of their cluster.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator import random_streams
from emulator.errors import ScenarioError
from emulator.learning.datasets import Dataset
from emulator.learning.partitions.owners import Indices

Options = dict[str, Any]


def planted_clusters(clients: int, clusters: int, seed: int) -> Indices:
    """The cluster of each client [clients], of equal sizes but for one; drawn from its stream."""
    return _dealt(clients, clusters, random_streams.generator(seed, "planted clusters"))


def _dealt(n: int, clusters: int, rng: np.random.Generator) -> Indices:
    return rng.permutation(np.arange(n) % clusters)


def by_label_group(
    split: Callable[[NDArray[np.int64], int, int], list[Indices]], dataset: Dataset,
    planted: Indices, clusters: int,
) -> list[Indices]:  # fmt: skip
    """Who holds which samples where cluster c holds only classes c, c + clusters, …:
    ``split(labels, clients, cluster)`` is the partition of its samples among its clients."""
    if clusters > dataset.classes:
        raise ScenarioError(
            f"task.planted.clusters is {clusters}, and the data have {dataset.classes} classes to "
            "deal; take as many clusters at most"
        )
    parts: list[Indices] = [np.empty(0, np.int64)] * len(planted)
    for cluster in range(clusters):
        samples = np.flatnonzero(dataset.train_y % clusters == cluster)
        members = np.flatnonzero(planted == cluster)
        held = split(dataset.train_y[samples], len(members), cluster)
        for client, positions in zip(members.tolist(), held, strict=True):
            parts[client] = samples[positions]
    return parts


def plant(
    dataset: Dataset, options: Options, parts: Sequence[Indices], planted: Indices, seed: int,
    tested: Sequence[Indices] = (),
) -> Dataset:  # fmt: skip
    """The data set with each client's samples changed as its cluster's are: training samples
    ``parts``, and of the test set those that clients are ``tested`` on."""
    kind, clusters = options["kind"], options["clusters"]
    if kind == "label_groups":
        return dataset
    train = np.zeros(len(dataset.train_y), dtype=np.int64)
    for client, part in enumerate(parts):
        train[part] = planted[client]
    rng = random_streams.generator(seed, "planted test samples")
    test = _dealt(len(dataset.test_y), clusters, rng)
    for client, own in enumerate(tested):
        test[own] = planted[client]
    if kind == "label_permutation":
        names = _permutations(dataset.classes, clusters, seed)
        return dataclasses.replace(
            dataset,
            train_y=names[train, dataset.train_y],
            test_y=names[test, dataset.test_y],
        )
    change = _rotated if kind == "rotation" else _shifted
    return dataclasses.replace(
        dataset,
        train_x=change(dataset.train_x, train, options, seed),
        test_x=change(dataset.test_x, test, options, seed),
    )


def _permutations(classes: int, clusters: int, seed: int) -> NDArray[np.int64]:
    """The names of the classes in each cluster [clusters, classes]."""
    found = [np.arange(classes)]
    for cluster in range(1, clusters):
        rng = random_streams.generator(seed, "planted label permutation", cluster)
        found.append(rng.permutation(classes))
    return np.stack(found)


def _rotated(x: NDArray[Any], cluster: Indices, options: Options, seed: int) -> NDArray[Any]:
    """Images [n, channels, height, width] turned counter-clockwise about their middle; what comes
    in from outside is 0."""
    # Loaded where it is used, as all of SciPy's image functions are by nobody else.
    from scipy.ndimage import rotate

    out, clusters = x.copy(), options["clusters"]
    for c in range(1, clusters):
        theirs, turns = cluster == c, 4 * c / clusters
        if turns == int(turns) and x.shape[2] == x.shape[3]:
            out[theirs] = np.rot90(x[theirs], int(turns), axes=(2, 3))
        else:
            out[theirs] = rotate(x[theirs], 90.0 * turns, axes=(3, 2), reshape=False, order=1)
    return out


def _shifted(x: NDArray[Any], cluster: Indices, options: Options, seed: int) -> NDArray[Any]:
    out, severity = x.copy(), options["severity"]
    for c in range(options["clusters"]):
        rng = random_streams.generator(seed, "planted affine shift", c)
        scale, offset = rng.standard_normal(x.shape[1:]), rng.standard_normal(x.shape[1:])
        theirs = cluster == c
        out[theirs] = x[theirs] * (1.0 + severity * scale) + severity * offset
    return out
