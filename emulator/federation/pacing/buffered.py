"""Buffered asynchronous aggregation: FedBuff (Nguyen et al., AISTATS 2022), on deltas.

``in_flight`` clients train at any time, each from the version that was newest when it was asked.
Every ``buffer`` uploads make a version, w ← w + η · Σ p_k s(τ_k) Δ_k / D. At an upload the server
adds it to the buffer, then aggregates if the buffer is full, then fills the free slot
(``refill: at_once``) or leaves it free until the next aggregation (``at_aggregation``, where the
slot of a lost client is filled at once all the same: nothing would ever come of it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from emulator.errors import ScenarioError
from emulator.federation.pacing import staleness_function
from emulator.federation.server import Server
from emulator.federation.structure import Contribution
from emulator.scenario.schema import Buffered
from emulator.simulation.clock import Call, Rank
from emulator.simulation.participation import Outcome, Participation


class BufferedPacing:
    """See the module."""

    def __init__(self, server: Server, section: Buffered, *, everyone: bool) -> None:
        self._server = server
        self._section = section
        self.discount = staleness_function(section.staleness)
        self._buffers: dict[str, list[Contribution]] = {}
        """What has come, by the part that it trains."""
        self._outstanding = 0
        self._since_s = 0.0
        self._aggregation: Call | None = None
        self._refill: Call | None = None
        self._check_in: object | None = None
        self._too_few = False
        self._everyone = everyone
        self._is_down = False
        self._known_from = 0
        """Tasks from this number on; of those before a failure the server knows nothing."""
        self._terms = server.terms(self._uploaded, self._lost)

    @property
    def waits_for(self) -> str:
        """What the server needs to go on."""
        if self._is_down:
            return "the restart of its process"
        return (
            f"{self._size - max(map(len, self._buffers.values()), default=0)} more uploads "
            f"for its buffer of "
            f"{self._size}, {self._outstanding} of {self._places} clients in flight"
        )

    @property
    def _size(self) -> int:
        """Of the buffer."""
        return self._server.share(self._section.buffer)

    @property
    def _places(self) -> int:
        """How many may be in flight."""
        return self._server.share(self._section.in_flight)

    def start(self) -> None:
        n, wanted = self._server.structure.candidates.clients, self._section.in_flight
        if wanted > n and not self._server.population.queueing:
            who = self._server.structure.contributor
            raise ScenarioError(
                f"federation.pacing.in_flight is {wanted}, more than the {n} {who}s there are"
            )
        self._since_s = self._server.clock.now
        self._ask_soon()

    def leftovers(self) -> list[Contribution]:
        """Contributions that no version has taken yet when the run ends."""
        return [p for buffer in self._buffers.values() for p in buffer]

    def model(self) -> Any:
        """The newest version."""
        return self._server.state

    def under_way(self) -> list[Participation]:
        """The clients' tasks that this server waits for."""
        running = self._server.tasks.participations.running()
        return [p for p in running if p.terms.on_upload == self._uploaded]

    def hand_over(self, heir: Callable[[Contribution], BufferedPacing]) -> None:
        """Others go on in place of this one: each contribution that is under way to it, or waits in
        a buffer, is now its heir's."""
        for p in self.under_way():
            to = heir(p)
            to._outstanding += 1
            p.terms = replace(p.terms, on_upload=to._uploaded, on_loss=to._lost)
        for name, buffer in self._buffers.items():
            for received in buffer:
                heir(received)._buffers.setdefault(name, []).append(received)
        self._buffers.clear()
        self._outstanding = 0

    def fail(self, under_way: Sequence[Contribution]) -> None:
        """The server has died: what waits for the next version is lost, and so is what is
        ``under_way``."""
        server, received = self._server, self.leftovers()
        self._is_down = True
        self._known_from = server.tasks.ledger.dispatched
        self._buffers.clear()
        self._outstanding = 0
        if self._aggregation is not None:
            server.clock.cancel(self._aggregation)
            self._aggregation = None
        for p in under_way:
            server.cancel(p, Outcome.SERVER_FAILED)
        # A client's last one first, so that its state goes back all the way.
        for p in sorted(received, key=lambda p: p.task, reverse=True):
            server.revoke(p, Outcome.SERVER_FAILED)

    def restart(self) -> None:
        """The server is back, at its last version."""
        self._is_down = False
        self._ask_soon()

    def _uploaded(self, p: Contribution) -> None:
        server, section = self._server, self._section
        self._outstanding -= 1
        limit, part, size = section.max_staleness, p.plan.part, self._size
        buffer = self._buffers.setdefault(part.name if part else "", [])
        # Uploads of one instant may wait for merges before theirs; those count.
        if limit is not None and (
            server.payload.age(p, server.version)[0] + len(buffer) // size > limit
        ):
            server.dismiss(p, Outcome.DISCARDED)
            self._ask_soon()
            return
        server.accept(p)
        buffer.append(p)
        if len(buffer) >= size and self._aggregation is None:
            self._aggregation = server.clock.soon(Rank.AGGREGATION, 0, self._aggregate)
        if section.refill == "at_once" or self._too_few:
            self._ask_soon()

    def _lost(self, p: Contribution) -> None:
        if p.task < self._known_from:
            return
        self._outstanding -= 1
        self._ask_soon()

    def _aggregate(self) -> None:
        self._aggregation = None
        server = self._server
        while (full := self._full()) is not None and not server.stopped:
            size = self._size
            taken = full[:size]
            del full[:size]
            server.merge(taken, self._since_s)
            self._since_s = server.clock.now
            if self._full() is not None:
                server.evaluate_if_due()  # before another version takes its place
        if self._section.refill == "at_aggregation":
            self._ask_soon()

    def _full(self) -> list[Contribution] | None:
        """A buffer that is full; of several the first by the name of its part."""
        size = self._size
        return next((b for _, b in sorted(self._buffers.items()) if len(b) >= size), None)

    def _ask_soon(self) -> None:
        if self._refill is None:
            self._refill = self._server.clock.soon(Rank.DISPATCH, 0, self._ask)

    def _ask(self) -> None:
        """Fill the free slots with clients, as far as there are any."""
        self._refill = None
        server = self._server
        if server.retired or self._is_down:
            return
        free = self._places - self._outstanding
        if self._section.refill == "at_aggregation":
            free -= len(self.leftovers())
        if free <= 0:
            return
        chosen = server.select(free)
        if self._section.refill == "at_aggregation" and self._everyone:
            # Who waits in the buffer keeps the slot until the aggregation.
            waiting = {p.client for p in self.leftovers()}
            chosen = [client for client in chosen if client not in waiting]
        self._outstanding += len(chosen)
        for client in sorted(chosen):
            server.dispatch(client, self._terms)
        self._too_few = len(chosen) < free
        if self._too_few and self._check_in is None:
            self._check_in = server.structure.candidates.at_next_check_in(self._checked_in)

    def _checked_in(self) -> None:
        self._check_in = None
        self._ask_soon()
