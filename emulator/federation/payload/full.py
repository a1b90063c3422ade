"""The whole model in each direction, and what the objective sends beside it."""

from __future__ import annotations

from dataclasses import dataclass

from emulator.federation.objective import Cost
from emulator.scenario.schema import FullPayload


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of one participation's messages."""

    down_bytes: int
    up_bytes: int


def full(section: FullPayload, cost: Cost, model_bytes: int) -> Sizes:
    """header + vectors × model, each way."""
    return Sizes(
        section.header + cost.vectors_down * model_bytes,
        section.header + cost.vectors_up * model_bytes,
    )
