"""A trace as it stands in its file: every malformation found, and what is left without them.

The readers in ``tables`` and ``fedscale`` stop at the first malformation, for a run must not begin
on a bad trace. Here all are found, for ``fedclock trace inspect`` to list and ``convert`` to mend.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traces.devices import DeviceTable
from traces.findings import Finding, Findings
from traces.sessions import (
    REPAIRABLE,
    Floats,
    Ints,
    Sessions,
    fault_text,
    faulty_sessions,
    mend,
    offsets_of,
)

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class CheckedSessions:
    """``sessions``: the clients with nothing wrong, or nothing that could not be mended; ``rows``
    are their places in the file, int64. ``clients`` counts all of the file, ``keys`` names them.
    """

    clients: int
    findings: tuple[Finding, ...]
    rows: Ints
    sessions: Sessions


@dataclass(frozen=True, slots=True, eq=False)
class CheckedDevices:
    """``devices``: those with nothing wrong, None where there are none; see CheckedSessions."""

    clients: int
    findings: tuple[Finding, ...]
    rows: Ints
    devices: DeviceTable | None


def check_sessions(
    starts: Floats,
    ends: Floats,
    offsets: Ints,
    period: Floats,
    unreadable: Bools,
    findings: Findings,
    place: Callable[[int, int], str],
    duration_s: Floats | None = None,
) -> CheckedSessions:
    """Add to ``findings`` what is wrong with the numbers, and mend what can be.

    ``unreadable`` [sessions] are sessions of which an end is no number, ``period`` [clients] is
    NaN where it is none: both are in the findings already. ``place(row, session)`` names a place;
    ``duration_s`` [clients] is what FedScale's file gives as each client's total, NaN if nothing.
    """
    clients = len(period)
    row_of = np.repeat(np.arange(clients), np.diff(offsets))

    def add(kind: str, indices: Ints, text: Callable[[int], str]) -> None:
        def told(i: int) -> str:
            index = int(indices[i])
            row = int(row_of[index])
            return f"{place(row, index - int(offsets[row]))}: {text(index)}"

        findings.add_many(kind, row_of[indices], told)

    bad = unreadable.copy()
    for kind, failing, text in faulty_sessions(starts, ends, offsets, period):
        if kind not in REPAIRABLE:
            indices = np.flatnonzero(failing & ~unreadable)
            bad[indices] = True
            add(
                kind,
                indices,
                lambda i, text=text: fault_text(text, i, starts, ends, float(period[row_of[i]])),  # type: ignore[misc]
            )
    good = np.flatnonzero(~bad)
    counts = np.bincount(row_of[good], minlength=clients)
    mended = mend(starts[good], ends[good], offsets_of(counts))
    add("zero-length", good[mended.zero_length], lambda i: f"starts and ends at {starts[i]} s")
    add(
        "unsorted",
        good[mended.unsorted],
        lambda i: f"starts at {starts[i]} s, before the session in front of it",
    )
    add(
        "overlapping",
        good[mended.overlapping],
        lambda i: f"[{starts[i]}, {ends[i]}] s overlaps another session of the client",
    )
    add(
        "touching",
        good[mended.touching],
        lambda i: f"starts at {starts[i]} s, where another session of the client ends",
    )
    sound = np.ones(clients, bool)
    sound[list(findings.spoilt)] = False
    if duration_s is not None:
        _check_duration(duration_s, starts, ends, row_of, sound, findings, place)
    keep = np.repeat(sound, np.diff(mended.offsets))
    sessions = Sessions(
        mended.starts_s[keep],
        mended.ends_s[keep],
        offsets_of(np.diff(mended.offsets)[sound]),
        period[sound],
    )
    return CheckedSessions(clients, findings.by_kind, np.flatnonzero(sound), sessions)


def _check_duration(
    duration_s: Floats,
    starts: Floats,
    ends: Floats,
    row_of: Ints,
    sound: Bools,
    findings: Findings,
    place: Callable[[int, int], str],
) -> None:
    length_s = np.where(sound[row_of], ends - starts, 0.0)
    total_s = np.bincount(row_of, weights=length_s, minlength=len(sound))
    differs = sound & (np.abs(total_s - duration_s) > 1e-9 * np.maximum(total_s, 1.0))
    rows = np.flatnonzero(differs)

    def text(i: int) -> str:
        row = int(rows[i])
        return (
            f"{place(row, -1)}: 'duration' is {duration_s[row]} s, its sessions last {total_s[row]}"
            " s together (no one reads 'duration')"
        )

    findings.add_many("duration", rows, text)


def check_devices(computation: Floats, communication: Floats, findings: Findings) -> CheckedDevices:
    """What is left of devices, both columns float64 [clients], without those in the findings."""
    sound = np.ones(len(computation), bool)
    sound[list(findings.spoilt)] = False
    rows = np.flatnonzero(sound)
    devices = DeviceTable(computation[rows], communication[rows]) if len(rows) else None
    return CheckedDevices(len(computation), findings.by_kind, rows, devices)


def speed_kind(value: float) -> str | None:
    """What is wrong with a speed, if anything."""
    if 0.0 < value < np.inf:
        return None
    if value != value:
        return "NaN"
    return "zero" if value == 0 else "negative" if value < 0 else "infinite"
