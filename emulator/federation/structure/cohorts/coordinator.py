"""The cohort coordinator: clients check in with it, and it forwards each to a cohort.

Auxo (Liu et al., SoCC 2023), §5: a *matching* stage (a client's affinity request leads to a leaf of
the cohort tree), a round of federated learning in the cohort, a *feedback* stage (reward and side
go to each participant, which keeps them in its own records). A cohort whose clients turn out to be
of two kinds splits; who waits for it, is at work for it, or has just reported goes on with the
child that it belongs to.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.federation.faults.outages import Outages
from emulator.federation.pacing.buffered import BufferedPacing
from emulator.federation.personalization import personalize
from emulator.federation.policy import Policy
from emulator.federation.server import check_books
from emulator.federation.structure import Contribution
from emulator.federation.structure.cohorts.affinity import Affinity, Exploration, Request
from emulator.federation.structure.cohorts.cohort import Cohort, Step
from emulator.federation.structure.cohorts.measures import Measures
from emulator.federation.structure.cohorts.partition import (
    Conditions,
    Quality,
    agreeing,
    missing,
)
from emulator.federation.structure.cohorts.records import Records
from emulator.federation.structure.cohorts.stand_in import PlantedStandIn
from emulator.federation.structure.cohorts.tree import ROOT, Tree
from emulator.federation.tasks import Tasks
from emulator.learning_interface import Learner
from emulator.recording.recorder import Recorder
from emulator.scenario import schema
from emulator.simulation.clock import Rank
from emulator.simulation.network import Network
from emulator.simulation.participation import Participation


@dataclass(frozen=True, slots=True)
class Rules:
    """What the scenario says of the protocol. ``message_s(client, bytes)`` is how long a request
    of so many bytes takes from the client to the server. ``liars``: see :class:`Records`."""

    section: schema.Cohorts
    conditions: Conditions
    exploration: Exploration
    asked_for: Callable[[int], int]
    participants: int
    message_s: Callable[[int, int], float]
    faults: schema.Faults
    liars: Sequence[int]


class Coordinator:
    """See the module. ``spawn(cohort, parent)`` makes the server of a new cohort, which goes on
    where its ``parent`` stands, or begins."""

    def __init__(
        self, rules: Rules, policy: Policy, network: Network, tasks: Tasks, learner: Learner,
        recorder: Recorder, planted: NDArray[np.int64] | None,
        spawn: Callable[[str, Cohort | None], Cohort],
        on_evaluation: Callable[[Any, float | None], None],
    ) -> None:  # fmt: skip
        self.clock = tasks.clock
        self.tasks = tasks
        self.population = tasks.population
        self.tree = Tree()
        self.cohorts: dict[str, Cohort] = {}
        """All that ever were, by id."""
        self.stopped: str | None = None
        self.waits_for = "clients to check in"
        self.waits = self
        self._rules = rules
        self._auxo = rules.section.clustering
        self._policy = policy
        self._network = network
        self._learner = learner
        self._recorder = recorder
        self._spawn = spawn
        self._on_evaluation = on_evaluation
        lost, root = rules.faults.lost_records, policy.root_seed
        self._records = Records(
            rules.exploration, root, lost.probability if lost else 0.0, lost.share if lost else 0.0,
            rules.liars, lambda client: self.log("records_lost", f"client/{client}"),
        )  # fmt: skip
        self.outages = Outages(rules.faults, root, self)
        self._requests: dict[int, Request] = {}
        """The request, as matched, of each client that waits or is at work."""
        self._served: Counter[str] = Counter()
        """How many clients each cohort was given last."""
        self._strikes: dict[int, int] = {}
        self._blacklisted: set[int] = set()
        self.engaged: set[int] = set()
        """Who is in a chain, whether its turn has come or not."""
        self._evaluated: tuple[float, list[str]] | None = None
        """When all models were measured last, and which."""
        self._measures = Measures(planted, learner, recorder, tasks)
        self._stand_in = None
        if not learner.learns and planted is not None:
            self._stand_in = PlantedStandIn(planted.tolist(), self._auxo.reward)

    # --- begin and end --------------------------------------------------------------------------

    def begin(self) -> None:
        """The first cohort, and the first check-ins."""
        self.tasks.on_closed = self._closed
        self._new_cohort(ROOT, None)
        self.clock.at(0.0, Rank.EVALUATION, action=self._evaluate_all)
        if self._policy.evaluate_every_s is not None:
            self._evaluate_every(1)
        self.population.watch_check_ins(self._comes)

    @property
    def leaves(self) -> list[Cohort]:
        """The cohorts that train, by id."""
        return [self.cohorts[leaf] for leaf in self.tree.leaves]

    @property
    def version(self) -> int:
        """That of the cohort that has come furthest."""
        return max(cohort.version for cohort in self.leaves)

    def share(self, n: int) -> int:
        """An equal part of ``n`` for each cohort."""
        return max(1, n // len(self.tree.leaves))

    def stop(self, reason: str) -> None:
        """End the run before the next event."""
        self.stopped = reason
        self.clock.halted = True

    def models(self) -> Mapping[str | None, Any]:
        """The states that the run ends with, by cohort."""
        if len(self.leaves) == 1:
            return {None: self.leaves[0].pacing.model()}
        return {cohort.cohort: cohort.pacing.model() for cohort in self.leaves}

    def finish(self) -> None:
        """Close the books at the present instant: the last models are always evaluated."""
        stopped, self.stopped = self.stopped, None
        if self._evaluated != (self.clock.now, self._newest()):
            self._evaluate_all()
        self.stopped = self.stopped or stopped
        if self._policy.personalizes:
            clients = range(self.population.clients)
            homes = [self._records.home(client, self.tree) for client in clients]
            served = [cohort.served_at_home(homes) for cohort in self.leaves]
            personalize(self.tasks, self._learner, self.version, served, "coordinator")
        self.check()
        for cohort in self.cohorts.values():
            cohort.close_received()
        self.tasks.leave_in_flight()
        self._write_cohorts()
        self.log("stop", reason=self.stopped or "sim_time", version=self.version)

    def check(self) -> None:
        """Assert the laws of conservation."""
        received = [c for cohort in self.cohorts.values() for c in cohort.received()]
        check_books(self.tasks, self._network, received)

    def log(self, event: str, entity: str = "coordinator", **fields: Any) -> None:
        """Write an event of the coordinator, or of another entity."""
        self._recorder.event(self.clock.now, event, entity, **fields)

    def _new_cohort(self, name: str, parent: Cohort | None) -> Cohort:
        cohort = self._spawn(name, parent)
        cohort.above, cohort.born_s = self, self.clock.now
        self.cohorts[name] = cohort
        cohort.pacing.start()
        self.outages.begins(cohort)
        return cohort

    # --- matching -------------------------------------------------------------------------------

    def _comes(self, client: int) -> None:
        """A session starts, or the client has been free for long enough: it sends its request."""
        if client in self._blacklisted or not self._is_free(client):
            return
        if not self.outages.is_down:
            self._records.deliver(client)
        n = self._records.check_ins(client)
        request = self._records.request(client)
        size = self._rules.section.request_bytes
        self._recorder.message(client, up=size)
        arrives_s = self.clock.now + self._rules.message_s(client, size)
        arrive = partial(self._arrives, client, n, request)
        if arrives_s > self.clock.now:
            self.clock.at(arrives_s, Rank.CHECK_IN, client, arrive)
        else:
            arrive()

    def _is_free(self, client: int) -> bool:
        return client not in self.engaged and self.population.available(client)

    def _arrives(self, client: int, n: int, request: Request) -> None:
        """A request is here: forward the client to the cohort that it asks for, or to the closest
        leaf under it."""
        if not self._is_free(client) or self._records.check_ins(client) != n + 1:
            return
        if self.outages.is_down:
            self.outages.ignore(client)
            return
        leaf = self.tree.match(request.cohort, request.side, self._records.draw(client, n))
        self.log(
            "check_in", f"client/{client}", requested=request.cohort, side=request.side,
            explores=request.explores, cohort=leaf,
        )  # fmt: skip
        self._forward(client, leaf, request)

    def _forward(self, client: int, leaf: str, request: Request) -> None:
        """The client waits in ``leaf`` from now on; the side that it says it is on is that of the
        cohort which it asked for."""
        before = self._requests.get(client)
        if before is not None and before.cohort is not None:
            self._served[before.cohort] -= 1
            self.cohorts[before.cohort].pool.leave(client)
        self._served[leaf] += 1
        side = request.side if request.cohort == leaf else None
        self._requests[client] = Request(leaf, side, request.known, request.explores)
        self.cohorts[leaf].pool.enter(client)

    def ended(self, p: Participation) -> None:
        """A client's task is over: it holds what it has received, and of no other cohort."""
        assert p.cohort is not None
        self.cohorts[p.cohort].payload.ended(p)
        if not math.isnan(p.downloaded_s):
            for name, cohort in self.cohorts.items():
                if name != p.cohort and not cohort.retired:
                    cohort.payload.forget(p.client)

    def _closed(self, p: Participation) -> None:
        """A task's outcome is final: the client checks in again, unless it is in a chain."""
        if p.chain is None:
            self.check_in_again(p.client)

    def check_in_again(self, client: int) -> None:
        """Later, once the client has rested."""
        again_s = self.clock.now + self._rules.section.retry
        self.clock.at(again_s, Rank.CHECK_IN, client, partial(self._comes_again, client))

    def _comes_again(self, client: int) -> None:
        request = self._requests.get(client)
        if request is None or client not in self.cohorts[request.cohort or ROOT].pool.waiting:
            self._comes(client)

    # --- feedback -------------------------------------------------------------------------------

    def merged(self, cohort: Cohort, taken: Sequence[Step]) -> None:
        """``cohort`` has made a version: tell its participants what it has learned of them."""
        found = self._found(cohort, taken)
        progress, now = cohort.progress, self.clock.now
        leaves, single = tuple(self.tree.leaves), len(self.tree.leaves) == 1
        agreed = agreeing([self._claimed(cohort, p.client) for p in taken], found["sides"])
        rows = []
        for i, p in enumerate(taken):
            reward = found["rewards"][i]
            told = 0.0 if single or reward is None else reward
            side = self._side_of(cohort, p.client, found["sides"][i], found["margins"][i], told)
            rows.append((now, cohort.cohort, cohort.version, p.client, told, side,
                         found["margins"][i]))  # fmt: skip
            if side is not None:
                progress.sides[p.client] = side
            self._tell(cohort.cohort, p.client, told, side, leaves)
        known = [loss for loss in found["losses"] if loss is not None]
        loss = sum(known) / len(known) if known else None
        quality = Quality(found["spread"], found["spread_of_sides"], loss, *agreed)
        progress.add(quality)
        unmet = self.outages.unmet(cohort.cohort, self._unmet(cohort))
        self._recorder.affinities(rows)
        self._recorder.clustering(
            (now, cohort.cohort, cohort.version, len(taken),
             sum(self._known_in(cohort, p.client) for p in taken), *progress.side_sizes(),
             quality.spread, quality.spread_of_sides, loss, found["correlation"],
             quality.agreement, " ".join(unmet))
        )  # fmt: skip
        if not unmet and not self.stopped:
            self._split(cohort)

    def _found(self, cohort: Cohort, taken: Sequence[Step]) -> dict[str, Any]:
        """What the updates tell; nothing before clustering has begun, or of too few."""
        n, auxo = len(taken), self._auxo
        nothing = {"rewards": [None] * n, "sides": [-1] * n, "margins": [1.0] * n, "spread": None,
                   "spread_of_sides": None, "correlation": None, "losses": [None] * n}  # fmt: skip
        if cohort.progress.rounds < auxo.start_round or n < auxo.min_participants:
            return nothing
        single = len(self.tree.leaves) == 1
        known = [single or self._known_in(cohort, p.client) for p in taken]
        sides = [self._claimed(cohort, p.client) for p in taken]
        clients = [p.client for p in taken]
        if self._stand_in is not None:
            return nothing | self._stand_in.found(cohort.cohort, clients, known)
        if not self._learner.learns or auxo.max_cohorts == 1:
            return nothing
        part = taken[0].plan.part
        layers = part.layers if part else None
        found, cohort.kept = self._learner.affinity(
            cohort.kept, [p.update for p in taken], [p.training for p in taken], clients, known,
            sides, layers, inherits=cohort.inherits,
        )  # fmt: skip
        cohort.inherits = False
        return found

    def _known_in(self, cohort: Cohort, client: int) -> bool:
        request = self._requests[client]
        return request.known and request.cohort == cohort.cohort

    def _claimed(self, cohort: Cohort, client: int) -> int:
        request = self._requests[client]
        if request.cohort != cohort.cohort or request.side is None:
            return -1
        return request.side

    def _side_of(
        self, cohort: Cohort, client: int, found: int, margin: float, reward: float
    ) -> int | None:
        """The side that a participant is told: none to whom the cohort rejects. Who claims another
        too often is blacklisted."""
        if found < 0 or reward < 0:
            return None
        rule, claimed = self._auxo.blacklist, self._claimed(cohort, client)
        if rule is not None and claimed >= 0:
            lies = claimed != found and margin > rule.margin
            self._strikes[client] = self._strikes.get(client, 0) + 1 if lies else 0
            if self._strikes[client] >= rule.times:
                self._blacklisted.add(client)
                self.log("blacklist", f"client/{client}", cohort=cohort.cohort)
        return found

    def _tell(
        self, cohort: str, client: int, reward: float, side: int | None, leaves: tuple[str, ...]
    ) -> None:
        """The feedback reaches a client that is online now, any other when it comes next."""
        auxo = self._auxo
        letter = partial(
            Affinity.feedback, cohort=cohort, reward=reward, side=side, leaves=leaves,
            predict=auxo.predicts, averaging=auxo.averages, resets=auxo.variant == "code",
        )  # fmt: skip
        now = self.clock.now
        self._recorder.message(client, down=self._rules.section.feedback_bytes)
        self._records.write(client, letter)
        if self.population.availability.online_until(client, now) > now:
            self._records.deliver(client)

    # --- partition ------------------------------------------------------------------------------

    def _unmet(self, cohort: Cohort) -> list[str]:
        """The conditions of a split that do not hold."""
        conditions, m, k = self._rules.conditions, len(self.tree.leaves), self._rules.participants
        online = 0.0
        if m < conditions.max_cohorts:
            mask = self.population.availability.online_mask(self.clock.now)
            seen = self._served.total()
            online = float(mask.sum()) * self._served[cohort.cohort] / max(1, seen)
        then = max(1, k // (m + 1))
        return missing(
            conditions, cohort.progress, cohorts=m, clients=self.population.clients,
            asked_by_child=self._rules.asked_for(then), participants=(max(1, k // m), then),
            online=online, learns=self._learner.learns,
        )  # fmt: skip

    def _split(self, parent: Cohort) -> None:
        """Two cohorts go on where ``parent`` stands."""
        self.evaluate([parent])  # the last that is known of it, at whatever version
        parent.evaluated()
        if self.stopped:
            return
        parent.retired, parent.ended_s = True, self.clock.now
        self.outages.ends(parent.cohort)
        sizes = parent.progress.side_sizes()
        names = self.tree.split(parent.cohort)
        self.log(
            "partition", f"cohort/{parent.cohort}", version=parent.version, children=list(names),
            sides=list(sizes),
        )  # fmt: skip
        if self._stand_in is not None:
            self._stand_in.split(parent.cohort)
        for name in names:
            self._new_cohort(name, parent)
        if isinstance(parent.pacing, BufferedPacing):

            def heir(p: Contribution) -> BufferedPacing:
                side = parent.progress.sides.get(p.client)
                leaf = self.tree.match(parent.cohort, side, self._records.draw(p.client))
                pacing = self.cohorts[leaf].pacing
                assert isinstance(pacing, BufferedPacing)
                return pacing

            parent.pacing.hand_over(heir)
        waiting = [c for c in sorted(parent.pool.waiting) if parent.pool.available(c)]
        parent.pool.waiting.clear()
        for client in waiting:
            request = self._requests[client]
            leaf = self.tree.match(parent.cohort, request.side, self._records.draw(client))
            self._forward(client, leaf, request)
        self._write_cohorts()

    def _write_cohorts(self) -> None:
        rows = []
        for name, cohort in sorted(self.cohorts.items()):
            parent = name.rpartition(".")[0] or None
            rows.append((name, parent, cohort.born_s, cohort.ended_s, cohort.first_version,
                         cohort.version, *cohort.progress.side_sizes()))  # fmt: skip
        self._recorder.cohorts(rows)

    # --- evaluation -----------------------------------------------------------------------------

    def _evaluate_every(self, turn: int) -> None:
        every_s = self._policy.evaluate_every_s
        assert every_s is not None

        def evaluate() -> None:
            self._evaluate_all()
            if self.clock.peek() < math.inf:
                self._evaluate_every(turn + 1)

        self.clock.at(turn * every_s, Rank.EVALUATION, action=evaluate)

    def _newest(self) -> list[str]:
        """The ids of the newest models."""
        return [cohort.pacing.model().id for cohort in self.leaves]

    def _evaluate_all(self) -> None:
        self._evaluated = self.clock.now, self._newest()
        self.evaluate(self.leaves)

    def evaluate(self, cohorts: Sequence[Cohort]) -> None:
        """Measure the newest models of these cohorts, each on the clients that it serves."""
        if self.stopped == "target":
            return
        for cohort in cohorts:
            cohort.log("evaluate", version=cohort.version)
        accuracy = None
        if self._learner.learns:
            records, everyone = self._records, range(self.population.clients)
            homes = [records.home(client, self.tree) for client in everyone]
            known = [records.is_known(client, home) for client, home in enumerate(homes)]
            served = [cohort.served_at_home(homes) for cohort in cohorts]
            accuracy = self._measures.measure(served, homes, known, self.version)
            for cohort in cohorts:
                cohort.surface_nonfinite()
        if accuracy is not None:
            self.leaves[0].stop_at_target(accuracy)
        self.check()
        self._on_evaluation(self, accuracy)
