"""Every client trains alone, from the model of its cluster."""

from __future__ import annotations

from typing import Any

from emulator.federation.payload.full import Full
from emulator.federation.structure.clustered import Clustering, Models
from emulator.federation.structure.visits import Visits
from emulator.federation.tasks import Tasks
from emulator.simulation.participation import Outcome, Participation, Terms


class ClusteredStar:
    """See the module."""

    contributor = "client"

    def __init__(self, tasks: Tasks, clustering: Clustering) -> None:
        self.candidates = tasks.population
        self._tasks = tasks
        self._clustering = clustering
        self._visits = Visits()

    def unreported(self, p: Participation) -> None:
        """A task has ended in something else than a report."""
        self._visits.lost(p.client, p.version)

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

    def accept(self, p: Participation) -> None:
        """The upload counts."""
        p.outcome = Outcome.REPORTED

    def cancel(self, p: Participation, outcome: Outcome) -> None:
        """Tell the client to stop."""
        self._tasks.participations.cancel(p, outcome)

    def close(self, p: Participation) -> None:
        """The outcome is final."""
        self._tasks.close(p)
