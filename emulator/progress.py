"""Where a run is and how long it will take: on a terminal a bar, elsewhere a plain line."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from analysis.human_units import duration_text
from emulator.scenario import Scenario

if TYPE_CHECKING:
    from emulator.composition import Federation

_PLAIN_EVERY_S = 5.0


class ProgressBar:
    """On a terminal (``_live``) a bar with an estimate, on stderr; elsewhere what is printed."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._started = time.monotonic()
        console = Console(stderr=True)
        self._live = console.is_terminal and not quiet
        self._bar = Progress(
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not self._live,
        )
        self._task: TaskID = self._bar.add_task("starting", total=1.0)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def _show(self, done: float, text: str) -> None:
        """Move the bar to the share that is done."""
        self._bar.update(self._task, completed=done, description=text)

    def _print(self, done: float, text: str) -> None:
        """A line with an estimate: the rest takes as long as what is done did."""
        left = "?"
        if done > 0:
            left = duration_text((time.monotonic() - self._started) * (1 - done) / done)
        print(f"{done:4.0%}  {text}; about {left} left", file=sys.stderr, flush=True)


class ProgressLine(ProgressBar):
    """Call it with the server and, at an evaluation, the accuracy.

    On a terminal a bar with an estimate; elsewhere a plain line now and then; on stderr.
    """

    def __init__(self, scenario: Scenario, *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self._stop = scenario.stop
        self._accuracy: float | None = None
        self._last_plain = self._started

    def __call__(self, server: Federation, accuracy: float | None) -> None:
        if self._quiet:
            return
        if accuracy is not None:
            self._accuracy = accuracy
        done = server.clock.now / self._stop.sim_time
        if self._stop.versions is not None:
            done = max(done, server.version / self._stop.versions)
        text = f"{duration_text(server.clock.now)} simulated, version {server.version}"
        if self._accuracy is not None:
            text += f", accuracy {self._accuracy:.3f}"
        if self._live:
            self._show(done, text)
        elif time.monotonic() - self._last_plain > _PLAIN_EVERY_S:
            self._last_plain = time.monotonic()
            self._print(done, text)
