"""The whole model in each direction, and what the method sends beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from emulator.errors import ScenarioError
from emulator.federation.cost import Cost
from emulator.federation.payload import LOCAL_RATE, Layers, WorkOf
from emulator.learning_interface import Part
from emulator.simulation.participation import Participation, Terms

_MOST_BYTES = 1 << 43


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of one participation's messages."""

    down_bytes: int
    up_bytes: int


def full(header: int, cost: Cost, model_bytes: int, statistics_bytes: int) -> Sizes:
    """header + (1 + vectors) × model + running statistics, each way; up 4 bytes a value more.

    ``statistics_bytes``: of those that travel, once beside the model. Raises
    :class:`ScenarioError` for messages so long that their sums would not be counted exactly.
    """
    sizes = Sizes(
        header + (1 + cost.vectors_down) * model_bytes + statistics_bytes,
        header + (1 + cost.vectors_up) * model_bytes + statistics_bytes + 4 * cost.values_up,
    )
    longest_bytes = max(sizes.down_bytes, sizes.up_bytes)
    if longest_bytes > _MOST_BYTES:
        raise ScenarioError(
            f"federation.payload.header and task.model make messages of {longest_bytes} bytes; "
            f"at most {_MOST_BYTES} (8 TiB) can be told apart in sums"
        )
    return sizes


class Full:
    """The payload, and at once the plan of every contribution: all of it, each time. ``work`` is
    what a task computes."""

    part: Part | None = None

    def __init__(self, sizes: Sizes, work: WorkOf) -> None:
        self.rate = LOCAL_RATE
        self.work = work
        self._sizes = sizes
        self._given: Terms | None = None
        self._alone: Terms

    def plan(self, contributor: int) -> Full:
        return self

    def alone(self, client: int, terms: Terms) -> Terms:
        """See :class:`emulator.federation.payload.Plan`."""
        if terms is not self._given:  # the tasks of a round share theirs
            self._given, self._alone = terms, self.in_chain(client, terms)
        return self._alone

    def in_chain(
        self, client: int, terms: Terms, *, comes: bool = True, moved: bool = False,
        goes: bool = True,
    ) -> Terms:  # fmt: skip
        """See :class:`emulator.federation.payload.Plan`."""
        down_bytes = self._sizes.down_bytes if comes else 0
        up_bytes = self._sizes.up_bytes if goes else 0
        return Terms(down_bytes, up_bytes, terms.on_upload, terms.on_loss)

    def ended(self, p: Participation) -> None:
        """Who holds what makes no difference."""

    def accepted(self, contribution: Any) -> None:
        """Nor does who has reported."""

    def revoked(self, contribution: Any) -> None:
        """Nor who has not, after all."""

    def age(self, contribution: Any, version: int) -> tuple[int, int | None]:
        """In versions of the model."""
        return version - contribution.version, None

    def groups(self, taken: Sequence[Any]) -> list[tuple[Layers | None, list[Any]]]:
        """All together."""
        return [(None, list(taken))]

    def merged(self, taken: Sequence[Any], before: Any, after: Any) -> None:
        """One version is like another."""

    def heir(self) -> Full:
        """What travels is the same for all."""
        return self

    def forget(self, client: int) -> None:
        """Who holds what makes no difference."""
