"""FedScale's two trace files: pickles of builtin containers, read without running anything.

Layouts as of FedScale 7ec441c (Apache-2.0): ``client_device_capacity`` is a dict from the keys
1 to N to ``{'computation': ms per sample, 'communication': kbit/s}``; ``client_behave_trace`` is a
dict from a key to ``{'active': [...], 'inactive': [...], 'finish_time': ..., 'duration': ...,
'model': ...}``, where session i is the closed interval [active[i], inactive[i]] in seconds.
"""

from __future__ import annotations

import contextlib
import io
import math
import pickle
import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from traces.devices import DeviceTable
from traces.errors import TraceError
from traces.files import replacing
from traces.plain_pickle import refuse_other_opcodes
from traces.sessions import (
    REPAIRABLE,
    Floats,
    Ints,
    RepairReport,
    Sessions,
    first_fault,
    offsets_of,
)

CAPACITY_FIELDS = ("computation", "communication")

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxlist = 3, 80, 10


@dataclass(frozen=True, slots=True)
class BehaviourTrace:
    """Sessions as read, the file's key of each row, and what was repaired on the way.

    ``unmended`` holds (starts, ends, offsets) as they stand in a file in which something was.
    """

    sessions: Sessions
    keys: tuple[int, ...]
    report: RepairReport
    unmended: tuple[Floats, Floats, Ints] | None = None


class _ClosedUnpickler(pickle.Unpickler):
    """Admits what needs no import."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise TraceError(
            f"the pickle asks for {module_name}.{global_name}; a trace holds dicts, lists, "
            "numbers and strings only, and nothing else is loaded"
        )

    def persistent_load(self, pid: Any, /) -> NoReturn:
        raise TraceError("the pickle points to objects outside itself; a trace does not")


def load_pickle(path: str | Path) -> Any:
    """The object in a pickle of builtin containers, numbers and strings.

    Nothing else is ever imported or called. Raises TraceError for anything else, and for a file
    that is missing, cut short or no pickle.
    """
    try:
        raw = Path(path).read_bytes()
        refuse_other_opcodes(raw)
        return _ClosedUnpickler(io.BytesIO(raw)).load()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from None
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
    except Exception as error:  # a hostile or cut stream can raise nearly anything
        raise TraceError(
            f"{path}: is not a whole pickle of builtin containers ({error!r:.200})"
        ) from None


def read_capacity(path: str | Path) -> DeviceTable:
    """FedScale's ``client_device_capacity``: row c holds key c + 1, FedScale's order of arrival.

    Raises TraceError that names the key and the field: a missing key, a value that is missing,
    no number, zero, negative, NaN or infinite.
    """
    data = clients_of(path, load_pickle(path))
    columns: tuple[list[float], list[float]] = ([], [])
    for key in range(1, len(data) + 1):
        if key not in data:
            odd = next(k for k in data if type(k) is not int or not 1 <= k <= len(data))
            raise TraceError(
                f"{path}: client {key} is missing, while there is a key {shown(odd)}; "
                f"the keys must be the integers 1 to {len(data)}"
            )
        entry = _entry(path, key, key - 1, data[key])
        for field, column in zip(CAPACITY_FIELDS, columns, strict=True):
            where = f"{path}: client {key} (row {key - 1}), field '{field}'"
            value = _number(where, _field(where, entry, field))
            if not 0.0 < value < math.inf:
                raise TraceError(f"{where}: {value} must be finite and > 0")
            column.append(value)
    return DeviceTable(np.array(columns[0]), np.array(columns[1]))


def read_behaviour(path: str | Path, repair: bool = True) -> BehaviourTrace:
    """FedScale's ``client_behave_trace``; rows in the order of the file, as FedScale counts them.

    ``repair`` drops zero-length sessions (the real file has some), sorts, and merges overlapping
    and touching ones, all counted in the report; without it these are errors too. Raises
    TraceError that names the key and the row: no sessions, as many starts as ends not given, a
    value that is missing, no number, NaN or negative, a session that ends before it starts or
    after ``finish_time``. ``duration`` and ``model`` are not read.
    """
    data = clients_of(path, load_pickle(path))
    keys: list[int] = []
    starts: list[float] = []
    ends: list[float] = []
    counts: list[int] = []
    period_s: list[float] = []
    for row, (key, value) in enumerate(data.items()):
        if type(key) is not int or key.bit_length() > 63:
            raise TraceError(
                f"{path}: row {row} has the key {shown(key)}; keys must be 64-bit integers"
            )
        entry = _entry(path, key, row, value)
        where = f"{path}: client {key} (row {row})"
        active, inactive = _times(where, entry, "active"), _times(where, entry, "inactive")
        if len(active) != len(inactive):
            raise TraceError(
                f"{where}: 'active' has {len(active)} times, 'inactive' {len(inactive)}; "
                "each session needs a start and an end"
            )
        if not active:
            raise TraceError(f"{where}: 'active' and 'inactive' are empty; remove the client")
        at = f"{where}, field 'finish_time'"
        finish = _number(at, _field(at, entry, "finish_time"))
        if not 0.0 < finish < math.inf:
            raise TraceError(f"{at}: {finish} must be finite and > 0 seconds")
        keys.append(key)
        starts += active
        ends += inactive
        counts.append(len(active))
        period_s.append(finish)

    arrays = (np.array(starts), np.array(ends), offsets_of(np.array(counts)), np.array(period_s))
    fault = first_fault(*arrays, skip=REPAIRABLE if repair else frozenset())
    if fault is not None:
        raise TraceError(
            f"{path}: client {keys[fault.row]} (row {fault.row}), session {fault.session}: "
            f"{fault.text}"
        )
    if not repair:
        return BehaviourTrace(Sessions(*arrays), tuple(keys), RepairReport())
    sessions, report = Sessions.repaired(*arrays)
    return BehaviourTrace(sessions, tuple(keys), report, arrays[:3] if report.changed else None)


def write_capacity(path: str | Path, devices: DeviceTable) -> None:
    """Write the pickle that :func:`read_capacity` and FedScale read; keys from 1."""
    columns = (devices.computation_ms_per_sample.tolist(), devices.communication_kbps.tolist())
    data = {
        key: {"computation": computation, "communication": communication}
        for key, (computation, communication) in enumerate(zip(*columns, strict=True), start=1)
    }
    _write(path, data)


def write_behaviour(path: str | Path, sessions: Sessions) -> None:
    """Write the pickle that :func:`read_behaviour` and FedScale read; keys from 0.

    Times without a fraction are written as integers, as FedScale's are; nothing is rounded.
    Raises TraceError for a client that is never online: FedScale fails on empty lists.
    """
    silent = np.flatnonzero(sessions.counts == 0)
    if len(silent):
        raise TraceError(
            f"{path}: {len(silent)} clients are never online (first: row {silent[0]}), and "
            "FedScale fails on a client without sessions; leave them out (fedclock trace convert "
            "--repair drop), or write a table"
        )
    offsets = sessions.offsets.tolist()
    starts, ends = _whole(sessions.starts_s), _whole(sessions.ends_s)
    data = {}
    for row, finish in enumerate(_whole(sessions.period_s)):
        part = slice(offsets[row], offsets[row + 1])
        active, inactive = starts[part], ends[part]
        data[row] = {
            "duration": sum(inactive) - sum(active),
            "inactive": inactive,
            "finish_time": finish,
            "active": active,
            "model": "unknown",
        }
    _write(path, data)


def _whole(values: Floats) -> list[int | float]:
    return [int(value) if value.is_integer() else value for value in values.tolist()]


def _write(path: str | Path, data: dict[int, Any]) -> None:
    with replacing(path) as file:
        pickle.dump(data, file, protocol=4)


def clients_of(path: str | Path, data: Any) -> dict[Any, Any]:
    """A trace's dict of clients. Raises TraceError where the file holds anything else."""
    if type(data) is not dict:
        raise TraceError(
            f"{path}: holds a {type(data).__name__}; FedScale's traces are a dict of clients"
        )
    if not data:
        raise TraceError(f"{path}: holds no client")
    return data


def _entry(path: str | Path, key: int, row: int, value: Any) -> dict[Any, Any]:
    if type(value) is not dict:
        raise TraceError(
            f"{path}: client {key} (row {row}) is a {type(value).__name__}; it must be a dict"
        )
    return value


def _field(where: str, entry: dict[Any, Any], field: str) -> Any:
    if field not in entry:
        raise TraceError(f"{where}: is missing; the client has {shown(list(entry))}")
    return entry[field]


def _number(where: str, value: Any) -> float:
    number = as_number(value)
    if number is not None:
        return number
    if type(value) is int:
        raise TraceError(f"{where}: the number is too large")
    raise TraceError(f"{where}: {shown(value)} is a {type(value).__name__}, not a number")


def as_number(value: Any) -> float | None:
    """The value as a float; None where it is no number, or beyond all floats."""
    # bool is an int to Python, but no time and no speed.
    if type(value) is int or type(value) is float:
        with contextlib.suppress(OverflowError):
            return float(value)
    return None


def shown(value: Any) -> str:
    """A value for a message, cut; nothing is written out only to be cut."""
    try:
        return f"{_SHORT.repr(value):.80}"
    except ValueError:  # thousands of digits
        return f"a huge {type(value).__name__}"


def _times(where: str, entry: dict[Any, Any], field: str) -> list[float]:
    where = f"{where}, field '{field}'"
    values = _field(where, entry, field)
    if type(values) is not list and type(values) is not tuple:
        raise TraceError(f"{where}: is a {type(values).__name__}; it must be a list of seconds")
    if set(map(type, values)) <= {int, float}:
        with contextlib.suppress(OverflowError):
            return [float(value) for value in values]  # nearly always: no text is made per value
    return [_number(f"{where}[{i}]", value) for i, value in enumerate(values)]
