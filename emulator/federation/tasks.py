"""What becomes of a client's task, from its dispatch to its final record.

A structure makes tasks and says when their outcome is final; the simulation plane says when they
end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from emulator.federation.policy import Policy
from emulator.random_streams import purpose_key, uniform
from emulator.recording.recorder import Recorder
from emulator.simulation.clock import Clock, Rank
from emulator.simulation.conservation import Ledger
from emulator.simulation.devices import Devices, Work
from emulator.simulation.participation import Outcome, Participation, Terms
from emulator.simulation.participations import Participations
from emulator.simulation.population import Population


class Tasks:
    """See the module. ``states`` are the handles of what clients keep between their tasks."""

    population: Population
    participations: Participations

    def __init__(self, clock: Clock, policy: Policy, devices: Devices, recorder: Recorder) -> None:
        self.clock = clock
        self.ledger = Ledger()
        self.recorder = recorder
        self.states: dict[int, Any] = {}
        self.undecided: dict[int, Participation] = {}
        """Tasks of chains that have ended, and count or not with what becomes of the chain."""
        # Who hears that a client is free again, that an outcome is final, that the run is over.
        self.on_end: Callable[[Participation], None] = _nobody_asks
        self.on_closed: Callable[[Participation], None] = _nobody_asks
        self.on_finish: Callable[[], None] = lambda: None
        self._policy = policy
        self._devices = devices
        self._counts: dict[int, int] = {}
        self._failure = policy.task_failure
        self._failure_key = purpose_key(policy.root_seed, "task failure")
        self._failure_point_key = purpose_key(policy.root_seed, "task failure point")

    def make(
        self,
        client: int,
        version: int,
        update: Any,
        state: Any,
        work: Work | None,
        terms: Terms,
        plan: Any = None,
    ) -> Participation:
        """A task of ``client``, whose learning is that of the handles ``update`` and ``state``;
        without ``work`` it only hands on what it has. ``plan`` is the payload's."""
        number, training_s = self._counts.get(client, 0), 0.0
        if work is not None:
            self._counts[client] = number + 1
            training_s = self._devices.training_s(client, work, number)
        p = Participation(
            self.ledger.dispatched, client, version, self.population.samples[client], training_s,
            terms, update, state, self.clock.now,
        )  # fmt: skip
        p.plan = plan
        if self._failure and work is not None:
            self._maybe_fail(p, number)
        self.ledger.dispatched += 1
        return p

    def start(self, p: Participation) -> None:
        """Begin it now, or when its device is free."""
        self.recorder.dispatch(p, p.update.id)
        self.participations.start(p)

    def _maybe_fail(self, p: Participation, number: int) -> None:
        """Lost at a random point of its training: the device crashed, was reclaimed, gave up."""
        if uniform(self._failure_key, p.client, number) < self._failure:
            p.fails_at = uniform(self._failure_point_key, p.client, number)

    def ended(self, p: Participation) -> None:
        """The client is free again: uploaded (or trained), lost, or cancelled."""
        self.ledger.freed(p, self.clock.now)
        if p.outcome is None:
            self.recorder.upload(p)
            if p.chain is not None:
                self.undecided[p.task] = p
        else:
            self.close(p)
        if self.population.rest_s:
            self.population.rest(p.client)
        self.on_end(p)

    def lost(self, p: Participation) -> None:
        """A client is lost; who waits for it hears of it when the server would notice."""
        policy = self._policy
        if policy.drop_notice == "at_once":
            p.terms.on_loss(p)
        elif policy.drop_notice == "timeout":
            assert policy.drop_timeout_s is not None
            self.clock.at(
                self.clock.now + policy.drop_timeout_s,
                Rank.DEADLINE,
                p.client,
                lambda: p.terms.on_loss(p),
            )

    def close(self, p: Participation) -> None:
        """The outcome is final: write the record, let the handles go."""
        if p.outcome is not Outcome.REPORTED:
            if p.owner is not None:
                p.owner.unreported(p)
            self.recorder.end(self.clock.now, p)
        self.ledger.closed(p)
        self.recorder.update(p)
        p.update = p.state = p.state_before = None
        p.closed = True
        if p.chain is not None:
            self.undecided.pop(p.task, None)
        self.on_closed(p)

    def take_back(self, p: Participation) -> None:
        """It has counted, and does not after all: its client's own state goes back, unless it has
        advanced further with another cohort."""
        if p.state is None or self.states.get(p.client) is not p.state:
            return
        if p.state_before is None:
            del self.states[p.client]
        else:
            self.states[p.client] = p.state_before

    def leave_in_flight(self) -> None:
        """The run is over: the records of what has no outcome yet."""
        running = self.participations.running()
        for p in running:
            self.participations.account(p)
            self.participations.pay_sender(p)
        for p in (*running, *self.undecided.values()):
            p.outcome = Outcome.IN_FLIGHT
            self.ledger.outcomes[p.outcome] += 1
            self.recorder.update(p)
        self.on_finish()


def _nobody_asks(p: Participation) -> None:
    """Most structures know by themselves."""
