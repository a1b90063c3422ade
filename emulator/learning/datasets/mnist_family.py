"""MNIST, Fashion-MNIST, and any other data set of the same four IDX files.

LeCun, Cortes, Burges, "The MNIST database"; Xiao, Rasul, Vollgraf, "Fashion-MNIST" (2017,
arXiv 1708.07747). Pixels become ``(x / 255 - mean) / std``, with the mean and the standard
deviation over all pixels of the full training file (0.2860 and 0.3530 for Fashion-MNIST),
whatever ``train_samples`` keeps of it: a limit moves no pixel.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ScenarioError
from emulator.learning.datasets.dataset import Dataset, sample_limit
from emulator.learning.datasets.idx import read_idx

# Where Debian's package dataset-fashion-mnist puts its files.
DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")

_FILES = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and "
_FILES += "t10k-labels-idx1-ubyte (each may end in .gz)"


def fashion_mnist(
    *,
    path: str | None = None,
    train_samples: int | None = None,
    test_samples: int | None = None,
) -> Dataset:
    """Fashion-MNIST from the folder ``path``, or from Debian's package when it is None.

    Raises ScenarioError, saying how to get the data, when they are not there.
    """
    if path is None and not DEBIAN_FASHION_MNIST.is_dir():
        raise ScenarioError(
            f"task.dataset: fashion_mnist is not installed ({DEBIAN_FASHION_MNIST} does not "
            "exist); run apt-get install dataset-fashion-mnist, or name a folder with its files: "
            f"path: FOLDER, holding {_FILES}"
        )
    folder = DEBIAN_FASHION_MNIST if path is None else path
    return _load("fashion_mnist", folder, 10, train_samples, test_samples)


def mnist(
    *, path: str, train_samples: int | None = None, test_samples: int | None = None
) -> Dataset:
    """MNIST, or a data set that replaces it with ten classes, from the folder ``path``."""
    return _load("mnist", path, 10, train_samples, test_samples)


def idx(
    *,
    path: str,
    classes: int | None = None,
    train_samples: int | None = None,
    test_samples: int | None = None,
) -> Dataset:
    """Any grey image set in MNIST's four files, from the folder ``path``.

    Without ``classes``, the largest label of the training file gives their number.
    """
    return _load("idx", path, classes, train_samples, test_samples)


def _load(
    name: str,
    path: str | Path,
    classes: int | None,
    train_samples: int | None,
    test_samples: int | None,
) -> Dataset:
    """The data set in the four IDX files of the folder ``path``."""
    if not isinstance(path, (str, Path)):
        raise ScenarioError(f"task.dataset.path: {path!r} is not the name of a folder")
    folder = Path(path)
    train_images, train_labels, train_file = _read_split(folder, "train")
    test_images, test_labels, test_file = _read_split(folder, "t10k")
    if train_images.shape[1:] != test_images.shape[1:]:
        raise ScenarioError(
            f"{folder}: the training images are {_size(train_images)} and the test images "
            f"{_size(test_images)}; both splits must have one size"
        )
    if classes is None:
        classes = int(train_labels.max()) + 1
    if type(classes) is not int or not 2 <= classes <= 256:
        raise ScenarioError(
            f"task.dataset.classes: {classes!r} is not allowed for {folder}; "
            "write a number from 2 to 256"
        )
    for labels, file in ((train_labels, train_file), (test_labels, test_file)):
        _check_labels(labels, classes, file)
    pixel_value = _normalized_pixels(train_images, folder)
    n_train = sample_limit("train_samples", train_samples, len(train_labels))
    n_test = sample_limit("test_samples", test_samples, len(test_labels))
    return Dataset(
        name=name,
        train_x=pixel_value[train_images[:n_train, None]],
        train_y=train_labels[:n_train].astype(np.int64),
        test_x=pixel_value[test_images[:n_test, None]],
        test_y=test_labels[:n_test].astype(np.int64),
        classes=classes,
    )


def _read_split(folder: Path, prefix: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8], Path]:
    """Images ``[n, height, width]`` and labels ``[n]`` of a split, and the file of the labels."""
    images_file = _find(folder, f"{prefix}-images-idx3-ubyte")
    labels_file = _find(folder, f"{prefix}-labels-idx1-ubyte")
    images, labels = read_idx(images_file, 3), read_idx(labels_file, 1)
    if len(images) != len(labels):
        raise ScenarioError(
            f"{labels_file}: {len(labels)} labels for the {len(images)} images in "
            f"{images_file.name}; the two files must belong together"
        )
    if images.size == 0:
        raise ScenarioError(
            f"{images_file}: no pixels (the header says {'x'.join(map(str, images.shape))}); "
            "a split needs at least one image"
        )
    return images, labels, labels_file


def _find(folder: Path, stem: str) -> Path:
    """The file of this name in the folder; where both exist, the plain one before the gzipped."""
    for file in (folder / stem, folder / f"{stem}.gz"):
        if file.is_file():
            return file
    state = "is not in the folder" if folder.is_dir() else "not found: there is no such folder"
    raise ScenarioError(
        f"task.dataset.path: {folder}: {stem} or {stem}.gz {state}; the folder must hold {_FILES}"
    )


def _size(images: NDArray[np.uint8]) -> str:
    return "x".join(map(str, images.shape[1:]))


def _check_labels(labels: NDArray[np.uint8], classes: int, file: Path) -> None:
    outside = np.flatnonzero(labels >= classes)
    if outside.size:
        raise ScenarioError(
            f"{file}: label {labels[outside[0]]} at sample {outside[0]} is outside "
            f"0 … {classes - 1} ({outside.size} such label(s)); check the file, or for kind: idx "
            "set classes:"
        )


def _normalized_pixels(images: NDArray[np.uint8], folder: Path) -> NDArray[np.float32]:
    """What each of the 256 pixel values becomes, ``[256]``.

    Mean and deviation come from the histogram, in exact integer counts: the same bits on every
    machine, which a floating-point sum over the images would not give.
    """
    counts = np.bincount(images.ravel(), minlength=256)
    values = np.arange(256) / 255.0
    mean = float((counts * values).sum() / images.size)
    std = float(np.sqrt((counts * (values - mean) ** 2).sum() / images.size))
    if np.count_nonzero(counts) < 2:
        raise ScenarioError(
            f"{folder}: every pixel of the training images is {int(images.flat[0])}, so they "
            "cannot be normalized; check the file"
        )
    return ((values - mean) / std).astype(np.float32)
