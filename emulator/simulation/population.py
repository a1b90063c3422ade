"""The clients: when they are online, who is at work, who may be asked.

Array-backed, without a process for an idle client. Somebody who waits for clients gets one timer
at the next start of a session.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from emulator.simulation import availability as of_clients
from emulator.simulation.clock import Call, Clock, Rank


class Availability(of_clients.Availability, Protocol):
    """What a population asks beyond what a participation does."""

    def online_mask(
        self, t_s: float, clients: NDArray[np.int64] | None = None
    ) -> NDArray[np.bool_]:
        """Who is online at ``t_s``, of all or of the given clients."""

    def next_online_many(
        self, t_s: float, clients: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """:meth:`next_online` of all or of the given clients."""


class Population:
    """``samples`` [clients]; ``eligible`` [clients] says who may ever be asked.

    A client may be asked when it is eligible, will be online beyond now, and is not at work
    (unless ``queueing``, where online or not, at work or not, everyone may be asked whose policy
    lets the task wait). After a task it rests for ``rest_s``, or until its next session.
    """

    few = False

    def __init__(
        self,
        clock: Clock,
        availability: Availability,
        samples: NDArray[np.int64],
        eligible: NDArray[np.bool_],
        at_work: Mapping[int, object],
        *,
        queueing: bool,
        rest_s: float = 0.0,
    ) -> None:
        self._clock = clock
        self.availability = availability
        self.samples = samples.tolist()
        self.clients = len(self.samples)
        self._eligible = eligible
        self._at_work = at_work
        self.queueing = queueing
        self.rest_s = rest_s
        # Who rests: until the end of this session, or this instant, at which a call ends it.
        self._resting: dict[int, tuple[float, float, Call]] = {}
        self._listeners: list[Callable[[], None]] = []
        self.available = self._availability_test()
        """Whether a client may be asked now."""
        self._next_starts: list[tuple[float, int, bool]] | None = None

    def _availability_test(self) -> Callable[[int], bool]:
        """The test behind :attr:`available`, made once: it is asked several times a task."""
        clock, at_work, eligible = self._clock, self._at_work, self._eligible
        online_until = self.availability.online_until
        everyone, queueing = bool(eligible.all()), self.queueing

        def available(client: int) -> bool:
            if client in at_work and not queueing:
                return False
            now = clock.now
            return online_until(client, now) > now and (everyone or bool(eligible[client]))

        if not self.rest_s:
            return available
        return lambda client: available(client) and not self._rests(client)

    def _rests(self, client: int) -> bool:
        """Whether it does, and in the session in which it began to. Rests of one instant end
        together, whosever call comes first."""
        resting = self._resting.get(client)
        if resting is None or self._clock.now >= resting[1]:
            return False
        return self.online_until(client) <= resting[0]

    def rest(self, client: int) -> None:
        """The client has ended a task, and rests from now on if it is online."""
        until_s = self.online_until(client)
        if until_s == -math.inf:
            return
        if client in self._resting:
            self._clock.cancel(self._resting[client][2])
        rested_s = self._clock.now + self.rest_s
        call = self._clock.at(rested_s, Rank.CHECK_IN, client, partial(self._rested, client))
        self._resting[client] = until_s, rested_s, call

    def _rested(self, client: int) -> None:
        del self._resting[client]
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()

    def online_until(self, client: int) -> float:
        """The end of the session that the client is in now; −inf when it is offline."""
        return self.availability.online_until(client, self._clock.now)

    def all_available(self) -> NDArray[np.int64]:
        """All clients that may be asked now, ascending."""
        now = self._clock.now
        mask = self.availability.online_mask(now) & self._eligible
        # Sessions are closed: one that ends now is online now, and offline the next instant.
        mask &= self.availability.online_mask(math.nextafter(now, math.inf))
        if not self.queueing:
            mask[list(self._at_work)] = False
        mask[list(filter(self._rests, self._resting))] = False
        return np.flatnonzero(mask)

    def watch_check_ins(self, action: Callable[[int], None]) -> None:
        """Call ``action(client)`` at the start of every session of an eligible client from now on,
        and now for those that are online; at one instant in the order of their numbers."""
        now = self._clock.now
        for client in self.all_available().tolist():
            self._clock.at(now, Rank.CHECK_IN, client, partial(action, client))
        self._watch(self._entries(now), action)

    def _watch(self, heap: list[tuple[float, int, bool]], action: Callable[[int], None]) -> None:
        while heap and not heap[0][2]:
            until_s, client, _ = heappop(heap)
            self._push_next(heap, client, until_s)
        if heap:
            start_s, client, _ = heap[0]
            starts = partial(self._session_starts, heap, action)
            self._clock.at(start_s, Rank.CHECK_IN, client, starts)

    def _session_starts(
        self, heap: list[tuple[float, int, bool]], action: Callable[[int], None]
    ) -> None:
        start_s, client, _ = heappop(heap)
        self._push_next(heap, client, self.availability.online_until(client, start_s))
        self._watch(heap, action)
        action(client)

    def _push_next(self, heap: list[tuple[float, int, bool]], client: int, until_s: float) -> None:
        """The start of the session after the one that ends at ``until_s``, if there is one."""
        if until_s < math.inf:
            later_s = math.nextafter(until_s, math.inf)
            start_s = self.availability.next_online(client, later_s)
            if start_s < math.inf:
                heappush(heap, (start_s, client, True))

    def at_next_check_in(self, action: Callable[[], None]) -> object:
        """Call ``action`` once, when the next session of any eligible client starts, or when one
        has rested; None if neither will ever be."""
        if not self.rest_s:
            return self._at_next_session(action)
        waiting = [action]

        def heard() -> None:
            while waiting:
                waiting.pop()()

        self._listeners.append(heard)
        self._at_next_session(heard)
        return heard

    def _at_next_session(self, action: Callable[[], None]) -> Call | None:
        """Call ``action`` when the next session of any eligible client starts, None if never.

        One heap with an entry a client; it is built when somebody first waits. An entry is the
        start of a session, or the end of the one that the client was in, after which its next
        start is looked up.
        """
        now = self._clock.now
        heap = self._next_starts
        if heap is None:
            heap = self._next_starts = self._entries(now)
        while heap and (heap[0][0] <= now or not heap[0][2]):
            _, client, _ = heappop(heap)
            until_s = self.availability.online_until(client, now)
            self._push_next(heap, client, max(until_s, now))
        if not heap:
            return None
        return self._clock.at(heap[0][0], Rank.CHECK_IN, heap[0][1], action)

    def _entries(self, now: float) -> list[tuple[float, int, bool]]:
        starts = self.availability.next_online_many(now)
        clients = np.flatnonzero(np.isfinite(starts) & self._eligible).tolist()
        entries = []
        for client in clients:
            start_s, begins = float(starts[client]), True
            if start_s <= now:
                start_s, begins = self.availability.online_until(client, now), False
            if start_s < math.inf:
                entries.append((start_s, client, begins))
        heapify(entries)
        return entries
