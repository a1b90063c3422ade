"""A part of each client's samples set aside, to test the model on that client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import Literal

import numpy as np

from emulator import random_streams
from emulator.learning.partitions.owners import Indices


@dataclass(frozen=True, slots=True)
class ClientTest:
    """What each client is tested on: ``indices[client]`` are positions in the ``split``.

    A client that is tested on nothing has an empty array.
    """

    split: Literal["train", "test"]
    indices: list[Indices]


def set_aside(
    parts: Sequence[Indices], fraction: float, seed: int
) -> tuple[list[Indices], list[Indices]]:
    """Each client's samples for training and for testing, both ascending.

    The floor of ``fraction`` (below 1) times a client's samples, drawn at random from the
    client's own stream, are for testing: a client with few samples keeps them all, and one
    client more changes no other's.
    """
    train: list[Indices] = []
    test: list[Indices] = []
    for client, part in enumerate(parts):
        # The decimal product: 0.29 of 100 samples are 29, and in binary a little less.
        held_out = floor(Fraction(repr(fraction)) * len(part))
        order = random_streams.generator(seed, "client test", client).permutation(len(part))
        train.append(part[np.sort(order[held_out:])])
        test.append(part[np.sort(order[:held_out])])
    return train, test
