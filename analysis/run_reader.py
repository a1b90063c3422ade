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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.errors import AnalysisError
from analysis.event_log import read_chain_ends, read_check_ins, read_split_reasons
from analysis.settings import read_settings
from analysis.whole_lines import open_lines, whole_lines

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

CHAIN_COLUMNS = ("phase", "chain", "ring_pass", "source")
"""What ``updates.csv`` has beside in a run with superclients: all four, or none."""

PART_COLUMNS = (
    "part", "cross_staleness", "header_bytes", "control_bytes", "a_bytes_down", "b_bytes_down",
    "ab_bytes_down", "a_bytes_up", "b_bytes_up", "ab_bytes_up",
)  # fmt: skip
"""What ``updates.csv`` has beside where a model travels in parts: all ten, or none."""

SUPERCLIENT_TABLES: dict[str, tuple[str, ...]] = {
    "superclients.csv": (
        "superclient", "clients", "samples", "balance_ratio", "covered_classes", "intra_distance",
        "inter_distance", "members",
    ),
    "chains.csv": (
        "chain", "walker", "superclient", "version", "dispatched_s", "uploaded_s", "outcome",
        "staleness", "samples", "trainings", "left_out",
    ),
    "similarity.csv": ("epoch", "client", "other", "cosine"),
}  # fmt: skip
"""The tables that only a run with superclients has; each may be absent."""

PART_TABLES: dict[str, tuple[str, ...]] = {
    "layers.csv": ("version", "layer", "name", "parameters", "size_bytes", "divergence", "part"),
}
"""The table that only a run has whose model travels in parts; it may be absent."""

COHORT_TABLES: dict[str, tuple[str, ...]] = {
    "cohorts.csv": (
        "cohort", "parent", "born_s", "split_s", "first_version", "last_version", "side_0",
        "side_1",
    ),
    "affinity.csv": ("sim_time_s", "cohort", "version", "client", "reward", "side", "margin"),
    "clustering.csv": (
        "sim_time_s", "cohort", "version", "participants", "known", "side_0", "side_1", "spread",
        "spread_of_sides", "loss", "correlation", "agreement", "unmet",
    ),
}  # fmt: skip
"""The tables that only a run with cohorts has; each may be absent."""

PRESENCE_TABLES: dict[str, tuple[str, ...]] = {
    "online.csv": ("sim_time_s", "online", "of"),
    "sessions.csv": ("client", "start_s", "end_s"),
}
"""The tables that a run writes at its end; each may be absent, as in older runs."""

TEXT_COLUMNS = frozenset(
    {"cohort", "outcome", "entity", "split", "metric", "phase", "members", "name", "part", "parent",
     "unmet"}
)  # fmt: skip

# A figure has no place for a row without these.
FILLED_COLUMNS: dict[str, frozenset[str]] = {
    "superclients.csv": frozenset({"superclient", "clients", "samples"}),
    "chains.csv": frozenset({"chain", "superclient", "version", "dispatched_s"}),
    "similarity.csv": frozenset({"epoch", "client", "other"}),
    "layers.csv": frozenset({"version", "layer", "parameters", "size_bytes"}),
    "updates.csv": frozenset(name for name in PART_COLUMNS if "_bytes" in name),
    "cohorts.csv": frozenset({"born_s", "first_version", "last_version", "side_0", "side_1"}),
    "affinity.csv": frozenset({"sim_time_s", "version", "client"}),
    "clustering.csv": frozenset({"sim_time_s", "version", "side_0", "side_1"}),
    "online.csv": frozenset(PRESENCE_TABLES["online.csv"]),
    "sessions.csv": frozenset(PRESENCE_TABLES["sessions.csv"]),
}

_MAY_BE_ABSENT = SUPERCLIENT_TABLES | PART_TABLES | COHORT_TABLES | PRESENCE_TABLES

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

    @property
    def seed(self) -> int | None:
        """The run's seed; None where the manifest does not have it."""
        seed = self.manifest.get("seed")
        return seed if isinstance(seed, int) else None

    @cached_property
    def settings(self) -> dict[str, Any]:
        """``resolved.yaml`` by dotted key, such as ``federation.pacing.buffer``; empty without it.

        Lists are values. Raises ``AnalysisError`` where the file is no YAML mapping.
        """
        return read_settings(self.directory / "resolved.yaml")

    @cached_property
    def simulated_s(self) -> float:
        """Simulated seconds the run took: the manifest's if it ended, else the last on file."""
        recorded_s = finite_number(self.manifest.get("sim_time_s"))
        if self.ended and recorded_s is not None:
            return recorded_s
        columns = [self.versions["sim_time_s"], self.metrics["sim_time_s"], np.zeros(1)]
        steps = ("dispatched_s", "downloaded_s", "trained_s", "uploaded_s")
        columns += [self.updates[step] for step in steps]
        if self.cohorts is not None:
            columns.append(self.cohorts["born_s"])  # written at once, the tables a while later
        return float(np.nanmax(np.concatenate(columns)))

    @cached_property
    def versions(self) -> Table:
        """``versions.csv``: one row a new model."""
        return read_table(self.directory / "versions.csv")

    @cached_property
    def updates(self) -> Table:
        """``updates.csv``: one row a participation; times are NaN where they never came.

        With superclients also ``CHAIN_COLUMNS``; ``source`` is NaN where the server sent the model.
        Where a model travels in parts also ``PART_COLUMNS``; ``cross_staleness`` is NaN, and
        ``part`` may be "", where nothing came of the task.
        """
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
            return _as_table([], TABLE_COLUMNS["clients.csv"])
        return read_table(path)

    @cached_property
    def superclients(self) -> Table | None:
        """``superclients.csv``: one row a superclient, or None where the file is absent.

        Absent without superclients, and until they have been formed. The middle four columns are
        NaN for declared data; ``members`` is text, the clients' numbers with spaces between.
        """
        return self._table_if_there("superclients.csv")

    @cached_property
    def chains(self) -> Table | None:
        """``chains.csv``: one row a chain whose outcome is final; None where the file is absent.

        A chain that is under way, or whose walker waits for the next version, has no row yet.
        ``uploaded_s`` is NaN for one that brought nothing, ``walker`` without FedSeqInter.
        """
        return self._table_if_there("chains.csv")

    @cached_property
    def similarity(self) -> Table | None:
        """``similarity.csv``: one row a pair of clients and epoch; None where it is absent."""
        return self._table_if_there("similarity.csv")

    @cached_property
    def layers(self) -> Table | None:
        """``layers.csv``: one row a layer for each time that the model was split into parts.

        None where the file is absent: where models do not travel in parts, and before the first
        split. ``divergence`` is NaN where it was not measured; ``part`` is text, A or B.
        """
        return self._table_if_there("layers.csv")

    @cached_property
    def cohorts(self) -> Table | None:
        """``cohorts.csv``: one row a cohort that ever was, as of the newest split or the end.

        None where the file is absent: without cohorts, and before the first split. ``parent`` is
        "" for the first one, ``split_s`` NaN for one that has not split.
        """
        return self._table_if_there("cohorts.csv")

    @cached_property
    def affinity(self) -> Table | None:
        """``affinity.csv``: what each participant of a version was told; None without cohorts."""
        return self._table_if_there("affinity.csv")

    @cached_property
    def clustering(self) -> Table | None:
        """``clustering.csv``: one row a version of a cohort; None without cohorts."""
        return self._table_if_there("clustering.csv")

    @cached_property
    def online(self) -> Table | None:
        """``online.csv``: how many clients were online at equal steps, ``of`` how many counted."""
        return self._table_if_there("online.csv")

    @cached_property
    def sessions(self) -> Table | None:
        """``sessions.csv``: when each of at most 200 clients that took part was online.

        A client that is not in it may have been online too.
        """
        return self._table_if_there("sessions.csv")

    @cached_property
    def check_ins(self) -> Table:
        """``sim_time_s`` of each check-in, and whether it ``explores`` (bool), from the event log.

        No rows without cohorts, or without the log. Raises ``AnalysisError`` where it is damaged.
        """
        return read_check_ins(self.directory / "events.jsonl")

    @cached_property
    def split_reasons(self) -> dict[int, tuple[str, str]]:
        """By version, the (rule, why) of each time that the model was split, from the event log.

        Raises ``AnalysisError`` where the log is missing or damaged.
        """
        return read_split_reasons(self.directory / "events.jsonl")

    @cached_property
    def chain_ends_s(self) -> NDArray[np.float64]:
        """Simulated seconds [rows of ``chains``] at which each chain was over.

        That of its upload; for one that was given up or cancelled, of which the table does not
        have it, that of the event log; for one in flight at the end of the run, that end. NaN
        where the log does not have it either. Raises ``AnalysisError`` where there are no chains,
        or the log is needed, and is missing or damaged.
        """
        if self.chains is None:
            raise AnalysisError(f"{self.directory}: a run without superclients has no chains")
        ends_s = self.chains["uploaded_s"].copy()
        open_end = np.isnan(ends_s)
        in_flight = open_end & (self.chains["outcome"] == "in_flight")
        ends_s[in_flight] = self.simulated_s
        missing = np.flatnonzero(open_end & ~in_flight)
        if missing.size:
            logged = read_chain_ends(self.directory / "events.jsonl")
            ends_s[missing] = [logged.get(n, math.nan) for n in self.chains["chain"][missing]]
        return ends_s

    def _table_if_there(self, file: str) -> Table | None:
        path = self.directory / file
        return read_table(path) if path.exists() else None


def read_run(directory: str | Path) -> Run:
    """Open a run directory and check that its files and their columns are there.

    Raises ``AnalysisError`` when the directory, a file or a column is missing, or the manifest is
    no JSON object with a name. ``clients.csv`` may be missing until the run has ended, and
    ``SUPERCLIENT_TABLES``, ``PART_TABLES``, ``COHORT_TABLES`` and ``PRESENCE_TABLES`` always.
    """
    directory = Path(directory)
    if not directory.is_dir():
        what = "is a file, not a directory" if directory.exists() else "does not exist"
        raise AnalysisError(f"{directory}: {what}; give the directory of a run")
    manifest = _read_manifest(directory / "manifest.json")
    run = Run(directory, manifest["name"], manifest)
    for file in (*TABLE_COLUMNS, *_MAY_BE_ABSENT):
        may_be_missing = file in _MAY_BE_ABSENT or (file == "clients.csv" and not run.ended)
        if may_be_missing and not (directory / file).exists():
            continue
        with open_lines(directory / file) as stream:
            _read_header(csv.reader(whole_lines(stream)), directory / file)
    return run


def tables_of(directory: Path) -> list[str]:
    """The names of the tables that a run directory has."""
    return [file for file in (*TABLE_COLUMNS, *_MAY_BE_ABSENT) if (directory / file).exists()]


def read_table(path: Path) -> Table:
    """Read one table of a run directory, less a torn last line.

    Raises ``AnalysisError`` for a missing file or column, a row of the wrong length, a cell that
    should be a number and is none, or one of ``FILLED_COLUMNS`` that is not filled. A file torn
    inside its header has no rows yet.
    """
    chunks: list[Table] = []
    with open_lines(path) as stream:
        reader = csv.reader(whole_lines(stream))
        header = _read_header(reader, path)
        names = _wanted(path.name, header)
        first_line = 2
        try:
            while rows := list(itertools.islice(reader, CHUNK_ROWS)):
                chunks.append(_convert(rows, header, names, path, first_line))
                first_line += len(rows)
        except csv.Error as error:
            raise AnalysisError(f"{path}, line {reader.line_num}: {error}") from error
    return _as_table(chunks, names)


def finite_number(value: object) -> float | None:
    """A manifest's value as a float, or None where it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _read_manifest(path: Path) -> dict[str, Any]:
    with open_lines(path) as stream:
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


def _read_header(reader: Iterator[list[str]], path: Path) -> list[str]:
    """The names of the file's columns; those of the contract where no whole header is on disk."""
    header = next(reader, list(_wanted(path.name, [])))
    missing = [name for name in _wanted(path.name, header) if name not in header]
    if missing:
        close = difflib.get_close_matches(missing[0], header, n=1)
        hint = f" (is '{close[0]}' meant?)" if close else ""
        raise AnalysisError(
            f"{path}, line 1: column {', '.join(repr(name) for name in missing)} is missing{hint}; "
            f"found {', '.join(header)}"
        )
    return header


def _wanted(file: str, header: list[str]) -> tuple[str, ...]:
    """The columns to read of a file with this header."""
    if file in _MAY_BE_ABSENT:
        return _MAY_BE_ABSENT[file]
    names = TABLE_COLUMNS[file]
    for more in (CHAIN_COLUMNS, PART_COLUMNS) if file == "updates.csv" else ():
        names += () if set(more).isdisjoint(header) else more
    return names


def _convert(
    rows: list[list[str]], header: list[str], names: tuple[str, ...], path: Path, first_line: int
) -> Table:
    for offset, row in enumerate(rows):
        if len(row) != len(header):
            raise AnalysisError(
                f"{path}, line {first_line + offset}: has {len(row)} cells; the header names "
                f"{len(header)} columns"
            )
    cells = dict(zip(header, zip(*rows, strict=True), strict=True))
    table: Table = {}
    for name in names:
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
        finite = np.isfinite(table[name])
        if name in FILLED_COLUMNS.get(path.name, ()) and not finite.all():
            offset = int(finite.argmin())
            raise AnalysisError(
                f"{path}, line {first_line + offset}: {name} is {cells[name][offset]!r}; a finite "
                "number is needed"
            )
    return table


def _is_number(cell: str) -> bool:
    try:
        return not cell or isinstance(float(cell), float)
    except ValueError:
        return False


def _as_table(chunks: list[Table], names: tuple[str, ...]) -> Table:
    def empty(name: str) -> NDArray[Any]:
        return np.empty(0, dtype=np.str_ if name in TEXT_COLUMNS else np.float64)

    return {
        name: np.concatenate([chunk[name] for chunk in chunks]) if chunks else empty(name)
        for name in names
    }
