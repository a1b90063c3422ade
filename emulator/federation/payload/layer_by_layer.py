"""FedMA's rounds (Wang et al., ICLR 2020): a layer at a time, each in a sub-round of its own.

In sub-round n of L all clients train the layers n … L, the lower ones being matched and frozen, and
send layer n, which the server matches. The last one it averages by class, and with it comes how
many samples of each class a client holds. Then the server sends the matched layer to all, with the
place of each of their units in it, and the next sub-round begins; L of them make one new model.
What goes over the links is one model each way, in L rounds of stragglers. Every sub-round is a
version; the model that is evaluated changes with every L-th.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from emulator.errors import InternalError
from emulator.federation.payload import Layers, WorkOf
from emulator.federation.payload.holdings import Holdings, Model
from emulator.learning_interface import Part
from emulator.simulation.participation import Participation, Terms

ASSIGNMENT_BYTES = 4
"""For the place of one unit."""
COUNT_BYTES = 4
"""For the samples of one class."""


@dataclass(frozen=True, slots=True, eq=False)
class SubRound:
    """The plan of a task: what it trains, from which version of each layer."""

    payload: LayerByLayer
    part: Part
    number: int
    work: WorkOf
    rate: str
    versions: tuple[int, ...]

    def alone(self, client: int, terms: Terms) -> Terms:
        """See :class:`emulator.federation.payload.Plan`."""
        down_bytes, up_bytes = self.payload.sizes_bytes(self, client)
        return replace(terms, down_bytes=down_bytes, up_bytes=up_bytes)

    def in_chain(
        self, client: int, terms: Terms, *, comes: bool, moved: bool, goes: bool
    ) -> Terms:  # fmt: skip
        """There are no chains with FedMA."""
        raise InternalError("FedMA has no chains, and a turn in one was planned")


class LayerByLayer:
    """See the module; ``units`` of each layer."""

    def __init__(self, model: Model, units: Sequence[int], header: int, clients: int) -> None:
        self._model = model
        self._units = tuple(units)
        self._header = header
        self._holdings = Holdings(model.names, clients)
        self._version = 0

    def plan(self, contributor: int) -> SubRound:
        """Of the sub-round that is due."""
        names = self._model.names
        number = self._version % len(names)
        recipe = "first_layer" if number == 0 else "retraining"
        if number == len(names) - 1:
            recipe = "last_layer"
        part = Part(names[number], names[number:], recipe)
        work = self._model.work_of(recipe, part.layers)
        rate = self._model.rates[recipe]
        return SubRound(self, part, number, work, rate, self._holdings.versions)

    def sizes_bytes(self, plan: SubRound, client: int) -> tuple[int, int]:
        """Down what the client lacks, and the places of its units; up one layer, and with the last
        one a number for each of its units, which are the classes."""
        model, number = self._model, plan.number
        lacks = self._holdings.lacks(client, plan.versions)
        down = sum(size for size, yes in zip(model.sizes_bytes, lacks, strict=True) if yes)
        if number:
            down += ASSIGNMENT_BYTES * self._units[number - 1]
        up = model.sizes_bytes[number]
        if number == len(model.names) - 1:
            up += COUNT_BYTES * self._units[number]
        return self._header + down, self._header + up

    def ended(self, p: Participation) -> None:
        """A client keeps what it has received."""
        if not math.isnan(p.downloaded_s):
            self._holdings.received(p.client, p.plan.versions)

    def accepted(self, contribution: Any) -> None:
        """All of them do the same."""

    def revoked(self, contribution: Any) -> None:
        """Of cohorts only, which FedMA has not."""

    def age(self, contribution: Any, version: int) -> tuple[int, int | None]:
        """In versions."""
        return version - contribution.version, None

    def groups(self, taken: Sequence[Any]) -> list[tuple[Layers | None, list[Any]]]:
        """All together; what they have trained says which layer is matched."""
        return [(taken[0].plan.part.layers, list(taken))]

    def merged(self, taken: Sequence[Any], before: Any, after: Any) -> None:
        """A layer is matched."""
        self._version += 1
        self._holdings.changed({taken[0].plan.part.name}, self._version)

    def heir(self) -> LayerByLayer:
        """There are no cohorts with FedMA."""
        raise InternalError("FedMA has no cohorts, and one was split")

    def forget(self, client: int) -> None:
        """There are no cohorts with FedMA."""
        raise InternalError("FedMA has no cohorts, and a client has left one")
