"""Which run is next, and whose memo it gets: decisions on plain states, without any process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from emulator.sweep.plan import PlannedRun

Status = Literal["waiting", "running", "done", "stopped", "failed", "killed", "interrupted"]
"""``stopped`` by a policy of the scenario; ``killed``: its process died, and it can go on."""

OVER: frozenset[Status] = frozenset({"done", "stopped", "failed", "killed", "interrupted"})


@dataclass(slots=True)
class Agenda:
    """The states of all runs, by directory.

    The first run of each family goes alone, and the others when its memo is there; so also for
    each stop in a family, from the earliest. Where a first one fails, the next takes its place.
    """

    runs: Sequence[PlannedRun]
    status: dict[str, Status]
    _families: dict[str, list[PlannedRun]] = field(init=False)

    def __post_init__(self) -> None:
        self._families = defaultdict(list)
        for run in self.runs:
            if run.family is not None:
                self._families[run.family].append(run)

    def next(self) -> tuple[PlannedRun, PlannedRun | None] | None:
        """A run that can start, marked as running, and the one whose memo it gets; None if all
        that are waiting wait for another's end, or none is waiting."""
        for run in self.runs:
            if self.status[run.directory] != "waiting":
                continue
            ready, memo = self._memo_for(run)
            if ready:
                self.status[run.directory] = "running"
                return run, memo
        return None

    def count(self, statuses: Iterable[Status]) -> int:
        """How many runs are in one of these states."""
        wanted = frozenset(statuses)
        return sum(status in wanted for status in self.status.values())

    def _memo_for(self, run: PlannedRun) -> tuple[bool, PlannedRun | None]:
        if run.family is None:
            return True, None
        others = [other for other in self._families[run.family] if other is not run]
        alike = [other for other in others if other.stop == run.stop]
        done = self._first_done(alike)
        if done is not None:
            return True, done
        lower = [other for other in others if other.stop < run.stop]
        running = any(self.status[other.directory] == "running" for other in alike)
        if running or any(self.status[other.directory] not in OVER for other in lower):
            return False, None
        return True, self._first_done(sorted(lower, key=lambda other: other.stop, reverse=True))

    def _first_done(self, runs: Iterable[PlannedRun]) -> PlannedRun | None:
        return next((run for run in runs if self.status[run.directory] == "done"), None)
