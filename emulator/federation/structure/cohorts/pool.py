"""The clients that have checked in to a cohort and wait to be asked."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from emulator.simulation.population import Population


class Pool:
    """The candidates of a cohort's selection. Who goes offline is no candidate any more, and
    checks in again when it is back."""

    def __init__(self, population: Population) -> None:
        self.waiting: dict[int, float] = {}
        """Until when each of them is here: the end of the session in which it has checked in."""
        self._population = population
        self._listeners: list[Callable[[], None]] = []

    @property
    def few(self) -> bool:
        """Whether a pass over those who wait costs less than drawing among all clients."""
        return 16 * len(self.waiting) <= self.clients

    @property
    def clients(self) -> int:
        """How many clients there are in all: numbers are drawn below it."""
        return self._population.clients

    def available(self, client: int) -> bool:
        """Whether the client may be asked now."""
        until_s = self.waiting.get(client)
        if until_s is None or not self._population.available(client):
            return False
        # In a later session it is a candidate only once it has checked in again.
        return until_s >= self._population.online_until(client)

    def all_available(self) -> NDArray[np.int64]:
        """All that may be asked now, ascending; whose session is over is forgotten."""
        population = self._population
        self.waiting = {
            client: until_s
            for client, until_s in sorted(self.waiting.items())
            if -math.inf < population.online_until(client) <= until_s
        }
        found = [client for client in self.waiting if population.available(client)]
        return np.array(found, dtype=np.int64)

    def enter(self, client: int) -> None:
        """The client has checked in."""
        self.waiting[client] = self._population.online_until(client)
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()

    def leave(self, client: int) -> None:
        """The client is asked, or goes elsewhere; no effect if it is not here."""
        self.waiting.pop(client, None)

    def at_next_check_in(self, action: Callable[[], None]) -> None:
        """Call ``action`` once, when the next client checks in."""
        self._listeners.append(action)
