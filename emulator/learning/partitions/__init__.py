"""Who holds which samples: pure functions from labels to one array of indices a client.

Every array is sorted, int64 and disjoint from the others. Together they hold every sample, but
for ``natural`` with fewer clients than groups, and ``file``, which may leave samples out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ScenarioError
from emulator.learning.partitions.client_dirichlet import client_dirichlet
from emulator.learning.partitions.dirichlet import dirichlet
from emulator.learning.partitions.file import from_file
from emulator.learning.partitions.held_out import ClientTest, set_aside
from emulator.learning.partitions.iid import iid
from emulator.learning.partitions.natural import natural, natural_test
from emulator.learning.partitions.owners import Indices, check_positive
from emulator.learning.partitions.planted import by_label_group, plant, planted_clusters
from emulator.learning.partitions.quantity import quantity
from emulator.learning.partitions.shards import label_shards
from emulator.learning.registry import call_registered

__all__ = [
    "PARTITIONS",
    "ClientTest",
    "Indices",
    "by_label_group",
    "client_dirichlet",
    "dirichlet",
    "from_file",
    "iid",
    "label_shards",
    "natural",
    "natural_test",
    "partition",
    "partition_hash",
    "plant",
    "planted_clusters",
    "quantity",
    "set_aside",
]

PARTITIONS: dict[str, Callable[..., list[Indices]]] = {
    "iid": iid,
    "shards": label_shards,
    "dirichlet": dirichlet,
    "client_dirichlet": client_dirichlet,
    "quantity": quantity,
    "natural": natural,
    "file": from_file,
}


def partition(
    kind: str,
    labels: NDArray[np.int64],
    clients: int,
    rng: np.random.Generator,
    *,
    groups: NDArray[np.int64] | None = None,
    holders: int | None = None,
    **options: Any,
) -> list[Indices]:
    """The partition of this kind among ``clients``, as many arrays as clients.

    ``groups`` are the natural clients of the samples, where the data set has them. With
    ``holders``, only the first so many clients hold data, and the others get empty arrays.
    Raises ScenarioError for an unknown kind or option, and for numbers that do not fit.
    """
    check_positive("clients", clients)
    if holders is None:
        holders = clients
    if type(holders) is not int or not 1 <= holders <= clients:
        raise ScenarioError(
            f"task.partition.holders: {holders!r} is not allowed; write a number from 1 to the "
            f"{clients} clients, or leave it out for all"
        )
    source = groups if kind == "natural" else labels
    held = call_registered("task.partition", PARTITIONS, kind, options, source, holders, rng)
    return held + [np.empty(0, np.int64) for _ in range(clients - holders)]


def partition_hash(parts: Sequence[Indices]) -> str:
    """A BLAKE2b hash, hex, of who holds what; the order of the clients is part of it."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(np.array([len(part) for part in parts], "<i8").tobytes())
    for part in parts:
        digest.update(np.asarray(part, "<i8").tobytes())
    return digest.hexdigest()
