"""The server: versions, dispatches, merges and evaluations, whatever the pacing.

It counts staleness itself, in versions from the download, and holds handles only; what they stand
for, the learning plane knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from simpy.events import Event

from emulator.errors import InternalError, PolicyStop
from emulator.federation.payload.full import Sizes
from emulator.federation.selection import Selector
from emulator.federation.structure.star import Star
from emulator.learning_interface import Handle, Learner
from emulator.random_streams import purpose_key, uniform
from emulator.recording.recorder import Recorder
from emulator.simulation.clock import Clock, Rank, Timer
from emulator.simulation.conservation import Ledger
from emulator.simulation.devices import Devices, Work
from emulator.simulation.network import Network
from emulator.simulation.participations import Outcome, Participation, Participations, Terms
from emulator.simulation.population import Population

Callback = Callable[[Participation], None]


class Pacing(Protocol):
    """What the server asks its pacing."""

    waits_for: Any
    discount: Callable[[int], float]
    """s(τ)."""

    def start(self) -> None:
        """Begin at simulated time 0."""

    def leftovers(self) -> list[Participation]:
        """Uploads that no version has taken yet when the run ends."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The scenario's choices that the server itself follows. Times in simulated seconds."""

    root_seed: int
    weights: str
    drop_notice: str
    drop_timeout_s: float | None
    task_failure: float
    on_nonfinite: str
    stop_versions: int | None
    target_value: float | None
    target_sustain: int
    evaluate_every_versions: int | None
    evaluate_every_s: float | None
    evaluate_clients: str


def _client_then_task(p: Participation) -> tuple[int, int]:
    """The canonical order of contributions: client, then the client's own repetition."""
    return p.client, p.task


class Server:
    """See the module. ``work(client)`` is what one task computes."""

    pacing: Pacing
    participations: Participations

    def __init__(
        self,
        clock: Clock,
        policy: Policy,
        network: Network,
        devices: Devices,
        selector: Selector,
        sizes: Sizes,
        work: Callable[[int], Work],
        star: Star,
        learner: Learner,
        recorder: Recorder,
        on_evaluation: Callable[[Server, float | None], None],
    ) -> None:
        self.clock = clock
        self.version = 0
        self.stopped: str | None = None
        """Why the run is over, once it is."""
        self.ledger = Ledger()
        self.population: Population
        self._policy = policy
        self._network = network
        self._devices = devices
        self._selector = selector
        self._sizes = sizes
        self._work = work
        self._star = star
        self.learner = learner
        self.recorder = recorder
        self._on_evaluation = on_evaluation
        self._states: dict[int, Handle] = {}
        self._task_counts: dict[int, int] = {}
        self._turn = 0
        self._waiting: Timer | None = None
        self._unsurfaced: list[tuple[str, list[tuple[int, int, float]]]] = []
        self._evaluated_version: int | None = None
        self._evaluation_due = False
        self._above_target = 0
        self._task_failure = policy.task_failure
        self._failure_key = purpose_key(policy.root_seed, "task failure")
        self._failure_point_key = purpose_key(policy.root_seed, "task failure point")
        self.state = learner.initial()

    def start(self, pacing: Pacing, population: Population, participations: Participations) -> None:
        """Wire up the parts that need the server, and begin."""
        self.pacing, self.population, self.participations = pacing, population, participations
        clock, every_s = self.clock, self._policy.evaluate_every_s
        clock.at(0.0, Rank.EVALUATION, action=self.evaluate)
        if every_s is not None:
            clock.at(every_s, Rank.EVALUATION, action=lambda: self._evaluate_at(1))
        pacing.start()

    # --- clients ------------------------------------------------------------------------------

    def log(self, event: str, **fields: Any) -> None:
        """Write an event of the server."""
        self.recorder.event(self.clock.now, event, "server", **fields)

    def select(self, n: int) -> list[int]:
        """Up to ``n`` clients (all there are, with selection ``all``) that may be asked now.

        Where tasks may queue at a client, each of the ``n`` is drawn for itself.
        """
        population, chosen = self.population, list[int]()
        for size in [1] * n if population.queueing else (n,):
            found = self._selector.select(size, self._turn, population)
            self._turn += bool(found)
            chosen.extend(found)
        return chosen

    def somebody_comes(self) -> Event:
        """An event at the next check-in, or when a client at work becomes free."""
        self._waiting = waiting = self.clock.idle_timer(Rank.CHECK_IN)

        def come() -> None:
            if not waiting.triggered:
                self.clock.set(waiting, self.clock.now)

        self.population.at_next_check_in(come)
        return waiting

    def terms(self, on_upload: Callback, on_loss: Callback) -> Terms:
        """What the tasks of a pacing have in common."""
        return Terms(self._sizes.down_bytes, self._sizes.up_bytes, on_upload, on_loss)

    def dispatch(self, client: int, terms: Terms) -> Participation:
        """Send the newest version to ``client``; it starts now, or when its device is free."""
        number = self._task_counts.get(client, 0)
        self._task_counts[client] = number + 1
        version = self.version
        visit = self._star.visit(client, version)
        update, state = self.learner.train(self.state, self._states.get(client), client, visit)
        training_s = self._devices.training_s(client, self._work(client), number)
        p = Participation(
            self.ledger.dispatched, client, version, self.population.samples[client], training_s,
            terms, update, state, self.clock.now,
        )  # fmt: skip
        if self._task_failure:
            self._maybe_fail(p, number)
        self.ledger.dispatched += 1
        self.recorder.dispatch(p, update.id)
        self.participations.start(p)
        return p

    def _maybe_fail(self, p: Participation, number: int) -> None:
        """Lost at a random point of its training: the device crashed, was reclaimed, gave up."""
        if uniform(self._failure_key, p.client, number) < self._task_failure:
            p.fails_at = uniform(self._failure_point_key, p.client, number)

    def ended(self, p: Participation) -> None:
        """The client is free again: uploaded, lost, or cancelled."""
        now = self.clock.now
        self.ledger.freed(p, now)
        if p.outcome is None:
            self.recorder.upload(p)
        else:
            self._close(p)
        if self._waiting is not None and not self._waiting.triggered:
            self.clock.set(self._waiting, now)

    def lost(self, p: Participation) -> None:
        """A client is lost; the pacing hears of it when the server would notice."""
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

    def accept(self, p: Participation) -> None:
        """The upload counts: the client's own state advances."""
        p.outcome = Outcome.REPORTED
        if p.state is not None:
            self._states[p.client] = p.state

    def dismiss(self, p: Participation, outcome: Outcome) -> None:
        """The upload came, and does not count."""
        p.outcome = outcome
        self._close(p)

    def cancel(self, p: Participation, outcome: Outcome) -> None:
        """Tell the client to stop."""
        self.participations.cancel(p, outcome)

    def _close(self, p: Participation) -> None:
        """The outcome is final: write the record, let the handles go."""
        if p.outcome is not Outcome.REPORTED:
            self._star.lost(p.client, p.version)
            self.recorder.end(self.clock.now, p)
        self.ledger.closed(p)
        self.recorder.update(p)
        p.update = p.state = None
        p.closed = True

    # --- versions -----------------------------------------------------------------------------

    def merge(self, taken: list[Participation], since_s: float) -> None:
        """Make the next version of accepted uploads."""
        ordered = sorted(taken, key=_client_then_task)
        discounts, discount = [], self.pacing.discount
        for p in ordered:
            p.staleness = self.version - p.version
            if p.staleness < 0:
                raise InternalError(f"task {p.task} of client {p.client} has negative staleness")
            discounts.append(discount(p.staleness))
        by_samples = self._policy.weights == "samples"
        weights = [float(p.samples) if by_samples else 1.0 for p in ordered]
        if not any(weights):
            self.log("no_samples", version=self.version, tasks=[p.task for p in ordered])
        updates = [p.update for p in ordered]
        self.state = self.learner.aggregate(self.state, updates, weights, discounts)
        self.version += 1
        if self.learner.learns:
            operation_id = self.state.id.partition(".")[0]
            self._unsurfaced.append(
                (operation_id, [(p.client, p.version, p.dispatched_s) for p in ordered])
            )
        for p in ordered:
            self._close(p)
        self.recorder.version(self.clock.now, self.version, ordered, since_s, self.state.id)
        policy = self._policy
        every = policy.evaluate_every_versions
        if every is not None and self.version % every == 0 and not self._evaluation_due:
            self._evaluation_due = True
            self.clock.at(self.clock.now, Rank.EVALUATION, action=self.evaluate_if_due)
        if policy.stop_versions is not None and self.version >= policy.stop_versions:
            self.stop("versions")

    def stop(self, reason: str) -> None:
        """End the run before the next event."""
        self.stopped = reason
        self.clock.halted = True

    def _evaluate_at(self, turn: int) -> None:
        self.evaluate()
        every_s = self._policy.evaluate_every_s
        assert every_s is not None
        if self.clock.peek() == math.inf:
            return  # nothing else is left to happen: measuring again and again would hide that
        self.clock.at(
            (turn + 1) * every_s, Rank.EVALUATION, action=lambda: self._evaluate_at(turn + 1)
        )

    def evaluate(self) -> None:
        """Measure the newest version now; stop when a target has been held long enough."""
        now, policy = self.clock.now, self._policy
        if self.stopped == "target" or (self._evaluated_version == self.version and self.stopped):
            return
        self._evaluated_version = self.version
        self._evaluation_due = False
        self.log("evaluate", version=self.version)
        values = self.learner.evaluate(self.state)
        accuracy = None
        if values is not None:
            accuracy = values["accuracy"]
            for metric in ("accuracy", "loss"):
                self.recorder.metric(now, self.version, metric, values[metric], values["n"])
            if policy.evaluate_clients == "always":
                self._evaluate_clients()
            self._surface_nonfinite()
        if policy.target_value is not None and accuracy is not None:
            self._above_target = self._above_target + 1 if accuracy >= policy.target_value else 0
            if self._above_target >= policy.target_sustain:
                self.stop("target")
        self.check()
        self._on_evaluation(self, accuracy)

    def _evaluate_clients(self) -> None:
        """Measure the newest version on each client's own test samples."""
        for client, accuracy, loss, n in self.learner.evaluate_clients(self.state, self._states):
            self.recorder.client_metrics(self.clock.now, self.version, client, accuracy, loss, n)

    def evaluate_if_due(self) -> None:
        """Measure now what would be measured at the end of this instant."""
        if self._evaluation_due:
            self.evaluate()

    def _surface_nonfinite(self) -> None:
        """Name the updates that turned out not to be finite, now that they are known."""
        for operation_id, contributions in self._unsurfaced:
            for position in self.learner.values(operation_id)["nonfinite"]:
                client, version, dispatched_s = contributions[position]
                self.recorder.event(
                    self.clock.now,
                    "nonfinite",
                    f"client/{client}",
                    version=version,
                    dispatched_s=dispatched_s,
                )
                if self._policy.on_nonfinite == "stop":
                    raise PolicyStop(
                        f"the update of client {client}, trained from version {version} and "
                        f"dispatched at simulated time {dispatched_s!r} s, is not finite, and "
                        "federation.on_nonfinite is 'stop' (allowed: drop, stop); a smaller "
                        "local.optimizer.lr helps"
                    )
        self._unsurfaced.clear()

    # --- the end ------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert the laws of conservation."""
        running = self.participations.running()
        for p in running:
            if self._network.shared and not math.isnan(p.begun_s):
                self.participations.account(p)
        self.ledger.check(
            self.clock.now,
            self._network,
            [*running, *self._received()],
            pauses=self.participations.pauses,
        )

    def _received(self) -> list[Participation]:
        return [p for p in self.pacing.leftovers() if not p.closed]

    def finish(self) -> None:
        """Close the books at the present instant: the last model is always evaluated."""
        if self._evaluated_version != self.version:
            stopped, self.stopped = self.stopped, None
            self.evaluate()
            self.stopped = self.stopped or stopped
        if self._policy.evaluate_clients == "at_end":
            self._evaluate_clients()
        self.check()
        for p in self._received():
            p.outcome = Outcome.REPORTED
            p.staleness = self.version - p.version
            self.ledger.closed(p)
            self.recorder.update(p)
        for p in self.participations.running():
            self.participations.account(p)
            p.outcome = Outcome.IN_FLIGHT
            self.ledger.outcomes[p.outcome] += 1
            self.recorder.update(p)
        self.log("stop", reason=self.stopped or "sim_time", version=self.version)
