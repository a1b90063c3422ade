"""A server process that dies now and then, and is started again."""

from __future__ import annotations

import math
from collections.abc import Callable

from emulator.random_streams import purpose_key, uniform
from emulator.scenario.schema import Failures, ScriptedFailures
from emulator.simulation.clock import Call, Clock, Rank


class ServerProcess:
    """``name`` names its stream; ``on_failure`` and ``on_restart`` hear of it.

    It dies after the uploads of that instant are complete, and before anything that the server does
    then; it is back before check-ins.
    """

    def __init__(
        self, clock: Clock, section: Failures, root_seed: int, name: str,
        on_failure: Callable[[], None], on_restart: Callable[[], None],
    ) -> None:  # fmt: skip
        self.up = True
        self._clock = clock
        self._section = section
        self._key = purpose_key(root_seed, f"failures of {name}")
        self._failures = 0
        self._on_failure = on_failure
        self._on_restart = on_restart
        self._next: Call | None = None
        self._arm()

    def retire(self) -> None:
        """It has come to its end, and fails no more."""
        if self._next is not None:
            self._clock.cancel(self._next)

    def _arm(self) -> None:
        at_s = self._next_failure_s()
        self._next = None
        if at_s < math.inf:
            self._next = self._clock.at(at_s, Rank.OFFLINE, action=self._fail)

    def _next_failure_s(self) -> float:
        section = self._section
        now: float = self._clock.now
        if isinstance(section, ScriptedFailures):
            return next((at_s for at_s in section.at if at_s > now), math.inf)
        # The inverse of the distribution function, of 1 − F.
        return now - section.mean * math.log(uniform(self._key, 0, self._failures))

    def _fail(self) -> None:
        if self._clock.peek() == math.inf:
            return  # nothing else is left to happen: going on would hide that
        self.up = False
        self._failures += 1
        self._on_failure()
        back_s = self._clock.now + self._section.restart
        self._next = self._clock.at(back_s, Rank.OFFLINE, action=self._restart)

    def _restart(self) -> None:
        self.up = True
        self._on_restart()
        self._arm()
