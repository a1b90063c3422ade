"""Many runs: finding their directories, and putting those of one scenario together."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from analysis.errors import AnalysisError
from analysis.run_reader import Run, read_run

# What a repetition of an experiment may change: another draw, a longer run, another computer.
_NO_DIFFERENCE = ("seed", "stop.", "stop", "execution.", "memo.", "recording.")

_ABSENT = object()


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The runs of one scenario, by seed.

    ``label`` tells it apart from the others: the scenario's name, and where another group has the
    same one, the settings in ``differs`` too, by dotted key.
    """

    label: str
    name: str
    differs: dict[str, Any]
    runs: tuple[Run, ...]

    @property
    def seeds(self) -> tuple[int | None, ...]:
        """Of each run."""
        return tuple(run.seed for run in self.runs)


def load_runs(paths: str | Path | Iterable[str | Path]) -> list[Run]:
    """Open run directories, and all those below a folder such as a sweep's, at any depth.

    A run directory is one with a ``manifest.json`` and an ``updates.csv``. Each is opened once, in
    the order of the paths, and below a folder by name. Raises ``AnalysisError`` for a path without
    any, and for a run directory that is damaged.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    found: dict[Path, Path] = {}
    for path in map(Path, given):
        directories = _run_directories(path)
        for directory in directories:
            found.setdefault(directory.resolve(), directory)
    return [read_run(directory) for directory in found.values()]


def _run_directories(path: Path) -> list[Path]:
    if _holds_a_run(path) or not path.is_dir():
        return [path]  # what is wrong with it, the reader says
    below: list[Path] = []
    for folder, names, _ in os.walk(path, followlinks=False):
        names.sort()
        if _holds_a_run(Path(folder)):
            below.append(Path(folder))
            names.clear()
    if not below:
        raise AnalysisError(
            f"{path}: neither a run directory (manifest.json with its tables) nor a folder that "
            "has one below it"
        )
    return below


def _holds_a_run(path: Path) -> bool:
    return (path / "manifest.json").is_file() and (path / "updates.csv").is_file()


def group_runs(runs: Run | Sequence[Run]) -> list[Group]:
    """One group a scenario, in the order in which they first come; the runs of each by seed.

    Runs are of one scenario if they have its name and all its settings but for the seed, the stop
    condition and where it is executed. Raises ``AnalysisError`` where one has a seed twice.
    """
    runs = [runs] if isinstance(runs, Run) else list(runs)
    by_name: dict[str, list[Run]] = {}
    for run in runs:
        by_name.setdefault(run.name, []).append(run)
    groups: list[Group] = []
    for name, same_name in by_name.items():
        keys = list(_differing([_settings(run) for run in same_name]))
        by_settings: dict[Hashable, list[Run]] = {}
        for run in same_name:
            settings = _settings(run)
            by_settings.setdefault(
                tuple(repr(settings.get(key, _ABSENT)) for key in keys), []
            ).append(run)
        for members in by_settings.values():
            settings = _settings(members[0])
            differs = {key: settings[key] for key in keys if key in settings}
            groups.append(_group(name, differs, members))
    place = {id(run): i for i, run in enumerate(runs)}
    return sorted(groups, key=lambda group: min(place[id(run)] for run in group.runs))


def differences(groups: Sequence[Group]) -> dict[str, list[Any]]:
    """By dotted key the value in each group, of all settings that differ; None where it has none.

    The scenario's name, seed, stop condition and execution are left out.
    """
    settings = [_settings(group.runs[0]) for group in groups]
    return {key: [s.get(key) for s in settings] for key in _differing(settings)}


def _group(name: str, differs: dict[str, Any], members: list[Run]) -> Group:
    ordered = sorted(members, key=lambda run: (run.seed is None, run.seed or 0))
    for one, two in pairwise(ordered):
        if one.seed == two.seed:
            raise AnalysisError(
                f"{one.directory} and {two.directory} are runs of the same scenario ('{name}') "
                f"and seed ({one.seed}); give one of them"
            )
    words = ", ".join(f"{key}={_word(value)}" for key, value in differs.items())
    return Group(f"{name} ({words})" if words else name, name, differs, tuple(ordered))


def _settings(run: Run) -> dict[str, Any]:
    return {
        key: value
        for key, value in run.settings.items()
        if key != "name" and not key.startswith(_NO_DIFFERENCE)
    }


def _differing(settings: Sequence[dict[str, Any]]) -> dict[str, None]:
    """The keys whose values are not the same in all of them, in the order of the scenarios."""
    keys = dict.fromkeys(key for each in settings for key in each)
    return {
        key: None for key in keys if len({repr(each.get(key, _ABSENT)) for each in settings}) > 1
    }


def _word(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
