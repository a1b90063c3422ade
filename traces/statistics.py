"""What a store of sessions says as a whole."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traces.sessions import Sessions

HOUR_S = 3600.0
DAY_S = 86400.0


def duty_cycle(sessions: Sessions) -> NDArray[np.float64]:
    """Share of its trace that each row is online, float64 [rows]."""
    online_s = np.zeros(len(sessions))
    filled = sessions.counts > 0
    if filled.any():
        length_s = sessions.ends_s - sessions.starts_s
        # Empty rows between two cuts add nothing, so the cuts of the filled rows suffice.
        online_s[filled] = np.add.reduceat(length_s, sessions.offsets[:-1][filled])
    return online_s / sessions.period_s


def online_share_by_hour(sessions: Sessions) -> NDArray[np.float64]:
    """Share of row-seconds online in each hour of the day, float64 [24]; time 0 is midnight.

    Hours that no trace covers are NaN.
    """
    online_s = _seconds_by_hour(sessions.ends_s) - _seconds_by_hour(sessions.starts_s)
    with np.errstate(invalid="ignore"):
        share: NDArray[np.float64] = online_s / _seconds_by_hour(sessions.period_s)
    return share


def _seconds_by_hour(until_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds of each hour of the day between 0 and each of ``until_s``, summed; float64 [24]."""
    total_s = np.zeros(24)
    for low in range(0, len(until_s), 1 << 20):  # in parts, to need little memory
        days, rest_s = np.divmod(until_s[low : low + (1 << 20)], DAY_S)
        hour = np.minimum(rest_s // HOUR_S, 23).astype(np.int64)
        begun = np.bincount(hour, minlength=24)
        whole = days.sum() + len(hour) - np.cumsum(begun)
        total_s += whole * HOUR_S
        total_s += np.bincount(hour, weights=rest_s - hour * HOUR_S, minlength=24)
    return total_s
