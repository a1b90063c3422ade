"""FedScale's two pickles with every malformation found; see ``unchecked``."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from traces.fedscale import CAPACITY_FIELDS, as_number, shown
from traces.findings import Findings
from traces.sessions import offsets_of
from traces.unchecked import (
    CheckedDevices,
    CheckedSessions,
    check_devices,
    check_sessions,
    speed_kind,
)

_NUMBERS = {int, float}
_MISSING = object()


def kind_of_pickle(data: Mapping[Any, Any]) -> str | None:
    """``devices`` or ``availability`` by the fields of the first client that has any of them."""
    for entry in data.values():
        if type(entry) is dict:
            if not entry.keys().isdisjoint(("active", "inactive", "finish_time")):
                return "availability"
            if not entry.keys().isdisjoint(CAPACITY_FIELDS):
                return "devices"
    return None


def check_behaviour(data: Mapping[Any, Any]) -> CheckedSessions:
    """``client_behave_trace``, a dict of clients."""
    keys = list(data)
    reader = _Behaviour(keys)
    for row, (key, entry) in enumerate(data.items()):
        if type(key) is not int or key.bit_length() > 63:
            reader.add("client number", row, "the key must be a 64-bit integer")
        if not reader.quickly(entry):
            reader.carefully(row, entry)
    unreadable = np.zeros(len(reader.starts), bool)
    unreadable[reader.unreadable] = True
    return check_sessions(
        np.array(reader.starts),
        np.array(reader.ends),
        offsets_of(np.array(reader.counts)),
        np.array(reader.period_s),
        unreadable,
        reader.findings,
        reader.place,
        np.array(reader.duration_s),
    )


class _Behaviour:
    """Columns that grow by one client at a time."""

    def __init__(self, keys: list[Any]) -> None:
        self.findings = Findings()
        self.starts, self.ends = array("d"), array("d")
        self.period_s, self.duration_s = array("d"), array("d")
        self.counts = array("q")
        self.unreadable: list[int] = []
        self._keys = keys

    def place(self, row: int, session: int) -> str:
        where = f"client {shown(self._keys[row])} (row {row})"
        return where if session < 0 else f"{where}, session {session}"

    def add(self, kind: str, row: int, text: str, session: int = -1) -> None:
        self.findings.add(kind, row, f"{self.place(row, session)}: {text}")

    def quickly(self, entry: Any) -> bool:
        """Take a client of which every value has the right type; False when this one has not."""
        if type(entry) is not dict:
            return False
        active, inactive = entry.get("active"), entry.get("inactive")
        finish = as_number(entry.get("finish_time"))
        if (
            type(active) is not list
            or type(inactive) is not list
            or not 0 < len(active) == len(inactive)
            or finish is None
            or not 0 < finish < math.inf
            or not set(map(type, active)) <= _NUMBERS
            or not set(map(type, inactive)) <= _NUMBERS
        ):
            return False
        before = len(self.starts)
        try:
            self.starts.extend(active)
            self.ends.extend(inactive)
        except OverflowError:
            del self.starts[before:], self.ends[before:]
            return False
        self.counts.append(len(active))
        self.period_s.append(finish)
        self._take_duration(entry)
        return True

    def carefully(self, row: int, entry: Any) -> None:
        """Take what can be read of a client, and say what cannot."""
        if type(entry) is not dict:
            self.add("wrong type", row, f"is a {type(entry).__name__}; it must be a dict")
            entry = None
        columns: list[Sequence[Any]] = []
        for name in ("active", "inactive"):
            values = self._field(row, entry, name)
            if type(values) not in (list, tuple):
                if values is not _MISSING:
                    text = f"'{name}' is a {type(values).__name__}; it must be a list of seconds"
                    self.add("wrong type", row, text)
                columns = []
                break
            columns.append(values)
        count = 0
        if columns:
            active, inactive = columns
            count = min(len(active), len(inactive))
            if len(active) != len(inactive):
                more = "the last session is open" if len(active) == count + 1 else "not in pairs"
                text = f"'active' has {len(active)} times, 'inactive' {len(inactive)}: {more}"
                self.add("lengths differ", row, text)
            elif not count:
                self.add("no session", row, "'active' and 'inactive' are empty")
            for session in range(count):
                self._take_session(row, session, active[session], inactive[session])
        self.counts.append(count)
        self.period_s.append(self._period(row, entry))
        self._take_duration(entry or {})

    def _take_session(self, row: int, session: int, start: Any, end: Any) -> None:
        for name, value, column in (("active", start, self.starts), ("inactive", end, self.ends)):
            number = as_number(value)
            if number is None:
                self.add("wrong type", row, f"'{name}' is {shown(value)}, not a number", session)
                self.unreadable.append(len(column))
            column.append(math.nan if number is None else number)

    def _period(self, row: int, entry: Any) -> float:
        value = self._field(row, entry, "finish_time")
        if value is _MISSING:
            return math.nan
        number = as_number(value)
        if number is None:
            self.add("wrong type", row, f"'finish_time' is {shown(value)}, not a number")
        elif not 0 < number < math.inf:
            text = f"'finish_time' is {number}; it must be finite and > 0 seconds"
            self.add("trace length", row, text)
        else:
            return number
        return math.nan

    def _field(self, row: int, entry: Any, name: str) -> Any:
        """The value of a field; _MISSING where there is none, which is then told."""
        if entry is None:
            return _MISSING
        if name not in entry:
            self.add("missing field", row, f"there is no '{name}'")
            return _MISSING
        return entry[name]

    def _take_duration(self, entry: Mapping[Any, Any]) -> None:
        number = as_number(entry.get("duration"))
        self.duration_s.append(math.nan if number is None else number)


def check_capacity(data: Mapping[Any, Any]) -> CheckedDevices:
    """``client_device_capacity``, a dict of clients; rows in the order of their keys."""
    findings = Findings()
    numbered = sorted(key for key in data if type(key) is int)
    keys = [*numbered, *(key for key in data if type(key) is not int)]
    columns = (array("d"), array("d"))
    expected = 1
    for row, key in enumerate(keys):
        name = f"client {shown(key)} (row {row})"
        if type(key) is not int:
            findings.add("client number", row, f"{name}: the key must be an integer")
        else:
            if key != expected:
                text = f"{name}: key {expected} should come here; keys go up by 1 from 1"
                findings.add("numbering", row, text)
            expected = key + 1
        entry = data[key]
        if type(entry) is not dict:
            text = f"{name}: is a {type(entry).__name__}; it must be a dict"
            findings.add("wrong type", row, text)
            entry = None
        for field, column in zip(CAPACITY_FIELDS, columns, strict=True):
            number = None
            if entry is not None and field not in entry:
                findings.add("missing field", row, f"{name}: there is no '{field}'")
            elif entry is not None:
                number = as_number(entry[field])
                if number is None:
                    text = f"{name}: '{field}' is {shown(entry[field])}, not a number"
                    findings.add("wrong type", row, text)
                elif (kind := speed_kind(number)) is not None:
                    text = f"{name}: '{field}' is {number}; it must be finite and > 0"
                    findings.add(kind, row, text)
            column.append(math.nan if number is None else number)
    return check_devices(np.array(columns[0]), np.array(columns[1]), findings)
