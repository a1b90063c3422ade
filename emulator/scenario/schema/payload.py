"""``federation.payload``: what travels."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from emulator.scenario.schema.base import LARGEST_COUNT, Count, Kind, Positive, Section, Whole
from emulator.scenario.units import NonNegativeBytes, PositiveSeconds

RoundTime = PositiveSeconds | Literal["none"]


class FullPayload(Section):
    """The whole model travels, after a header of ``header`` bytes in each message."""

    kind: Literal["full"]
    header: NonNegativeBytes = 1000


class FixedSplit(Section):
    """Part A is the first ``layer`` layers in forward order, or those of the names ``layers``."""

    kind: Literal["fixed"]
    layer: Whole | None = None
    layers: tuple[str, ...] | None = Field(default=None, strict=False)

    @model_validator(mode="after")
    def _one(self) -> FixedSplit:
        if (self.layer is None) == (self.layers is None):
            raise ValueError("say either layer or layers, one of them")
        if self.layers is not None and not self.layers:
            raise ValueError(
                "layers names no layer, and part A would be empty; name those of part A, or say "
                "layer: 0"
            )
        if self.layers is not None and len(set(self.layers)) < len(self.layers):
            twice = next(name for name in self.layers if self.layers.count(name) > 1)
            raise ValueError(f"layers names '{twice}' twice")
        return self


class LargestJump(Section):
    """After the layer behind which the divergence rises most."""

    kind: Literal["largest_jump"]


class Threshold(Section):
    """After the last layer whose divergence is at most ``rho`` of the largest."""

    kind: Literal["threshold"]
    rho: Annotated[float, Field(gt=0, lt=1)] = 0.5


class BalancedBytes(Section):
    """Where part A is nearest to half of the bytes."""

    kind: Literal["balanced_bytes"]


class DynamicSplit(Section):
    """Decided anew after every so many versions (beyond the paper, whose future work it is).

    ``by: divergence``: by the threshold ``rho``, of each layer's divergence among the updates that
    trained it last, the first time those of the pre-pass. ``by: accuracy``: begins after ``layer``,
    moves by one layer each time, first to a larger part A, and turns around where the test accuracy
    has risen by less than in the period before, or at either end.
    """

    kind: Literal["dynamic"]
    by: Literal["accuracy", "divergence"]
    every: Count
    layer: Count | None = None
    rho: Annotated[float, Field(gt=0, lt=1)] = 0.5

    @model_validator(mode="after")
    def _begins(self) -> DynamicSplit:
        if (self.by == "accuracy") != (self.layer is not None):
            raise ValueError(
                "by: accuracy needs layer, after which it begins, and by: divergence takes none"
            )
        return self


class PrePass(Section):
    """A round before the first, in which clients train the whole model for ``epochs``, and from
    which the divergence of each layer is taken.

    All clients take part, or as many as ``participants`` says; ``too_few`` as in synchronous
    pacing. ``counts``: the round makes the first version; else the model stays as it was.
    ``metric``: 1 − cos of every two clients that have samples (``pairwise``) or of each to the mean
    (``to_mean``); ``on`` their ``updates`` or their ``weights``, of which common initial values
    leave little to see.
    """

    epochs: Count = 5
    lr: Positive | None = None
    participants: Annotated[int, Field(ge=2, le=LARGEST_COUNT)] | None = None
    deadline: RoundTime
    too_few: Literal["wait", "proceed", "fail"] = "wait"
    counts: bool = False
    metric: Literal["pairwise", "to_mean"] = "pairwise"
    on: Literal["updates", "weights"] = "updates"


class Phase(Section):
    """Epochs and learning rate of a phase; all else is as ``local`` says."""

    epochs: Count
    lr: Positive


class DivideAndConquer(Section):
    """Divide-and-Conquer (Chandran et al. 2021): the lower layers (part A) and the upper ones (part
    B) are trained in turn while the others are frozen, and only what has changed travels.

    ``split``: after which layer; the rules ``largest_jump`` and ``threshold`` need a ``prepass``.
    ``schedule``: which part each version trains, over and over. ``alternate``: all clients are in
    the same phase, which changes with each version (``global_phase``), or each goes through the
    schedule by its own reported tasks (``client_phase``). Down goes what the client does not hold
    in the newest version, after a header and a control message (what to freeze, epochs, rate), up
    what was trained; ``naive_half`` charges the trained part only each way, as the paper counts.
    With --timing-only a split that goes by values needs ``stand_in``, a number of layers.
    """

    kind: Literal["divide_and_conquer"]
    split: Annotated[FixedSplit | LargestJump | Threshold | BalancedBytes | DynamicSplit, Kind]
    prepass: PrePass | None = None
    schedule: Annotated[tuple[Literal["A", "B"], ...], Field(min_length=1, strict=False)] = (
        "A",
        "B",
    )
    feature_learning: Phase = Phase(epochs=1, lr=0.01)
    fine_tuning: Phase = Phase(epochs=3, lr=0.01)
    alternate: Literal["global_phase", "client_phase"] = "global_phase"
    header: NonNegativeBytes = 1000
    control: NonNegativeBytes = 100
    naive_half: bool = False
    stand_in: Whole | None = None

    @property
    def by_value(self) -> bool:
        """Whether the split goes by what clients have learned."""
        return not isinstance(self.split, FixedSplit | BalancedBytes)

    @model_validator(mode="after")
    def _has_a_prepass(self) -> DivideAndConquer:
        split = self.split
        by_accuracy = isinstance(split, DynamicSplit) and split.by == "accuracy"
        if self.by_value and not by_accuracy and self.prepass is None:
            raise ValueError(
                f"prepass is missing: split '{split.kind}' goes by the divergence in a round "
                "before the first; say prepass: {deadline: none}, or split: {kind: fixed, layer: 3}"
            )
        if self.stand_in is not None and not self.by_value:
            raise ValueError(f"stand_in: split '{split.kind}' needs none; leave it out")
        return self


Payload = Annotated[FullPayload | DivideAndConquer, Kind]
