"""Traces as plain tables (.csv, .csv.gz), and one door for tables and FedScale's pickles."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from traces.devices import COLUMNS, DeviceTable
from traces.errors import TraceError
from traces.fedscale import BehaviourTrace, read_behaviour, read_capacity
from traces.files import replacing
from traces.sessions import RepairReport, Sessions, first_fault, offsets_of

DEVICE_HEADER = ("client_id", *COLUMNS)
SESSION_HEADER = ("client", "start_s", "end_s")
PERIOD_COLUMN = "period_s"


def read_devices(path: str | Path) -> DeviceTable:
    """Devices from a table or from FedScale's pickle, told apart by the suffix of the name.

    A table has the header ``client_id,computation_ms_per_sample,communication_kbps`` and one
    line a device, numbered upwards without gaps from 0 or 1 (FedScale's keys start at 1).
    Raises TraceError that names the file, line, column and value.
    """
    if not is_table(path):
        return read_capacity(path)
    columns = (array("d"), array("d"))
    first = previous = -1
    for line, cells in _lines(path, (DEVICE_HEADER,)):
        client = _client(path, line, "client_id", cells[0])
        if previous < 0:
            first = _first_client(path, line, "client_id", client)
        elif client != previous + 1:
            raise TraceError(
                f"{path}, line {line}, column client_id: {client} follows {previous}; "
                f"ids go up by 1 from {first}"
            )
        previous = client
        for name, cell, column in zip(COLUMNS, cells[1:], columns, strict=True):
            value = _number(path, line, name, cell)
            if not 0.0 < value < np.inf:
                raise TraceError(
                    f"{path}, line {line}, column {name}: {cell!r} must be finite and > 0"
                )
            column.append(value)
    if previous < 0:
        raise TraceError(f"{path}: holds no device")
    return DeviceTable(np.array(columns[0]), np.array(columns[1]))


def read_sessions(path: str | Path, period_s: float | None = None) -> BehaviourTrace:
    """Sessions from a table or from FedScale's pickle, told apart by the suffix of the name.

    A table has the header ``client,start_s,end_s``, or ``client,start_s,end_s,period_s``; the
    length of the trace is that column (the same on all lines of a client) or the argument, never
    both. Clients are numbered upwards without gaps from 0 or 1, the lines of one stand together,
    and one that is never online has a single line with empty ``start_s`` and ``end_s``. A table
    is never repaired: a malformation is a TraceError that names the file, line, column and value.
    FedScale's pickle carries its own lengths, and is read as :func:`read_behaviour` does.
    """
    if not is_table(path):
        if period_s is not None:
            raise TraceError(f"{path}: FedScale's file has its own lengths; leave period_s out")
        return read_behaviour(path)
    starts, ends, lines = array("d"), array("d"), array("q")
    keys: list[int] = []
    counts: list[int] = []
    periods: list[float] = []
    silent = -1
    for line, cells in _lines(path, (SESSION_HEADER, (*SESSION_HEADER, PERIOD_COLUMN))):
        client = _client(path, line, "client", cells[0])
        period = _period(path, line, cells, period_s)
        if not keys:
            _first_client(path, line, "client", client)
        elif client not in (keys[-1], keys[-1] + 1):
            raise TraceError(
                f"{path}, line {line}, column client: {client} follows {keys[-1]}; clients go up "
                "by 1 and the lines of one stand together (a client that is never online has one "
                "line with empty start_s and end_s)"
            )
        if not keys or client != keys[-1]:
            keys.append(client)
            counts.append(0)
            periods.append(period)
        elif period != periods[-1]:
            raise TraceError(
                f"{path}, line {line}, column {PERIOD_COLUMN}: {cells[3]!r}, but {periods[-1]!r} "
                f"on the first line of client {client}; a client has one trace length"
            )
        elif silent == client or not (cells[1] or cells[2]):
            raise TraceError(
                f"{path}, line {line}, column start_s: client {client} has a line without a "
                "session and other lines; empty cells say that it is never online"
            )
        if not cells[1] and not cells[2]:
            silent = client
            continue
        starts.append(_number(path, line, "start_s", cells[1]))
        ends.append(_number(path, line, "end_s", cells[2]))
        lines.append(line)
        counts[-1] += 1
    if not keys:
        raise TraceError(f"{path}: holds no session")
    offsets = offsets_of(np.array(counts))
    arrays = (np.array(starts), np.array(ends), offsets, np.array(periods))
    fault = first_fault(*arrays)
    if fault is not None:
        line = lines[int(offsets[fault.row]) + fault.session]
        raise TraceError(
            f"{path}, line {line} (client {keys[fault.row]}, session {fault.session}): {fault.text}"
        )
    return BehaviourTrace(Sessions(*arrays), tuple(keys), RepairReport())


def write_devices(path: str | Path, devices: DeviceTable) -> None:
    """Write the table that :func:`read_devices` reads, ids from 1; numbers survive to the bit."""
    columns = (devices.computation_ms_per_sample.tolist(), devices.communication_kbps.tolist())
    rows = enumerate(zip(*columns, strict=True), start=1)
    _write(path, DEVICE_HEADER, ((client, *speeds) for client, speeds in rows))


def write_sessions(path: str | Path, sessions: Sessions) -> None:
    """Write the table that :func:`read_sessions` reads, clients from 0, with ``period_s``."""
    periods = sessions.period_s.tolist()

    def rows() -> Iterator[tuple[object, ...]]:
        for client, period in enumerate(periods):
            pairs = sessions.row(client)
            yield from ((client, start, end, period) for start, end in pairs)
            if not pairs:
                yield client, "", "", period

    _write(path, (*SESSION_HEADER, PERIOD_COLUMN), rows())


def is_table(path: str | Path) -> bool:
    """True for .csv and .csv.gz, False for .pkl, .pickle and no suffix; TraceError otherwise."""
    name = Path(path).name.lower()
    if name.endswith((".csv", ".csv.gz")):
        return True
    if name.endswith((".pkl", ".pickle")) or "." not in name:
        return False
    raise TraceError(
        f"{path}: unknown suffix; a table ends in .csv or .csv.gz, a FedScale pickle in .pkl, "
        ".pickle or has no suffix"
    )


def _lines(
    path: str | Path, headers: tuple[tuple[str, ...], ...]
) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) below a header that must be one of ``headers``; blank lines skipped."""
    line = 0
    try:
        with _open_for_reading(path) as file:
            reader = csv.reader(file)
            header = tuple(cell.strip() for cell in next(reader, []))
            if header not in headers:
                wanted = " or ".join(f"'{','.join(names)}'" for names in headers)
                raise TraceError(
                    f"{path}, line 1: the header is {','.join(header)!r:.200}; it must be {wanted}"
                )
            for cells in reader:
                line = reader.line_num
                if not cells:
                    continue
                if len(cells) != len(header):
                    raise TraceError(
                        f"{path}, line {line}: {len(cells)} values; the header has {len(header)}: "
                        f"{','.join(header)}"
                    )
                yield line, [cell.strip() for cell in cells]
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, EOFError, zlib.error, csv.Error) as error:
        raise TraceError(f"{path}, after line {line}: is not a whole CSV table: {error}") from None


def _period(path: str | Path, line: int, cells: list[str], period_s: float | None) -> float:
    has_column = len(cells) > len(SESSION_HEADER)
    if has_column and period_s is not None:
        raise TraceError(f"{path}: has a column {PERIOD_COLUMN}; leave the setting period_s out")
    if has_column:
        period = _number(path, line, PERIOD_COLUMN, cells[3])
        where = f"{path}, line {line}, column {PERIOD_COLUMN}"
    elif period_s is not None:
        period, where = period_s, f"{path}: the setting period_s"
    else:
        raise TraceError(
            f"{path}: how long is the trace? Give period_s, or add a column {PERIOD_COLUMN}"
        )
    if not 0.0 < period < np.inf:
        raise TraceError(f"{where}: {period} must be finite and > 0 seconds")
    return period


def _client(path: str | Path, line: int, column: str, cell: str) -> int:
    if not (cell.isascii() and cell.isdigit() and len(cell) < 19):
        raise TraceError(
            f"{path}, line {line}, column {column}: {cell!r} is not a whole number >= 0"
        )
    return int(cell)


def _first_client(path: str | Path, line: int, column: str, client: int) -> int:
    if client not in (0, 1):
        raise TraceError(
            f"{path}, line {line}, column {column}: the first client is {client}; "
            "numbers start at 0 or 1"
        )
    return client


def _number(path: str | Path, line: int, column: str, cell: str) -> float:
    try:
        # Python reads 1_000 as a number, a spreadsheet does not.
        value = float(cell) if "_" not in cell else float("?")
    except ValueError:
        raise TraceError(
            f"{path}, line {line}, column {column}: {cell!r} is not a number"
        ) from None
    if value != value or value < 0:
        raise TraceError(f"{path}, line {line}, column {column}: {cell!r} must be a number >= 0")
    return value


def _open_for_reading(path: str | Path) -> IO[str]:
    if str(path).lower().endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return open(path, encoding="utf-8-sig", newline="")


@contextmanager
def _open_for_writing(path: str | Path) -> Iterator[IO[str]]:
    if not is_table(path):
        raise TraceError(f"{path}: a table must end in .csv or .csv.gz")
    with replacing(path) as raw:
        if str(path).lower().endswith(".gz"):
            # No name and no time in the header: equal tables are equal files.
            with (
                gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed,
                io.TextIOWrapper(packed, encoding="utf-8", newline="") as text,
            ):
                yield text
        else:
            with io.TextIOWrapper(raw, encoding="utf-8", newline="") as text:
                yield text


def _write(path: str | Path, header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    with _open_for_writing(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
