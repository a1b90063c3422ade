"""What all sections share: strictness, bounds, paths and distributions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Generic, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, model_validator

from emulator.scenario.units import PositiveRate, PositiveSeconds


class Section(BaseModel):
    """Base of all sections: unknown keys refused, no coercion, frozen."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


Kind = Field(discriminator="kind")
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]


def _found(path: Path, info: ValidationInfo) -> Path:
    """Paths are relative to the scenario file, and must be there."""
    base = (info.context or {}).get("base")
    full = Path(base, path.expanduser()) if base is not None else path
    if base is not None and not full.exists():
        raise ValueError(f"no such file or folder: {full}")
    return full


InputPath = Annotated[Path, Field(strict=False), AfterValidator(_found)]

Q = TypeVar("Q")


class Constant(Section, Generic[Q]):
    dist: Literal["constant"]
    value: Q


class Lognormal(Section, Generic[Q]):
    """exp(N(ln median, sigma²))."""

    dist: Literal["lognormal"]
    median: Q
    sigma: NonNegative


class Exponential(Section, Generic[Q]):
    dist: Literal["exponential"]
    mean: Q


class Uniform(Section, Generic[Q]):
    dist: Literal["uniform"]
    low: Q
    high: Q

    @model_validator(mode="after")
    def _ordered(self) -> Uniform[Q]:
        if not self.low < self.high:  # type: ignore[operator]
            raise ValueError(f"low must be below high, got {self.low} and {self.high}")
        return self


Dist = Field(discriminator="dist")
Factor = Annotated[
    Constant[Positive] | Lognormal[Positive] | Exponential[Positive] | Uniform[Positive], Dist
]
Duration = Annotated[
    Constant[PositiveSeconds]
    | Lognormal[PositiveSeconds]
    | Exponential[PositiveSeconds]
    | Uniform[PositiveSeconds],
    Dist,
]
Rate = Annotated[
    Constant[PositiveRate]
    | Lognormal[PositiveRate]
    | Exponential[PositiveRate]
    | Uniform[PositiveRate],
    Dist,
]
NO_NOISE: Constant[float] = Constant[Positive](dist="constant", value=1.0)
