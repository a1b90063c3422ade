"""From a validated scenario and its setting to a federation that is ready to begin: the place where
the axes are put together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np

from emulator import assembly, workload
from emulator.federation.cost import Cost
from emulator.federation.faults.local_dp import Reports, noise_multiplier
from emulator.federation.payload import Payload
from emulator.federation.payload.divide_and_conquer import DivideAndConquer
from emulator.federation.payload.full import Full, Sizes, full
from emulator.federation.payload.prepass import PrePass
from emulator.federation.policy import Policy
from emulator.federation.server import Server, Waits
from emulator.federation.structure import Structure
from emulator.federation.structure.clustered.assigned import Assigned
from emulator.federation.structure.clustered.cfl import Cfl
from emulator.federation.structure.clustered.fl_hc import FlHc
from emulator.federation.structure.clustered.flexcfl import FlexCfl
from emulator.federation.structure.clustered.ifca import Ifca
from emulator.federation.structure.clustered.server import ClusteredServer
from emulator.federation.structure.clustered.star import ClusteredStar
from emulator.federation.structure.cohorts.affinity import Exploration
from emulator.federation.structure.cohorts.cohort import Cohort
from emulator.federation.structure.cohorts.coordinator import Coordinator
from emulator.federation.structure.cohorts.coordinator import Rules as CohortRules
from emulator.federation.structure.cohorts.measures import Measures
from emulator.federation.structure.cohorts.partition import Conditions, Progress
from emulator.federation.structure.cohorts.pool import Pool
from emulator.federation.structure.cohorts.superclients import RoundSuperclients
from emulator.federation.structure.formation import Clients, Formation
from emulator.federation.structure.formation import Cost as PretrainingCost
from emulator.federation.structure.star import Star
from emulator.federation.structure.superclients import Superclients
from emulator.federation.tasks import Tasks
from emulator.learning import setting as learning_setting
from emulator.learning.clustering import Sketching
from emulator.learning.corruption import corrupted_clients
from emulator.learning.learner import Learner
from emulator.learning.method import Method
from emulator.learning.methods.auxo import RewardRule
from emulator.learning.methods.local_dp import Privacy
from emulator.learning.setting import Setting
from emulator.recording.recorder import Recorder
from emulator.scenario import Scenario, schema
from emulator.simulation.clock import Clock
from emulator.simulation.network import Network
from emulator.simulation.participation import Participation
from emulator.simulation.participations import Participations
from emulator.simulation.population import Population

AnyServer = TypeVar("AnyServer", bound=Server)


class Federation(Protocol):
    """What a run sees of its servers: of one, or of the coordinator of many."""

    clock: Clock
    tasks: Tasks
    population: Population
    stopped: str | None

    @property
    def waits(self) -> Waits:
        """Who knows what it needs to go on."""

    @property
    def version(self) -> int:
        """The newest."""

    def models(self) -> Mapping[str | None, Any]:
        """The states that the run ends with, by cohort."""

    def finish(self) -> None:
        """Close the books at the present instant."""


def compose(
    scenario: Scenario, setting: Setting, world: assembly.World, learner: Learner,
    recorder: Recorder, on_evaluation: Callable[[Any, float | None], None],
) -> Federation:  # fmt: skip
    """The federation of the scenario, at simulated time 0; ``on_evaluation`` hears of each."""
    parts = _Parts(scenario, setting, world, learner, recorder, on_evaluation)
    structure = scenario.federation.structure
    if isinstance(structure, schema.Cohorts):
        return parts.cohorts(structure)
    if isinstance(structure, schema.Clustered):
        return parts.clustered(structure)
    payload = parts.payload()
    server = parts.server(Server, payload)
    if isinstance(structure, schema.Superclients):
        parts.begin_in_superclients(server, structure)
        return server

    def ended(p: Participation) -> None:
        payload.ended(p)
        server.somebody_is_free()

    parts.tasks.on_end = parts.counting(ended)
    first = parts.first_pacing(server)
    server.start(Star(parts.tasks, learner, payload), first)
    server.begin_evaluations()
    first.start()
    return server


class _Parts:
    """What all servers of a run have in common, and how one is made."""

    def __init__(
        self, scenario: Scenario, setting: Setting, world: assembly.World, learner: Learner,
        recorder: Recorder, on_evaluation: Callable[[Any, float | None], None],
    ) -> None:  # fmt: skip
        self.scenario, self.setting, self.world = scenario, setting, world
        self.learner, self.recorder = learner, recorder
        self.on_evaluation = on_evaluation
        self.faults = scenario.federation.faults
        self.corrupted = corrupted_clients(scenario)
        if self.corrupted and self.faults.label_flips is not None:
            recorder.event(
                0.0, "label_flips", "population", flip=self.faults.label_flips.kind,
                clients=list(self.corrupted),
            )  # fmt: skip
        federation, system = scenario.federation, scenario.system
        self.clock, self.policy = Clock(), build_policy(scenario)
        self.network: Network = assembly.build_network(
            scenario, self.clock, world.table, world.draws
        )
        _, _, self.cost = assembly.build_method(scenario)
        selection, network = federation.selection, self.network
        queueing = isinstance(selection, schema.RandomSelection) and selection.busy == "queue"
        availability = assembly.fresh_availability(world)
        self.tasks = tasks = Tasks(self.clock, self.policy, world.devices, recorder)
        self.access = network.access if network.shared else network
        tasks.participations = participations = Participations(
            self.clock, availability, network, system.on_offline, tasks.ledger.begun, tasks.ended,
            tasks.lost, tasks.ledger.lent, self.access,
        )  # fmt: skip
        tasks.population = Population(
            self.clock, availability, setting.samples, world.eligible, participations.at_work,
            queueing=queueing, rest_s=selection.rest,
        )  # fmt: skip
        travels = federation.batch_norm == "average"
        self.sizes = full(
            federation.payload.header, self.cost, setting.profile.size_bytes,
            setting.profile.statistics_bytes if travels else 0,
        )  # fmt: skip

    def server(self, kind: type[AnyServer], payload: Payload, name: str | None = None) -> AnyServer:
        """A server of that kind, with a selector of its own."""
        scenario, federation = self.scenario, self.scenario.federation
        selector = assembly.SELECTORS[federation.selection.kind](scenario.seed, name)
        return kind(
            self.clock, self.policy, self.network, selector, payload, self.tasks, self.learner,
            self.recorder, self.on_evaluation,
        )  # fmt: skip

    def payload(self) -> Payload:
        return workload.build_payload(
            self.scenario, self.setting, self.sizes, self.cost, self.clock, self.learner,
            self.recorder,
        )  # fmt: skip

    def pacing(self, server: Server) -> Any:
        federation = self.scenario.federation
        return assembly.PACINGS[federation.pacing.kind](
            server, federation.pacing, everyone=federation.selection.kind == "all"
        )

    def first_pacing(self, server: Server) -> Any:
        """The pacing, or the pre-pass that comes before it."""
        pacing, payload = self.pacing(server), server.payload

        def begin() -> None:
            server.pacing = server.waits = pacing
            pacing.start()

        if isinstance(payload, DivideAndConquer) and payload.section.prepass is not None:
            return PrePass(server, payload.section.prepass, payload, begin)
        return pacing

    def counting(self, on_end: Callable[[Participation], None]) -> Callable[[Participation], None]:
        """``on_end``, which hears that a task is over; updates that are private are counted."""
        private = self.faults.local_dp
        if private is None or private.reports is None:
            return on_end
        reports = Reports(private.reports, self.recorder)

        def ended(p: Participation) -> None:
            reports.ended(p)
            on_end(p)

        return ended

    # --- superclients ---------------------------------------------------------------------------

    def begin_in_superclients(self, server: Server, section: schema.Superclients) -> None:
        """Superclients are formed; then the pacing begins."""
        tasks, learner, payload = self.tasks, self.learner, server.payload
        numbers = itertools.count()
        superclients = Superclients(section, self.scenario.seed, tasks, learner, payload, numbers)
        tasks.on_finish = superclients.leave_in_flight
        superclients.on_free = server.somebody_is_free
        tasks.on_end = self.counting(payload.ended)
        first = self.first_pacing(server)
        server.start(superclients, first)
        server.begin_evaluations()

        def formed() -> None:
            server.pacing = server.waits = first
            first.start()

        server.waits = formation = self.formation(section, superclients, formed)
        formation.begin()

    def formation(
        self, section: schema.Superclients, superclients: Superclients, formed: Callable[[], None]
    ) -> Formation:
        """How the superclients come about, at which charge."""
        setting, profile, scenario = self.setting, self.setting.profile, self.scenario
        clients = Clients(
            np.flatnonzero(self.world.eligible).tolist(), setting.samples.tolist(), setting.labels
        )
        cost, sizes = None, self.sizes
        if section.pretraining is not None:
            local = learning_setting.pretraining_local(scenario.local, section.pretraining)
            up_bytes = sizes.down_bytes  # the whole model, as it came
            header = scenario.federation.payload.header
            if isinstance(section.approximator, schema.Clf):
                layers = section.approximator.layers
                up_bytes = header + learning_setting.classifier_bytes(setting, layers)
            work = workload.build_work(local, local, setting.samples, profile, Cost())
            cost = PretrainingCost(work, sizes.down_bytes, up_bytes, header)
        return Formation(
            section, scenario.seed, clients, cost, self.tasks, self.learner, superclients, formed,
            stop_on_nonfinite=scenario.federation.on_nonfinite == "stop",
        )  # fmt: skip

    # --- clustered baselines --------------------------------------------------------------------

    def clustered(self, section: schema.Clustered) -> ClusteredServer:
        """One server with a model for each cluster."""
        tasks = self.tasks
        server = self.server(ClusteredServer, self.payload())
        clustering = self.clustering(section, server.payload)
        measures = Measures(self.setting.planted, self.learner, self.recorder, tasks)
        server.begin_with(
            clustering, clustering if isinstance(clustering, Assigned) else None, measures
        )
        tasks.on_end = self.counting(lambda p: server.somebody_is_free())
        pacing = self.pacing(server)
        server.start(ClusteredStar(tasks, self.learner, server.payload, clustering), pacing)
        server.begin_evaluations()
        pacing.start()
        return server

    def clustering(self, section: schema.Clustered, usual: Any) -> Ifca | FlHc | Cfl | FlexCfl:
        """Who trains which model, at which charge."""
        learner, setting, local = self.learner, self.setting, self.scenario.local
        sizes, cost, samples = self.sizes, self.cost, setting.samples
        clients, seed = self.scenario.task.clients, self.scenario.seed
        eligible = np.flatnonzero(self.world.eligible).tolist()
        if isinstance(section, schema.Ifca):
            k, header = section.clusters, self.scenario.federation.payload.header
            down_bytes = header + k * (sizes.down_bytes - header)
            passes = cost + Cost(forward_passes=k)
            work = workload.build_work(local, local, samples, setting.profile, passes)
            return Ifca(
                section, clients, learner, Full(Sizes(down_bytes, sizes.up_bytes + 4), work)
            )
        if isinstance(section, schema.FlHc):
            return FlHc(section, clients, eligible, learner, usual, seed)
        if isinstance(section, schema.Cfl):
            return Cfl(section, clients, eligible, learner, usual, seed)
        cold_local = learning_setting.cold_start_local(local, section)
        cold = workload.build_work(local, cold_local, samples, setting.profile, cost)
        both = Sizes(2 * sizes.down_bytes, 2 * sizes.up_bytes)
        return FlexCfl(
            section, clients, eligible, learner, usual, Full(sizes, cold),
            Full(both, lambda client: cold(client) + usual.work(client)), seed,
        )  # fmt: skip

    # --- cohorts --------------------------------------------------------------------------------

    def cohorts(self, section: schema.Cohorts) -> Coordinator:
        """A coordinator with the first cohort."""
        tasks, learner, pacing = self.tasks, self.learner, self.scenario.federation.pacing
        chains = itertools.count()

        def spawn(name: str, parent: Cohort | None) -> Cohort:
            if parent is None:
                cohort = self.server(Cohort, self.payload())
            else:
                cohort = self.server(Cohort, parent.payload.heir(), name)
            cohort.entity, cohort.cohort = f"cohort/{name}", name
            cohort.window_s = section.window
            cohort.pool = Pool(tasks.population)
            cohort.progress = Progress(
                section.clustering.partition.window, parent.progress if parent else None
            )
            if parent is not None:
                cohort.state, cohort.version = parent.state, parent.version
                cohort.first_version = parent.version
                cohort.kept, cohort.inherits = parent.kept, True
            structure: Structure = Star(tasks, learner, cohort.payload, cohort.pool, name)
            if section.superclients is not None:
                structure = cohort.superclients = RoundSuperclients(
                    section.superclients, self.scenario.seed, tasks, learner, cohort.payload,
                    chains, name, cohort.pool, coordinator,
                )  # fmt: skip
            pacing_of = self.first_pacing if parent is None else self.pacing
            cohort.start(structure, pacing_of(cohort))
            return cohort

        def leave_in_flight() -> None:
            for cohort in coordinator.cohorts.values():
                if cohort.superclients is not None:
                    cohort.superclients.leave_in_flight()

        def asked_for(participants: int) -> int:
            if isinstance(pacing, schema.Synchronous):
                return pacing.asked_for(participants)
            return participants

        def message_s(client: int, size_bytes: int) -> float:
            return self.access.durations_s(client, 0, size_bytes)[1]

        n = tasks.population.clients
        assert not isinstance(pacing, schema.FedSeqInter)
        in_all = pacing.wanted(n) if isinstance(pacing, schema.Synchronous) else pacing.in_flight
        auxo = section.clustering
        rule, explores = auxo.partition, auxo.exploring
        conditions = Conditions(
            rule.min_rounds, None if self.faults.local_dp else rule.settled, rule.window,
            rule.known_share, rule.most_uneven, rule.agreement, rule.min_participants, rule.gain,
            auxo.max_cohorts, rule.at,
        )  # fmt: skip
        flips = self.faults.label_flips
        rules = CohortRules(
            section, conditions, Exploration(explores.epsilon, explores.decay, explores.floor),
            asked_for, in_all, message_s, self.faults,
            self.corrupted if flips and flips.claims == "wrong" else (),
        )  # fmt: skip
        coordinator = Coordinator(
            rules, self.policy, self.network, tasks, learner, self.recorder, self.setting.planted,
            spawn, self.on_evaluation,
        )  # fmt: skip
        tasks.on_end = self.counting(coordinator.ended)
        tasks.on_finish = leave_in_flight
        coordinator.begin()
        return coordinator


def build_method(scenario: Scenario, setting: Setting) -> Method:
    """What the learning plane trains and how it merges."""
    federation = scenario.federation
    objective, server_step, _ = assembly.build_method(scenario)
    pacing, structure = federation.pacing, federation.structure
    own = setting.client_test
    tested = [len(samples) for samples in own.indices] if own is not None else []
    return Method(
        root=setting.root,
        seed=scenario.seed,
        clients=scenario.task.clients,
        test_samples=0 if setting.dataset is None else len(setting.dataset.test_y),
        recipe=learning_setting.recipe(scenario.local),
        objective=objective,
        server_optimizer=server_step,
        normalise=pacing.normalise if isinstance(pacing, schema.Buffered) else "weights",
        batch_norm=federation.batch_norm,
        tested_clients=tuple(np.flatnonzero(tested).tolist()),
        chains=federation.has_chains,
        pretraining=learning_setting.pretraining(scenario),
        recipes=workload.recipes(scenario),
        layers=tuple(layer.name for layer in setting.profile.layers),
        sketching=_sketching(scenario, setting),
        privacy=_privacy(scenario),
        rewards=_reward_rule(structure),
        fine_tuning=workload.fine_tuning(scenario),
    )


def _privacy(scenario: Scenario) -> Privacy | None:
    section = scenario.federation.faults.local_dp
    return None if section is None else Privacy(section.clip, noise_multiplier(section))


def _reward_rule(structure: Any) -> RewardRule | None:
    if not isinstance(structure, schema.Cohorts):
        return None
    auxo = structure.clustering
    return RewardRule(auxo.reward, auxo.tolerates, auxo.variant == "code")


def _sketching(scenario: Scenario, setting: Setting) -> Sketching | None:
    """What cohorts take of an update."""
    structure = scenario.federation.structure
    if not isinstance(structure, schema.Cohorts):
        return None
    sketch = structure.clustering.sketch
    dimensions = sketch.dimensions if isinstance(sketch, schema.ProjectionSketch) else None
    last = None
    if isinstance(sketch, schema.ClassifierSketch) and setting.profile.layers:
        last = (setting.profile.layers[-1].name,)
    return Sketching(last, dimensions, scenario.seed)


def build_policy(scenario: Scenario) -> Policy:
    """What the server itself follows."""
    federation, system, stop = scenario.federation, scenario.system, scenario.stop
    every, objective = scenario.evaluation.every, federation.objective
    return Policy(
        root_seed=scenario.seed,
        weights=federation.pacing.weights,
        drop_notice=system.drop_notice,
        drop_timeout_s=system.drop_timeout,
        task_failure=system.task_failure,
        on_nonfinite=federation.on_nonfinite,
        stop_versions=stop.versions,
        target_value=stop.target.value if stop.target else None,
        target_sustain=stop.target.sustain if stop.target else 1,
        evaluate_every_versions=every.versions if isinstance(every, schema.EveryVersions) else None,
        evaluate_every_s=every.sim_time if isinstance(every, schema.EveryTime) else None,
        evaluate_every_hops=every.hops if isinstance(every, schema.EveryHops) else None,
        evaluate_clients=scenario.evaluation.clients,
        merged_by_superclients=isinstance(objective, schema.FedDyn)
        and objective.normaliser == "superclients",
        personalizes=scenario.evaluation.personalization is not None,
    )
