"""The server of one cohort: rounds and versions of its own, on clients that the coordinator sends.

All cohorts share one population and one budget, of which each has an equal part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from emulator.federation.personalization import Served
from emulator.federation.server import Pacing, Server, client_then_task
from emulator.federation.structure import Contribution
from emulator.federation.structure.cohorts.partition import Progress
from emulator.federation.structure.cohorts.pool import Pool
from emulator.federation.structure.cohorts.superclients import RoundSuperclients
from emulator.simulation.participation import Terms


@dataclass(frozen=True, slots=True)
class Step:
    """What one client has made of the model that it was sent: handles of the ``update`` and of the
    ``training`` behind it. ``plan`` is the payload's."""

    client: int
    plan: Any
    update: Any
    training: Any


def steps(taken: Sequence[Contribution]) -> list[Step]:
    """Those behind these contributions, in canonical order: of a member of a chain that of its
    first turn, which is the nearest to the server's model."""
    found: list[Step] = []
    for contribution in sorted(taken, key=client_then_task):
        first = {p.client: p for p in reversed(contribution.records)}
        for client, p in first.items():
            found.append(Step(client, p.plan, p.update if p.step is None else p.step, p.update))
    return sorted(found, key=lambda step: step.client)


class Above(Protocol):
    """What a cohort tells its coordinator, and asks it."""

    def share(self, n: int) -> int: ...

    def merged(self, cohort: Cohort, taken: Sequence[Step]) -> None: ...

    def evaluate(self, cohorts: Sequence[Cohort]) -> None: ...

    def stop(self, reason: str) -> None: ...


class FailingPacing(Pacing, Protocol):
    """That of a server which may fail, and is started again."""

    def under_way(self) -> list[Any]:
        """The contributions that it waits for."""

    def fail(self, under_way: Sequence[Any]) -> None:
        """The server has died."""

    def restart(self) -> None:
        """It is back, at its last version."""


class Cohort(Server):
    """See the module."""

    cohort: str
    pacing: FailingPacing
    pool: Pool
    superclients: RoundSuperclients | None = None
    """The structure, where clients train in chains."""
    progress: Progress
    above: Above
    born_s = 0.0
    ended_s: float | None = None
    first_version = 0
    kept: Any = None
    """A handle of what it remembers of its two sides; still its parent's while it ``inherits``."""
    inherits = False

    def share(self, n: int) -> int:
        """Of ``n`` clients at work in all cohorts those that are this one's."""
        return self.above.share(n)

    def contributors(self, chosen: Sequence[int], wanted: int) -> tuple[list[int], int]:
        """Those who are asked: the clients, or the superclients that they make."""
        if self.superclients is None:
            return super().contributors(chosen, wanted)
        return self.superclients.form(chosen, wanted)

    def dispatch(self, contributor: int, terms: Terms) -> Any:
        """Send the newest version to a client, which leaves the pool for it, or to a superclient,
        whose members have left it."""
        if self.superclients is None:
            self.pool.leave(contributor)
        return super().dispatch(contributor, terms)

    def merge(self, taken: Sequence[Contribution], since_s: float) -> None:
        """Make the next version; then its participants hear what the coordinator makes of it."""
        found = steps(taken)
        super().merge(taken, since_s)
        self.above.merged(self, found)

    def served_at_home(self, homes: Sequence[str]) -> Served:
        """Its model, for the clients whose cohort [clients] this is."""
        clients = [client for client, home in enumerate(homes) if home == self.cohort]
        return Served(self.cohort, self.version, self.pacing.model(), clients)

    def evaluate(self) -> None:
        """Measure the newest model on the clients of the cohort."""
        self.evaluated()
        self.above.evaluate([self])

    def evaluated(self) -> None:
        """The newest model has been measured."""
        self._evaluation_due = False

    def stop(self, reason: str) -> None:
        """End the run before the next event."""
        super().stop(reason)
        self.above.stop(reason)
