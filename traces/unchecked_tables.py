"""Plain tables with every malformation found; see ``unchecked`` and ``table_blocks``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traces.errors import TraceError
from traces.findings import Findings
from traces.sessions import Floats, Ints, offsets_of
from traces.table_blocks import Block, blocks, header_of
from traces.tables import DEVICE_HEADER, PERIOD_COLUMN, SESSION_HEADER
from traces.unchecked import (
    Bools,
    CheckedDevices,
    CheckedSessions,
    check_devices,
    check_sessions,
    speed_kind,
)


def kind_of_table(path: str | Path) -> str | None:
    """``devices`` or ``availability`` by the header; None for any other."""
    header = header_of(path)
    if header == DEVICE_HEADER:
        return "devices"
    return "availability" if header[:3] == SESSION_HEADER else None


def check_device_table(path: str | Path) -> CheckedDevices:
    """A table of devices. Raises TraceError where the file is no such table."""
    findings = Findings()
    speeds: tuple[list[Floats], list[Floats]] = ([], [])
    clients = 0
    numbering = _Numbering(findings, "client_id")
    for block in blocks(path, (DEVICE_HEADER,)):
        ids = block.whole_numbers(0)
        for i in range(len(ids)):
            numbering.take(clients + i, block, i, int(ids[i]))
        _tell_short(block, findings, clients + np.arange(len(ids)))
        for at, (name, column) in enumerate(zip(DEVICE_HEADER[1:], speeds, strict=True), start=1):
            values, unreadable = block.numbers(at)
            for i in unreadable:
                if i not in block.short:
                    text = f"{block.place(i, name)}: {block.cell(i, at)!r} is not a number"
                    findings.add("wrong type", clients + i, text)
            for i in np.flatnonzero(~((values > 0) & (values < np.inf))).tolist():
                kind = speed_kind(float(values[i]))
                if kind is not None and i not in unreadable:
                    text = f"{block.place(i, name)}: {block.cell(i, at)!r} must be finite and > 0"
                    findings.add(kind, clients + i, text)
            column.append(values)
        clients += len(ids)
    if not clients:
        raise TraceError(f"{path}: holds no device")
    return check_devices(np.concatenate(speeds[0]), np.concatenate(speeds[1]), findings)


def check_session_table(path: str | Path, period_s: float | None) -> CheckedSessions:
    """A table of sessions; ``period_s`` is its length where it has no column for it.

    Raises TraceError where the file is no such table, or its length is not said, or said twice.
    """
    rows = _Rows(path, period_s)
    for block in blocks(path, (SESSION_HEADER, (*SESSION_HEADER, PERIOD_COLUMN))):
        rows.take(block)
    return rows.checked()


def _tell_short(block: Block, findings: Findings, rows: Ints) -> None:
    for i, count in block.short.items():
        text = f"line {block.lines[i]}: {count} values; the header has {len(block.header)}"
        findings.add("number of values", int(rows[i]), text)


class _Numbering:
    """Whether clients go up by 1 from 0 or 1, each of them once."""

    def __init__(self, findings: Findings, column: str) -> None:
        self._findings = findings
        self._column = column
        self._seen_to = -1
        self._skipped: set[int] = set()
        self._first = True

    def take(self, row: int, block: Block, i: int, client: int) -> None:
        """The next client of the file."""
        if client == self._seen_to + 1 or (self._first and client == 1):
            self._first = False
            self._seen_to = client
            return
        cell = block.cell(i, 0)
        where = block.place(i, self._column)
        if client < 0:
            text = f"{where}: {cell!r} is not a whole number >= 0"
            self._findings.add("client number", row, text)
            return
        if client > self._seen_to:
            wanted = "0 or 1" if self._first else str(self._seen_to + 1)
            text = f"{where}: {client} where {wanted} should come; clients go up by 1"
            self._findings.add("numbering", row, text)
            # A gap of a thousand million clients is one malformation, and no set of that size.
            self._skipped.update(range(self._seen_to + 1, min(client, self._seen_to + 1001)))
            self._seen_to = client
        elif client in self._skipped:
            self._skipped.discard(client)
            text = f"{where}: {client} comes after {self._seen_to}; clients go up by 1"
            self._findings.add("numbering", row, text)
        else:
            text = f"{where}: client {client} was there before; its lines stand together"
            self._findings.add("repeated client", row, text)
        self._first = False


class _Rows:
    """Sessions by client, as the blocks of a table come in."""

    def __init__(self, path: str | Path, period_s: float | None) -> None:
        self.findings = Findings()
        self._path = path
        self._given_period_s = period_s
        self._numbering = _Numbering(self.findings, "client")
        self._clients: list[int] = []
        self._period_s: list[float] = []
        self._lines_of: list[NDArray[np.uint32]] = []
        self._silent_rows: list[Ints] = []
        self._rows: list[NDArray[np.int32]] = []
        self._starts: list[Floats] = []
        self._ends: list[Floats] = []
        self._unreadable: list[Bools] = []

    def take(self, block: Block) -> None:
        """The lines of one block."""
        rows = self._place_lines(block)
        silent = self._silence(block, rows)
        unreadable = np.zeros(len(rows), bool)
        unreadable[list(block.short)] = True
        columns = []
        for at, name, other in ((1, "start_s", "end_s"), (2, "end_s", "start_s")):
            values, wrong = block.numbers(at)
            for i in wrong:
                if silent[i] or i in block.short:
                    continue
                unreadable[i] = True
                cell = block.cell(i, at)
                kind, text = "wrong type", f"{cell!r} is not a number"
                if not cell:
                    kind, text = "open session", f"is empty, and {other} is not"
                self.findings.add(kind, int(rows[i]), f"{block.place(i, name)}: {text}")
            columns.append(values)
        _tell_short(block, self.findings, rows)
        keep = ~silent
        self._rows.append(rows[keep].astype(np.int32))
        self._starts.append(columns[0][keep])
        self._ends.append(columns[1][keep])
        self._unreadable.append(unreadable[keep])
        self._lines_of.append(np.array(block.lines, np.uint32)[keep])

    def _place_lines(self, block: Block) -> Ints:
        """The row of each line; new clients are taken note of on the way."""
        ids = block.whole_numbers(0)
        before = self._clients[-1] if self._clients else -2
        new = np.empty(len(ids), bool)
        new[0] = ids[0] != before
        new[1:] = ids[1:] != ids[:-1]
        new |= ids < 0  # two lines without a client are two clients
        rows = len(self._clients) - 1 + np.cumsum(new)
        firsts = np.flatnonzero(new)
        period_s = self._periods(block, rows, firsts)
        for i in firsts.tolist():
            self._numbering.take(len(self._clients), block, i, int(ids[i]))
            self._clients.append(int(ids[i]))
            self._period_s.append(float(period_s[i]))
        if len(block.header) > len(SESSION_HEADER):
            of_client = np.array(self._period_s[int(rows[0]) :])[rows - rows[0]]
            varies = (period_s != of_client) & ~(np.isnan(period_s) | np.isnan(of_client))
            at = np.flatnonzero(varies)
            self.findings.add_many(
                "trace length",
                rows[at],
                lambda k: (
                    f"{block.place(int(at[k]), PERIOD_COLUMN)}: {period_s[at[k]]}, but "
                    f"{of_client[at[k]]} on the first line of the client"
                ),
            )
        return rows

    def _periods(self, block: Block, rows: Ints, firsts: Ints) -> Floats:
        """The length of the trace on each line; NaN where it is none."""
        given = self._given_period_s
        if len(block.header) > len(SESSION_HEADER):
            if given is not None:
                raise TraceError(f"{self._path}: has a column {PERIOD_COLUMN}; leave --period out")
            period_s, wrong = block.numbers(3)
            for i in wrong:
                if i not in block.short:
                    text = f"{block.place(i, PERIOD_COLUMN)}: {block.cell(i, 3)!r} is not a number"
                    self.findings.add("wrong type", int(rows[i]), text)
        elif given is None:
            raise TraceError(
                f"{self._path}: how long is the trace? Give --period, such as '7 d', or add a "
                f"column {PERIOD_COLUMN}"
            )
        else:
            period_s, wrong = np.full(len(rows), given), set()
        good = (period_s > 0) & (period_s < np.inf)
        for i in np.flatnonzero(~good).tolist():
            if i not in wrong:
                text = f"{block.place(i, PERIOD_COLUMN)}: {period_s[i]} must be finite and > 0"
                self.findings.add("trace length", int(rows[i]), text)
        return np.where(good, period_s, np.nan)

    def _silence(self, block: Block, rows: Ints) -> Bools:
        """Which lines say that their client is never online: both cells are empty."""
        silent = block.empty(1) & block.empty(2)
        silent[list(block.short)] = False
        if silent.any():
            self._silent_rows.append(rows[silent])
        return silent

    def checked(self) -> CheckedSessions:
        """All that was taken."""
        if not self._clients:
            raise TraceError(f"{self._path}: holds no session")
        clients = len(self._clients)
        rows = np.concatenate(self._rows)
        counts = np.bincount(rows, minlength=clients)
        offsets = offsets_of(counts)
        lines = np.concatenate(self._lines_of)

        def name(row: int) -> str:
            return f"client {self._clients[row]}" if self._clients[row] >= 0 else f"row {row}"

        def place(row: int, session: int) -> str:
            return f"line {lines[offsets[row] + session]} ({name(row)}, session {session})"

        if self._silent_rows:
            silent = np.bincount(np.concatenate(self._silent_rows), minlength=clients)
            both = np.flatnonzero((silent > 0) & (silent + counts > 1))
            self.findings.add_many(
                "empty line",
                both,
                lambda k: (
                    f"{name(int(both[k]))} has a line without a session and other lines; "
                    "empty cells say that it is never online"
                ),
            )
        return check_sessions(
            np.concatenate(self._starts),
            np.concatenate(self._ends),
            offsets,
            np.array(self._period_s),
            np.concatenate(self._unreadable),
            self.findings,
            place,
        )
