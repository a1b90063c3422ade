"""A run directory as typed columns; also that of a run still going on, or killed.

A kill can tear the last line of a table. A line counts only with its line end, so that half a
number is never read as a whole one.
"""

from __future__ import annotations

import csv
import difflib
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from analysis.errors import AnalysisError

Table = dict[str, NDArray[Any]]
"""Columns of equal length by name: ``float64`` with NaN for an empty cell, or ``str``."""

TABLE_COLUMNS: dict[str, tuple[str, ...]] = {
    "versions.csv": (
        "sim_time_s", "version", "cohort", "updates", "staleness_mean", "staleness_max",
        "round_duration_s", "bytes_down", "bytes_up",
    ),
    "updates.csv": (
        "client", "cohort", "version", "dispatched_s", "downloaded_s", "trained_s", "uploaded_s",
        "outcome", "staleness", "samples", "bytes_down", "bytes_up", "wasted_s",
    ),
    "metrics.csv": (
        "sim_time_s", "version", "cohort", "entity", "split", "metric", "value", "n",
    ),
    "clients.csv": (
        "client", "participations", "reported", "accuracy", "online_s", "busy_s", "bytes",
    ),
}  # fmt: skip
"""The columns that never change their name; what else a file holds is not read."""

TEXT_COLUMNS = frozenset({"cohort", "outcome", "entity", "split", "metric"})

# Rows turned into arrays at a time. A million rows never stand in memory as Python strings, and
# few enough live at once that Python's garbage collector does not walk through them (measured).
CHUNK_ROWS = 512


@dataclass(frozen=True, eq=False)
class Run:
    """One run directory; a table is read when first asked for, and then kept.

    Not slotted: ``cached_property`` keeps a table in the instance's dictionary. Reading a table
    raises ``AnalysisError`` with file, line, column and value where a row is damaged.
    """

    directory: Path
    name: str
    manifest: dict[str, Any]

    @property
    def ended(self) -> bool:
        """True when the run came to its end; False while it runs, or where it was killed."""
        return bool(self.manifest.get("stop_reason"))

    @cached_property
    def simulated_s(self) -> float:
        """Simulated seconds the run took: the manifest's if it ended, else the last on file."""
        recorded_s = finite_number(self.manifest.get("sim_time_s"))
        if self.ended and recorded_s is not None:
            return recorded_s
        columns = [self.versions["sim_time_s"], self.metrics["sim_time_s"], np.zeros(1)]
        steps = ("dispatched_s", "downloaded_s", "trained_s", "uploaded_s")
        columns += [self.updates[step] for step in steps]
        return float(np.nanmax(np.concatenate(columns)))

    @cached_property
    def versions(self) -> Table:
        """``versions.csv``: one row a new model."""
        return read_table(self.directory / "versions.csv")

    @cached_property
    def updates(self) -> Table:
        """``updates.csv``: one row a participation; times are NaN where they never came."""
        return read_table(self.directory / "updates.csv")

    @cached_property
    def metrics(self) -> Table:
        """``metrics.csv``: one row a measured value."""
        return read_table(self.directory / "metrics.csv")

    @cached_property
    def clients(self) -> Table:
        """``clients.csv``: one row a client; no rows before a run has ended and written it."""
        path = self.directory / "clients.csv"
        if not self.ended and not path.exists():
            return _as_table([], "clients.csv")
        return read_table(path)


def read_run(directory: str | Path) -> Run:
    """Open a run directory and check that its files and their columns are there.

    Raises ``AnalysisError`` when the directory, a file or a column is missing, or the manifest is
    no JSON object with a name. ``clients.csv`` may be missing until the run has ended.
    """
    directory = Path(directory)
    if not directory.is_dir():
        what = "is a file, not a directory" if directory.exists() else "does not exist"
        raise AnalysisError(f"{directory}: {what}; give the directory of a run")
    manifest = _read_manifest(directory / "manifest.json")
    run = Run(directory, manifest["name"], manifest)
    for file in TABLE_COLUMNS:
        if file == "clients.csv" and not run.ended and not (directory / file).exists():
            continue
        with _open(directory / file) as stream:
            _read_header(csv.reader(_whole_lines(stream)), directory / file)
    return run


def read_table(path: Path) -> Table:
    """Read one table of a run directory, less a torn last line.

    Raises ``AnalysisError`` for a missing file or column, a row of the wrong length, or a cell
    that should be a number and is none. A file torn inside its header has no rows yet.
    """
    chunks: list[Table] = []
    with _open(path) as stream:
        reader = csv.reader(_whole_lines(stream))
        header = _read_header(reader, path)
        first_line = 2
        try:
            while rows := list(itertools.islice(reader, CHUNK_ROWS)):
                chunks.append(_convert(rows, header, path, first_line))
                first_line += len(rows)
        except csv.Error as error:
            raise AnalysisError(f"{path}, line {reader.line_num}: {error}") from error
    return _as_table(chunks, path.name)


def finite_number(value: object) -> float | None:
    """A manifest's value as a float, or None where it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _read_manifest(path: Path) -> dict[str, Any]:
    with _open(path) as stream:
        try:
            manifest = json.load(stream)
        except ValueError as error:
            raise AnalysisError(f"{path}: is not JSON ({error})") from error
    if not isinstance(manifest, dict):
        raise AnalysisError(f"{path}: holds a {type(manifest).__name__}; a JSON object is needed")
    if not isinstance(manifest.get("name"), str):
        raise AnalysisError(
            f"{path}: 'name' is {manifest.get('name')!r}; the run's name, a text, is needed"
        )
    return manifest


def _open(path: Path) -> TextIO:
    try:
        # Lines end at "\n" alone, so that a line torn between "\r" and "\n" counts as torn; a
        # character torn in the middle must not stop the lines before it from being read.
        return path.open(encoding="utf-8", errors="replace", newline="\n")
    except FileNotFoundError as error:
        raise AnalysisError(
            f"{path}: does not exist; {path.parent} is not a run directory, or not a whole one "
            f"(needed: manifest.json, {', '.join(TABLE_COLUMNS)})"
        ) from error
    except OSError as error:
        raise AnalysisError(f"{path}: cannot be read ({error.strerror})") from error


def _whole_lines(stream: TextIO) -> Iterator[str]:
    return (line for line in stream if line.endswith("\n"))


def _read_header(reader: Iterator[list[str]], path: Path) -> list[str]:
    """The names of the file's columns; those of the contract where no whole header is on disk."""
    needed = TABLE_COLUMNS[path.name]
    header = next(reader, list(needed))
    missing = [name for name in needed if name not in header]
    if missing:
        close = difflib.get_close_matches(missing[0], header, n=1)
        hint = f" (is '{close[0]}' meant?)" if close else ""
        raise AnalysisError(
            f"{path}, line 1: column {', '.join(repr(name) for name in missing)} is missing{hint}; "
            f"found {', '.join(header)}"
        )
    return header


def _convert(rows: list[list[str]], header: list[str], path: Path, first_line: int) -> Table:
    for offset, row in enumerate(rows):
        if len(row) != len(header):
            raise AnalysisError(
                f"{path}, line {first_line + offset}: has {len(row)} cells; the header names "
                f"{len(header)} columns"
            )
    cells = dict(zip(header, zip(*rows, strict=True), strict=True))
    table: Table = {}
    for name in TABLE_COLUMNS[path.name]:
        if name in TEXT_COLUMNS:
            table[name] = np.array(cells[name], dtype=np.str_)
            continue
        try:
            table[name] = np.array([float(cell) if cell else math.nan for cell in cells[name]])
        except ValueError as error:
            offset = next(i for i, cell in enumerate(cells[name]) if not _is_number(cell))
            raise AnalysisError(
                f"{path}, line {first_line + offset}: {name} is {cells[name][offset]!r}; a number "
                "or an empty cell is needed"
            ) from error
    return table


def _is_number(cell: str) -> bool:
    try:
        return not cell or isinstance(float(cell), float)
    except ValueError:
        return False


def _as_table(chunks: list[Table], file: str) -> Table:
    def empty(name: str) -> NDArray[Any]:
        return np.empty(0, dtype=np.str_ if name in TEXT_COLUMNS else np.float64)

    return {
        name: np.concatenate([chunk[name] for chunk in chunks]) if chunks else empty(name)
        for name in TABLE_COLUMNS[file]
    }
