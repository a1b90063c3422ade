"""CIFAR-10 and CIFAR-100 on small files in the publisher's two formats."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pickle_writer import array, call, document, listed, mapped, name, number, old_string, text

from emulator.errors import ScenarioError
from emulator.learning.datasets import load_dataset

IMAGES = 4


def rows(seed: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (IMAGES, 3072), dtype=np.uint8)


def labels(seed: int, classes: int) -> list[int]:
    return [int(n) for n in np.random.default_rng(100 + seed).integers(0, classes, IMAGES)]


def batch(pixels: NDArray[np.uint8], **label_lists: list[int]) -> bytes:
    """A batch as Python 2 wrote it."""
    pairs = [(old_string(b"batch_label"), old_string(b"some batch"))]
    for key, values in label_lists.items():
        pairs.append((old_string(key.encode()), listed(*map(number, values))))
    pairs.append((old_string(b"data"), array(pixels)))
    return document(mapped(*pairs))


FILES10 = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]


@pytest.fixture
def cifar10(tmp_path: Path) -> Path:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for seed, file in enumerate(FILES10):
        (folder / file).write_bytes(batch(rows(seed), labels=labels(seed, 10)))
    (folder / "batches.meta").write_bytes(b"not read")
    return tmp_path


@pytest.fixture
def cifar100(tmp_path: Path) -> Path:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for seed, file in enumerate(["train", "test"]):
        (folder / file).write_bytes(
            batch(rows(seed), fine_labels=labels(seed, 100), coarse_labels=labels(seed, 20))
        )
    return tmp_path


def test_the_batches_in_their_order(cifar10: Path) -> None:
    data = load_dataset("cifar10", path=cifar10)
    assert data.train_x.shape == (5 * IMAGES, 3, 32, 32)
    assert data.test_x.shape == (IMAGES, 3, 32, 32)
    assert data.train_x.dtype == np.float32
    assert data.classes == 10
    assert data.train_y.tolist() == [n for seed in range(5) for n in labels(seed, 10)]
    assert data.test_y.tolist() == labels(5, 10)
    train = np.concatenate([rows(seed) for seed in range(5)]).reshape(-1, 3, 1024) / 255
    # The rows hold 1,024 red, then green, then blue values.
    mean, std = train.mean(axis=(0, 2)), train.std(axis=(0, 2))
    expected = (train - mean[:, None]) / std[:, None]
    np.testing.assert_allclose(data.train_x.reshape(-1, 3, 1024), expected, rtol=1e-4, atol=1e-5)
    test = rows(5).reshape(-1, 3, 1024) / 255
    np.testing.assert_allclose(
        data.test_x.reshape(-1, 3, 1024), (test - mean[:, None]) / std[:, None], 1e-4, 1e-5
    )


def test_a_limit_moves_no_pixel(cifar10: Path) -> None:
    full = load_dataset("cifar10", path=cifar10)
    some = load_dataset("cifar10", path=cifar10, train_samples=3, test_samples=2)
    np.testing.assert_array_equal(some.train_x, full.train_x[:3])
    np.testing.assert_array_equal(some.test_y, full.test_y[:2])
    with pytest.raises(ScenarioError, match=r"train_samples: 21 .*has 20 samples"):
        load_dataset("cifar10", path=cifar10, train_samples=21)


def test_folder_parent_archive_and_binary_version_hold_the_same_data(
    cifar10: Path, tmp_path: Path
) -> None:
    content = load_dataset("cifar10", path=cifar10).content_hash
    folder = cifar10 / "cifar-10-batches-py"
    assert load_dataset("cifar10", path=folder).content_hash == content
    archive = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(folder, arcname="cifar-10-batches-py")
    assert load_dataset("cifar10", path=archive).content_hash == content
    binary = tmp_path / "binary"
    binary.mkdir()
    for seed, file in enumerate(FILES10):
        table = np.column_stack([np.array(labels(seed, 10), np.uint8), rows(seed)])
        (binary / f"{file}.bin").write_bytes(table.tobytes())
    assert load_dataset("cifar10", path=binary).content_hash == content


def test_cifar100_has_two_kinds_of_labels(cifar100: Path, tmp_path: Path) -> None:
    fine = load_dataset("cifar100", path=cifar100)
    coarse = load_dataset("cifar100", path=cifar100, labels="coarse")
    assert (fine.classes, coarse.classes) == (100, 20)
    assert fine.train_y.tolist() == labels(0, 100)
    assert coarse.test_y.tolist() == labels(1, 20)
    np.testing.assert_array_equal(fine.train_x, coarse.train_x)
    binary = tmp_path / "cifar-100-binary"
    binary.mkdir()
    for seed, file in enumerate(["train.bin", "test.bin"]):
        both = [labels(seed, 20), labels(seed, 100)]
        table = np.column_stack([np.array(both, np.uint8).T, rows(seed)])
        (binary / file).write_bytes(table.tobytes())
    for kind, data in (("fine", fine), ("coarse", coarse)):
        other = load_dataset("cifar100", path=binary, labels=kind)
        assert other.content_hash == data.content_hash
    with pytest.raises(ScenarioError, match=r"labels: 'medium'.*fine .*or coarse"):
        load_dataset("cifar100", path=cifar100, labels="medium")


def damaged() -> list[tuple[bytes, str]]:
    good = labels(0, 10)
    return [
        (b"", "is not a whole pickle"),
        (batch(rows(0)), "the pickle has no 'labels'"),
        (document(listed()), "the pickle has no 'data'"),
        (batch(rows(0), labels=good[:-1]), "3 labels for 4 images"),
        (batch(rows(0), labels=[0, 10, 1, 2]), "label 10 at image 1 is outside 0 … 9"),
        (batch(rows(0), labels=[0, -1, 1, 2]), "label -1 at image 1"),
        (batch(rows(0)[:, :-1], labels=good), r"uint8 of shape \(4, 3071\)"),
        (batch(rows(0).astype(np.int64), labels=good), r"int64 of shape \(4, 3072\)"),
    ]


@pytest.mark.parametrize(("content", "message"), damaged())
def test_a_damaged_file_is_named(cifar10: Path, content: bytes, message: str) -> None:
    (cifar10 / "cifar-10-batches-py" / "data_batch_3").write_bytes(content)
    with pytest.raises(ScenarioError, match=f"data_batch_3.*{message}"):
        load_dataset("cifar10", path=cifar10)


def test_a_hostile_batch_runs_nothing(cifar10: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    body = mapped((old_string(b"data"), call(name("os", "system"), text(f"touch {marker}"))))
    (cifar10 / "cifar-10-batches-py" / "test_batch").write_bytes(document(body))
    with pytest.raises(ScenarioError, match=r"test_batch: the pickle asks for os\.system"):
        load_dataset("cifar10", path=cifar10)
    assert not marker.exists()


def test_missing_files_are_named(cifar10: Path, tmp_path: Path) -> None:
    (cifar10 / "cifar-10-batches-py" / "data_batch_2").unlink()
    with pytest.raises(ScenarioError, match="cifar-10-batches-py: data_batch_2 is missing"):
        load_dataset("cifar10", path=cifar10)
    with pytest.raises(ScenarioError, match="there is no such file or folder; name the publ"):
        load_dataset("cifar10", path=tmp_path / "nowhere")
    with pytest.raises(ScenarioError, match=r"holds none of them.*cifar-100-python"):
        load_dataset("cifar100", path=cifar10)


@pytest.mark.parametrize("content", [b"no archive", b"\x1f\x8bhalf"])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    archive = tmp_path / "cifar.tar.gz"
    archive.write_bytes(content)
    with pytest.raises(ScenarioError, match=r"cifar\.tar\.gz: cannot be read as an archive"):
        load_dataset("cifar10", path=archive)


def test_an_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "other.tar"
    with tarfile.open(archive, "w") as packed:
        link = tarfile.TarInfo("cifar-10-batches-py/test_batch")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        packed.addfile(link)
        info: Any = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
        info.size = 3
        packed.addfile(info, io.BytesIO(b"abc"))
    with pytest.raises(ScenarioError, match=r"holds none of cifar-10-batches-py, .* whole"):
        load_dataset("cifar10", path=archive)
