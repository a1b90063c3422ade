"""HAPT on small files in the package's format, and the real file where it was fetched."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pickle_writer import call, document, frame, listed, mapped, name, number, text

from emulator import data_packages
from emulator.errors import ScenarioError
from emulator.learning.datasets import load_dataset

SIGNALS = ("acc-x", "acc-y", "acc-z", "gyro-x", "gyro-y", "gyro-z")


def recording(labels: list[int], offset: float = 0.0) -> dict[str, NDArray[Any]]:
    """Signal i at time t has the value offset + t + 10,000 i."""
    time = np.arange(len(labels), dtype=np.float64)
    columns: dict[str, NDArray[Any]] = {
        signal: offset + time + 10_000 * i for i, signal in enumerate(SIGNALS)
    }
    return {**columns, "sequence": np.arange(len(labels)), "label": np.array(labels)}


def write(folder: Path, users: dict[int, list[dict[str, NDArray[Any]]]]) -> Path:
    body = mapped(*((number(user), listed(*map(frame, frames))) for user, frames in users.items()))
    (folder / "HAPT.pkl.gz").write_bytes(gzip.compress(document(body)))
    return folder


# 128 + 3 x 64 samples: windows at 0, 64, 128 and 192.
FOUR = 320


def test_windows_by_hand(tmp_path: Path) -> None:
    """User 1 stands (5) and then lies (6), with a transition between; user 2 walks (1)."""
    stand_lie = [5] * FOUR + [9] * 64 + [6] * FOUR
    folder = write(tmp_path, {2: [recording([1] * FOUR)], 1: [recording(stand_lie)]})
    data = load_dataset("hapt", path=folder, test_fraction=0.25)
    assert data.group_names == ("user 1", "user 2")
    assert data.classes == 6
    assert data.input_shape == (6, 128)
    assert data.train_x.dtype == np.float32
    # Of each activity's four windows the last one is for testing, and the third overlaps it.
    assert data.train_x[:, 0, 0].tolist() == [0, 64, 384, 448, 0, 64]
    assert data.test_x[:, 0, 0].tolist() == [192, 576, 192]
    assert data.train_y.tolist() == [4, 4, 5, 5, 0, 0]
    assert data.test_y.tolist() == [4, 5, 0]
    assert data.train_group is not None
    assert data.test_group is not None
    assert data.train_group.tolist() == [0, 0, 0, 0, 1, 1]
    assert data.test_group.tolist() == [0, 0, 1]
    # Signal i at time t: all six signals of the second window.
    expected = 64 + np.arange(128) + 10_000 * np.arange(6)[:, None]
    np.testing.assert_array_equal(data.train_x[1], expected)


def test_a_window_lies_in_one_recording_and_one_activity(tmp_path: Path) -> None:
    """A window that a change of activity or unlabelled samples cut does not count."""
    cut = [2] * 130 + [3] * 190 + [-1] * 64 + [3] * 256
    folder = write(tmp_path, {1: [recording(cut), recording([2] * 256, 1e5)]})
    data = load_dataset("hapt", path=folder, test_fraction=0.5)
    # Activity 2: at 0, and at 0, 64 and 128 of the second recording. Of the four the last two are
    # held out, and the second overlaps them.
    assert sorted(data.train_x[data.train_y == 1][:, 0, 0].tolist()) == [0]
    assert sorted(data.test_x[data.test_y == 1][:, 0, 0].tolist()) == [100_064, 100_128]
    # Activity 3: 130 to 319 holds 192; 384 to 639 holds 384, 448, 512.
    assert data.train_x[data.train_y == 2][:, 0, 0].tolist() == [192]
    assert data.test_x[data.test_y == 2][:, 0, 0].tolist() == [448, 512]


def test_options(tmp_path: Path) -> None:
    folder = write(tmp_path, {1: [recording([1] * FOUR)], 2: [recording([1] * FOUR)]})
    fine = load_dataset("hapt", path=folder, hop=32, test_fraction=0.3)
    # Seven windows, two of them held out: 160 and 192; 64, 96 and 128 reach beyond 160.
    assert fine.train_x[:2, 0, 0].tolist() == [0, 32]
    assert fine.test_x[:2, 0, 0].tolist() == [160, 192]
    few = load_dataset(
        "hapt",
        path=folder,
        test_fraction=0.25,
        train_samples_per_client=1,
        test_samples_per_client=1,
    )
    assert few.train_group is not None
    assert few.train_group.tolist() == [0, 1]
    assert few.train_x[:, 0, 0].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hop": 0}, "dataset.hop: 0 "),
        ({"test_fraction": 1.0}, "test_fraction: 1.0 "),
        ({"test_fraction": "0.2"}, "test_fraction: '0.2' "),
        ({"train_samples_per_client": 0}, "train_samples_per_client: 0 "),
        ({"test_samples_per_client": True}, "test_samples_per_client: True "),
        ({"test_fraction": 0.1}, "user 1 has 4 windows .*smaller hop"),
        ({"hop": 500}, "user 1 has 1 windows .*hop 500"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    folder = write(tmp_path, {1: [recording([1] * FOUR)]})
    with pytest.raises(ScenarioError, match=message):
        load_dataset("hapt", path=folder, **options)


def test_malformed_content_is_named(tmp_path: Path) -> None:
    broken = recording([1] * 200)
    broken["acc-y"][7] = np.nan
    write(tmp_path, {1: [recording([1] * FOUR), broken]})
    with pytest.raises(ScenarioError, match=r"user 1, recording 1, row 7: .* not finite"):
        load_dataset("hapt", path=tmp_path)
    without = recording([1] * 200)
    del without["gyro-z"]
    write(tmp_path, {3: [without]})
    with pytest.raises(ScenarioError, match="user 3, recording 0: is no frame with the col"):
        load_dataset("hapt", path=tmp_path)
    for body, message in (
        (listed(), "a dict from users to recordings"),
        (mapped((text("a"), listed())), "'a' is no user"),
        (mapped((number(1), listed(number(3)))), "user 1, recording 0: is no frame"),
    ):
        (tmp_path / "HAPT.pkl.gz").write_bytes(gzip.compress(document(body)))
        with pytest.raises(ScenarioError, match=f"HAPT.pkl.gz: {message}"):
            load_dataset("hapt", path=tmp_path)


def test_a_hostile_file_runs_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    body = mapped((number(1), listed(call(name("os", "system"), text(f"touch {marker}")))))
    (tmp_path / "HAPT.pkl.gz").write_bytes(gzip.compress(document(body)))
    with pytest.raises(ScenarioError, match=r"HAPT.pkl.gz: the pickle asks for os\.system"):
        load_dataset("hapt", path=tmp_path)
    assert not marker.exists()


def test_absent_or_damaged_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(ScenarioError, match=f"{tmp_path}/cache/fedclock/hapt .*data fetch hapt"):
        load_dataset("hapt")
    with pytest.raises(ScenarioError, match=r"HAPT.pkl.gz is not in the folder"):
        load_dataset("hapt", path=tmp_path)
    (tmp_path / "HAPT.pkl.gz").write_bytes(gzip.compress(b"x" * 1000)[:-9])
    with pytest.raises(ScenarioError, match=r"HAPT.pkl.gz: truncated or damaged gzip"):
        load_dataset("hapt", path=tmp_path)


@pytest.mark.skipif(data_packages.found("hapt") is None, reason="HAPT was not fetched")
def test_the_real_file() -> None:
    data = load_dataset("hapt")
    assert len(data.group_names) == 30
    assert data.train_group is not None
    assert data.test_group is not None
    # Of 10,017 windows 1,923 are for testing and 172 overlap those.
    assert (len(data.train_y), len(data.test_y)) == (7_922, 1_923)
    assert np.bincount(data.train_y).tolist() == [1311, 1160, 1039, 1375, 1523, 1514]
    per_user = np.bincount(data.train_group)
    assert (per_user.min(), per_user.max()) == (213, 321)
