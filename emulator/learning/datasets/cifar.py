"""CIFAR-10 and CIFAR-100 (Krizhevsky, "Learning Multiple Layers of Features from Tiny Images").

Read from what the publisher offers, in Python's or in the binary version: the archive
(``.tar.gz``), or the folder that it unpacks to. Pixels become ``(x / 255 - mean) / std`` with the
mean and the standard deviation of each channel over all pixels of the 50,000 training images,
whatever ``train_samples`` keeps of them: a limit moves no pixel.
"""

from __future__ import annotations

import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ScenarioError
from emulator.learning.datasets import closed_pickle
from emulator.learning.datasets.dataset import Dataset, sample_limit
from emulator.learning.datasets.pixels import normalized_pixels

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True, slots=True)
class _Version:
    """One of the published forms: its folder, its files and where the labels are."""

    folder: str
    train: tuple[str, ...]
    test: str
    binary: bool
    labels: int  # labels in front of an image in the binary version


_CIFAR10 = (
    _Version(
        "cifar-10-batches-py",
        tuple(f"data_batch_{i}" for i in range(1, 6)),
        "test_batch",
        False,
        1,
    ),
    _Version(
        "cifar-10-batches-bin",
        tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
        "test_batch.bin",
        True,
        1,
    ),
)
_CIFAR100 = (
    _Version("cifar-100-python", ("train",), "test", False, 2),
    _Version("cifar-100-binary", ("train.bin",), "test.bin", True, 2),
)


def cifar10(
    *, path: str | Path, train_samples: int | None = None, test_samples: int | None = None
) -> Dataset:
    """CIFAR-10: 50,000 and 10,000 colour images ``[3, 32, 32]``, 10 classes.

    Raises ScenarioError, naming the file, for data that are missing, damaged or hostile.
    """
    return _load("cifar10", path, _CIFAR10, "labels", 10, train_samples, test_samples)


def cifar100(
    *,
    path: str | Path,
    labels: Literal["fine", "coarse"] = "fine",
    train_samples: int | None = None,
    test_samples: int | None = None,
) -> Dataset:
    """CIFAR-100: 50,000 and 10,000 colour images ``[3, 32, 32]``, 100 classes or 20 coarse ones.

    Raises ScenarioError, naming the file, for data that are missing, damaged or hostile.
    """
    if labels not in ("fine", "coarse"):
        raise ScenarioError(
            f"task.dataset.labels: {labels!r} is not allowed; write fine (100 classes) or coarse "
            "(20 classes)"
        )
    classes = 100 if labels == "fine" else 20
    key = f"{labels}_labels"
    return _load("cifar100", path, _CIFAR100, key, classes, train_samples, test_samples)


def _load(
    name: str,
    path: str | Path,
    versions: tuple[_Version, ...],
    label_key: str,
    classes: int,
    train_samples: int | None,
    test_samples: int | None,
) -> Dataset:
    version, files = _files(Path(path), versions)
    batches = {
        file: _read_batch(content, f"{path}: {file}", version, label_key, classes)
        for file, content in files.items()
    }
    train_x = np.concatenate([batches[file][0] for file in version.train])
    train_y = np.concatenate([batches[file][1] for file in version.train])
    test_x, test_y = batches[version.test]
    n_train = sample_limit("train_samples", train_samples, len(train_y))
    n_test = sample_limit("test_samples", test_samples, len(test_y))
    kept_x, kept_test_x = train_x[:n_train], test_x[:n_test]
    lookups = [normalized_pixels(train_x[:, channel], path) for channel in range(3)]

    def normalized(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        return np.stack([lookups[c][images[:, c]] for c in range(3)], axis=1)

    return Dataset(
        name=name,
        train_x=normalized(kept_x),
        train_y=train_y[:n_train],
        test_x=normalized(kept_test_x),
        test_y=test_y[:n_test],
        classes=classes,
    )


def _files(path: Path, versions: tuple[_Version, ...]) -> tuple[_Version, dict[str, bytes]]:
    """The version found at ``path``, and the content of its files by name."""
    if path.is_file():
        return _from_archive(path, versions)
    for version in versions:
        for folder in (path, path / version.folder):
            wanted = [*version.train, version.test]
            found = [file for file in wanted if (folder / file).is_file()]
            if found == wanted:
                return version, {file: _content(folder / file) for file in wanted}
            if found and folder.name == version.folder:
                missing = next(file for file in wanted if file not in found)
                raise ScenarioError(f"{folder}: {missing} is missing; unpack the archive again")
    state = "holds none of them" if path.is_dir() else "there is no such file or folder"
    raise ScenarioError(
        f"task.dataset.path: {path}: {state}; name the publisher's .tar.gz, or the folder that it "
        f"unpacks to: {' or '.join(v.folder for v in versions)} with "
        f"{' or '.join(f'{v.train[0]} … {v.test}' for v in versions)}"
    )


def _from_archive(path: Path, versions: tuple[_Version, ...]) -> tuple[_Version, dict[str, bytes]]:
    """As :func:`_files`, from the archive: only the files wanted are read, none is unpacked."""
    contents: dict[str, bytes] = {}
    wanted = {f"{v.folder}/{file}" for v in versions for file in (*v.train, v.test)}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                file = archive.extractfile(member) if name in wanted and member.isreg() else None
                if file is not None:
                    contents[name] = file.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise ScenarioError(
            f"{path}: cannot be read as an archive ({error}); fetch it from its publisher again"
        ) from None
    for version in versions:
        files = {file: f"{version.folder}/{file}" for file in (*version.train, version.test)}
        if all(name in contents for name in files.values()):
            return version, {file: contents[name] for file, name in files.items()}
    raise ScenarioError(
        f"{path}: holds none of {', '.join(v.folder for v in versions)} whole; is it the "
        "publisher's archive of this data set?"
    )


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ScenarioError(
            f"{file}: cannot be read ({error.strerror}); check its permissions"
        ) from None


def _read_batch(
    content: bytes, where: str, version: _Version, label_key: str, classes: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images ``[n, 3, 32, 32]`` and labels ``[n]`` of one file."""
    if version.binary:
        record = version.labels + _PIXELS
        if not content or len(content) % record:
            raise ScenarioError(
                f"{where}: {len(content)} bytes are no whole number of records of {record} bytes; "
                "fetch the file again"
            )
        table = np.frombuffer(content, np.uint8).reshape(-1, record)
        images = table[:, version.labels :]
        # CIFAR-100 has the coarse label in front of the fine one.
        column = 0 if label_key == "coarse_labels" else version.labels - 1
        labels = table[:, column].astype(np.int64)
    else:
        images, labels = _from_pickle(content, where, label_key)
    outside = np.flatnonzero((labels < 0) | (labels >= classes))
    if outside.size:
        raise ScenarioError(
            f"{where}: label {labels[outside[0]]} at image {outside[0]} is outside "
            f"0 … {classes - 1}; fetch the file again"
        )
    return images.reshape(-1, 3, 32, 32), labels


def _from_pickle(
    content: bytes, where: str, label_key: str
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The rows of pixels and the labels of a batch in Python's version."""
    batch = closed_pickle.load(content, where)
    found: list[Any] = []
    for key in ("data", label_key):
        if not isinstance(batch, dict) or key.encode() not in batch:
            raise ScenarioError(f"{where}: the pickle has no '{key}'; fetch the file again")
        found.append(batch[key.encode()])
    images = closed_pickle.array(found[0], f"{where}, data", 2)
    labels = found[1]
    if images.dtype != np.uint8 or images.shape[1] != _PIXELS:
        raise ScenarioError(
            f"{where}, data: {images.dtype} of shape {images.shape} is not allowed; images are "
            f"uint8 of shape (n, {_PIXELS})"
        )
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise ScenarioError(f"{where}, {label_key}: a list of integers is expected")
    if len(labels) != len(images) or not labels:
        raise ScenarioError(
            f"{where}: {len(labels)} labels for {len(images)} images; fetch the file again"
        )
    return images, np.array(labels, np.int64)
