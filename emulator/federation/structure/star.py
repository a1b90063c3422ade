"""The star: every client trains alone, from the server's model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from emulator.federation.structure.visits import Visits
from emulator.federation.tasks import Tasks
from emulator.learning_interface import Learner
from emulator.simulation.devices import Work
from emulator.simulation.participation import Outcome, Participation, Terms


class Star:
    """See the module. ``work(client)`` is what one task computes."""

    contributor = "client"

    def __init__(self, tasks: Tasks, learner: Learner, work: Callable[[int], Work]) -> None:
        self.candidates = tasks.population
        self._tasks = tasks
        self._learner = learner
        self._work = work
        self._visits = Visits(queueing=tasks.population.queueing)
        tasks.on_unreported = self._unreported

    def _unreported(self, p: Participation) -> None:
        self._visits.lost(p.client, p.version)

    def dispatch(self, client: int, version: int, server: Any, terms: Terms) -> Participation:
        """A task of ``client``; it starts now, or when its device is free."""
        tasks, visit = self._tasks, self._visits.visit(client, version)
        update, state = self._learner.train(server, tasks.states.get(client), client, visit)
        p = tasks.make(client, version, update, state, self._work(client), terms)
        tasks.start(p)
        return p

    def accept(self, p: Participation) -> None:
        """The upload counts: the client's own state advances."""
        p.outcome = Outcome.REPORTED
        if p.state is not None:
            self._tasks.states[p.client] = p.state

    def cancel(self, p: Participation, outcome: Outcome) -> None:
        """Tell the client to stop."""
        self._tasks.participations.cancel(p, outcome)

    def close(self, p: Participation) -> None:
        """The outcome is final."""
        self._tasks.close(p)
