"""A trace from one file to another: a plain table, or FedScale's pickle, by the name's suffix."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from traces.devices import DeviceTable
from traces.errors import TraceError
from traces.fedscale import write_behaviour, write_capacity
from traces.findings import Finding
from traces.inspection import TraceKind, check_trace
from traces.sessions import Sessions, offsets_of
from traces.tables import is_table, write_devices, write_sessions
from traces.unchecked import CheckedDevices

Repair = Literal["mend", "drop"]

_HELPED_BY_MENDING = ("none", "mend")


@dataclass(frozen=True, slots=True)
class Conversion:
    """What became of a trace: clients written, those left out, and what was wrong before.

    ``silent`` clients were left out because FedScale's file cannot hold a client that is never
    online; ``dropped`` counts all that were left out, these included.
    """

    written: int
    dropped: int
    silent: int
    findings: tuple[Finding, ...]


def convert(
    source: str | Path,
    target: str | Path,
    *,
    repair: Repair | None = None,
    kind: TraceKind | None = None,
    period_s: float | None = None,
    force: bool = False,
) -> Conversion:
    """Read a trace of either kind and layout, and write it as ``target``'s suffix says.

    Clients are numbered anew in their order. Malformed input is refused unless ``repair`` says
    what to do: ``mend`` drops sessions of no length, sorts, and merges those that overlap or
    touch; ``drop`` does so too, and leaves out each client that has anything else wrong. Raises
    TraceError, and then writes nothing.
    """
    refuse_to_overwrite(target, force)
    as_table = is_table(target)
    checked = check_trace(source, kind, period_s)
    helped = _HELPED_BY_MENDING[: 1 if repair is None else 2]
    if repair != "drop":
        _refuse(source, [f for f in checked.findings if f.remedy not in helped], repair)
    if not len(checked.rows):
        raise TraceError(f"{source}: none of its {checked.clients} clients is well formed")
    silent = 0
    if isinstance(checked, CheckedDevices):
        assert checked.devices is not None
        write_trace(target, checked.devices)
    else:
        sessions = checked.sessions
        if not as_table and repair == "drop":
            heard = sessions.counts > 0
            silent = int((~heard).sum())
            sessions = _only(sessions, heard)
        write_trace(target, sessions)
    dropped = checked.clients - len(checked.rows) + silent
    return Conversion(checked.clients - dropped, dropped, silent, checked.findings)


def refuse_to_overwrite(target: str | Path, force: bool) -> None:
    """TraceError where there is a file already."""
    if not force and os.path.exists(target):
        raise TraceError(f"{target}: is there already; --force replaces it")


def write_trace(target: str | Path, trace: DeviceTable | Sessions) -> None:
    """A table or FedScale's pickle, by the suffix of ``target``; whole or not at all."""
    as_table = is_table(target)
    if isinstance(trace, DeviceTable):
        (write_devices if as_table else write_capacity)(target, trace)
    else:
        (write_sessions if as_table else write_behaviour)(target, trace)


def _refuse(source: str | Path, wrong: list[Finding], repair: Repair | None) -> None:
    if not wrong:
        return
    kinds = ", ".join(f"{f.count} {f.kind}" for f in wrong)
    only_mending = all(f.remedy == "mend" for f in wrong)
    mends = "--repair mend drops sessions of no length, sorts and merges"
    drops = "--repair drop leaves out the clients that cannot be mended"
    helps = drops if repair == "mend" else mends if only_mending else f"{mends}, {drops}"
    raise TraceError(f"{source}: is malformed ({kinds}); first: {wrong[0].examples[0]}; {helps}")


def _only(sessions: Sessions, wanted: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Sessions:
    if not wanted.any():
        raise TraceError("none of the clients is ever online; FedScale's file cannot hold them")
    keep = np.repeat(wanted, sessions.counts)
    return Sessions(
        sessions.starts_s[keep],
        sessions.ends_s[keep],
        offsets_of(sessions.counts[wanted]),
        sessions.period_s[wanted],
    )
