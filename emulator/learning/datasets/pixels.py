"""Normalization of pixels, in exact integer counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ScenarioError


def normalized_pixels(images: NDArray[np.uint8], where: str | Path) -> NDArray[np.float32]:
    """What each of the 256 pixel values becomes, ``[256]``: ``(x / 255 - mean) / std``.

    Mean and deviation are those of ``images`` and come from the histogram, in exact integer
    counts: the same bits on every machine, which a floating-point sum over the images would not
    give. Raises ScenarioError, naming ``where``, when all pixels are the same.
    """
    counts = np.bincount(images.ravel(), minlength=256)
    values = np.arange(256) / 255.0
    mean = float((counts * values).sum() / images.size)
    std = float(np.sqrt((counts * (values - mean) ** 2).sum() / images.size))
    if np.count_nonzero(counts) < 2:
        raise ScenarioError(
            f"{where}: every pixel of the training images is {int(images.flat[0])}, so they "
            "cannot be normalized; check the file"
        )
    return ((values - mean) / std).astype(np.float32)
