"""EMNIST (Cohen, Afshar, Tapson, van Schaik 2017, arXiv 1702.05373): letters and digits.

Six splits of one collection, each in four IDX files whose images are transposed. Pixels are
normalized as MNIST's are. The files don't say who wrote what, so there are no natural clients.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from emulator.errors import ScenarioError, nearest
from emulator.learning.datasets.dataset import Dataset
from emulator.learning.datasets.mnist_family import load_idx

# Table II of the paper; merged classes are letters whose two cases look alike.
_CLASSES = {"balanced": 47, "byclass": 62, "bymerge": 47, "digits": 10, "letters": 26, "mnist": 10}


def emnist(
    *,
    path: str | Path,
    split: Literal["balanced", "byclass", "bymerge", "digits", "letters", "mnist"],
    train_samples: int | None = None,
    test_samples: int | None = None,
) -> Dataset:
    """One split of EMNIST, ``[1, 28, 28]`` upright, from the folder ``path`` with its files.

    The split ``letters`` has the labels 1 to 26 in the files, and 0 to 25 here. Raises
    ScenarioError, naming the file, for data that are missing or damaged.
    """
    if split not in _CLASSES:
        raise ScenarioError(
            f"task.dataset.split: {split!r} is not known{nearest(split, _CLASSES)}; EMNIST has "
            f"{', '.join(_CLASSES)}"
        )
    return load_idx(
        f"emnist {split}",
        path,
        _CLASSES[split],
        train_samples,
        test_samples,
        prefixes=(f"emnist-{split}-train", f"emnist-{split}-test"),
        first_label=1 if split == "letters" else 0,
        transposed=True,
    )
