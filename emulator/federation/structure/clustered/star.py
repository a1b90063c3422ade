"""Every client trains alone, from the model of its cluster."""

from __future__ import annotations

from typing import Any

from emulator.federation.payload import Payload
from emulator.federation.payload.full import Full
from emulator.federation.structure.clustered import Clustering, Models
from emulator.federation.structure.star import Star
from emulator.federation.tasks import Tasks
from emulator.learning_interface import Learner
from emulator.simulation.participation import Participation, Terms


class ClusteredStar(Star):
    """See the module."""

    def __init__(
        self, tasks: Tasks, learner: Learner, payload: Payload, clustering: Clustering
    ) -> None:
        super().__init__(tasks, learner, payload)
        self._clustering = clustering

    def visit(self, client: int, version: int) -> tuple[int, int]:
        """The visit key of a task that begins now."""
        return self._visits.visit(client, version)

    def dispatch(self, client: int, version: int, server: Models, terms: Terms) -> Participation:
        """A task of ``client``, which starts now."""
        visit = self.visit(client, version)
        ask = self._clustering.ask(client, visit, server)
        p = self.task(client, version, ask.does, ask.plan, terms)
        p.visit, p.cohort = visit, ask.cohort
        self._tasks.start(p)
        return p

    def task(
        self, client: int, version: int, update: Any, plan: Full, terms: Terms
    ) -> Participation:
        """One that is not started yet."""
        terms = plan.alone(client, terms)
        p = self._tasks.make(client, version, update, None, plan.work(client), terms, plan)
        p.owner = self
        return p
