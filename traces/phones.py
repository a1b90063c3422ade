"""Phones from published figures: FedScale's speeds, and availability like FLASH's phones.

Speeds are drawn from the two histograms of FedScale's capacity trace, which are independent of
each other. Availability follows the figures for 710 phones of the FLASH log (Yang et al. 2021:
locked, on Wi-Fi and charging; 14,139 sessions): quantiles of session and gap lengths, the spread
between phones, the hours at which sessions start, and how long they last by that hour.
"""

from __future__ import annotations

import csv
import math
from functools import lru_cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from traces.devices import COLUMNS, DeviceTable
from traces.errors import TraceError
from traces.renewal import Draw, Floats, Ints, alternate
from traces.sessions import Sessions
from traces.statistics import DAY_S, HOUR_S

MEAN_DUTY = 0.095

# Quantiles in seconds. The 6 % of sessions that have no length are taken out, so the published
# probabilities p became (p - .06) / .94; the shares below 1 min, 10 min and 1 h are knots as
# well. The knots at .999 are not published: they give the published means, 1,931 and 11,758 s.
_SESSION_P = np.array(
    [0.06, 0.1, 0.25, 0.417, 0.5, 0.675, 0.75, 0.889, 0.9, 0.95, 0.99, 0.999, 1.0]
)
_SESSION_P = (_SESSION_P - 0.06) / 0.94
_SESSION_LOG_S = np.log([1, 2, 10, 60, 138, 600, 1066, 3600, 4178, 10055, 30182, 40000, 200375])
_GAP_P = np.array([0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0])
_GAP_LOG_S = np.log([1, 1, 3, 41, 476, 6592, 39914, 66280, 145360, 175000, 467245])

# Share of the variance of the (normal score of the) logarithm that lies between clients, not
# between the sessions of one; published for sessions, used for gaps as well.
_BETWEEN = 0.23
# A client's own effects, in standard deviations, and where they are cut: beyond, it would have
# thousands of sessions or none. The quantiles are of all sessions together, and clients with
# short cycles have most of these: the means set the shift between sessions and clients right.
_EFFECT_LIMIT = 2.5
_LENGTH_EFFECT_MEAN = 0.35
_GAP_EFFECT_MEAN = 0.7
_BURN_IN_CYCLES = 10.0

# Share of phones online in each hour of the day, published.
ONLINE_BY_HOUR = np.array(
    [
        *(0.105, 0.116, 0.128, 0.135, 0.137, 0.135, 0.124, 0.111, 0.101, 0.090, 0.078, 0.069),
        *(0.069, 0.065, 0.067, 0.069, 0.076, 0.080, 0.090, 0.078, 0.070, 0.074, 0.086, 0.098),
    ]
)
# Speed by hour of two clocks: gaps pass on the first, sessions on the second (who plugs in at
# night leaves in the morning). Fitted once so that the shares above come out, starts peak at 18 h
# with 8.2 % and are rarest at 4 h with 1.3 %, and a session lasts 4,700 s on average when it
# starts at 0 or 1 h, 1,000 to 1,400 s from 9 to 19 h, and 4,200 s at 23 h, all published.
_START_SPEED = np.array(
    [
        *(0.69, 0.57, 0.51, 0.42, 0.38, 0.49, 0.69, 0.85, 0.91, 0.93, 0.93, 0.98),
        *(1.07, 1.07, 1.05, 1.14, 1.31, 1.60, 2.10, 1.53, 1.30, 1.30, 1.21, 0.95),
    ]
)
_END_SPEED = np.array(
    [
        *(0.32, 0.21, 0.16, 0.15, 0.15, 0.21, 0.38, 0.69, 1.00, 1.26, 1.47, 1.57),
        *(1.49, 1.51, 1.41, 1.33, 1.29, 1.43, 1.61, 1.90, 1.77, 1.27, 0.79, 0.49),
    ]
)


class _DayClock:
    """A clock whose speed depends on the hour, 1 on average over hours with these weights."""

    def __init__(self, speed: Floats, weights: Floats) -> None:
        speed = speed * (weights.sum() / (speed * weights).sum())
        self._hours = np.arange(25) * HOUR_S
        self._reading = np.concatenate(([0.0], np.cumsum(speed) * HOUR_S))

    def after(self, time_s: Floats, duration_s: Floats) -> Floats:
        """The time at which the clock has gone on by ``duration_s`` since ``time_s``."""
        days, rest = np.divmod(time_s, DAY_S)
        reading = np.interp(rest, self._hours, self._reading) + duration_s
        more_days, rest = np.divmod(reading, self._reading[-1])
        result: Floats = (days + more_days) * DAY_S + np.interp(rest, self._reading, self._hours)
        return result


_START_CLOCK = _DayClock(_START_SPEED, 1.0 - ONLINE_BY_HOUR)
_END_CLOCK = _DayClock(_END_SPEED, ONLINE_BY_HOUR)


def phone_devices(
    u_computation: NDArray[np.float64], u_communication: NDArray[np.float64]
) -> DeviceTable:
    """Devices by the inverse of FedScale's two histograms; uniforms in [0, 1), one a client."""
    return DeviceTable(
        *(
            values[np.searchsorted(cumulated[:-1], uniforms * cumulated[-1], side="right")]
            for (values, cumulated), uniforms in zip(
                _histograms(), (u_computation, u_communication), strict=True
            )
        )
    )


def phone_sessions(clients: int, days: int, draw: Draw, duty: float | None = None) -> Sessions:
    """Sessions of phones over whole days from midnight, one row a client.

    ``draw(name, n)`` gives one uniform in (0, 1) a client, float64 [clients], for the n-th draw of
    the named stream. ``duty`` is the expected mean duty cycle over clients (0.095 when None, as
    published): lengths are multiplied by a factor and gaps divided by it. The factor depends on
    ``duty`` alone, so that another client, or another day, changes nobody's sessions.

    Each client has effects of its own on its lengths and on its gaps; both pass on clocks that
    go by the hour of the day. A client begins 10 to 11 of its own mean cycles before time 0, so
    that time 0 is an instant like any other.
    """
    if clients < 1 or days < 1:
        raise TraceError(f"phones: {clients} clients for {days} days; both must be at least 1")
    factor = _factor(MEAN_DUTY if duty is None else duty)
    on_effect = _effect(draw("phones-length", 0), _LENGTH_EFFECT_MEAN)
    off_effect = _effect(draw("phones-gap", 0), _GAP_EFFECT_MEAN)
    grid, on_mean_s, off_mean_s = _means_by_effect()
    cycle_s = np.interp(on_effect, grid, on_mean_s) * factor
    cycle_s += np.interp(off_effect, grid, off_mean_s) / factor

    def end_of(n: int, active: Ints, start: Floats) -> Floats:
        z = _normal_score(draw("phones-session", n)[active])
        return _END_CLOCK.after(start, factor * _session_s(on_effect[active], z))

    def next_start(n: int, active: Ints, end: Floats) -> Floats:
        z = _normal_score(draw("phones-pause", n)[active])
        return _START_CLOCK.after(end, _gap_s(off_effect[active], z) / factor)

    start_s = -(_BURN_IN_CYCLES + draw("phones-phase", 0)) * cycle_s
    return alternate(start_s, days * DAY_S, end_of, next_start)


# SciPy is imported where it is used: its import takes longer than that of all the rest, and every
# command pays for what the package imports.
def _normal_cdf(z: Floats) -> Floats:
    from scipy.special import ndtr

    result: Floats = ndtr(z)
    return result


def _normal_score(u: Floats) -> Floats:
    from scipy.special import ndtri

    result: Floats = ndtri(u)
    return result


def _effect(uniforms: Floats, mean: float) -> Floats:
    result: Floats = mean + np.clip(_normal_score(uniforms), -_EFFECT_LIMIT, _EFFECT_LIMIT)
    return result


def _session_s(effect: Floats, z: Floats) -> Floats:
    """Seconds of a session of a client with this effect; ``z`` is the session's normal score."""
    u = _normal_cdf(math.sqrt(_BETWEEN) * effect + math.sqrt(1.0 - _BETWEEN) * z)
    return np.exp(np.interp(u, _SESSION_P, _SESSION_LOG_S))


def _gap_s(effect: Floats, z: Floats) -> Floats:
    """Seconds between two sessions, as :func:`_session_s`."""
    u = _normal_cdf(math.sqrt(_BETWEEN) * effect + math.sqrt(1.0 - _BETWEEN) * z)
    return np.exp(np.interp(u, _GAP_P, _GAP_LOG_S))


@lru_cache(maxsize=1)
def _histograms() -> tuple[tuple[Floats, Floats], ...]:
    """(values, cumulated counts) of computation and communication, from the packaged table."""
    text = files("traces").joinpath("phone_capacity.csv").read_text(encoding="utf-8")
    table = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in COLUMNS}
    for line in table:
        rows[line["column"]].append((float(line["value"]), float(line["count"])))
    pairs = (np.array(rows[name]).T for name in COLUMNS)
    return tuple((values, np.cumsum(counts)) for values, counts in pairs)


@lru_cache(maxsize=1)
def _means_by_effect() -> tuple[Floats, Floats, Floats]:
    """(client effects, mean session given that effect, mean gap given it), in seconds."""
    low = min(_LENGTH_EFFECT_MEAN, _GAP_EFFECT_MEAN) - _EFFECT_LIMIT
    high = max(_LENGTH_EFFECT_MEAN, _GAP_EFFECT_MEAN) + _EFFECT_LIMIT
    grid = np.linspace(low, high, 49)
    z = _normal_score((np.arange(4000) + 0.5) / 4000)
    on_s = _session_s(grid[:, None], z).mean(axis=1)
    return grid, on_s, _gap_s(grid[:, None], z).mean(axis=1)


@lru_cache(maxsize=64)
def _factor(duty: float) -> float:
    """The factor on lengths and 1 / gaps that makes the expected mean duty cycle ``duty``.

    A renewal process is online for the share E[on] / (E[on] + E[off]) of the time; the mean of
    this share over the two effects of a client, which are independent normals, has to be ``duty``.
    """
    if not 0.001 <= duty <= 0.95:
        raise TraceError(f"phones: duty is {duty}; it must lie between 0.001 and 0.95")
    grid, on_s, off_s = _means_by_effect()
    edges = np.concatenate(([-np.inf], (grid[1:] + grid[:-1]) / 2, [np.inf]))
    on_weights = np.diff(_normal_cdf(edges - _LENGTH_EFFECT_MEAN))
    off_weights = np.diff(_normal_cdf(edges - _GAP_EFFECT_MEAN))

    def excess(log_factor: float) -> float:
        square = math.exp(2 * log_factor)
        share = square * on_s[:, None] / (square * on_s[:, None] + off_s[None, :])
        return float(on_weights @ share @ off_weights) - duty

    from scipy.optimize import brentq

    return math.exp(brentq(excess, -10.0, 10.0))
