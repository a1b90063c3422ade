"""``federation``: the axes."""

from __future__ import annotations

import math
from decimal import Decimal
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from emulator.scenario.schema.base import Count, Kind, NonNegative, Positive, Section, Whole
from emulator.scenario.schema.clustered import Cfl, FlexCfl, FlHc, Ifca
from emulator.scenario.schema.cohorts import Cohorts
from emulator.scenario.schema.faults import Faults
from emulator.scenario.schema.payload import FullPayload, Payload, Phase, RoundTime
from emulator.scenario.schema.structure import Star, Superclients
from emulator.scenario.units import NonNegativeSeconds, PositiveSeconds

InFlight = Annotated[int, Field(ge=1, le=10_000_000)]
Fraction = Annotated[float, Field(gt=0, le=1)]


def one_of(**given: object) -> None:
    """Raise ValueError unless one of two keys is given."""
    if sum(value is not None for value in given.values()) != 1:
        raise ValueError(f"say either {' or '.join(given)}, one of them")


def share_of(n: int, number: int | None, fraction: float | None) -> int:
    """``number``, or max(floor(fraction × n), 1) of the decimal product."""
    if number is not None:
        return number
    return max(int(Decimal(repr(fraction)) * n), 1)


class DeadlineStep(Section):
    """The deadline of a round and of those after it; rounds count from 0, failed ones too."""

    from_round: Whole
    deadline: RoundTime


class ScheduledDeadline(Section):
    """A deadline that changes at given rounds."""

    kind: Literal["schedule"]
    steps: Annotated[list[DeadlineStep], Field(min_length=1)]

    @model_validator(mode="after")
    def _in_order(self) -> ScheduledDeadline:
        rounds = [step.from_round for step in self.steps]
        if rounds[0] != 0:
            raise ValueError(
                f"the first of the steps begins at round {rounds[0]}, and rounds count from 0: "
                "begin with from_round: 0"
            )
        for before, after in pairwise(rounds):
            if after <= before:
                raise ValueError(
                    f"the steps must be in order: round {after} comes after round {before}"
                )
        return self


class QuantileDeadline(Section):
    """``times`` the quantile ``q`` of how long the last ``of_last`` uploads took.

    From dispatch to the end of the upload, of all uploads that were complete when the round began:
    those of failed rounds and, with stragglers: finish, late ones too. The quantile is an order
    statistic, the ceil(q · of_last)-th shortest, then held within ``at_least`` and ``at_most``.
    Until there are ``of_last`` uploads the deadline is ``initial``.
    """

    kind: Literal["quantile"]
    q: Annotated[float, Field(gt=0, le=1)]
    of_last: Annotated[int, Field(ge=1, le=1_000_000)]
    initial: RoundTime
    times: Annotated[float, Field(gt=0, le=1000)] = 1.0
    at_least: PositiveSeconds | None = None
    at_most: PositiveSeconds | None = None

    @property
    def rank(self) -> int:
        """ceil(q · of_last), of the decimal product."""
        return math.ceil(Decimal(repr(self.q)) * self.of_last)

    @model_validator(mode="after")
    def _bounds(self) -> QuantileDeadline:
        low, high = self.at_least, self.at_most
        if low is not None and high is not None and low > high:
            raise ValueError(f"at_least is {low} s, more than at_most, {high} s")
        return self


class Synchronous(Section):
    """Rounds that wait for ``participants`` updates, or for that ``fraction`` of all who may be
    asked: max(floor(fraction × n), 1).

    ``deadline``: a duration, 'none', {kind: schedule, steps: [{from_round, deadline}, …]} or
    {kind: quantile, q, of_last, initial, times, at_least, at_most}. A round fails with fewer than
    ``min_updates`` updates or, where that is given, with a smaller share than ``target_ratio`` of
    those it waits for (participants, or all it asked where those are fewer). ``too_few``: what to
    do when fewer than floor(participants × over_commitment) clients are online and idle at the
    start of a round.
    """

    kind: Literal["synchronous"]
    participants: Count | None = None
    fraction: Fraction | None = None
    over_commitment: Annotated[float, Field(ge=1)] = 1.0
    deadline: RoundTime | Annotated[ScheduledDeadline | QuantileDeadline, Kind]
    min_updates: Count = 1
    target_ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    stragglers: Literal["cancel", "finish"] = "cancel"
    too_few: Literal["wait", "proceed", "fail"] = "wait"
    weights: Literal["samples", "uniform"] = "samples"

    def wanted(self, n: int) -> int:
        """How many updates a round waits for, where ``n`` may be asked."""
        return share_of(n, self.participants, self.fraction)

    def asked(self, n: int) -> int:
        """floor(participants × over_commitment), of the decimal product."""
        return self.asked_for(self.wanted(n))

    def asked_for(self, wanted: int) -> int:
        """floor(wanted × over_commitment), of the decimal product."""
        return int(Decimal(wanted) * Decimal(repr(self.over_commitment)))

    @property
    def always_ends(self) -> bool:
        """Whether every round has a deadline."""
        deadline = self.deadline
        if isinstance(deadline, ScheduledDeadline):
            return all(step.deadline != "none" for step in deadline.steps)
        if isinstance(deadline, QuantileDeadline):
            return deadline.initial != "none"
        return deadline != "none"

    def quorum(self, wanted: int, asked: int) -> int:
        """The updates without which a round that waits for ``wanted`` of ``asked`` fails.

        ``target_ratio``: ceil of the decimal product.
        """
        if self.target_ratio is None:
            return self.min_updates
        return math.ceil(Decimal(repr(self.target_ratio)) * min(wanted, asked))

    @model_validator(mode="after")
    def _one_size(self) -> Synchronous:
        one_of(participants=self.participants, fraction=self.fraction)
        return self

    @model_validator(mode="after")
    def _one_quorum(self) -> Synchronous:
        if self.target_ratio is not None and self.min_updates > 1:
            raise ValueError(
                "min_updates and target_ratio both say when a round fails, one as a number and "
                "one as a share: say one of them"
            )
        if self.participants is not None and self.min_updates > self.participants:
            raise ValueError(
                f"min_updates is {self.min_updates}, more than the {self.participants} participants"
            )
        return self


class ConstantStaleness(Section):
    """s(τ) = 1."""

    kind: Literal["constant"]


class PolynomialStaleness(Section):
    """s(τ) = (1 + τ)^-exponent (FedBuff: exponent 0.5)."""

    kind: Literal["polynomial"]
    exponent: NonNegative = 0.5


class HingeStaleness(Section):
    """s(τ) = 1 up to τ = b, then 1/(a·(τ − b) + 1) (FedAsync: a 10, b 4)."""

    kind: Literal["hinge"]
    a: Positive = 10.0
    b: NonNegative = 4.0


Staleness = Annotated[ConstantStaleness | PolynomialStaleness | HingeStaleness, Kind]


class Buffered(Section):
    """FedBuff: ``in_flight`` clients train at any time, every ``buffer`` updates make a version.

    ``staleness`` s(τ) is {kind: constant}: 1, {kind: polynomial, exponent}: (1 + τ)^-exponent, or
    {kind: hinge, a, b}: 1 up to τ = b, then 1/(a·(τ − b) + 1). ``normalise``: the discounted
    updates are divided by the sum of the weights (FedBuff's 1/K) or by the sum of the discounted
    weights.
    """

    kind: Literal["buffered"]
    in_flight: InFlight
    buffer: Count
    refill: Literal["at_once", "at_aggregation"] = "at_once"
    staleness: Staleness = PolynomialStaleness(kind="polynomial")
    max_staleness: Whole | None = None
    normalise: Literal["weights", "discounted"] = "weights"
    weights: Literal["samples", "uniform"] = "uniform"

    @model_validator(mode="after")
    def _can_fill(self) -> Buffered:
        if self.refill == "at_aggregation" and self.buffer > self.in_flight:
            raise ValueError(
                f"the buffer of {self.buffer} can never fill: only {self.in_flight} clients are "
                "in flight and slots are refilled at the aggregation; say refill: at_once, a "
                f"buffer of at most {self.in_flight}, or more in_flight"
            )
        return self


class Asynchronous(Section):
    """FedAsync: ``in_flight`` clients train at any time, and every upload makes a version.

    w ← (1 − α·s(τ)) w + α·s(τ) w_k, with α = ``mixing`` and ``staleness`` s(τ) as in buffered
    pacing. The proximal term of its clients is the objective {kind: fedprox, mu: 0.005}.
    """

    kind: Literal["asynchronous"]
    in_flight: InFlight
    mixing: Annotated[float, Field(gt=0, le=1)] = 0.6
    staleness: Staleness = PolynomialStaleness(kind="polynomial")
    max_staleness: Whole | None = None

    @property
    def weights(self) -> Literal["samples"]:
        """One update needs no weight, but that of a client without samples does not count."""
        return "samples"


class FedSeqInter(Section):
    """FedSeqInter (Zaccone et al. 2022): models walk from superclient to superclient, each on its
    own, and are averaged now and then. Structure: superclients.

    So many ``walkers``, or max(floor(fraction × superclients), 1). A walker leaves a superclient
    for one that is drawn at random among those that host no walker and have a member online; while
    there is none it stays parked. Modes: ``lockstep``: all hop together, when the slowest chain is
    over, and every ``hops`` rounds are averaged. ``free_hops``: each hops when it is ready, parks
    after ``hops`` hops, and the average is taken when all are parked. ``free_quota``: the average
    is taken after walkers × ``hops`` hops in all, of the models that the server holds; chains under
    way are cancelled. ``merge``: no barrier: after ``hops`` hops a walker merges alone,
    w ← (1 − α s(τ)) w + α s(τ) w_i with α = ``mixing`` and τ the merges since it set out, and goes
    on from w. ``hops`` is the number of superclients unless said otherwise. In an average a model
    weighs as many samples as it has seen since the last one; one that has made no hop is left out.
    """

    kind: Literal["fedseqinter"]
    mode: Literal["lockstep", "free_hops", "free_quota", "merge"]
    walkers: Count | None = None
    fraction: Fraction | None = None
    hops: Count | None = None
    mixing: Annotated[float, Field(gt=0, le=1)] | None = None
    staleness: Staleness | None = None
    weights: Literal["samples", "uniform"] = "samples"

    def wanted(self, n: int) -> int:
        """How many walkers there are among ``n`` superclients."""
        return share_of(n, self.walkers, self.fraction)

    @model_validator(mode="after")
    def _of_its_mode(self) -> FedSeqInter:
        one_of(walkers=self.walkers, fraction=self.fraction)
        if self.mode == "merge" and self.mixing is None:
            raise ValueError("mode: merge needs mixing, the α of its merges, such as 0.6")
        if self.mode != "merge" and not (self.mixing is None and self.staleness is None):
            raise ValueError(
                f"mixing and staleness go with mode: merge; mode '{self.mode}' averages"
            )
        return self


class RandomSelection(Section):
    """Uniform among the clients that are online; ``busy: queue`` also asks those at work,
    whose new task then waits its turn on the device. After a task a client is not asked again for
    ``rest``, unless it has gone offline and come back (pace steering, Bonawitz et al. 2019)."""

    kind: Literal["random"]
    busy: Literal["exclude", "queue"] = "exclude"
    rest: NonNegativeSeconds = 0.0

    @model_validator(mode="after")
    def _rest_or_queue(self) -> RandomSelection:
        if self.rest and self.busy == "queue":
            raise ValueError(
                "rest goes with busy: exclude; with busy: queue who is at work is asked too"
            )
        return self


class AllSelection(Section):
    """Everyone who is online and idle."""

    kind: Literal["all"]
    rest: ClassVar[float] = 0.0


class Plain(Section):
    """The client's own loss, as in FedAvg (McMahan et al. 2017)."""

    kind: Literal["plain"]


class FedProx(Section):
    """Adds (mu/2)·‖w − w_global‖² to the client's loss (Li et al. 2020)."""

    kind: Literal["fedprox"]
    mu: NonNegative


class Scaffold(Section):
    """Control variates (Karimireddy et al. 2020); option I takes an extra pass at the server
    model, option II none."""

    kind: Literal["scaffold"]
    option: Literal["I", "II"] = "II"


class FedDyn(Section):
    """A dynamic regularizer (Acar et al. 2021, as in the paper): clients minimize
    F_k(w) − ⟨∇_k, w⟩ + (alpha/2)·‖w − w_global‖² and keep ∇_k. The server's step is its own, with
    the plain mean of the models: server_optimizer stays {kind: average}, weights are uniform.

    In a superclient the model of the client before stands for w_global, and ``normaliser`` says
    whether h, which sums over superclients, is divided by the number of all clients (as the
    authors' code does) or by that of all superclients. ``legacy``: clients as in FedSeq's released
    code, where ⟨∇_k, w⟩ has no gradient, so that ∇_k has no effect and nothing is kept."""

    kind: Literal["feddyn"]
    alpha: Positive
    legacy: bool = False
    normaliser: Literal["clients", "superclients"] = "clients"


class Average(Section):
    """w ← w + lr · Σ a_k Δ_k."""

    kind: Literal["average"]
    lr: Positive = 1.0


class FedYogi(Section):
    """Reddi et al. 2021, without bias correction; v starts at tau² as in the paper unless
    ``v0`` says otherwise."""

    kind: Literal["fedyogi"]
    lr: Positive = 0.01
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    tau: Positive = 1e-3
    v0: NonNegative | None = None


class FedAvgM(Section):
    """Server momentum (Hsu et al. 2019): m ← beta · m + Δ̄, w ← w + lr · m."""

    kind: Literal["fedavgm"]
    lr: Positive = 1.0
    beta: Annotated[float, Field(ge=0, lt=1)] = 0.9


class FedAdagrad(Section):
    """Reddi et al. 2021; v starts at tau² as in the paper unless ``v0`` says otherwise."""

    kind: Literal["fedadagrad"]
    lr: Positive = 0.01
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.0
    tau: Positive = 1e-3
    v0: NonNegative | None = None


class FedAdam(Section):
    """Reddi et al. 2021, without bias correction; v starts at tau² as in the paper unless
    ``v0`` says otherwise."""

    kind: Literal["fedadam"]
    lr: Positive = 0.01
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    tau: Positive = 1e-3
    v0: NonNegative | None = None


class QFedAvg(Section):
    """q-FedAvg (Li et al. 2020): fairer the larger ``q``; q = 0 is averaging.

    The paper's equation has weights: uniform in the pacing; with samples both of its sums are
    weighted by them, where the paper draws clients in proportion to their samples instead.
    """

    kind: Literal["qfedavg"]
    q: NonNegative = 1.0


# Beyond, one of the two is as good as nothing beside the other; their squares fit any float.
Deviation = Annotated[float, Field(ge=1e-6, le=1e6)]


class FedMa(Section):
    """FedMA (Wang et al. 2020): hidden units are matched, layer by layer, before they are averaged.

    A round takes as many sub-rounds, each a version, as the model has layers: all clients train the
    layers that are not matched yet and send the lowest of them, and with the last one how many
    samples of each class they hold. As many units come out of it as the model has; in the paper a
    layer may grow. ``sigma`` and ``sigma0``: standard deviations of a
    client's unit around the matched one, and of that around 0. ``sweeps``: how often all clients
    are matched anew. ``retraining``: of the sub-rounds after the first, as ``local`` unless said
    otherwise; ``last_layer``: of the last, a tenth of that rate and three times the epochs.
    """

    kind: Literal["fedma"]
    sigma: Deviation = 1.0
    sigma0: Deviation = 1.0
    sweeps: Whole = 5
    retraining: Phase | None = None
    last_layer: Phase | None = None


class FedMax(Section):
    """FedMAX (Chen et al. 2020): adds beta · KL(U ‖ softmax(a)) to the client's loss, with a what
    the last linear layer is given, and U uniform. ``direction``: ``from_uniform`` as in the
    authors' code, ``to_uniform`` for KL(softmax(a) ‖ U), which is maximum entropy to the letter.
    ``beta`` is per sample: the authors' 1000 is divided by the d units, 1.95 with 512."""

    kind: Literal["fedmax"]
    beta: NonNegative
    direction: Literal["from_uniform", "to_uniform"] = "from_uniform"


class Federation(Section):
    """The axes of the federation.

    ``batch_norm``: what becomes of the running statistics of batch normalization; a model that has
    them needs the choice. 'average': they travel with the model, both ways, and are averaged with
    its weights. 'local' (SiloBN, Andreux et al. 2020): each client keeps its own, nothing travels;
    the global model, which has none, is evaluated by the statistics of the test samples themselves.
    'freeze': training and evaluation use those of the initial model. Scale and shift are parameters
    like others. A mini-batch of one sample is normalized by the running statistics.
    """

    pacing: Annotated[Synchronous | Buffered | Asynchronous | FedSeqInter, Kind]
    selection: Annotated[RandomSelection | AllSelection, Kind] = RandomSelection(kind="random")
    structure: Annotated[Star | Superclients | Cohorts | Ifca | Cfl | FlHc | FlexCfl, Kind] = Star(
        kind="star"
    )
    objective: Annotated[Plain | FedProx | Scaffold | FedDyn | FedMax, Kind] = Plain(kind="plain")
    server_optimizer: Annotated[
        Average | FedAvgM | FedAdagrad | FedAdam | FedYogi | QFedAvg | FedMa, Kind
    ] = Average(kind="average")
    batch_norm: Literal["average", "local", "freeze"] | None = None
    payload: Payload = FullPayload(kind="full")
    faults: Faults = Faults()
    on_nonfinite: Literal["drop", "stop"] = "drop"

    @property
    def has_chains(self) -> bool:
        """Whether clients train one after the other."""
        structure = self.structure
        in_cohorts = isinstance(structure, Cohorts) and structure.superclients is not None
        return in_cohorts or isinstance(structure, Superclients)
