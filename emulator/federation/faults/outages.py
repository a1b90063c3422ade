"""The failures of the server processes of a federation of cohorts: of the cohorts, and of their
coordinator (Liu et al., SoCC 2023, §5)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from emulator.federation.faults.server_processes import ServerProcess
from emulator.scenario import schema
from emulator.simulation.clock import Clock

if TYPE_CHECKING:
    from emulator.federation.structure.cohorts.cohort import Cohort


class Coordinator(Protocol):
    """Who is down, or goes on without a cohort."""

    clock: Clock

    def check_in_again(self, client: int) -> None: ...

    def log(self, event: str, entity: str = ..., **fields: Any) -> None: ...


class Outages:
    """See the module. While the coordinator ``is_down`` nobody is heard and no cohort splits."""

    def __init__(self, faults: schema.Faults, root_seed: int, coordinator: Coordinator) -> None:
        self._faults = faults
        self._root_seed = root_seed
        self._coordinator = coordinator
        self._cohorts: dict[str, ServerProcess] = {}
        self._unheard: set[int] = set()
        self._postponed: set[str] = set()
        self._process: ServerProcess | None = None
        if faults.coordinator_failures is not None:
            self._process = ServerProcess(
                coordinator.clock, faults.coordinator_failures, root_seed, "the coordinator",
                lambda: coordinator.log("coordinator_failed"), self._coordinator_is_back,
            )  # fmt: skip

    @property
    def is_down(self) -> bool:
        """Whether the coordinator is."""
        return self._process is not None and not self._process.up

    # --- the coordinator ------------------------------------------------------------------------

    def ignore(self, client: int) -> None:
        """A request comes, and nobody hears it: the client tries again once somebody will."""
        self._coordinator.log("check_in_ignored", f"client/{client}")
        self._unheard.add(client)

    def _coordinator_is_back(self) -> None:
        self._coordinator.log("coordinator_restarted")
        unheard, self._unheard = sorted(self._unheard), set()
        for client in unheard:
            self._coordinator.check_in_again(client)

    def unmet(self, cohort: str, unmet: list[str]) -> list[str]:
        """The conditions that a split of ``cohort`` waits for, where those in ``unmet`` do not
        hold: for the coordinator too, while it is down. What was to split at that version then does
        at the next one that the coordinator hears of."""
        if cohort in self._postponed:
            unmet = [condition for condition in unmet if condition != "at"]
        if unmet or not self.is_down:
            return unmet
        if cohort not in self._postponed:
            self._coordinator.log("partition_postponed", f"cohort/{cohort}")
            self._postponed.add(cohort)
        return ["coordinator"]

    # --- cohorts --------------------------------------------------------------------------------

    def begins(self, cohort: Cohort) -> None:
        """The process of a cohort is started."""
        failures = self._faults.cohort_failures
        if failures is not None:
            self._cohorts[cohort.cohort] = ServerProcess(
                self._coordinator.clock, failures, self._root_seed, f"cohort {cohort.cohort}",
                partial(self._fails, cohort), partial(_restarts, cohort),
            )  # fmt: skip

    def ends(self, cohort: str) -> None:
        """Others go on in its place."""
        if cohort in self._cohorts:
            self._cohorts.pop(cohort).retire()

    def _fails(self, cohort: Cohort) -> None:
        """What it has received, and what is under way to it, is lost; so is who waits for it."""
        under_way = cohort.pacing.under_way()
        received = cohort.received()
        cohort.log(
            "cohort_failed", version=cohort.version, under_way=[p.task for p in under_way],
            received=[p.task for p in received],
        )  # fmt: skip
        cohort.pacing.fail(under_way)
        waiting = sorted(cohort.pool.waiting)
        cohort.pool.waiting.clear()
        for client in waiting:
            self._coordinator.check_in_again(client)


def _restarts(cohort: Cohort) -> None:
    cohort.log("cohort_restarted", version=cohort.version)
    cohort.pacing.restart()
