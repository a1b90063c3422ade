"""What a trace file says as a whole, its malformed clients by kind included."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from traces.errors import TraceError
from traces.fedscale import clients_of, load_pickle
from traces.statistics import (
    absence_s,
    duty_cycle,
    gaps_s,
    online_share_by_hour,
    pearson_correlation,
    rank_correlation,
)
from traces.tables import is_table
from traces.unchecked import CheckedDevices, CheckedSessions
from traces.unchecked_pickles import check_behaviour, check_capacity, kind_of_pickle
from traces.unchecked_tables import check_device_table, check_session_table, kind_of_table

TraceKind = Literal["devices", "availability"]

PROBABILITIES = (0.0, 0.01, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 1.0)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Spread:
    """``quantiles`` at :data:`PROBABILITIES`, and the mean."""

    quantiles: tuple[float, ...]
    mean: float


@dataclass(frozen=True, slots=True)
class SessionFigures:
    """Figures of the well-formed clients, after mending; times in seconds.

    ``online_share`` is the share of all client-seconds. A gap lies between two sessions of a
    client; ``longest_absence_s`` counts across the end of the trace to its start as well, and is
    that of the client at row ``longest_absence_row`` of the file. Spreads are None without values.
    """

    clients: int
    sessions: int
    period_s: Spread
    length_s: Spread | None
    gap_s: Spread | None
    sessions_per_client: Spread
    duty: Spread
    online_share: float
    online_by_hour: Floats
    longest_absence_s: float | None
    longest_absence_row: int
    never_online: int


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """Figures of the well-formed devices. ``duplicates`` counts those equal to an earlier one;
    a correlation is None where a column has one value only."""

    clients: int
    computation_ms_per_sample: Spread
    communication_kbps: Spread
    pearson: float | None
    spearman: float | None
    duplicates: int


def check_trace(
    path: str | Path, kind: TraceKind | None = None, period_s: float | None = None
) -> CheckedSessions | CheckedDevices:
    """A trace of either kind, told by its content, with all its malformations.

    Raises TraceError for a file that is no trace, or not of the ``kind`` that is asked for, and
    where ``period_s`` is missing or has no place.
    """
    if is_table(path):
        found, data = kind_of_table(path), None
    else:
        data = clients_of(path, load_pickle(path))
        found = kind_of_pickle(data)
    if found is None:
        raise TraceError(
            f"{path}: is neither a trace of devices nor one of availability; a table is told by "
            "its header, FedScale's files by the fields of their clients: 'computation' and "
            "'communication', or 'active', 'inactive' and 'finish_time'"
        )
    if kind is not None and kind != found:
        raise TraceError(f"{path}: is a trace of {found}, not of {kind}")
    if period_s is not None and (data is not None or found == "devices"):
        raise TraceError(f"{path}: --period is for tables of sessions without a column period_s")
    if data is None:
        if found == "devices":
            return check_device_table(path)
        return check_session_table(path, period_s)
    return check_capacity(data) if found == "devices" else check_behaviour(data)


def session_figures(checked: CheckedSessions) -> SessionFigures | None:
    """None where no client is well formed."""
    sessions = checked.sessions
    if not len(sessions):
        return None
    duty = duty_cycle(sessions)
    absence = absence_s(sessions)
    longest = int(np.argmax(absence))
    return SessionFigures(
        clients=len(sessions),
        sessions=len(sessions.starts_s),
        period_s=_spread(sessions.period_s),
        length_s=_optional_spread(sessions.ends_s - sessions.starts_s),
        gap_s=_optional_spread(gaps_s(sessions)),
        sessions_per_client=_spread(sessions.counts.astype(np.float64), whole=True),
        duty=_spread(duty),
        online_share=float(duty @ sessions.period_s / sessions.period_s.sum()),
        online_by_hour=online_share_by_hour(sessions),
        longest_absence_s=float(absence[longest]) if absence[longest] >= 0 else None,
        longest_absence_row=int(checked.rows[longest]),
        never_online=int((sessions.counts == 0).sum()),
    )


def device_figures(checked: CheckedDevices) -> DeviceFigures | None:
    """None where no device is well formed."""
    devices = checked.devices
    if devices is None:
        return None
    speeds = devices.computation_ms_per_sample, devices.communication_kbps
    return DeviceFigures(
        clients=len(devices),
        computation_ms_per_sample=_spread(speeds[0]),
        communication_kbps=_spread(speeds[1]),
        pearson=pearson_correlation(*speeds),
        spearman=rank_correlation(*speeds),
        duplicates=len(devices) - len(np.unique(np.stack(speeds, axis=1), axis=0)),
    )


def _spread(values: Floats, *, whole: bool = False) -> Spread:
    method: Literal["inverted_cdf", "linear"] = "inverted_cdf" if whole else "linear"
    quantiles = np.quantile(values, PROBABILITIES, method=method)
    return Spread(tuple(quantiles.tolist()), float(values.mean()))


def _optional_spread(values: Floats) -> Spread | None:
    return _spread(values) if len(values) else None
