"""The pre-pass of Divide-and-Conquer: a round before the first, in which the whole model is trained
and from which the divergence of each layer is taken. Its time and bytes are those of any round."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from simpy.events import Event

from emulator.errors import ScenarioError
from emulator.federation.pacing.synchronous import SynchronousPacing
from emulator.federation.payload.divide_and_conquer import DivideAndConquer
from emulator.federation.server import Server, client_then_task
from emulator.federation.structure import Contribution, trained
from emulator.scenario import schema


class PrePass(SynchronousPacing):
    """The pacing until the split is known; ``over()`` hears when it is."""

    def __init__(
        self, server: Server, section: schema.PrePass, payload: DivideAndConquer,
        over: Callable[[], None],
    ) -> None:  # fmt: skip
        self._clients = section.participants
        # Of one alone no divergence is known: such a round fails, and there is another.
        self._least = 2 if payload.section.by_value else 1
        one_round = schema.Synchronous(
            kind="synchronous",
            participants=section.participants or self._least,
            min_updates=self._least,
            deadline=section.deadline,
            too_few=section.too_few,
        )
        super().__init__(server, one_round, everyone=False)
        self._payload = payload
        self._counts = section.counts
        self._over = over
        self._says = {"phase": "prepass"}

    def start(self) -> None:
        self._process = self._server.clock.process(self._rounds())

    def _rounds(self) -> Generator[Event, Any, None]:
        """One round, or another where it has failed."""
        server = self._server
        n = server.structure.candidates.clients
        wanted, _ = self._size()
        if wanted > n:
            who = server.structure.contributor
            raise ScenarioError(
                f"federation.payload.prepass.participants is {wanted}, more than the {n} {who}s "
                "there are"
            )
        if wanted < self._least:
            raise ScenarioError(
                f"federation.payload.split: '{self._payload.section.split.kind}' goes by how far "
                f"two {server.structure.contributor}s or more diverge, and there is {n}"
            )
        while self._payload.prepass:
            yield from self._until_over(0)
        if not server.stopped:
            self._over()

    def _size(self) -> tuple[int, int]:
        n = self._server.structure.candidates.clients
        wanted = n if self._clients is None else self._clients
        return wanted, wanted

    def _take(self, taken: list[Contribution], started_s: float) -> None:
        server, payload, before = self._server, self._payload, self._server.state
        for c in payload.measure(sorted(taken, key=client_then_task), before):
            server.name_nonfinite(trained(c))
        if self._counts:
            server.merge(taken, started_s)
            return
        for contribution in taken:
            contribution.staleness = 0
            server.structure.close(contribution)
