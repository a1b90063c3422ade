"""When clients are online, one of them or several at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol


class Availability(Protocol):
    """When clients are online; sessions are closed intervals (see the ``traces`` package)."""

    def online_until(self, client: int, t_s: float) -> float:
        """End of the session that contains ``t_s``; −inf when offline."""

    def stays_until(self, client: int, t_s: float, end_s: float) -> float:
        """How long a task that begins at ``t_s`` has the client; the task would end at ``end_s``,
        and is lost before that if this comes first."""

    def next_online(self, client: int, t_s: float) -> float:
        """``t_s`` when online, else the start of the next session; inf when there is none."""

    def online_seconds(self, client: int, t0_s: float, t1_s: float) -> float:
        """Seconds online in [t0_s, t1_s]."""


def together_from(
    availability: Availability, clients: Sequence[int], t_s: float, limit_s: float
) -> float:
    """The first instant from ``t_s`` on at which all ``clients`` are online, and stay so beyond
    it; inf when there is none up to ``limit_s``, which must be finite: sessions of a trace that
    goes round may never meet."""
    while t_s <= limit_s:
        at_s = t_s
        for client in clients:
            if not availability.online_until(client, t_s) > t_s:
                t_s = availability.next_online(client, math.nextafter(t_s, math.inf))
        if t_s == at_s:
            return t_s
    return math.inf


def work_together(
    availability: Availability,
    clients: Sequence[int],
    from_s: float,
    work_s: float,
    limit_s: float = math.inf,
) -> tuple[float, float]:
    """(when ``work_s`` seconds are done that pass while all ``clients`` are online, or
    ``limit_s`` if that comes first; the seconds left then)."""
    now_s, left_s = from_s, work_s
    while now_s < limit_s:
        until_s = min(availability.online_until(client, now_s) for client in clients)
        if until_s >= now_s + left_s:
            done_s = now_s + left_s
            return (done_s, 0.0) if done_s <= limit_s else (limit_s, done_s - limit_s)
        if until_s > now_s:
            left_s -= min(until_s, limit_s) - now_s
        if until_s >= now_s:
            now_s = math.nextafter(until_s, math.inf)
        back_s = now_s
        for client in clients:
            back_s = max(back_s, availability.next_online(client, now_s))
        now_s = back_s
    return limit_s, left_s
