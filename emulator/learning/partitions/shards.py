"""Samples sorted by label and cut into shards."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from emulator.learning.partitions.owners import Indices, by_owner, check_counts, check_positive


def label_shards(
    labels: NDArray[np.int64],
    clients: int,
    rng: np.random.Generator,
    *,
    shards_per_client: int,
) -> list[Indices]:
    """Samples sorted by label and cut into shards, each client holding some at random.

    McMahan et al. 2017 take two shards a client; FedSeq's "alpha = 0" is one. Shard sizes differ
    by one at most: the first ``samples % shards`` shards hold one more, so a shard holds a single
    label only where the sizes divide. Raises ScenarioError with more shards than samples.
    """
    check_positive("shards_per_client", shards_per_client)
    shards = clients * shards_per_client
    check_counts(labels, clients, shards)
    shard_sizes = np.full(shards, len(labels) // shards)
    shard_sizes[: len(labels) % shards] += 1
    shard_owner = rng.permutation(np.repeat(np.arange(clients), shards_per_client))
    owner = np.empty(len(labels), np.int64)
    owner[np.argsort(labels, kind="stable")] = np.repeat(shard_owner, shard_sizes)
    return by_owner(owner, clients)
