"""Who was online while a run went on: how many, at equal steps, and when some of those that took
part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from emulator.simulation.population import Availability

STEPS = 200
COUNTED_CLIENTS = 20_000  # a client and instant takes some 0.8 microseconds of host time
SHOWN_CLIENTS = 200
MOST_SESSIONS = 50_000


def online_rows(
    availability: Availability, clients: int, until_s: float
) -> list[tuple[float, int, int]]:
    """(instant, clients online then, of how many) at 201 instants from 0 to ``until_s``.

    All ``clients`` are counted, or, where there are more than 20,000, each second, third, ... one.
    """
    counted = np.arange(0, clients, math.ceil(clients / COUNTED_CLIENTS), dtype=np.int64)
    instants = np.linspace(0.0, until_s, STEPS + 1 if until_s > 0 else 1).tolist()
    return [(t, int(availability.online_mask(t, counted).sum()), len(counted)) for t in instants]


def session_rows(
    availability: Availability, took_part: Sequence[int], until_s: float
) -> list[tuple[int, float, float]]:
    """(client, start, end) of all sessions from 0 to ``until_s``, at which the last one is cut.

    They are those of at most 200 of the clients that ``took_part``, evenly spread; fewer where
    theirs are more than 50,000. A client is there with all of its sessions, or not at all.
    """
    every = max(1, math.ceil(len(took_part) / SHOWN_CLIENTS))
    found: list[tuple[int, float, float]] = []
    for client in took_part[::every]:
        sessions = _sessions(availability, client, until_s, MOST_SESSIONS - len(found))
        if sessions is None:
            break
        found += [(client, *session) for session in sessions]
    return found


def _sessions(
    availability: Availability, client: int, until_s: float, most: int
) -> list[tuple[float, float]] | None:
    """All sessions of one client, or None when they are more than ``most``."""
    found: list[tuple[float, float]] = []
    start_s = availability.next_online(client, 0.0)
    while start_s < until_s:
        if len(found) == most:
            return None
        end_s = availability.online_until(client, start_s)
        found.append((start_s, min(end_s, until_s)))
        if not end_s < until_s:
            break
        start_s = availability.next_online(client, math.nextafter(end_s, math.inf))
    return found
