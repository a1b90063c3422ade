"""The tables and the event log of a run as Parquet files, for tools that read columns.

One file a table, with the columns of the table. Whole numbers are ``int64``, other numbers
``float64``, words ``string``; an empty cell is null. A column keeps its type whatever a run holds.
``events.parquet`` has the columns that all events have, and the fields of the type as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from analysis.errors import AnalysisError
from analysis.event_log import read_events
from analysis.run_reader import TEXT_COLUMNS, Run, Table, read_table, tables_of

WHOLE = frozenset(
    {"client", "version", "updates", "staleness", "staleness_max", "samples", "bytes_down",
     "bytes_up", "n", "participations", "reported", "bytes", "chain", "ring_pass", "source",
     "cross_staleness", "header_bytes", "control_bytes", "a_bytes_down", "b_bytes_down",
     "ab_bytes_down", "a_bytes_up", "b_bytes_up", "ab_bytes_up", "layer", "parameters",
     "size_bytes", "walker", "superclient", "trainings", "left_out", "clients", "covered_classes",
     "epoch", "other", "first_version", "last_version", "side_0", "side_1", "side", "participants",
     "known", "online", "of"}
)  # fmt: skip
"""Columns of whole numbers, whatever the table."""

EVENTS_AT_A_TIME = 50_000


def export_parquet(run: Run, directory: Path) -> list[Path]:
    """Write every table that the run has, and its events, to a folder; the paths, in order.

    Raises ``AnalysisError`` without pyarrow, for damaged files, or where that cannot be written.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise AnalysisError(
            "Parquet needs the package 'pyarrow', which is not installed; "
            "pip install 'fedclock[parquet]' brings it"
        ) from None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        written = []
        for file in tables_of(run.directory):
            path = directory / file.replace(".csv", ".parquet")
            table = read_table(run.directory / file)
            columns = {name: _column(pyarrow, run.directory / file, name, table) for name in table}
            parquet.write_table(pyarrow.table(columns), path)
            written.append(path)
        path = directory / "events.parquet"
        kinds = [("t", pyarrow.float64()), ("type", pyarrow.string()),
                 ("entity", pyarrow.string()), ("fields", pyarrow.string())]  # fmt: skip
        with parquet.ParquetWriter(path, pyarrow.schema(kinds)) as writer:
            for rows in _events(run.directory / "events.jsonl"):
                writer.write_table(pyarrow.table(rows, schema=writer.schema))
        return [*written, path]
    except OSError as error:
        raise AnalysisError(f"{directory}: cannot be written ({error.strerror or error})") from None


def _column(pyarrow: Any, path: Path, name: str, table: Table) -> Any:
    values = table[name]
    if name in TEXT_COLUMNS:
        return pyarrow.array(values.tolist(), pyarrow.string(), mask=values == "")
    empty = np.isnan(values)
    if name not in WHOLE:
        # A measured value is never empty, and may be no number.
        return pyarrow.array(values, pyarrow.float64(), mask=empty & (name != "value"))
    broken = np.flatnonzero(~empty & (values != np.floor(values)))
    if broken.size:
        raise AnalysisError(
            f"{path}, line {broken[0] + 2}: {name} is {values[broken[0]]}; a whole number is needed"
        )
    return pyarrow.array(np.where(empty, 0, values).astype(np.int64), mask=empty)


def _events(path: Path) -> Iterator[dict[str, list[Any]]]:
    """Columns of so many events at a time."""
    rows: dict[str, list[Any]] = {"t": [], "type": [], "entity": [], "fields": []}
    for event in read_events(path):
        for name in ("t", "type", "entity"):
            rows[name].append(event.pop(name))
        rows["t"][-1] = float(rows["t"][-1])
        rows["fields"].append(orjson.dumps(event).decode())
        if len(rows["t"]) == EVENTS_AT_A_TIME:
            yield rows
            rows = {name: [] for name in rows}
    yield rows
