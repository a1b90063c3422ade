"""``local``: how clients train."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from emulator.scenario.schema.base import Count, NonNegative, Positive, Section


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
