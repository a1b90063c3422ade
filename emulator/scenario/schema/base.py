"""What all sections share: strictness, bounds, paths and distributions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    model_validator,
)

from emulator.scenario.units import PositiveRate, PositiveSeconds


class Section(BaseModel):
    """Base of all sections: unknown keys refused, no coercion, frozen."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


Kind = Field(discriminator="kind")
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
# Whole numbers up to here fit 64 bits and are exact as floats; beyond are mistakes.
LARGEST_COUNT: Final = 2**53
Count = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]
Whole = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]


def _not_empty(value: Any) -> Any:
    if value == "":
        raise ValueError("must be the path of a file or folder, found ''")
    return value


def _found(path: Path, info: ValidationInfo) -> Path:
    """Paths are relative to the scenario file, and must be there."""
    base = (info.context or {}).get("base")
    if base is None:
        return path
    try:
        full = Path(base, path.expanduser())
        if full.exists():
            return full
        reason = "no such file or folder"
    except (OSError, RuntimeError) as error:  # a long name, a closed folder, ~ of nobody
        reason = str(getattr(error, "strerror", None) or error).rstrip(".")
        full = Path(base, path)
    raise ValueError(f"{reason}: {full}")


InputPath = Annotated[
    Path, Field(strict=False), BeforeValidator(_not_empty), AfterValidator(_found)
]

Q = TypeVar("Q")


class Constant(Section, Generic[Q]):
    dist: Literal["constant"]
    value: Q


class Lognormal(Section, Generic[Q]):
    """exp(N(ln median, sigma²)); beyond a ``sigma`` of 20 no mean fits a float."""

    dist: Literal["lognormal"]
    median: Q
    sigma: Annotated[float, Field(ge=0, le=20)]


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


def mean_and_typical(drawn: Any) -> tuple[float, float]:
    """The mean of a distribution, and what a draw comes to where few decide on the mean."""
    match drawn:
        case Constant():
            mean = typical = drawn.value
        case Lognormal():
            mean, typical = drawn.median * math.exp(drawn.sigma**2 / 2), drawn.median
        case Exponential():
            mean = typical = drawn.mean
        case _:
            mean = typical = (drawn.low + drawn.high) / 2
    return float(mean), float(typical)


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
