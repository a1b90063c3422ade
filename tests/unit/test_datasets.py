"""The data sets: the digits, and the IDX family on small files in the true format."""

from __future__ import annotations

import gzip
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from emulator import data_packages
from emulator.data_packages import DEBIAN_FASHION_MNIST
from emulator.errors import ScenarioError
from emulator.learning.datasets import Dataset, load_dataset

TRAIN_IMAGES = "train-images-idx3-ubyte"
TRAIN_LABELS = "train-labels-idx1-ubyte"
TEST_IMAGES = "t10k-images-idx3-ubyte"
TEST_LABELS = "t10k-labels-idx1-ubyte"


def encode(array: NDArray[np.uint8]) -> bytes:
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def pixels(count: int, seed: int, height: int = 4, width: int = 3) -> NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, height, width), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Seven training and five test images of 4x3, with labels 0 to 2, uncompressed."""
    (tmp_path / TRAIN_IMAGES).write_bytes(encode(pixels(7, seed=1)))
    (tmp_path / TRAIN_LABELS).write_bytes(encode(np.array([0, 1, 2, 0, 1, 2, 0], np.uint8)))
    (tmp_path / TEST_IMAGES).write_bytes(encode(pixels(5, seed=2)))
    (tmp_path / TEST_LABELS).write_bytes(encode(np.array([2, 1, 0, 0, 1], np.uint8)))
    return tmp_path


def test_digits_split_every_fifth() -> None:
    data = load_dataset("digits")
    bunch = load_digits()
    assert data.train_x.shape == (1438, 1, 8, 8)
    assert data.test_x.shape == (359, 1, 8, 8)
    assert data.input_shape == (1, 8, 8)
    assert data.classes == 10
    np.testing.assert_array_equal(data.test_x[1, 0] * 16, bunch.images[9])
    np.testing.assert_array_equal(data.train_x[4, 0] * 16, bunch.images[5])
    assert data.test_y[1] == bunch.target[9]
    for x, y in ((data.train_x, data.train_y), (data.test_x, data.test_y)):
        assert x.dtype == np.float32
        assert y.dtype == np.int64
        assert x.min() == 0.0
        assert x.max() == 1.0


def test_content_hash_follows_the_content() -> None:
    full = load_dataset("digits")
    assert full.content_hash == load_dataset("digits").content_hash
    assert full.content_hash != load_dataset("digits", train_samples=1437).content_hash
    assert full.content_hash != load_dataset("digits", test_samples=358).content_hash


def test_limits_keep_the_first_samples() -> None:
    full, some = load_dataset("digits"), load_dataset("digits", train_samples=100, test_samples=9)
    np.testing.assert_array_equal(some.train_x, full.train_x[:100])
    np.testing.assert_array_equal(some.train_y, full.train_y[:100])
    np.testing.assert_array_equal(some.test_x, full.test_x[:9])
    np.testing.assert_array_equal(some.test_y, full.test_y[:9])


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("digit", {}, r"task.dataset.kind: 'digit' is not known \(did you mean 'digits'\?\)"),
        ("digits", {"path": "x"}, "'digits' has no option 'path'"),
        ("digits", {"train_samples": 1439}, "train_samples: 1439 .*has 1438 samples"),
        ("digits", {"test_samples": 0}, "test_samples: 0 is not allowed"),
        ("digits", {"test_samples": True}, "test_samples: True"),
        ("idx", {}, "'idx' needs the option 'path'"),
        ("mnist", {"path": 3}, "path: 3 is not the name of a folder"),
    ],
)
def test_a_wrong_kind_or_option_is_refused(
    kind: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ScenarioError, match=message):
        load_dataset(kind, **options)


def test_idx_normalizes_by_the_training_pixels(folder: Path) -> None:
    data = load_dataset("idx", path=str(folder))
    train, test = pixels(7, seed=1) / 255.0, pixels(5, seed=2) / 255.0
    assert data.train_x.shape == (7, 1, 4, 3)
    assert data.test_x.shape == (5, 1, 4, 3)
    assert data.train_x.dtype == np.float32
    np.testing.assert_allclose(
        data.train_x[:, 0], (train - train.mean()) / train.std(), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(
        data.test_x[:, 0], (test - train.mean()) / train.std(), rtol=1e-5, atol=1e-6
    )
    assert data.train_y.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert data.test_y.tolist() == [2, 1, 0, 0, 1]
    assert data.test_y.dtype == np.int64
    assert data.classes == 3  # the largest training label, and one


def test_a_limit_moves_no_pixel(folder: Path) -> None:
    full = load_dataset("idx", path=str(folder))
    some = load_dataset("idx", path=str(folder), train_samples=2)
    np.testing.assert_array_equal(some.train_x, full.train_x[:2])
    np.testing.assert_array_equal(some.test_x, full.test_x)


def test_a_later_start_leaves_the_first_samples_out(folder: Path) -> None:
    full = load_dataset("idx", path=str(folder))
    later = load_dataset("idx", path=str(folder), train_from=3, train_samples=2)
    np.testing.assert_array_equal(later.train_x, full.train_x[3:5])
    assert later.train_y.tolist() == full.train_y[3:5].tolist()
    for start in (7, -1, True):
        with pytest.raises(ScenarioError, match=r"train_from: .*write a number from 0 to 6"):
            load_dataset("idx", path=str(folder), train_from=start)


def test_gzipped_files_hold_the_same_data(folder: Path) -> None:
    plain = load_dataset("mnist", path=str(folder))
    for file in list(folder.iterdir()):
        (folder / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    zipped = load_dataset("mnist", path=str(folder))
    assert zipped.content_hash == plain.content_hash
    assert zipped.classes == 10
    fashion = load_dataset("fashion_mnist", path=str(folder))
    assert (fashion.name, fashion.content_hash) == ("fashion_mnist", plain.content_hash)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (TRAIN_IMAGES, encode(pixels(7, 1))[:-3], "truncated: .*7x4x3 = 84 values, found 81"),
        (TRAIN_IMAGES, encode(pixels(7, 1)) + b"\0", "too long: .*84 values, found 85"),
        (TRAIN_IMAGES, encode(pixels(7, 1))[:10], "truncated in its header: 16 bytes.*found 10"),
        (TRAIN_IMAGES, b"", "magic number 00000803, found nothing"),
        (TRAIN_IMAGES, encode(np.zeros(7, np.uint8)), "00000803, found 00000801"),
        (TEST_IMAGES, b"<html>404</html>", "00000803, found 3c68746d"),
        (TRAIN_IMAGES, gzip.compress(encode(pixels(7, 1)))[:-20], "damaged gzip file"),
        (TEST_IMAGES, b"\x1f\x8bnot really", "damaged gzip file"),
        (TRAIN_LABELS, encode(pixels(7, 1)), "00000801, found 00000803"),
        (TRAIN_LABELS, encode(np.zeros(6, np.uint8)), "6 labels for the 7 images in train-images"),
        (TEST_LABELS, encode(np.array([0, 1, 9, 1, 7], np.uint8)), r"label 9 at sample 2.*0 … 2"),
        (TRAIN_LABELS, encode(np.zeros(7, np.uint8)), "classes: 1 is not allowed"),
        (TEST_IMAGES, encode(pixels(5, 2, height=5)), "images are 4x3 and the test images 5x3"),
        (TRAIN_IMAGES, encode(np.full((7, 4, 3), 9, np.uint8)), "every pixel .* is 9"),
    ],
)
def test_a_damaged_file_is_named_with_what_was_found(
    folder: Path, file: str, content: bytes, message: str
) -> None:
    (folder / file).write_bytes(content)
    with pytest.raises(ScenarioError, match=message) as caught:
        load_dataset("idx", path=str(folder))
    assert str(folder) in str(caught.value)


def test_an_empty_split_is_refused(folder: Path) -> None:
    (folder / TEST_IMAGES).write_bytes(encode(pixels(0, 1)))
    (folder / TEST_LABELS).write_bytes(encode(np.zeros(0, np.uint8)))
    with pytest.raises(ScenarioError, match=r"no pixels \(the header says 0x4x3\)"):
        load_dataset("idx", path=str(folder))


def test_labels_are_checked_against_the_classes_given(folder: Path) -> None:
    assert load_dataset("idx", path=str(folder), classes=5).classes == 5
    with pytest.raises(ScenarioError, match=r"train-labels.*label 2 at sample 2.*0 … 1 \(2 such"):
        load_dataset("idx", path=str(folder), classes=2)


def test_missing_files_are_named(folder: Path) -> None:
    (folder / TEST_LABELS).unlink()
    with pytest.raises(ScenarioError, match=f"{TEST_LABELS} or {TEST_LABELS}.gz is not in the"):
        load_dataset("mnist", path=str(folder))
    with pytest.raises(ScenarioError, match="there is no such folder"):
        load_dataset("mnist", path=str(folder / "nowhere"))


@pytest.mark.parametrize("kind", ["fashion_mnist", "mnist"])
def test_absent_data_say_how_to_get_them(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_packages, "DEBIAN_FASHION_MNIST", tmp_path / "absent")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    where = f"{tmp_path}/cache/fedclock/{kind}"
    with pytest.raises(ScenarioError, match=f"{where}.*fedclock data fetch {kind}.* path: ") as e:
        load_dataset(kind)
    assert "train-images-idx3-ubyte, " in str(e.value)
    assert ("apt-get install" in str(e.value)) == (kind == "fashion_mnist")


@pytest.mark.parametrize("kind", ["fashion_mnist", "mnist"])
def test_fetched_data_are_found(
    kind: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_packages, "DEBIAN_FASHION_MNIST", tmp_path / "absent")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cache" / "fedclock").mkdir(parents=True)
    shutil.copytree(folder, tmp_path / "cache" / "fedclock" / kind, ignore=lambda *_: ["cache"])
    assert load_dataset(kind).content_hash == load_dataset(kind, path=folder).content_hash


def emnist_folder(folder: Path, split: str, labels: list[int]) -> Path:
    for part, seed in (("train", 1), ("test", 2)):
        images, marks = encode(pixels(4, seed)), encode(np.array(labels, np.uint8))
        stem = folder / f"emnist-{split}-{part}"
        stem.with_name(f"{stem.name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        stem.with_name(f"{stem.name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(marks))
    return folder


def test_emnist_images_stand_upright(tmp_path: Path) -> None:
    """In the files row r, column c is the pixel at column r, row c."""
    data = load_dataset(
        "emnist", path=emnist_folder(tmp_path, "balanced", [0, 46, 3, 1]), split="balanced"
    )
    train, test = pixels(4, 1) / 255, pixels(4, 2) / 255
    assert data.train_x.shape == (4, 1, 3, 4)
    assert data.classes == 47
    assert data.train_y.tolist() == [0, 46, 3, 1]
    for x, raw in ((data.train_x, train), (data.test_x, test)):
        upright = np.array([image.T for image in raw])
        expected = (upright - train.mean()) / train.std()
        np.testing.assert_allclose(x[:, 0], expected, rtol=1e-5, atol=1e-6)


def test_emnist_letters_count_from_one_in_the_files(tmp_path: Path) -> None:
    data = load_dataset(
        "emnist", path=emnist_folder(tmp_path, "letters", [1, 26, 2, 1]), split="letters"
    )
    assert data.classes == 26
    assert data.train_y.tolist() == [0, 25, 1, 0]
    assert data.test_y.dtype == np.int64
    emnist_folder(tmp_path, "letters", [1, 0, 2, 1])
    with pytest.raises(ScenarioError, match=r"letters-train-labels.*label 0 at sample 1.*1 … 26"):
        load_dataset("emnist", path=tmp_path, split="letters")


def test_emnist_files_and_splits_are_checked(tmp_path: Path) -> None:
    emnist_folder(tmp_path, "digits", [1, 2, 3, 10])
    with pytest.raises(ScenarioError, match=r"label 10 at sample 3 is outside 0 … 9"):
        load_dataset("emnist", path=tmp_path, split="digits")
    with pytest.raises(ScenarioError, match=r"emnist-byclass-train-images-idx3-ubyte or .* hold"):
        load_dataset("emnist", path=tmp_path, split="byclass")
    with pytest.raises(ScenarioError, match=r"'letter' is not known \(did you mean 'letters'\?\)"):
        load_dataset("emnist", path=tmp_path, split="letter")


def test_groups_are_part_of_the_content() -> None:
    x, y, groups = np.zeros((3, 2), np.float32), np.zeros(3, np.int64), np.array([0, 0, 1])
    plain = Dataset("a", x, y, x, y, 2)
    grouped = Dataset("a", x, y, x, y, 2, groups, groups, ("u", "v"))
    assert plain.content_hash != grouped.content_hash
    assert grouped.content_hash == Dataset("b", x, y, x, y, 2, groups, groups).content_hash
    other = Dataset("a", x, y, x, y, 2, groups[::-1].copy(), groups, ("u", "v"))
    assert grouped.content_hash != other.content_hash


@pytest.mark.skipif(
    not DEBIAN_FASHION_MNIST.is_dir(), reason=f"Fashion-MNIST is not in {DEBIAN_FASHION_MNIST}"
)
def test_fashion_mnist() -> None:
    data = load_dataset("fashion_mnist")
    assert data.train_x.shape == (60_000, 1, 28, 28)
    assert data.test_x.shape == (10_000, 1, 28, 28)
    assert np.bincount(data.train_y).tolist() == [6_000] * 10
    assert np.bincount(data.test_y).tolist() == [1_000] * 10
    # A black pixel is (0 - mean) / std, a white one (1 - mean) / std: 0.2860 and 0.3530.
    low, high = float(data.train_x.min()), float(data.train_x.max())
    assert 1 / (high - low) == pytest.approx(0.3530, abs=5e-5)
    assert -low / (high - low) == pytest.approx(0.2860, abs=5e-5)
    assert float(data.train_x.mean(dtype=np.float64)) == pytest.approx(0.0, abs=1e-6)
