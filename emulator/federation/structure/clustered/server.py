"""The server of several models: one round for all, and one version number."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from simpy.events import Event

from emulator.federation.personalization import Served
from emulator.federation.server import Server, client_then_task
from emulator.federation.structure import Contribution, Trained
from emulator.federation.structure.clustered import Clustering, Models, Partition, Pass, Passes
from emulator.federation.structure.clustered.star import ClusteredStar
from emulator.federation.structure.cohorts.measures import Measures
from emulator.federation.structure.survey import Callback, Survey
from emulator.random_streams import generator
from emulator.simulation.clock import Rank
from emulator.simulation.participation import Participation, Terms


@dataclass(slots=True)
class _Life:
    """When a cohort was born and split, and its versions then."""

    born_s: float
    first_version: int
    parent: str | None = None
    ended_s: float | None = None
    last_version: int = 0


class ClusteredServer(Server):
    """See the module."""

    clustering: Clustering
    passes: Passes | None
    measures: Measures
    structure: ClusteredStar
    _survey: Survey | None = None

    def begin_with(self, clustering: Clustering, passes: Passes | None, measures: Measures) -> None:
        """The first models."""
        self.clustering, self.passes, self.measures = clustering, passes, measures
        self.state: Models = clustering.begin()
        self._lives = {cohort: _Life(0.0, 0) for cohort in self.state.states}
        self._write_cohorts()

    def somebody_is_free(self) -> None:
        """One that was at work may be asked again."""
        super().somebody_is_free()
        if self._survey is not None:
            self._survey.somebody_is_free()

    # --- versions -----------------------------------------------------------------------------

    def merge(self, taken: Sequence[Contribution], since_s: float) -> None:
        """Make the next version of the models that accepted contributions have trained."""
        ordered: list[Any] = sorted(taken, key=client_then_task)
        for p in ordered:
            self._count_staleness(p)
        groups: dict[str, list[Any]] = {}
        cohorts = self.clustering.settle(ordered, self.state)
        for p, cohort in zip(ordered, cohorts, strict=True):
            p.cohort = cohort
            groups.setdefault(cohort, []).append(p)
        updates = {cohort: [p.update for p in group] for cohort, group in groups.items()}
        states = dict(self.state.states)
        for cohort, group in sorted(groups.items()):
            states[cohort] = self._merged(states[cohort], group, None)
        models = Models(states)
        if self.passes:
            models = self.passes.merged(self.version + 1, models, updates)
        self._new_version(models, groups, since_s)

    def _new_version(self, models: Models, groups: dict[str, list[Any]], since_s: float) -> None:
        self.state = models
        self.version += 1
        for cohort, group in sorted(groups.items()):
            for p in group:
                if not p.closed:
                    self.structure.close(p)
            self.recorder.version(
                self.clock.now, self.version, group, since_s, models.states[cohort].id,
                f"cohort/{cohort}", cohort,
            )  # fmt: skip
            self._lives[cohort].last_version = self.version
        self.version_made()

    # --- passes over clients ------------------------------------------------------------------

    def before_round(self) -> Generator[Event, Any, None]:
        """The passes over clients that are due, one after the other; rounds wait for their end."""
        while self.passes and not self.stopped:
            wanted = self.passes.due(self.version, self.state)
            if wanted is None:
                return
            yield from self._pass(self.passes, wanted)

    def _pass(self, passes: Passes, wanted: Pass) -> Generator[Event, Any, None]:
        began_s, updates, asked = self.clock.now, dict[int, Any](), dict[int, Participation]()
        n = len(wanted.clients)
        self.log(
            "survey", version=self.version, phase=wanted.phase, clients=n,
            wanted=n if wanted.wanted is None else wanted.wanted,
        )  # fmt: skip

        def task_of(client: int, uploaded: Callback, lost: Callback) -> Participation:
            visit = self.structure.visit(client, self.version)
            updates[client] = wanted.train(client, visit)
            terms = Terms(0, 0, uploaded, lost)
            asked[client] = p = self.structure.task(
                client, self.version, updates[client], wanted.plan, terms
            )
            p.phase, p.cohort = wanted.phase, wanted.cohort
            return p

        over = self.clock.idle_timer(Rank.DISPATCH)

        def ended() -> None:
            self.clock.set(over, self.clock.now)

        self._survey = Survey(
            self.tasks, wanted.clients, task_of, ended,
            what=wanted.phase.replace("_", " "), deadline_s=wanted.deadline_s,
            wanted=wanted.wanted, rng=generator(self.policy.root_seed, "survey", self.version),
        )  # fmt: skip
        self.waits = self._survey
        self._survey.begin()
        yield over
        missing, self._survey, self.waits = self._survey.missing, None, self.pacing
        came = {client: updates[client] for client in sorted(set(asked) - missing)}
        if self._evaluated != self.state.id:
            self.evaluate()  # the last that is known of the cohort
        if not self.stopped:
            self._partition(passes.passed(came, self.state), asked, began_s, len(came))

    def _partition(
        self, found: Partition, asked: dict[int, Participation], began_s: float, came: int
    ) -> None:
        """Cohorts go on where their parent stands."""
        for client in found.nonfinite:
            p = asked[client]
            self.name_nonfinite(Trained(client, p.version, p.dispatched_s, p.plan.rate))
        now = self.clock.now
        self.log(
            "partition", version=self.version, parent=found.parent,
            children=list(found.children), sizes=[len(who) for who in found.children.values()],
            clients=came,
        )  # fmt: skip
        if set(found.children) != {found.parent}:
            self._lives[found.parent].ended_s = now
            for cohort in found.children:
                self._lives[cohort] = _Life(now, self.version, found.parent, None, self.version)
        groups = {cohort: [asked[client] for client in who]
                  for cohort, who in found.children.items() if who}  # fmt: skip
        if found.merged and groups:
            self._new_version(found.models, groups, began_s)
        self.state = found.models
        self._write_cohorts()

    def _write_cohorts(self) -> None:
        self.recorder.cohorts(
            [(name, life.parent, life.born_s, life.ended_s, life.first_version, life.last_version,
              0, 0) for name, life in sorted(self._lives.items())]
        )  # fmt: skip

    # --- evaluation ---------------------------------------------------------------------------

    def _measure(self, model: Models) -> float | None:
        """Every model on the clients that it would serve now."""
        if not self.learner.learns:
            return None
        homes = self.clustering.homes(model)
        known = [n > 0 for n in self.recorder.by_client.reported]
        accuracy = self.measures.measure(self._served(homes), homes, known, self.version)
        self.surface_nonfinite()
        return accuracy

    def _evaluate_clients(self, model: Any) -> None:
        """Every evaluation does."""

    def served(self) -> list[Served]:
        """Every model with those that are at home there."""
        return self._served(self.clustering.homes(self.state)) if self.learner.learns else []

    def _served(self, homes: Sequence[str]) -> list[Served]:
        return [
            Served(name, self.version, model, [c for c, home in enumerate(homes) if home == name])
            for name, model in self.state.states.items()
        ]

    def finish(self) -> None:
        """Close the books at the present instant: the last models are always evaluated."""
        super().finish()
        self._write_cohorts()

    def models(self) -> dict[str | None, Any]:
        """The states that the run ends with, by cohort."""
        states = self.state.states
        return {None if len(states) == 1 else name: state for name, state in states.items()}
