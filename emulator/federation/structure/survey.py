"""A task for many clients, each once, whenever they come: a pass over the population.

Whoever is missing is asked as soon as it may be, and again where it was lost. How long that takes
is up to the clients: the last of them may come days after the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from emulator.federation.tasks import Tasks
from emulator.simulation.clock import Call, Rank
from emulator.simulation.participation import Outcome, Participation

Callback = Callable[[Any], None]


class Survey:
    """Ask ``clients``, ``wanted`` of them (all, unless said otherwise): who comes first, drawn by
    ``rng`` where more are here than wanted. ``task_of(client, uploaded, lost)`` makes a task;
    ``over()`` hears, once, when enough have reported or the ``deadline_s`` has come. ``missing``
    are those who have not reported; ``what`` they are asked for is for messages."""

    def __init__(
        self, tasks: Tasks, clients: Sequence[int],
        task_of: Callable[[int, Callback, Callback], Participation], over: Callable[[], None], *,
        what: str, deadline_s: float | None = None, wanted: int | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:  # fmt: skip
        self.missing = set(clients)
        self.at_work: dict[int, Participation] = {}
        self._tasks = tasks
        self._task_of = task_of
        self._over = over
        self._what = what
        self._least = 0 if wanted is None else len(self.missing) - wanted
        self._deadline_s = deadline_s
        self._rng = rng
        self._check_in: object = None
        self._deadline: Call | None = None
        self._is_over = False

    @property
    def waits_for(self) -> str:
        """What there is to come."""
        missing, n = sorted(self.missing), len(self.missing) - self._least
        named = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
        of = f" of {len(missing)}" if self._least else ""
        return f"the {self._what} of {n}{of} clients ({named})"

    def begin(self) -> None:
        """Ask all who are here now."""
        clock = self._tasks.clock
        if self._deadline_s is not None:
            self._deadline = clock.at(
                clock.now + self._deadline_s, Rank.DEADLINE, action=self._time_is_up
            )
        clock.at(clock.now, Rank.DISPATCH, action=self._ask)

    def somebody_is_free(self) -> None:
        """One that was at work on something else may be asked."""
        self._tasks.clock.soon(Rank.DISPATCH, 0, self._ask)

    def _ask(self) -> None:
        """Ask all who are still missing and may be asked; the others at the next check-in."""
        places = len(self.missing) - self._least - len(self.at_work)
        if self._is_over or not places:
            return
        tasks = self._tasks
        here = [client for client in tasks.population.all_available().tolist()
                if client in self.missing and client not in self.at_work]  # fmt: skip
        if len(here) > places and self._rng is not None:
            here = sorted(self._rng.choice(here, size=places, replace=False).tolist())
        for client in here[:places]:
            p = self._task_of(client, self._uploaded, self._lost)
            self.at_work[client] = p
            tasks.start(p)
        if self._check_in is None and places > len(here):
            self._check_in = tasks.population.at_next_check_in(self._checked_in)

    def _checked_in(self) -> None:
        self._check_in = None
        self._ask()

    def _uploaded(self, p: Participation) -> None:
        del self.at_work[p.client]
        self.missing.discard(p.client)
        p.outcome, p.staleness = Outcome.REPORTED, 0
        self._tasks.close(p)
        if len(self.missing) == self._least:
            self._end()

    def _lost(self, p: Participation) -> None:
        if not self._is_over:
            del self.at_work[p.client]
            self._tasks.clock.soon(Rank.DISPATCH, 0, self._ask)

    def _time_is_up(self) -> None:
        for p in list(self.at_work.values()):
            if p.outcome is None:
                self._tasks.participations.cancel(p, Outcome.CANCELLED)
        self._end()

    def _end(self) -> None:
        self._is_over = True
        if self._deadline is not None:
            self._tasks.clock.cancel(self._deadline)
        self._tasks.clock.at(self._tasks.clock.now, Rank.DISPATCH, action=self._over)
