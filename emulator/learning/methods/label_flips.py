"""Label flipping: some clients train on wrong labels (Fang, Cao, Jia, Gong, USENIX Security 2020).

*Mirrored*: y → C − 1 − y of C classes, the usual one; the middle class of an odd number stays.
*Random class*: y → (y + u) mod C, with u drawn from 1, …, C − 1 for each sample, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from emulator import random_streams

Labels = NDArray[np.int64]


def corrupted(root_seed: int, clients: int, share: float) -> tuple[int, ...]:
    """floor(share × clients) clients, ascending: the first in a random order that does not depend
    on the share."""
    key = random_streams.purpose_key(root_seed, "label flips")
    draws = random_streams.uniforms(key, np.arange(clients, dtype=np.int64), 0)
    n = int(Decimal(repr(share)) * clients)
    return tuple(np.sort(np.argsort(draws, kind="stable")[:n]).tolist())


def flipped(
    labels: Labels, held: Sequence[Labels], clients: Sequence[int], kind: str, *, classes: int,
    root_seed: int,
) -> Labels:  # fmt: skip
    """``labels`` [n] where these ``clients`` have theirs flipped; ``held[client]`` are the
    positions of a client's samples."""
    found = labels.copy()
    for client in clients:
        own = held[client]
        if kind == "mirrored":
            found[own] = classes - 1 - labels[own]
        elif classes > 1:
            rng = random_streams.generator(root_seed, "flipped labels", client)
            found[own] = (labels[own] + rng.integers(1, classes, len(own))) % classes
    return found
