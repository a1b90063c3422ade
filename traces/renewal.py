"""Sessions made by alternating on- and off-times, all clients side by side."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from traces.errors import TraceError
from traces.sessions import Sessions, offsets_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Draw = Callable[[str, int], Floats]
"""``draw(name, n)``: the n-th uniform of the named stream for each client, float64 [clients]."""

BURN_IN_CYCLES = 20.0


def renewal_sessions(
    clients: int,
    horizon_s: float,
    draw: Draw,
    on_ppf: Callable[[Floats], Floats],
    off_ppf: Callable[[Floats], Floats],
    on_mean_s: float,
    off_mean_s: float,
) -> Sessions:
    """An alternating renewal process per client, in its steady state at time 0.

    ``on_ppf`` and ``off_ppf`` are inverse distribution functions in seconds (finite, > 0) with
    the means ``on_mean_s`` and ``off_mean_s``. Each client starts 20 to 21 mean cycles before
    time 0 (the fraction is drawn), so that at time 0 it is online with probability
    E[on] / (E[on] + E[off]) and what is left of a session follows the equilibrium law, up to what
    20 cycles leave of the start. What lies before 0 or beyond ``horizon_s`` is cut off.
    """
    for name, value in (
        ("clients", clients),
        ("horizon_s", horizon_s),
        ("on_mean_s", on_mean_s),
        ("off_mean_s", off_mean_s),
    ):
        if not 0 < value < np.inf:
            raise TraceError(f"renewal sessions: {name} is {value}; it must be finite and > 0")
    cycle_s = on_mean_s + off_mean_s

    def times(name: str, ppf: Callable[[Floats], Floats], n: int, active: Ints) -> Floats:
        values = np.asarray(ppf(draw(name, n)[active]), dtype=np.float64)
        if not ((values > 0) & (values < np.inf)).all():
            raise TraceError(f"renewal sessions: an {name[8:]}-time is not finite and > 0")
        return values

    return alternate(
        start_s=-(BURN_IN_CYCLES + draw("renewal-phase", 0)) * cycle_s,
        horizon_s=horizon_s,
        end_of=lambda n, active, start: start + times("renewal-on", on_ppf, n, active),
        next_start=lambda n, active, end: end + times("renewal-off", off_ppf, n, active),
    )


def alternate(
    start_s: Floats,
    horizon_s: float,
    end_of: Callable[[int, Ints, Floats], Floats],
    next_start: Callable[[int, Ints, Floats], Floats],
) -> Sessions:
    """Sessions in [0, ``horizon_s``] of clients whose first session starts at ``start_s`` (< 0).

    ``end_of(n, active, start)`` gives the end of the n-th session of the clients ``active``, and
    ``next_start(n, active, end)`` the start of the one after it. Step n serves all clients that
    are still short of the horizon.
    """
    clients = len(start_s)
    counts = np.zeros(clients, np.int64)
    steps: list[tuple[NDArray[np.int32], Floats, Floats]] = []
    active = np.flatnonzero(start_s < horizon_s)
    start = start_s[active]
    n = 0
    while len(active):
        end = end_of(n, active, start)
        seen = end > 0
        who = active[seen]
        counts[who] += 1
        steps.append(
            (
                who.astype(np.int32),
                np.maximum(start[seen], 0.0),
                np.minimum(end[seen], horizon_s),
            )
        )
        start = next_start(n, active, end)
        alive = start < horizon_s
        active, start = active[alive], start[alive]
        n += 1

    offsets = offsets_of(counts)
    starts_s, ends_s = np.empty(offsets[-1]), np.empty(offsets[-1])
    cursor = offsets[:-1].copy()
    steps.reverse()
    while steps:  # popped as they are placed: both copies at once would double the memory
        step_clients, step_starts, step_ends = steps.pop()
        at = cursor[step_clients]
        starts_s[at] = step_starts
        ends_s[at] = step_ends
        cursor[step_clients] += 1
    return Sessions(starts_s, ends_s, offsets, np.full(clients, float(horizon_s)))
