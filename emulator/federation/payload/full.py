"""The whole model in each direction, and what the method sends beside it."""

from __future__ import annotations

from dataclasses import dataclass

from emulator.federation.cost import Cost
from emulator.scenario.schema import FullPayload


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of one participation's messages."""

    down_bytes: int
    up_bytes: int


def full(section: FullPayload, cost: Cost, model_bytes: int, statistics_bytes: int) -> Sizes:
    """header + (1 + vectors) × model + running statistics, each way; up 4 bytes a value more.

    ``statistics_bytes``: of those that travel, once beside the model.
    """
    return Sizes(
        section.header + (1 + cost.vectors_down) * model_bytes + statistics_bytes,
        section.header
        + (1 + cost.vectors_up) * model_bytes
        + statistics_bytes
        + 4 * cost.values_up,
    )
