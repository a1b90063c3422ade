"""What travels, in bytes, and what is trained of it.

A payload makes a *plan* for each contribution: which part of the model it trains, and how many
bytes each of its messages takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from emulator.learning_interface import Part
from emulator.simulation.devices import Work
from emulator.simulation.participation import Participation, Terms

WorkOf = Callable[[int], Work]
"""What one task of a client computes."""
Layers = tuple[str, ...]
LOCAL_RATE = "local.optimizer.lr"
"""The key of the scenario that sets a learning rate, unless a phase of a part has another."""


class Plan(Protocol):
    """What is asked of a contribution."""

    @property
    def part(self) -> Part | None:
        """What it trains; None: the whole model."""

    @property
    def rate(self) -> str:
        """The key of the scenario that sets its learning rate."""

    def work(self, client: int) -> Work:
        """What one task computes."""

    def alone(self, client: int, terms: Terms) -> Terms:
        """``terms`` with the messages of a task that comes from the server and goes back to it."""

    def in_chain(
        self, client: int, terms: Terms, *, comes: bool, moved: bool, goes: bool
    ) -> Terms:  # fmt: skip
        """The same of a turn in a chain: the model ``comes`` to the client (else it has it), has
        been ``moved`` by members before it, and ``goes`` on to the server."""


class Payload(Protocol):
    """What the server and the structure ask."""

    def plan(self, contributor: int) -> Plan:
        """Of a contribution that begins now."""

    def ended(self, p: Participation) -> None:
        """A client's task is over: it holds what it has received."""

    def accepted(self, contribution: Any) -> None:
        """A contribution counts."""

    def revoked(self, contribution: Any) -> None:
        """It has counted, and does not after all."""

    def age(self, contribution: Any, version: int) -> tuple[int, int | None]:
        """Its staleness in versions of what it trains, and in those of the rest, if any, where the
        newest of the model is ``version``."""

    def groups(self, taken: Sequence[Any]) -> list[tuple[Layers | None, list[Any]]]:
        """(layers, contributions that train them), as they are to be merged."""

    def merged(self, taken: Sequence[Any], before: Any, after: Any) -> None:
        """The server has made the state ``after`` of ``before`` and these contributions."""

    def heir(self) -> Payload:
        """That of a cohort that goes on where this one stands."""

    def forget(self, client: int) -> None:
        """The client has received a model of another cohort in place of this one's."""
