"""The record that every data set is loaded into."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ScenarioError


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """A classification data set in memory, inputs ready for the model.

    ``train_x`` and ``test_x`` are float32 ``[n, channels, height, width]``, ``train_y`` and
    ``test_y`` int64 ``[n]`` in ``0 … classes - 1``. ``content_hash`` (BLAKE2b, hex) covers the
    arrays and the number of classes, and not the name: equal content is equal data.
    """

    name: str
    train_x: NDArray[np.float32]
    train_y: NDArray[np.int64]
    test_x: NDArray[np.float32]
    test_y: NDArray[np.int64]
    classes: int
    content_hash: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.blake2b(f"{self.classes}".encode(), digest_size=16)
        for array in (self.train_x, self.train_y, self.test_x, self.test_y):
            digest.update(f"/{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        object.__setattr__(self, "content_hash", digest.hexdigest())

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample: (channels, height, width)."""
        return self.train_x.shape[1:]


def sample_limit(option: str, limit: int | None, available: int) -> int:
    """How many samples to keep, the first ones: ``limit``, or all when it is None.

    Raises ScenarioError, naming the option, for a limit outside 1 … ``available``.
    """
    if limit is None:
        return available
    if type(limit) is not int or not 1 <= limit <= available:
        raise ScenarioError(
            f"task.dataset.{option}: {limit!r} is not allowed; the split has {available} samples: "
            f"write a number from 1 to {available}, or leave {option} out for all"
        )
    return limit
