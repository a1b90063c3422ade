"""The star: every client trains alone, from the server's model."""

from __future__ import annotations

from typing import Any

from emulator.federation.payload import Payload
from emulator.federation.selection import Candidates
from emulator.federation.structure.cohorts.tree import place
from emulator.federation.structure.visits import Visits
from emulator.federation.tasks import Tasks
from emulator.learning_interface import Learner
from emulator.simulation.participation import Outcome, Participation, Terms


class Star:
    """See the module."""

    contributor = "client"

    def __init__(
        self, tasks: Tasks, learner: Learner, payload: Payload,
        candidates: Candidates | None = None, cohort: str | None = None,
    ) -> None:  # fmt: skip
        self.candidates = tasks.population if candidates is None else candidates
        self._cohort = cohort
        self._tasks = tasks
        self._learner = learner
        self._payload = payload
        self._visits = Visits(queueing=tasks.population.queueing)
        # Cohorts count versions alike, and no two trainings of a client share a stream.
        self._place = () if cohort is None else place(cohort)

    def unreported(self, p: Participation) -> None:
        """A task has ended in something else than a report."""
        self._visits.lost(p.client, p.version)

    def dispatch(self, client: int, version: int, server: Any, terms: Terms) -> Participation:
        """A task of ``client``; it starts now, or when its device is free."""
        tasks, plan = self._tasks, self._payload.plan(client)
        visit, state = self._visits.visit(client, version), tasks.states.get(client)
        update, state = self._learner.train(
            server, state, client, (*visit, *self._place), plan.part
        )
        terms = plan.alone(client, terms)
        p = tasks.make(client, version, update, state, plan.work(client), terms, plan)
        p.owner = self
        p.cohort = self._cohort
        tasks.start(p)
        return p

    def accept(self, p: Participation) -> None:
        """The upload counts: the client's own state advances."""
        p.outcome = Outcome.REPORTED
        if p.state is not None:
            states = self._tasks.states
            p.state_before, states[p.client] = states.get(p.client), p.state

    def cancel(self, p: Participation, outcome: Outcome) -> None:
        """Tell the client to stop."""
        self._tasks.participations.cancel(p, outcome)

    def close(self, p: Participation) -> None:
        """The outcome is final."""
        self._tasks.close(p)
