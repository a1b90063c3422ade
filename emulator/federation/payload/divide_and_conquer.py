"""Divide-and-Conquer (Chandran, Bhat, Chakravarthy, Chandar, "Weight Divergence Driven
Divide-and-Conquer Approach for Optimal Federated Learning from non-IID Data").

Part A, the lower layers, is trained in feature-learning rounds while part B is frozen, and part B
in fine-tuning rounds while A is. A client holds what it has received, layer by layer with the
version in which the server has last changed it; down goes what it does not hold in the newest one,
up what it has trained. With all clients in every round that is half of the model each way; who
skips a round lacks both parts, so with a share C of the clients it is (1 − C/2) down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from emulator.errors import RunError, ScenarioError, nearest
from emulator.federation.payload import Layers, WorkOf
from emulator.federation.payload.holdings import Holdings, Model
from emulator.federation.payload.split import Climber, balanced_bytes, largest_jump, threshold
from emulator.learning_interface import Learner, Part
from emulator.recording.recorder import Recorder
from emulator.scenario import schema
from emulator.simulation.clock import Clock
from emulator.simulation.participation import Message, Participation, Terms

ALL = "AB"
"""The part of a pre-pass."""
_RECIPES = {"A": "feature_learning", "B": "fine_tuning", ALL: "prepass"}
_PHASES = {"A": "feature-learning", "B": "fine-tuning"}


@dataclass(frozen=True, slots=True, eq=False)
class PartPlan:
    """The plan of a contribution: its part, the layers of part A, the version of each layer that it
    starts from, and how many versions of each part there were."""

    payload: DivideAndConquer
    part: Part
    work: WorkOf
    a: Layers
    versions: tuple[int, ...]
    made: dict[str, int]

    @property
    def rate(self) -> str:
        """See :class:`emulator.federation.payload.Plan`."""
        return self.payload.model.rates[self.part.recipe]

    def alone(self, client: int, terms: Terms) -> Terms:
        """See :class:`emulator.federation.payload.Plan`."""
        return self.in_chain(client, terms, comes=True, moved=False, goes=True)

    def in_chain(self, client: int, terms: Terms, *, comes: bool, moved: bool, goes: bool) -> Terms:
        """See :class:`emulator.federation.payload.Plan`."""
        down, up = self.payload.messages(self, client, moved=moved)
        nothing = Message(0, 0, (0, 0, 0))
        down, up = down if comes else nothing, up if goes else nothing
        return Terms(
            down.size_bytes, up.size_bytes, terms.on_upload, terms.on_loss, down, up
        )  # fmt: skip


class DivideAndConquer:
    """See the module. ``values_up`` single values go up with every update."""

    def __init__(
        self, section: schema.DivideAndConquer, model: Model, values_up: int, clock: Clock,
        learner: Learner, recorder: Recorder, clients: int,
    ) -> None:  # fmt: skip
        self.section = section
        self.model = model
        self.prepass = section.prepass is not None
        """Whether the pre-pass is still to come."""
        self._values_up = values_up
        self._clock = clock
        self._learner = learner
        self._recorder = recorder
        self._made = dict.fromkeys(("A", "B", ALL), 0)
        self._holdings = Holdings(model.names, clients)
        self._phase = 0
        self._turns: dict[int, int] = {}
        self._version = 0
        self._divergence: list[float | None] = [None] * len(model.names)
        self._rows: list[tuple[Any, ...]] = []
        self._climber: Climber | None = None
        self._layers: dict[str, Layers] = {ALL: model.names, "A": model.names, "B": ()}
        if not self.prepass:
            self._first_split()

    # --- plans ----------------------------------------------------------------------------------

    def plan(self, contributor: int) -> PartPlan:
        """What ``contributor`` is asked now."""
        name = ALL if self.prepass else self._phase_of(contributor)
        layers, recipe = self._layers[name], _RECIPES[name]
        work = self.model.work_of(recipe, layers)
        part = Part(name, layers, recipe)
        versions = self._holdings.versions
        return PartPlan(self, part, work, self._layers["A"], versions, dict(self._made))

    def _phase_of(self, contributor: int) -> str:
        schedule = self.section.schedule
        by_client = self.section.alternate == "client_phase"
        turn = self._turns.get(contributor, 0) if by_client else self._phase
        return schedule[turn % len(schedule)]

    def messages(self, plan: PartPlan, client: int, *, moved: bool) -> tuple[Message, Message]:
        """(down, up) of a task of ``client``; ``moved``: others have trained the part before it, so
        that no version is as new."""
        section, trained, model = self.section, plan.part.layers, self.model
        naive = section.naive_half and plan.part.name != ALL
        down, up = [0, 0, 0], [0, 0, 0]
        held = self._holdings.lacks(client, plan.versions)
        for name, size, lacks in zip(model.names, model.sizes_bytes, held, strict=True):
            of = 2 if plan.part.name == ALL else int(name not in plan.a)
            is_trained = name in trained
            comes = is_trained if naive else lacks or (moved and is_trained)
            down[of] += size if comes else 0
            up[of] += size if is_trained else 0
        return (
            Message(section.header, section.control, tuple(down)),
            Message(section.header, 4 * self._values_up, tuple(up)),
        )

    def ended(self, p: Participation) -> None:
        """A client keeps what it has received whole; what others of a chain have trained before it
        is no version's."""
        plan = p.plan
        if isinstance(plan, PartPlan) and not math.isnan(p.downloaded_s):
            self._holdings.received(p.client, plan.versions, plan.part.layers if p.moved else ())

    def heir(self) -> DivideAndConquer:
        """Goes on with the same split, turn and holdings."""
        found = copy(self)
        found._made, found._turns = dict(self._made), dict(self._turns)
        found._holdings = self._holdings.copy()
        found._divergence, found._layers = list(self._divergence), dict(self._layers)
        return found

    def forget(self, client: int) -> None:
        """The client holds another cohort's model now."""
        self._holdings.forget(client)

    # --- versions -------------------------------------------------------------------------------

    def accepted(self, contribution: Any) -> None:
        """A contributor has done its turn of the schedule."""
        if contribution.plan.part.name != ALL:
            self._turns[contribution.client] = self._turns.get(contribution.client, 0) + 1

    def revoked(self, contribution: Any) -> None:
        """It has not, after all."""
        if contribution.plan.part.name != ALL:
            self._turns[contribution.client] -= 1

    def age(self, contribution: Any, version: int) -> tuple[int, int | None]:
        """In versions of its part, and in those of the other."""
        plan = contribution.plan
        name = plan.part.name
        if name == ALL:
            return 0, None
        other = "B" if name == "A" else "A"
        return self._made[name] - plan.made[name], self._made[other] - plan.made[other]

    def groups(self, taken: Sequence[Any]) -> list[tuple[Layers | None, list[Any]]]:
        """Each layer with all that have trained it: of two parts, or of parts of several splits."""
        by_trainers: dict[tuple[int, ...], list[str]] = {}
        for name in self.model.names:
            trainers = tuple(i for i, c in enumerate(taken) if name in c.plan.part.layers)
            if trainers:
                by_trainers.setdefault(trainers, []).append(name)
        found = {tuple(n): [taken[i] for i in who] for who, n in by_trainers.items()}
        return [(layers if layers != self.model.names else None, group)
                for layers, group in found.items()]  # fmt: skip

    def merged(self, taken: Sequence[Any], before: Any, after: Any) -> None:
        """A version of what these have trained; then, where the split is dynamic, it may move."""
        self._version += 1
        changed = {name for c in taken for name in c.plan.part.layers}
        self._holdings.changed(changed, self._version)
        for name in {c.plan.part.name for c in taken}:
            self._made[name] += 1
        if all(c.plan.part.name != ALL for c in taken):
            self._phase += 1
            self._move(taken, before, after)

    # --- the pre-pass and the split -------------------------------------------------------------

    def measure(self, taken: Sequence[Any], before: Any) -> list[Any]:
        """The pre-pass is over: these contributions have begun at the state ``before``. Returns
        those whose updates are not finite."""
        section = self.section.prepass
        assert section is not None
        self.prepass, nonfinite = False, list[Any]()
        if self._learner.learns:
            names = self.model.names
            nonfinite = self._measure(names, taken, before, section.metric, section.on)
            if None in self._divergence and self.section.by_value:
                empty = sum(c.samples == 0 for c in taken)
                raise RunError(
                    f"the divergence needs finite updates of two clients with samples or more; of "
                    f"the {len(taken)} of the pre-pass, {len(nonfinite)} are not finite and "
                    f"{empty} come from who has no sample, at simulated time "
                    f"{self._clock.now!r} s; ask more clients, give them more time, or say a "
                    f"smaller {self.model.rates['prepass']}"
                )
        self._first_split()
        return nonfinite

    def _measure(
        self, layers: Layers, taken: Sequence[Any], before: Any, metric: str, on: str
    ) -> list[Any]:
        """Take the divergence of these layers; returns whose updates are not finite."""
        updates, weights = [c.update for c in taken], [float(c.samples) for c in taken]
        found = self._learner.divergence(before, updates, weights, layers, metric, on)
        for name, value in zip(layers, found["divergence"], strict=True):
            if value is not None:  # of one alone nothing is known: what was known before stays
                self._divergence[self.model.names.index(name)] = value
        return [taken[position] for position in found["nonfinite"]]

    def _first_split(self) -> None:
        split = self.section.split
        if self.section.by_value and not self._learner.learns:
            self._split(self.section.stand_in or 0, "stand_in", "named in the scenario")
            return
        known = [value for value in self._divergence if value is not None]
        match split:
            case schema.FixedSplit(layers=names) if names is not None:
                self._split_at(tuple(n for n in self.model.names if n in names), "fixed",
                               "named in the scenario")  # fmt: skip
            case schema.FixedSplit(layer=layer):
                assert layer is not None
                self._split(layer, "fixed", "named in the scenario")
            case schema.BalancedBytes():
                self._split(balanced_bytes(self.model.sizes_bytes), "balanced_bytes",
                            "its share of the bytes is nearest to one half")  # fmt: skip
            case schema.LargestJump():
                self._split(largest_jump(known), "largest_jump",
                            "behind it the divergence rises most")  # fmt: skip
            case schema.Threshold(rho=rho):
                self._split(threshold(known, rho), "threshold", _last_below(rho))
            case schema.DynamicSplit(by="divergence", rho=rho):
                self._split(threshold(known, rho), "dynamic", _last_below(rho))
            case schema.DynamicSplit(layer=layer):
                assert layer is not None
                self._climber = Climber(layer, len(self.model.names))
                self._split(layer, "dynamic", "named in the scenario")

    def _move(self, taken: Sequence[Any], before: Any, after: Any) -> None:
        """Decide a dynamic split anew, where it is time."""
        split = self.section.split
        if not isinstance(split, schema.DynamicSplit) or not self._learner.learns:
            return
        if self._climber is not None:
            if self._phase % split.every == 0:
                values = self._learner.evaluate(after)
                assert values is not None
                layer = self._climber.next(values["accuracy"])
                self._split(layer, "dynamic", "one layer on, or back, by how accuracy has risen")
        else:
            # What the last of each part to be trained have shown is what the decision goes by.
            prepass = self.section.prepass
            assert prepass is not None
            for layers, group in self.groups(taken):
                self._measure(layers or self.model.names, group, before, prepass.metric, prepass.on)
            if self._phase % split.every == 0:
                known = [value for value in self._divergence if value is not None]
                self._split(threshold(known, split.rho), "dynamic", _last_below(split.rho))

    def _split(self, layer: int, rule: str, why: str) -> None:
        self._split_at(self.model.names[:layer], rule, why)

    def _split_at(self, a: Layers, rule: str, why: str) -> None:
        """Part A from now on; the tasks under way keep theirs."""
        model = self.model
        self._layers.update(A=a, B=tuple(name for name in model.names if name not in a))
        sizes = zip(model.names, model.sizes_bytes, strict=True)
        a_bytes = sum(size for name, size in sizes if name in a)
        self._recorder.event(
            self._clock.now, "split", "server", version=self._version, rule=rule, why=why,
            A=list(a), B=list(self._layers["B"]), A_bytes=a_bytes,
            B_bytes=sum(model.sizes_bytes) - a_bytes,
        )  # fmt: skip
        rows = zip(model.names, model.parameters, model.sizes_bytes, self._divergence, strict=True)
        for number, (name, parameters, size_bytes, divergence) in enumerate(rows, start=1):
            part = "A" if name in a else "B"
            self._rows.append(
                (self._version, number, name, parameters, size_bytes, divergence, part)
            )
        self._recorder.layers(self._rows)


def check(section: schema.DivideAndConquer, names: Layers) -> list[str]:
    """What a user should know of a split of the layers ``names``.

    Raises ScenarioError for one that these layers do not have.
    """
    split, where = section.split, "federation.payload"
    if len(names) < 2:
        raise ScenarioError(
            f"{where}: the model has one layer only, and nothing to divide; take another model, or "
            "payload: {kind: full}"
        )
    most = len(names) - 1 if isinstance(split, schema.DynamicSplit) else len(names)
    for key, layer in (("split.layer", getattr(split, "layer", None)),
                       ("stand_in", section.stand_in)):  # fmt: skip
        if layer is not None and layer > most:
            raise ScenarioError(
                f"{where}.{key} is {layer}, and the model has {len(names)} layers "
                f"({', '.join(names)}); at most {most} can be in part A"
            )
    listed = getattr(split, "layers", None)
    for name in listed or ():
        if name not in names:
            raise ScenarioError(
                f"{where}.split.layers: the model has no layer '{name}'{nearest(name, names)}; it "
                f"has {', '.join(names)}"
            )
    notes = []
    fixed = section.stand_in if listed is None else len(listed)
    fixed = getattr(split, "layer", None) if fixed is None else fixed
    for part, empty in (("A", fixed == 0), ("B", fixed == len(names))):
        if empty and part in section.schedule:
            notes.append(
                f"{where}: part {part} has no layer: in {_PHASES[part]} rounds nothing is trained, "
                "and only headers travel back"
            )
        if part not in section.schedule and not empty:
            notes.append(
                f"{where}.schedule never trains part {part}: unless a pre-pass that counts does, "
                "its layers stay as they were at the start"
            )
    return notes


def _last_below(rho: float) -> str:
    return f"the last with at most {rho} of the largest divergence, but for the first and the last"
