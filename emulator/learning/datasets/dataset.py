"""The record that every data set is loaded into."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ScenarioError


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """A classification data set in memory, inputs ready for the model.

    ``train_x`` and ``test_x`` are ``[n, …]``: float32 (images are channels, height, width;
    signals channels, time), or int64 positions in a vocabulary for text. ``train_y`` and
    ``test_y`` are int64 ``[n]`` in ``0 … classes - 1``. Where samples come from people, groups
    are natural clients: ``train_group`` and ``test_group`` (int64 ``[n]``) are positions in
    ``group_names``, and every group has a training sample. ``content_hash`` (BLAKE2b, hex) covers
    the arrays and the number of classes, and no name: equal content is equal data.
    """

    name: str
    train_x: NDArray[np.float32] | NDArray[np.int64]
    train_y: NDArray[np.int64]
    test_x: NDArray[np.float32] | NDArray[np.int64]
    test_y: NDArray[np.int64]
    classes: int
    train_group: NDArray[np.int64] | None = None
    test_group: NDArray[np.int64] | None = None
    group_names: tuple[str, ...] = ()
    content_hash: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.blake2b(f"{self.classes}".encode(), digest_size=16)
        arrays: list[NDArray[Any]] = [self.train_x, self.train_y, self.test_x, self.test_y]
        arrays += [group for group in (self.train_group, self.test_group) if group is not None]
        for array in arrays:
            digest.update(f"/{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        object.__setattr__(self, "content_hash", digest.hexdigest())

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample, such as (channels, height, width)."""
        return self.train_x.shape[1:]

    @property
    def is_text(self) -> bool:
        """Whether inputs are positions in a vocabulary."""
        return self.train_x.dtype == np.int64


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


def count_option(option: str, value: int) -> int:
    """``value``, which must be an integer from 1 up; ScenarioError names the option."""
    if type(value) is not int or value < 1:
        raise ScenarioError(
            f"task.dataset.{option}: {value!r} is not allowed; write an integer from 1 up"
        )
    return value


def held_out_count(fraction: float, samples: int) -> int:
    """How many of a client's samples are for testing: the floor of the decimal product.

    Raises ScenarioError for a ``test_fraction`` outside (0, 1).
    """
    if type(fraction) is not float or not 0.0 < fraction < 1.0:
        raise ScenarioError(
            f"task.dataset.test_fraction: {fraction!r} is not allowed; write a number between 0 "
            "and 1, such as 0.2"
        )
    return floor(Fraction(repr(fraction)) * samples)
