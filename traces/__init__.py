"""Traces of availability and of device speeds: read, check, describe, assign, generate.

- ``sessions``        the store of on-sessions, its checks and its repair
- ``availability``    when a client is online, at any simulated time
- ``devices``         speeds of computation and communication
- ``fedscale``        readers of FedScale's two pickles
- ``plain_pickle``    what a trace's pickle may be made of
- ``fedscale_cursor`` FedScale's own stateful availability test, to compare with
- ``tables``          the same as CSV, and one door for both
- ``files``           written whole or not at all
- ``findings``        malformations by kind
- ``unchecked``       a file with every malformation found (``unchecked_pickles``, ``_tables``)
- ``inspection``      what a file says as a whole
- ``conversion``      from table to pickle and back, mended on the way
- ``assignment``      which row of a trace a client gets
- ``phones``          generators from published figures
- ``renewal``         alternating renewal processes
- ``statistics``      duty cycles, the share online by hour

Nothing here knows the emulator, SimPy or torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traces.assignment import Assignment, assign_rows, couple_ranks
    from traces.availability import AlwaysOnline, AtEnd, Availability
    from traces.devices import DeviceTable
    from traces.errors import TraceError
    from traces.fedscale import BehaviourTrace, read_behaviour, read_capacity
    from traces.fedscale_cursor import CursorAvailability
    from traces.phones import phone_devices, phone_sessions
    from traces.renewal import Draw, renewal_sessions
    from traces.sessions import RepairReport, Sessions
    from traces.statistics import duty_cycle, online_share_by_hour, rank_correlation
    from traces.tables import read_devices, read_sessions, write_devices, write_sessions

_HOME = {
    "AlwaysOnline": "availability",
    "Assignment": "assignment",
    "AtEnd": "availability",
    "Availability": "availability",
    "BehaviourTrace": "fedscale",
    "CursorAvailability": "fedscale_cursor",
    "DeviceTable": "devices",
    "Draw": "renewal",
    "RepairReport": "sessions",
    "Sessions": "sessions",
    "TraceError": "errors",
    "assign_rows": "assignment",
    "couple_ranks": "assignment",
    "duty_cycle": "statistics",
    "online_share_by_hour": "statistics",
    "phone_devices": "phones",
    "phone_sessions": "phones",
    "rank_correlation": "statistics",
    "read_behaviour": "fedscale",
    "read_capacity": "fedscale",
    "read_devices": "tables",
    "read_sessions": "tables",
    "renewal_sessions": "renewal",
    "write_devices": "tables",
    "write_sessions": "tables",
}

__all__ = [
    "AlwaysOnline",
    "Assignment",
    "AtEnd",
    "Availability",
    "BehaviourTrace",
    "CursorAvailability",
    "DeviceTable",
    "Draw",
    "RepairReport",
    "Sessions",
    "TraceError",
    "assign_rows",
    "couple_ranks",
    "duty_cycle",
    "online_share_by_hour",
    "phone_devices",
    "phone_sessions",
    "rank_correlation",
    "read_behaviour",
    "read_capacity",
    "read_devices",
    "read_sessions",
    "renewal_sessions",
    "write_devices",
    "write_sessions",
]


def __getattr__(name: str) -> Any:
    # Loaded when asked for: a command that needs only the error class loads no NumPy.
    if name not in _HOME:
        raise AttributeError(f"module 'traces' has no attribute {name!r}")
    return getattr(import_module(f"traces.{_HOME[name]}"), name)
