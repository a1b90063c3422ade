"""Availability sessions of many clients in one compressed store (CSR), checked on the way in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from traces.errors import TraceError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

REPAIRABLE = frozenset({"zero-length", "unsorted", "overlapping", "touching"})


@dataclass(frozen=True, slots=True)
class Fault:
    """One malformation: its kind, the row, the session in the row (-1: the row itself), a text."""

    kind: str
    row: int
    session: int
    text: str


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What :meth:`Sessions.repaired` changed: sessions by kind, and rows left without any.

    ``unsorted`` counts the sessions that started before the one in front of them,
    ``overlapping`` and ``touching`` the sessions merged into the one in front of them.
    """

    zero_length: int = 0
    unsorted: int = 0
    overlapping: int = 0
    touching: int = 0
    emptied_rows: int = 0

    @property
    def changed(self) -> bool:
        """Whether anything was repaired."""
        return any((self.zero_length, self.unsorted, self.overlapping, self.touching))


@dataclass(frozen=True, slots=True, eq=False)
class Sessions:
    """On-sessions of every row: row r owns ``[offsets[r], offsets[r+1])`` of starts and ends.

    A session is the closed interval [start, end] in seconds from the start of the trace. Within
    a row: 0 <= start < end < next start, and the last end <= ``period_s[r]``, the length of the
    row's trace (FedScale's ``finish_time``). A row without a session is never online.

    ``starts_s`` and ``ends_s``: float64 [sessions]; ``offsets``: int64 [rows + 1]; ``period_s``:
    float64 [rows] (one number stands for all rows). Raises TraceError that names the row and the
    session; it repairs nothing, see :meth:`repaired`. The arrays become read-only.
    """

    starts_s: Floats
    ends_s: Floats
    offsets: Ints
    period_s: Floats

    def __post_init__(self) -> None:
        starts, ends, offsets, period = _arrays(
            self.starts_s, self.ends_s, self.offsets, self.period_s
        )
        fault = first_fault(starts, ends, offsets, period)
        if fault is not None:
            raise TraceError(_row_message(fault))
        named = zip(self.__slots__, (starts, ends, offsets, period), strict=True)
        for name, array in named:
            view = array.view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)

    @classmethod
    def from_rows(
        cls, rows: Iterable[Sequence[tuple[float, float]]], period_s: float | Sequence[float]
    ) -> Self:
        """Sessions from one list of (start, end) pairs a row; checked as the constructor does."""
        return cls(*flatten(rows), period_s=_floats(period_s, "period_s"))

    @classmethod
    def repaired(
        cls, starts_s: ArrayLike, ends_s: ArrayLike, offsets: ArrayLike, period_s: ArrayLike
    ) -> tuple[Self, RepairReport]:
        """The same with four malformations mended and counted; any other is still a TraceError.

        Zero-length sessions are dropped, rows sorted by start, overlapping and touching sessions
        merged into one.
        """
        starts, ends, offset, period = _arrays(starts_s, ends_s, offsets, period_s)
        fault = first_fault(starts, ends, offset, period, skip=REPAIRABLE)
        if fault is not None:
            raise TraceError(_row_message(fault))
        mended = mend(starts, ends, offset)
        return cls(mended.starts_s, mended.ends_s, mended.offsets, period), mended.report

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.period_s)

    @property
    def counts(self) -> Ints:
        """Sessions of each row, int64 [rows]."""
        return np.diff(self.offsets)

    def row(self, row: int) -> list[tuple[float, float]]:
        """The (start, end) pairs of one row."""
        part = slice(int(self.offsets[row]), int(self.offsets[row + 1]))
        return list(zip(self.starts_s[part].tolist(), self.ends_s[part].tolist(), strict=True))


def flatten(rows: Iterable[Sequence[tuple[float, float]]]) -> tuple[Floats, Floats, Ints]:
    """(starts, ends, offsets) of rows of pairs; TraceError for what is not a pair of numbers."""
    starts: list[float] = []
    ends: list[float] = []
    offsets = [0]
    for number, row in enumerate(rows):
        for index, pair in enumerate(row):
            try:
                start, end = (float(value) for value in pair)
            except (TypeError, ValueError):
                raise TraceError(
                    f"row {number}, session {index}: {pair!r} is not a pair of numbers; "
                    "write (start_s, end_s)"
                ) from None
            starts.append(start)
            ends.append(end)
        offsets.append(len(starts))
    return np.array(starts, float), np.array(ends, float), np.array(offsets, np.int64)


def first_fault(
    starts: Floats,
    ends: Floats,
    offsets: Ints,
    period: Floats,
    skip: frozenset[str] = frozenset(),
) -> Fault | None:
    """The first malformation, in the order of the checks below; None when there is none."""
    bad = ~((period > 0) & (period < math.inf))
    if bad.any():
        row = int(np.argmax(bad))
        return Fault("period", row, -1, f"trace length {period[row]} s; it must be finite and > 0")
    for kind, bad, text in faulty_sessions(starts, ends, offsets, period):
        if kind not in skip and bad.any():
            index = int(np.argmax(bad))
            row = int(np.searchsorted(offsets, index, side="right")) - 1
            told = fault_text(text, index, starts, ends, float(period[row]))
            return Fault(kind, row, index - int(offsets[row]), told)
    return None


def faulty_sessions(
    starts: Floats, ends: Floats, offsets: Ints, period: Floats
) -> Iterator[tuple[str, NDArray[np.bool_], str]]:
    """Each check in turn: (kind, bool [sessions], text for :func:`fault_text`).

    A session can fail several. The last three compare it with the one in front of it in the row.
    """
    for name, values in (("start", starts), ("end", ends)):
        yield "NaN", np.isnan(values), f"{name} is NaN; write a number of seconds"
    for name, values in (("start", starts), ("end", ends)):
        yield "negative", values < 0, f"{name} {{{name}}} s is negative; times start at 0"
    yield "reversed", ends < starts, "ends at {end} s, before its start at {start} s"
    limit = np.repeat(period, np.diff(offsets))
    beyond = "ends at {end} s, beyond the trace length of {period} s; cut it, or lengthen the trace"
    yield "beyond", ends > limit, beyond
    del limit
    lost = "starts and ends at {start} s (zero length); drop it"
    yield "zero-length", ends == starts, lost
    inner = _inner(offsets, len(starts))

    def second(bad: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return np.concatenate((np.zeros(min(len(starts), 1), bool), inner & bad))

    unsorted = "starts at {start} s, before the session in front of it at {start_before} s; sort"
    yield "unsorted", second(starts[1:] < starts[:-1]), unsorted
    overlap = "starts at {start} s, before the session in front of it ends at {end_before} s; merge"
    yield "overlapping", second(starts[1:] < ends[:-1]), overlap
    touch = "starts at {start} s, where the session in front of it ends; merge the two"
    yield "touching", second(starts[1:] == ends[:-1]), touch


def fault_text(text: str, index: int, starts: Floats, ends: Floats, period_s: float) -> str:
    """The text of :func:`faulty_sessions` with the numbers of one session."""
    return text.format(
        start=starts[index],
        end=ends[index],
        period=period_s,
        start_before=starts[index - 1],
        end_before=ends[index - 1],
    )


@dataclass(frozen=True, slots=True, eq=False)
class Mended:
    """Sessions after :func:`mend`, and which of those before it were touched (their indices).

    ``overlapping`` and ``touching`` were merged into another one, ``zero_length`` dropped.
    """

    starts_s: Floats
    ends_s: Floats
    offsets: Ints
    zero_length: Ints
    unsorted: Ints
    overlapping: Ints
    touching: Ints
    emptied_rows: int

    @property
    def report(self) -> RepairReport:
        """How many of each."""
        return RepairReport(
            zero_length=len(self.zero_length),
            unsorted=len(self.unsorted),
            overlapping=len(self.overlapping),
            touching=len(self.touching),
            emptied_rows=self.emptied_rows,
        )


def mend(starts: Floats, ends: Floats, offsets: Ints) -> Mended:
    """Drop zero-length sessions, sort each row, merge overlaps."""
    counts = np.diff(offsets)
    row_of = np.repeat(np.arange(len(counts)), counts)
    kept = np.flatnonzero(ends != starts)
    zero_length = np.flatnonzero(ends == starts)
    if len(zero_length):
        starts, ends, row_of = starts[kept], ends[kept], row_of[kept]

    inner = row_of[1:] == row_of[:-1]
    unsorted = kept[1:][inner & (starts[1:] < starts[:-1])]
    if len(unsorted):
        order = np.lexsort((ends, starts, row_of))
        starts, ends, kept = starts[order], ends[order], kept[order]

    # Only rows that hold a conflict are walked one by one: they are few in any real trace.
    conflict = np.unique(row_of[1:][inner & (starts[1:] <= ends[:-1])])
    first = np.searchsorted(row_of, conflict, side="left").tolist()
    last = np.searchsorted(row_of, conflict, side="right").tolist()
    ends = ends.copy()
    merged: dict[str, list[int]] = {"overlapping": [], "touching": []}
    for low, high in zip(first, last, strict=True):
        open_at = low
        for index in range(low + 1, high):
            if starts[index] > ends[open_at]:
                open_at = index
                continue
            merged["touching" if starts[index] == ends[open_at] else "overlapping"].append(index)
            ends[open_at] = max(ends[open_at], ends[index])

    alone = np.ones(len(starts), bool)
    for indices in merged.values():
        alone[indices] = False
    left = np.bincount(row_of[alone], minlength=len(counts))
    return Mended(
        starts_s=starts[alone],
        ends_s=ends[alone],
        offsets=offsets_of(left),
        zero_length=zero_length,
        unsorted=unsorted,
        overlapping=kept[np.array(merged["overlapping"], np.int64)],
        touching=kept[np.array(merged["touching"], np.int64)],
        emptied_rows=int(((counts > 0) & (left == 0)).sum()),
    )


def offsets_of(counts: NDArray[np.integer[Any]]) -> Ints:
    """CSR offsets, int64 [rows + 1], of the number of sessions of each row."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _inner(offsets: Ints, sessions: int) -> NDArray[np.bool_]:
    """For each pair of neighbours in the flat arrays: whether they are of one row."""
    inner = np.ones(max(sessions - 1, 0), bool)
    cuts = offsets[1:-1]
    inner[cuts[(cuts > 0) & (cuts < sessions)] - 1] = False
    return inner


def _floats(values: ArrayLike, name: str) -> Floats:
    try:
        return np.asarray(values, dtype=np.float64, order="C")
    except (TypeError, ValueError):
        raise TraceError(f"{name} holds something that is not a number of seconds") from None


def _arrays(
    starts_s: ArrayLike, ends_s: ArrayLike, offsets: ArrayLike, period_s: ArrayLike
) -> tuple[Floats, Floats, Ints, Floats]:
    starts, ends = _floats(starts_s, "starts_s"), _floats(ends_s, "ends_s")
    offset = np.asarray(offsets, dtype=np.int64, order="C")
    if starts.ndim != 1 or ends.ndim != 1 or offset.ndim != 1:
        raise TraceError("starts_s, ends_s and offsets must have one dimension")
    if len(starts) != len(ends):
        raise TraceError(f"{len(starts)} starts but {len(ends)} ends; each session needs both")
    if (
        len(offset) < 1
        or offset[0] != 0
        or offset[-1] != len(starts)
        or (offset[1:] < offset[:-1]).any()
    ):
        raise TraceError(f"offsets must rise from 0 to the number of sessions, {len(starts)}")
    rows = len(offset) - 1
    period = _floats(period_s, "period_s")
    if period.ndim == 0:
        period = np.full(rows, float(period))
    if len(period) != rows:
        raise TraceError(f"{len(period)} values of period_s for {rows} rows; one for each row")
    return starts, ends, offset, period


def _row_message(fault: Fault) -> str:
    where = f"row {fault.row}" if fault.session < 0 else f"row {fault.row}, session {fault.session}"
    return f"{where}: {fault.text}"
