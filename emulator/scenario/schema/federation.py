"""``local`` and ``federation``: how clients train, and the axes of the federation."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal

from pydantic import Field, model_validator

from emulator.scenario.schema.base import Count, Kind, NonNegative, Positive, Section
from emulator.scenario.units import NonNegativeBytes, PositiveSeconds


class Sgd(Section):
    kind: Literal["sgd"]
    lr: Positive
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: NonNegative = 0.0


class Local(Section):
    """``epochs`` over the client's data, or exactly ``steps`` full batches."""

    epochs: Count | None = None
    steps: Count | None = None
    batch_size: Count
    optimizer: Annotated[Sgd, Field()]
    short_clients: Literal["train", "pad", "skip"] = "train"

    @model_validator(mode="after")
    def _one_length(self) -> Local:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("say either epochs or steps, one of them")
        return self


class Synchronous(Section):
    """Rounds that wait for ``participants`` updates.

    ``too_few``: what to do when fewer than floor(participants × over_commitment) clients are
    online and idle at the start of a round.
    """

    kind: Literal["synchronous"]
    participants: Count
    over_commitment: Annotated[float, Field(ge=1)] = 1.0
    deadline: PositiveSeconds | Literal["none"]
    min_updates: Count = 1
    stragglers: Literal["cancel", "finish"] = "cancel"
    too_few: Literal["wait", "proceed", "fail"] = "wait"
    weights: Literal["samples", "uniform"] = "samples"

    @property
    def asked(self) -> int:
        """floor(participants × over_commitment), of the decimal product."""
        return int(Decimal(self.participants) * Decimal(repr(self.over_commitment)))

    @model_validator(mode="after")
    def _quorum(self) -> Synchronous:
        if self.min_updates > self.participants:
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


class Buffered(Section):
    """FedBuff: ``in_flight`` clients train at any time, every ``buffer`` updates make a version.

    ``normalise``: the discounted updates are divided by the sum of the weights (FedBuff's 1/K)
    or by the sum of the discounted weights.
    """

    kind: Literal["buffered"]
    in_flight: Count
    buffer: Count
    refill: Literal["at_once", "at_aggregation"] = "at_once"
    staleness: Annotated[ConstantStaleness | PolynomialStaleness, Kind] = PolynomialStaleness(
        kind="polynomial"
    )
    max_staleness: Annotated[int, Field(ge=0)] | None = None
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


class RandomSelection(Section):
    """Uniform among the clients that are online; ``busy: queue`` also asks those at work,
    whose new task then waits its turn on the device."""

    kind: Literal["random"]
    busy: Literal["exclude", "queue"] = "exclude"


class AllSelection(Section):
    """Everyone who is online and idle."""

    kind: Literal["all"]


class Star(Section):
    kind: Literal["star"]


class Plain(Section):
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


class FullPayload(Section):
    """The whole model travels, after a header of ``header`` bytes in each message."""

    kind: Literal["full"]
    header: NonNegativeBytes = 1000


class Federation(Section):
    pacing: Annotated[Synchronous | Buffered, Kind]
    selection: Annotated[RandomSelection | AllSelection, Kind] = RandomSelection(kind="random")
    structure: Annotated[Star, Field()] = Star(kind="star")
    objective: Annotated[Plain | FedProx | Scaffold, Kind] = Plain(kind="plain")
    server_optimizer: Annotated[Average | FedYogi, Kind] = Average(kind="average")
    payload: Annotated[FullPayload, Field()] = FullPayload(kind="full")
    on_nonfinite: Literal["drop", "stop"] = "drop"
