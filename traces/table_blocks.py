"""A table of numbers in blocks of lines, each read at once where all of its cells are numbers.

A block with anything else in it is read cell by cell, so that every fault can be named.
"""

from __future__ import annotations

import csv
import gzip
import io
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from traces.errors import TraceError
from traces.sessions import Floats, Ints

BLOCK_BYTES = 1 << 22

_COMMA, _NEWLINE = ord(","), ord("\n")
_NUMERIC = b"0123456789.,eE+-\n"
_EXACT_IN_A_FLOAT = 2.0**53


class Block:
    """Some lines of a table. ``lines`` are their numbers in the file; ``short`` holds those that
    have too few or too many values, and how many, by their place in the block."""

    def __init__(self, header: tuple[str, ...], first_line: int, raw: bytes) -> None:
        self.header = header
        self.short: dict[int, int] = {}
        self._raw = raw
        self._first_line = first_line
        self._table = _numeric(raw, len(header))
        self._columns: list[Sequence[str]] | None = None
        self.lines: Sequence[int] = ()
        if self._table is None:
            self._columns = self._cells()
        else:
            self.lines = range(first_line, first_line + len(self._table))

    def __len__(self) -> int:
        """Number of lines."""
        return len(self.lines)

    def place(self, i: int, column: str) -> str:
        """Where a cell of the i-th line is, for a message."""
        return f"line {self.lines[i]}, column {column}"

    def cell(self, i: int, column: int) -> str:
        """The text of one cell."""
        if self._columns is None:
            self._columns = self._cells()
        return self._columns[column][i].strip()

    def numbers(self, column: int) -> tuple[Floats, set[int]]:
        """float64 and the places of cells that are no number, where it is NaN."""
        if self._table is not None:
            return self._table[:, column], set(np.flatnonzero(self.empty(column)).tolist())
        assert self._columns is not None
        cells = self._columns[column]
        values, unreadable = np.full(len(cells), np.nan), set()
        for i, cell in enumerate(cells):
            try:
                # Python reads 1_000 as a number, a spreadsheet does not.
                values[i] = float(cell if "_" not in cell else "?")
            except ValueError:
                unreadable.add(i)
        return values, unreadable

    def whole_numbers(self, column: int) -> Ints:
        """int64, -1 where a cell is no whole number >= 0 of at most 18 digits."""
        if self._table is not None:
            return self._table[:, column].astype(np.int64)
        assert self._columns is not None
        values = []
        for cell in map(str.strip, self._columns[column]):
            fine = cell.isascii() and cell.isdigit() and len(cell) < 19
            values.append(int(cell) if fine else -1)
        return np.array(values, np.int64)

    def empty(self, column: int) -> NDArray[np.bool_]:
        """Which cells hold nothing."""
        if self._table is not None:
            return np.isnan(self._table[:, column])
        assert self._columns is not None
        return np.array([not cell.strip() for cell in self._columns[column]], bool)

    def _cells(self) -> list[Sequence[str]]:
        """The columns as text; blank lines are left out, and short ones filled up."""
        lines: list[int] = []
        filled: list[list[str]] = []
        width = len(self.header)
        reader = csv.reader(io.StringIO(self._raw.decode("utf-8"), newline=""))
        for cells in reader:
            if not cells:
                continue
            if len(cells) != width:
                self.short[len(filled)] = len(cells)
                cells = [*cells, *[""] * width][:width]
            lines.append(self._first_line - 1 + reader.line_num)
            filled.append(cells)
        self.lines = lines
        return list(zip(*filled, strict=True))


def header_of(path: str | Path) -> tuple[str, ...]:
    """The names in the first line."""
    with _reading(path) as file:
        return _header(file)


def blocks(path: str | Path, headers: tuple[tuple[str, ...], ...]) -> Iterator[Block]:
    """The lines below a header that must be one of ``headers``.

    Raises TraceError for another header, and for a file that is no whole table.
    """
    with _reading(path) as file:
        header = _header(file)
        if header not in headers:
            wanted = " or ".join(f"'{','.join(names)}'" for names in headers)
            raise TraceError(
                f"{path}, line 1: the header is {','.join(header)!r:.200}; it must be {wanted}"
            )
        line = 2
        while raw := file.read(BLOCK_BYTES):
            raw += file.readline()
            block = Block(header, line, raw)
            line += raw.count(b"\n")
            if len(block):
                yield block


@contextmanager
def _reading(path: str | Path) -> Iterator[IO[bytes]]:
    """A table as bytes; what can go wrong while it is open becomes a TraceError."""
    try:
        with open(path, "rb") as raw:
            if not str(path).lower().endswith(".gz"):
                yield raw
                return
            with gzip.GzipFile(fileobj=raw) as packed:
                yield cast(IO[bytes], packed)
    except (UnicodeDecodeError, EOFError, zlib.error, gzip.BadGzipFile, csv.Error) as error:
        raise TraceError(f"{path}: is not a whole CSV table: {error}") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from None


def _header(file: IO[bytes]) -> tuple[str, ...]:
    text = file.readline().decode("utf-8-sig")
    return tuple(cell.strip() for cell in next(csv.reader([text]), []))


def _numeric(raw: bytes, width: int) -> Floats | None:
    """float64 [lines, width] where every line has that many plain numbers, the first of them
    digits only; a pair of empty cells after it is NaN. None for any other text."""
    raw = raw.replace(b"\r\n", b"\n")
    if not raw.endswith(b"\n"):
        raw += b"\n"
    if raw.translate(None, _NUMERIC):
        return None
    text = np.frombuffer(raw, np.uint8)
    ends = np.flatnonzero(text == _NEWLINE)
    commas = np.flatnonzero(text == _COMMA)
    if len(commas) != len(ends) * (width - 1):
        return None
    first, last = commas[:: width - 1], commas[width - 2 :: width - 1]
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))
    if (first <= starts).any() or (last >= ends).any():
        return None
    no_digit = np.flatnonzero((text < ord("0")) | (text > ord("9")))
    if (np.searchsorted(no_digit, first) != np.searchsorted(no_digit, starts)).any():
        return None  # a sign, a point or an exponent in the first cell
    filled = raw.replace(b",,,", b",nan,nan,").replace(b",,\n", b",nan,nan\n")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            numbers = np.fromstring(filled[:-1].replace(b"\n", b",").decode("ascii"), sep=",")
    except (ValueError, DeprecationWarning):
        return None
    if len(numbers) != len(ends) * width:
        return None
    table: Floats = numbers.reshape(len(ends), width)
    return table if table[:, 0].max() < _EXACT_IN_A_FLOAT else None
