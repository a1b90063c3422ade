"""The learning plane as the simulation plane knows it: handles, small values, and no tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Handle(Protocol):
    """Stands for the result of an operation that may never run."""

    @property
    def id(self) -> str:
        """Hash of the operation and all that it rests on; simulated time is no part of it."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a model and how it is trained: ``name``, the names of its ``layers`` (the others
    are frozen), and which of the run's recipes."""

    name: str
    layers: tuple[str, ...]
    recipe: str


class Learner(Protocol):
    """What may be asked of the learning plane; see ``emulator.learning.learner.Learner``."""

    @property
    def learns(self) -> bool:
        """False in a timing-only run."""

    def initial(self, number: int = 0) -> Any:
        """Handle of the server's first state; of several models, of that one's."""

    def train(
        self, server: Any, state: Any, client: int, visit: tuple[int, ...],
        part: Part | None = None, recipe: str | None = None,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Handles of the update and of the client's next state; without ``part`` all layers are
        trained, as the scenario's ``local`` says or by that recipe."""

    def mean(self, server: Any, updates: Sequence[Any]) -> Any:
        """Handle of ``server`` moved by the plain mean of these updates."""

    def choose(self, models: Sequence[Any], clients: Sequence[int]) -> Any:
        """Handle of which of these models fits each client's training samples best."""

    def choices(self, chosen: Sequence[Any]) -> list[list[int]]:
        """The numbers of the models behind such handles, computed now."""

    def group(
        self, updates: Sequence[Any], method: dict[str, Any], seed: int
    ) -> tuple[list[int | None], Any]:
        """The group of each update, computed now, and a handle of the groups' mean updates."""

    def nearest(self, references: Any, updates: Sequence[Any]) -> list[int | None]:
        """The group of each update among those, computed now."""

    def inter_group(self, models: Sequence[Any], rate: float) -> list[Any]:
        """Handles of the states of several groups, each drawn to the others."""

    def norms(self, updates: Sequence[Any]) -> dict[str, Any]:
        """The norm of the ``mean`` update and the ``largest`` norm of one, computed now."""

    def leaving(
        self, base: Any, last: Any, client: int, visit: tuple[int, ...], part: Part | None
    ) -> Any:
        """Handle of the model ``last`` of a chain that began at ``base``, as it leaves its last
        client."""

    def chain_update(self, server: Any, last: Any) -> Any:
        """Handle of what a chain of clients, begun at ``server``, brings it; ``last`` is the
        update of its last client."""

    def pretrain(self, client: int) -> Sequence[Any]:
        """Handles of what a client sends of its pre-training, and of its model on the way."""

    def representers(self, sent: Sequence[Any]) -> list[list[float]]:
        """What these clients' pre-trainings tell of their data [clients, d], computed now."""

    def similarity(self, models: Sequence[Any]) -> list[list[float]]:
        """The cosine of every two of these models [clients, clients], computed now."""

    def aggregate(
        self,
        server: Any,
        updates: Sequence[Any],
        weights: Sequence[float],
        discounts: Sequence[float],
        contributors: int | None = None,
        layers: tuple[str, ...] | None = None,
        clients: Sequence[int] = (),
    ) -> Any:
        """Handle of the server's next state; ``contributors`` is how many there could be, and only
        ``layers`` change, all unless said otherwise. ``clients``: whose updates they are."""

    def divergence(
        self, server: Any, updates: Sequence[Any], weights: Sequence[float],
        layers: tuple[str, ...], metric: str, on: str,
    ) -> dict[str, Any]:  # fmt: skip
        """How far apart updates are, a number for each of ``layers``, computed now."""

    def evaluate(self, server: Any) -> dict[str, Any] | None:
        """Accuracy, loss and n, computed now."""

    def affinity(
        self, kept: Any, updates: Sequence[Any], trainings: Sequence[Any],
        clients: Sequence[int], known: Sequence[bool], sides: Sequence[int],
        layers: tuple[str, ...] | None, *, inherits: bool,
    ) -> tuple[dict[str, Any], Any]:  # fmt: skip
        """What the updates of a cohort's version, and the ``trainings`` behind them, tell of its
        participants, computed now, and a handle of what the cohort keeps of that, in place of
        ``kept`` (of its parent, if it ``inherits``)."""

    def evaluate_clients(
        self, server: Any, states: Any, clients: Sequence[int] | None = None
    ) -> list[tuple[int, float, float, int]]:
        """(client, accuracy, loss, n) on each client's own test samples, or on those of these
        clients, computed now."""

    def personalize(
        self, server: Any, states: Any, clients: Sequence[int] | None = None
    ) -> list[tuple[int, float, float, int]]:
        """The same of the model after each client has trained it on its own samples."""

    def values(self, operation_id: str) -> dict[str, Any]:
        """Small values of an operation that has run."""
