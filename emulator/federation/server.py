"""The server: versions, dispatches, merges and evaluations, whatever the pacing.

It counts staleness itself, in versions from the download, and holds handles only; what they stand
for, the learning plane knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from simpy.events import Event

from emulator.errors import InternalError, PolicyStop
from emulator.federation.payload import Payload
from emulator.federation.personalization import Served, personalize
from emulator.federation.policy import Policy
from emulator.federation.selection import Selector
from emulator.federation.structure import Contribution, Structure, Trained, trained
from emulator.federation.tasks import Tasks
from emulator.learning_interface import Learner
from emulator.recording.recorder import Recorder
from emulator.simulation.clock import Clock, Rank, Timer
from emulator.simulation.network import Network
from emulator.simulation.participation import Outcome, Terms

Callback = Callable[[Any], None]


class Waits(Protocol):
    """Somebody who waits."""

    @property
    def waits_for(self) -> str:
        """For what, in words."""


class Pacing(Waits, Protocol):
    """What the server asks its pacing."""

    discount: Callable[[int], float]
    """s(τ)."""

    def start(self) -> None:
        """Begin at simulated time 0."""

    def leftovers(self) -> list[Any]:
        """Contributions that no version has taken yet when the run ends."""

    def model(self) -> Any:
        """The state that is evaluated: the newest version, or what stands for it."""


def client_then_task(p: Contribution) -> tuple[int, int]:
    """The canonical order of contributions: who, then that one's own repetition."""
    return p.client, p.task


class Server:
    """See the module."""

    entity = "server"
    cohort: str | None = None
    window_s = 0.0
    """How long clients may check in before a round asks them."""
    retired = False
    """Set when others have taken over its clients: it begins no new round."""
    pacing: Pacing
    structure: Structure
    waits: Waits
    """Who knows what the server needs to go on."""

    def __init__(
        self,
        clock: Clock,
        policy: Policy,
        network: Network,
        selector: Selector,
        payload: Payload,
        tasks: Tasks,
        learner: Learner,
        recorder: Recorder,
        on_evaluation: Callable[[Server, float | None], None],
    ) -> None:
        self.clock = clock
        self.version = 0
        self.stopped: str | None = None
        """Why the run is over, once it is."""
        self.tasks = tasks
        self.policy = policy
        self.population = tasks.population
        self._network = network
        self._selector = selector
        self.payload = payload
        self.learner = learner
        self.recorder = recorder
        self._on_evaluation = on_evaluation
        self._turn = 0
        self._waiting: Timer | None = None
        self._unsurfaced: list[tuple[str, list[Trained]]] = []
        self._surfaced: set[Trained] = set()
        self._evaluated: str | None = None
        self._evaluation_due = False
        self._above_target = 0
        self.state = learner.initial()

    def start(self, structure: Structure, pacing: Pacing) -> None:
        """Wire up the parts that need the server; :meth:`Pacing.start` then begins."""
        self.structure, self.pacing, self.waits = structure, pacing, pacing

    def begin_evaluations(self) -> None:
        """Evaluate at time 0, and every so many seconds if the scenario says so."""
        clock, every_s = self.clock, self.policy.evaluate_every_s
        clock.at(0.0, Rank.EVALUATION, action=self.evaluate)
        if every_s is not None:
            clock.at(every_s, Rank.EVALUATION, action=lambda: self._evaluate_at(1))

    # --- contributions ------------------------------------------------------------------------

    def log(self, event: str, **fields: Any) -> None:
        """Write an event of the server."""
        self.recorder.event(self.clock.now, event, self.entity, **fields)

    def share(self, n: int) -> int:
        """Of ``n`` clients at work what this server may have: all of them."""
        return n

    def before_round(self) -> Iterable[Any]:
        """What the next round waits for, as the events of a process: nothing."""
        return ()

    def select(self, n: int) -> Sequence[int]:
        """Up to ``n`` of those who may be asked now (all there are, with selection ``all``).

        Where tasks may queue at a client, each of the ``n`` is drawn for itself.
        """
        if self.population.queueing and n > 1:
            return [client for _ in range(n) for client in self.select(1)]
        found = self._selector.select(n, self._turn, self.structure.candidates)
        self._turn += bool(found)
        return found

    def contributors(self, chosen: Sequence[int], wanted: int) -> tuple[list[int], int]:
        """Who is asked in a round for which these have been chosen; and how many of them it waits
        for, to have ``wanted`` of those who may be chosen."""
        return sorted(chosen), wanted

    def somebody_comes(self) -> Event:
        """An event at the next check-in, or when one that was at work becomes free."""
        self._waiting = self.clock.idle_timer(Rank.CHECK_IN)
        self.structure.candidates.at_next_check_in(partial(self._come, self._waiting))
        return self._waiting

    def _come(self, waiting: Timer) -> None:
        if not waiting.triggered:
            self.clock.set(waiting, self.clock.now)

    def somebody_is_free(self) -> None:
        """One that was at work may be asked again."""
        if self._waiting is not None:
            self._come(self._waiting)

    def terms(self, on_upload: Callback, on_loss: Callback) -> Terms:
        """What the tasks of a pacing have in common."""
        return Terms(0, 0, on_upload, on_loss)  # the plan of each knows its sizes

    def dispatch(self, contributor: int, terms: Terms) -> Any:
        """Send the newest version to ``contributor``."""
        return self.structure.dispatch(contributor, self.version, self.state, terms)

    def accept(self, contribution: Contribution) -> None:
        """It counts: the clients' own states advance."""
        self.structure.accept(contribution)
        self.payload.accepted(contribution)

    def dismiss(self, contribution: Contribution, outcome: Outcome) -> None:
        """It came, and does not count."""
        contribution.outcome = outcome
        self.structure.close(contribution)

    def revoke(self, contribution: Any, outcome: Outcome) -> None:
        """A client's task had been accepted, and is lost before a version has taken it."""
        self.tasks.take_back(contribution)
        self.payload.revoked(contribution)
        self.dismiss(contribution, outcome)

    def cancel(self, contribution: Contribution, outcome: Outcome) -> None:
        """Tell those at work on it to stop."""
        self.structure.cancel(contribution, outcome)

    # --- versions -----------------------------------------------------------------------------

    def merge(self, taken: Sequence[Contribution], since_s: float) -> None:
        """Make the next version of accepted contributions."""
        ordered = sorted(taken, key=client_then_task)
        for p in ordered:
            self._count_staleness(p)
        state = self.state
        for layers, group in self.payload.groups(ordered):
            state = self._merged(state, group, layers)
        self.payload.merged(ordered, self.state, state)
        self.advance(state, ordered, since_s)

    def _count_staleness(self, p: Contribution) -> None:
        p.staleness, p.cross_staleness = self.payload.age(p, self.version)
        if p.staleness < 0:
            raise InternalError(f"task {p.task} of client {p.client} has negative staleness")

    def _merged(
        self, state: Any, group: Sequence[Contribution], layers: tuple[str, ...] | None
    ) -> Any:
        """What contributions that all train the same ``layers`` make of ``state``."""
        discount = self.pacing.discount
        discounts = [discount(p.staleness or 0) for p in group]
        by_samples = self.policy.weights == "samples"
        weights = [float(p.samples) if by_samples else 1.0 for p in group]
        if not any(weights):
            self.log("no_samples", version=self.version, tasks=[p.task for p in group])
        n = self._contributors
        updates = [p.update for p in group]
        clients = [p.client for p in group] if layers is not None else ()
        state = self.learner.aggregate(state, updates, weights, discounts, n, layers, clients)
        self.watch_finite(state, map(trained, group))
        return state

    @property
    def _contributors(self) -> int | None:
        """N of the methods that need it, where that is not all clients."""
        return self.structure.candidates.clients if self.policy.merged_by_superclients else None

    def aggregate(
        self, updates: Sequence[Any], weights: Sequence[float], discounts: Sequence[float]
    ) -> Any:
        """The state that these updates would make of the present one."""
        n = self._contributors
        return self.learner.aggregate(self.state, updates, weights, discounts, n)

    def watch_finite(self, state: Any, contributions: Iterable[Trained]) -> None:
        """Name who is not finite once ``state`` is computed."""
        if self.learner.learns:
            self._unsurfaced.append((state.id.partition(".")[0], list(contributions)))

    def advance(self, state: Any, ordered: Sequence[Contribution], since_s: float) -> None:
        """``state``, made of these contributions, is the next version."""
        self.state = state
        self.version += 1
        for p in ordered:
            self.structure.close(p)
        self.recorder.version(
            self.clock.now, self.version, ordered, since_s, state.id, self.entity, self.cohort
        )
        self.version_made()

    def version_made(self) -> None:
        """Evaluate it, or end the run, if it is time to."""
        policy = self.policy
        every = policy.evaluate_every_versions
        if every is not None and self.version % every == 0:
            self.evaluate_soon()
        if policy.stop_versions is not None and self.version >= policy.stop_versions:
            self.stop("versions")

    def evaluate_soon(self) -> None:
        """Evaluate at the end of this instant."""
        if not self._evaluation_due:
            self._evaluation_due = True
            self.clock.at(self.clock.now, Rank.EVALUATION, action=self.evaluate_if_due)

    def stop(self, reason: str) -> None:
        """End the run before the next event."""
        self.stopped = reason
        self.clock.halted = True

    def _evaluate_at(self, turn: int) -> None:
        self.evaluate()
        every_s = self.policy.evaluate_every_s
        assert every_s is not None
        if self.clock.peek() == math.inf:
            return  # nothing else is left to happen: measuring again and again would hide that
        self.clock.at(
            (turn + 1) * every_s, Rank.EVALUATION, action=lambda: self._evaluate_at(turn + 1)
        )

    def evaluate(self) -> None:
        """Measure the newest model now; stop when a target has been held long enough."""
        model = self.pacing.model()
        if self.stopped == "target" or (self._evaluated == model.id and self.stopped):
            return
        self._evaluated = model.id
        self._evaluation_due = False
        self.log("evaluate", version=self.version)
        accuracy = self._measure(model)
        if accuracy is not None:
            self.stop_at_target(accuracy)
        self.check()
        self._on_evaluation(self, accuracy)

    def _measure(self, model: Any) -> float | None:
        """Write what the model is worth; returns its accuracy, None where nothing is learned."""
        values = self.learner.evaluate(model)
        if values is None:
            return None
        for metric in ("accuracy", "loss"):
            self.recorder.metric(
                self.clock.now, self.version, "global", "test", metric, values[metric], values["n"]
            )
        if self.policy.evaluate_clients == "always":
            self._evaluate_clients(model)
        self.surface_nonfinite()
        accuracy: float = values["accuracy"]
        return accuracy

    def stop_at_target(self, accuracy: float) -> None:
        """End the run where that has been good enough for long enough."""
        policy = self.policy
        if policy.target_value is None:
            return
        self._above_target = self._above_target + 1 if accuracy >= policy.target_value else 0
        if self._above_target >= policy.target_sustain:
            self.stop("target")

    def _evaluate_clients(self, model: Any) -> None:
        """Measure a model on each client's own test samples."""
        for client, accuracy, loss, n in self.learner.evaluate_clients(model, self.tasks.states):
            self.recorder.client_metrics(self.clock.now, self.version, client, accuracy, loss, n)

    def evaluate_if_due(self) -> None:
        """Measure now what would be measured at the end of this instant."""
        if self._evaluation_due:
            self.evaluate()

    def surface_nonfinite(self) -> None:
        """Name the updates that turned out not to be finite, now that they are known."""
        for operation_id, contributions in self._unsurfaced:
            for position in self.learner.values(operation_id)["nonfinite"]:
                self.name_nonfinite(contributions[position])
        self._unsurfaced.clear()

    def name_nonfinite(self, found: Trained) -> None:
        """An update has turned out not to be finite."""
        if found in self._surfaced:
            return
        self._surfaced.add(found)
        who = self.structure.contributor
        self.recorder.event(
            self.clock.now, "nonfinite", f"{who}/{found.number}", version=found.version,
            dispatched_s=found.dispatched_s,
        )  # fmt: skip
        if self.policy.on_nonfinite == "stop":
            raise PolicyStop(
                f"the update of {who} {found.number}, trained from version {found.version} and "
                f"dispatched at simulated time {found.dispatched_s!r} s, is not finite, and "
                "federation.on_nonfinite is 'stop' (allowed: drop, stop); a smaller "
                f"{found.rate} helps"
            )

    # --- the end ------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert the laws of conservation."""
        check_books(self.tasks, self._network, self.received())

    def received(self) -> list[Contribution]:
        """Contributions that have come, and that no version has taken yet."""
        return [c for c in self.pacing.leftovers() if not c.closed]

    def finish(self) -> None:
        """Close the books at the present instant: the last model is always evaluated."""
        model = self.pacing.model()
        if self._evaluated != model.id:
            stopped, self.stopped = self.stopped, None
            self.evaluate()
            self.stopped = self.stopped or stopped
        if self.policy.evaluate_clients == "at_end":
            self._evaluate_clients(model)
        if self.policy.personalizes:
            personalize(self.tasks, self.learner, self.version, self.served(), self.entity)
        self.check()
        self.close_received()
        self.tasks.leave_in_flight()
        self.log("stop", reason=self.stopped or "sim_time", version=self.version)

    def served(self) -> list[Served]:
        """The models that the run ends with, and who is given which."""
        return [Served(self.cohort, self.version, self.pacing.model())]

    def close_received(self) -> None:
        """What has come is reported, though no version will be made of it."""
        for c in self.received():
            c.outcome = Outcome.REPORTED
            self._count_staleness(c)
            self.structure.close(c)

    def models(self) -> dict[str | None, Any]:
        """The states that the run ends with, by cohort."""
        return {self.cohort: self.pacing.model()}


def check_books(tasks: Tasks, network: Network, received: Sequence[Contribution]) -> None:
    """Assert the laws of conservation; ``received`` have come, and no version has taken them."""
    participations = tasks.participations
    running = participations.running()
    for p in running:
        if network.shared and not math.isnan(p.begun_s):
            participations.account(p)
    records = (record for c in received for record in c.records)
    still = {p.task: p for p in (*running, *tasks.undecided.values(), *records)}
    tasks.ledger.check(tasks.clock.now, network, still.values(), pauses=participations.pauses)
