"""Who trains together.

A structure turns the server's model into *contributions*, which a pacing waits for and merges. In
a star that is one client's task; with superclients it is what a chain of clients brings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from emulator.federation.selection import Candidates
from emulator.simulation.participation import Outcome, Participation, Terms


class Contribution(Protocol):
    """What the server knows of it. ``client`` is its number among those who may be asked: a
    client's in a star, else a superclient's. Times are simulated seconds."""

    task: int
    client: int
    version: int
    update: Any
    dispatched_s: float
    uploaded_s: float
    outcome: Outcome | None
    staleness: int | None
    cross_staleness: int | None
    closed: bool
    plan: Any
    terms: Terms

    @property
    def samples(self) -> int:
        """That it was trained on."""

    @property
    def records(self) -> Sequence[Participation]:
        """The tasks of clients that it is made of, as far as they are over."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What is known of an update by which it can be named: the number of its contributor, the
    version that it began at, when, and the key of the scenario that sets its learning rate."""

    number: int
    version: int
    dispatched_s: float
    rate: str


def trained(contribution: Contribution) -> Trained:
    """By what a contribution's update is named."""
    c = contribution
    return Trained(c.client, c.version, c.dispatched_s, c.plan.rate)


class Structure(Protocol):
    """``contributor`` is what one of those who may be asked is called."""

    contributor: str

    @property
    def candidates(self) -> Candidates:
        """Those who may be asked."""

    def dispatch(self, contributor: int, version: int, server: Any, terms: Terms) -> Any:
        """Send the model ``server``, of that version: a contribution that begins now."""

    def accept(self, contribution: Any) -> None:
        """It counts: the clients' own states advance."""

    def cancel(self, contribution: Any, outcome: Outcome) -> None:
        """Tell those at work on it to stop."""

    def close(self, contribution: Any) -> None:
        """Its outcome is final: write the records, let the handles go."""
