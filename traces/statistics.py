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


def gaps_s(sessions: Sessions) -> NDArray[np.float64]:
    """Seconds between two neighbouring sessions of a row, of all rows one after the other."""
    rows = np.repeat(np.arange(len(sessions)), sessions.counts)
    inner = rows[1:] == rows[:-1]
    gaps: NDArray[np.float64] = (sessions.starts_s[1:] - sessions.ends_s[:-1])[inner]
    return gaps


def absence_s(sessions: Sessions) -> NDArray[np.float64]:
    """The longest time each row is away, where its trace is repeated; float64 [rows].

    -1 for a row that is never online, and so away for ever.
    """
    longest_s = np.full(len(sessions), -1.0)
    filled = np.flatnonzero(sessions.counts)
    first, last = sessions.offsets[filled], sessions.offsets[filled + 1] - 1
    # The absence before each session; before the first it began in the lap before.
    before_s = sessions.starts_s - np.concatenate(([0.0], sessions.ends_s))[:-1]
    seam_s = sessions.period_s[filled] - sessions.ends_s[last] + sessions.starts_s[first]
    before_s[first] = seam_s
    if len(filled):
        longest_s[filled] = np.maximum.reduceat(before_s, first)
    return longest_s


def pearson_correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float | None:
    """Pearson's correlation; None where one of the two does not vary."""
    if len(x) < 2 or x.min() == x.max() or y.min() == y.max():
        return None
    # Scaled first: speeds up to the largest float have squares beyond it.
    x, y = (values / np.abs(values).max() for values in (x, y))
    x, y = x - x.mean(), y - y.mean()
    return float(np.clip(x @ y / np.sqrt((x @ x) * (y @ y)), -1.0, 1.0))


def rank_correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float | None:
    """Spearman's: Pearson's of the ranks, equal values sharing their mean rank."""
    return pearson_correlation(mean_ranks(x), mean_ranks(y))


def mean_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 1, equal values sharing the mean of theirs; float64 of the same length."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: NDArray[np.float64] = (last - (counts - 1) / 2.0)[which]
    return ranks


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
