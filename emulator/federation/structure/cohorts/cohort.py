"""The server of one cohort: rounds and versions of its own, on clients that the coordinator sends.

All cohorts share one population and one budget, of which each has an equal part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from emulator.federation.server import Pacing, Server, client_then_task
from emulator.federation.structure import Contribution
from emulator.federation.structure.cohorts.partition import Progress
from emulator.federation.structure.cohorts.pool import Pool
from emulator.simulation.participation import Terms


class Above(Protocol):
    """What a cohort tells its coordinator, and asks it."""

    def share(self, n: int) -> int: ...

    def merged(self, cohort: Cohort, taken: Sequence[Contribution], updates: list[Any]) -> None: ...

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

    def dispatch(self, contributor: int, terms: Terms) -> Any:
        """Send the newest version to a client, which leaves the pool for it."""
        self.pool.leave(contributor)
        return super().dispatch(contributor, terms)

    def merge(self, taken: Sequence[Contribution], since_s: float) -> None:
        """Make the next version; then its participants hear what the coordinator makes of it."""
        updates = {p.task: p.update for p in taken}
        super().merge(taken, since_s)
        ordered = sorted(taken, key=client_then_task)
        self.above.merged(self, ordered, [updates[p.task] for p in ordered])

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
