"""The baselines of clustered federated learning: one server, several models, one round for all.

A round asks clients of all clusters, whoever is here, and the updates of each cluster's clients are
merged into its own model. Which model a client trains is up to the method (:class:`Clustering`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from emulator.federation.payload.full import Full
from emulator.simulation.participation import Participation

ROOT = "c0"


@dataclass(frozen=True, slots=True)
class Models:
    """The states of all models, by cohort."""

    states: Mapping[str, Any]

    @property
    def id(self) -> str:
        """The ids of all."""
        return " ".join(state.id for state in self.states.values())


@dataclass(frozen=True, slots=True)
class Ask:
    """What a client is asked for: how much travels and is computed, and a handle of what it does
    first. ``cohort``: whose model it trains, None where that is known only once it has reported.
    """

    plan: Full
    does: Any
    cohort: str | None


@dataclass(frozen=True, slots=True)
class Pass:
    """A task for each of ``clients`` between two rounds, all wanted unless a number is said; they
    train the model of ``cohort``. ``train(client, visit)`` is a handle of an update; ``phase`` the
    name in the log."""

    cohort: str
    clients: Sequence[int]
    train: Callable[[int, tuple[int, ...]], Any]
    plan: Full
    phase: str
    deadline_s: float | None = None
    wanted: int | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """What a pass has led to: the models from now on, of which ``children``, with the clients that
    made them, come from ``parent``; ``merged``: their updates are in the models already;
    ``nonfinite``: whose were not."""

    models: Models
    parent: str
    children: Mapping[str, Sequence[int]]
    merged: bool
    nonfinite: Sequence[int]


class Clustering(Protocol):
    """Which client trains which model."""

    def begin(self) -> Models:
        """The first models."""

    def ask(self, client: int, visit: tuple[int, ...], models: Models) -> Ask:
        """Of a client that is asked now; ``visit`` names its random stream."""

    def settle(self, taken: Sequence[Participation], models: Models) -> list[str]:
        """Whose model each of these has trained; ``update`` is then that of the training."""

    def homes(self, models: Models) -> list[str]:
        """Which cohort would serve each client now [clients]."""


class Passes(Protocol):
    """What comes of versions, where it is not the clients who choose their models."""

    def merged(self, version: int, models: Models, updates: Mapping[str, Sequence[Any]]) -> Models:
        """The models of a version that has been made of these updates, by cohort."""

    def due(self, version: int, models: Models) -> Pass | None:
        """A pass over clients that comes before the next round."""

    def passed(self, updates: Mapping[int, Any], models: Models) -> Partition:
        """The pass is over: the handles of the updates by client, of those who have come."""
