"""The loop of a sweep: start what can start, hear what has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from emulator.sweep.agenda import Agenda
from emulator.sweep.carry_out import Ending, Order
from emulator.sweep.plan import PlannedRun

_TICK_S: Final = 0.25


class Crew(Protocol):
    """Those who carry out runs, ``at_once`` of them side by side (None: as they see fit)."""

    @property
    def at_once(self) -> int | None: ...

    def start(self, order: Order) -> None:
        """Begin a run."""

    def wait(self, timeout_s: float) -> list[tuple[str, Ending]]:
        """Those that have ended, by key; soon if some have, else after ``timeout_s``."""

    def interrupt(self) -> None:
        """Ask all that are running to write a checkpoint and end."""

    def close(self) -> None:
        """Let go of all, at once."""


def drive(
    agenda: Agenda,
    crew: Crew,
    order: Callable[[PlannedRun, PlannedRun | None], Order],
    ended: Callable[[str, Ending], None],
    tick: Callable[[], None],
) -> None:
    """Carry out all runs that wait; ``order(run, whose memo)`` says how, ``ended`` hears of each.

    KeyboardInterrupt leaves it once all that were running have ended, at the second at once.
    """

    def hear() -> None:
        for key, ending in crew.wait(_TICK_S):
            agenda.status[key] = ending.status
            ended(key, ending)
        tick()

    try:
        try:
            while True:
                running = agenda.count({"running"})
                while crew.at_once is None or running < crew.at_once:
                    chosen = agenda.next()
                    if chosen is None:
                        break
                    crew.start(order(*chosen))
                    running += 1
                if not running:
                    return
                hear()
        except KeyboardInterrupt:
            crew.interrupt()
            while agenda.count({"running"}):
                hear()
            raise
    finally:
        crew.close()
