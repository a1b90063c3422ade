"""``federation.structure: {kind: cohorts}``: clients whose data are alike train together."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from emulator.scenario.schema.base import Count, Kind, NonNegative, Positive, Section, Whole
from emulator.scenario.schema.structure import RoundSuperclients
from emulator.scenario.units import NonNegativeSeconds

Probability = Annotated[float, Field(ge=0, le=1)]


class ClassifierSketch(Section):
    """The update of the last layer."""

    kind: Literal["classifier"]


class ProjectionSketch(Section):
    """A random projection of the whole update to so many ``dimensions``."""

    kind: Literal["projection"]
    dimensions: Annotated[int, Field(ge=2, le=100_000)] = 256


class FullSketch(Section):
    """The whole update."""

    kind: Literal["full"]


class Exploration(Section):
    """ε-greedy: at its n-th check-in with a choice a client tries another cohort than its best with
    probability max(floor, epsilon · decay^n)."""

    epsilon: Probability = 0.2
    decay: Probability = 0.95
    floor: Probability = 0.01


class PartitionRule(Section):
    """When a cohort splits in two: either at these versions (``at``), or once all conditions hold.
    Versions are those of the model, of which a cohort takes its parent's over.

    Maturity: ``min_rounds`` versions, and a training loss that falls, over ``window`` versions, no
    faster than ``settled`` times as fast as over the first ones. Knowledge: sides of
    ``known_share`` · N · 0.9^(M − 1) clients each for M cohorts and N clients, of which, but for
    the first split, one is at most ``most_uneven`` times the other, and ``window`` versions since
    the cohort began in which they have met. Agreement: of the participants of these versions who
    said on which side they are, ``agreement`` were found on it. Feasibility: a child's part of
    the budget is ``min_participants`` or more, and as many of its clients are online as it asks.
    Gain: J² of the sides over J² of the cohort, times 2 or more for the resources that are left, is
    ``gain`` at most; J² is the mean squared distance of sketches over the last ``window`` versions.
    """

    at: Annotated[tuple[Count, ...], Field(min_length=1, strict=False)] | None = None
    min_rounds: Count = 50
    window: Annotated[int, Field(ge=2, le=10_000)] = 10
    settled: Annotated[float, Field(ge=0)] = 0.5
    known_share: Annotated[float, Field(ge=0, le=1)] = 0.05
    most_uneven: Annotated[float, Field(ge=1)] = 2.0
    agreement: Probability = 0.95
    min_participants: Count = 5
    gain: Positive = 1.9


class Blacklist(Section):
    """A client that ``times`` times in a row says that it is on one side, and is found on the other
    more than ``margin`` times nearer, is not asked any more."""

    margin: Annotated[float, Field(ge=1)] = 3.0
    times: Count = 3


class Auxo(Section):
    """Auxo (Liu et al., SoCC 2023): cohorts found from the participants' updates.

    ``variant``: ``paper``: clients keep their records and predict those of cohorts that they have
    not seen (``explore``: ExploreReward for unexplored cohorts only, or for all, to the letter);
    ``code``, as released: records at the server, no prediction, a negative reward makes a client a
    stranger again, distances in all dimensions and on the scale of all participants, tolerance 1;
    exploration is then {epsilon: 0.01, decay: 0.99, floor: 0} unless said otherwise. Clustering
    begins with version ``start_round`` of the model, and takes versions of ``min_participants`` or
    more. ``reward``: R0; it is given in full in the middle of the cohort, and is 0 at the mean
    distance and ``tolerance`` (2) standard deviations. ``averaging``: what a record moves towards a
    new reward (0.3), or ``sum`` to add all rewards up (code).
    """

    kind: Literal["auxo"]
    variant: Literal["paper", "code"] = "paper"
    sketch: Annotated[ClassifierSketch | ProjectionSketch | FullSketch, Kind] = ProjectionSketch(
        kind="projection"
    )
    start_round: Whole = 0
    min_participants: Annotated[int, Field(ge=2, le=1_000_000)] = 5
    reward: Positive = 5.0
    tolerance: NonNegative | None = None
    averaging: Annotated[float, Field(gt=0, le=1)] | Literal["sum"] | None = None
    exploration: Exploration | None = None
    explore: Literal["unexplored", "all"] | None = None
    partition: PartitionRule = PartitionRule()
    max_cohorts: Annotated[int, Field(ge=1, le=1000)] = 4
    blacklist: Blacklist | None = Blacklist()

    @model_validator(mode="after")
    def _of_its_variant(self) -> Auxo:
        if self.variant == "code" and self.explore is not None:
            raise ValueError(
                "explore goes with variant: paper; the released code predicts no rewards"
            )
        return self

    @property
    def predicts(self) -> Literal["unexplored", "all", "none"]:
        """Whose rewards ExploreReward predicts."""
        return "none" if self.variant == "code" else self.explore or "unexplored"

    @property
    def averages(self) -> float | None:
        """``averaging``, or the variant's; None: rewards are added up."""
        if self.averaging is None:
            return None if self.variant == "code" else 0.3
        return None if self.averaging == "sum" else self.averaging

    @property
    def tolerates(self) -> float:
        """``tolerance``, or the variant's."""
        if self.tolerance is not None:
            return self.tolerance
        return 1.0 if self.variant == "code" else 2.0

    @property
    def exploring(self) -> Exploration:
        """``exploration``, or the variant's."""
        if self.exploration is not None:
            return self.exploration
        if self.variant == "code":
            return Exploration(epsilon=0.01, decay=0.99, floor=0.0)
        return Exploration()


class Cohorts(Section):
    """Cohorts of clients, each with a model and rounds of its own; all share the clients and the
    budget of the pacing, whose participants (or in_flight and buffer) are divided by their number.

    A client checks in at the start of each of its sessions, and ``retry`` after it has become free:
    a request of ``request_bytes`` that takes its link's time. Who has taken part in a version is
    sent ``feedback_bytes``, at once or when it comes next. A round asks those who have checked in
    ``window`` after it could begin (too_few: proceed or fail need one). With ``superclients`` the
    clients of a round train in chains, and not each alone (FedSeq). ``stand_in: planted``: with
    --timing-only clusters are those of ``task.planted``.
    """

    kind: Literal["cohorts"]
    clustering: Auxo
    superclients: RoundSuperclients | None = None
    retry: NonNegativeSeconds = 0.0
    window: NonNegativeSeconds = 0.0
    request_bytes: Whole = 16
    feedback_bytes: Whole = 16
    stand_in: Literal["planted"] | None = None
