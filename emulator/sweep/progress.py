"""How far a sweep has come, and how long it will take."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Final

from emulator.progress import ProgressBar
from emulator.sweep.agenda import OVER, Agenda
from emulator.sweep.carry_out import Ending
from emulator.sweep.plan import PlannedRun

_LOOK_EVERY_S: Final = 1.0
_PLAIN_EVERY_S: Final = 10.0


class SweepProgress(ProgressBar):
    """On a terminal a bar over all runs with an estimate; elsewhere a plain line for each run that
    ends and now and then; on stderr. Runs that were finished before count for nothing."""

    def __init__(self, out: Path, agenda: Agenda, *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self._out = out
        self._agenda = agenda
        self._to_do = [run for run in agenda.runs if agenda.status[run.directory] not in OVER]
        self._looked = self._started

    def ended(self, key: str, ending: Ending) -> None:
        """A run is over."""
        reason = ending.reason.strip().splitlines()
        text = f"{ending.status} {key}" + (f": {reason[-1]}" if reason else "")
        if self._live:
            if reason:
                self._bar.console.print(text, markup=False, highlight=False)
        elif not self._quiet:
            print(f"{self._counted()}  {text}", file=sys.stderr, flush=True)

    def tick(self) -> None:
        """Look how far the runs are, if the last look was long enough ago."""
        now = time.monotonic()
        every_s = _LOOK_EVERY_S if self._live else _PLAIN_EVERY_S
        if self._quiet or now - self._looked < every_s:
            return
        self._looked = now
        done = self._fraction()
        text = f"{self._counted()}, {self._agenda.count({'running'})} under way"
        if self._live:
            self._show(done, text)
        else:
            self._print(done, text)

    def _counted(self) -> str:
        return f"{self._agenda.count(OVER)} of {len(self._agenda.runs)} runs"

    def _fraction(self) -> float:
        """Of all that this sweep has to do; a run counts for one, however long it takes."""
        parts = [
            1.0 if self._agenda.status[run.directory] in OVER else self._of_run(run)
            for run in self._to_do
            if self._agenda.status[run.directory] != "waiting"
        ]
        return sum(parts) / max(len(self._to_do), 1)

    def _of_run(self, run: PlannedRun) -> float:
        """How far a run is towards its stop, by the manifest that it writes every second."""
        try:
            manifest = json.loads((self._out / run.directory / "manifest.json").read_text())
            stop = run.scenario.stop
            done = float(manifest["sim_time_s"]) / stop.sim_time
            if stop.versions is not None:
                done = max(done, float(manifest["versions"]) / stop.versions)
        except (OSError, ValueError, KeyError, TypeError):
            return 0.0
        return min(done, 1.0)
