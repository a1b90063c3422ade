"""Runs side by side on this machine, each forked from a server that has loaded the libraries."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterable, Sequence
from multiprocessing import connection, forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

from emulator.errors import ScenarioError
from emulator.scenario import Scenario
from emulator.sweep.carry_out import Ending, Order, child


def cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def split_cores(runs: int, jobs: int | None, *, on_gpu: bool) -> tuple[int, int]:
    """(runs at once, worker processes of each), whose product is at most the number of cores.

    Unless ``jobs`` says so, as many runs as there are cores, but one at a time on a GPU, which they
    would share; each gets the same number of cores. Raises :class:`ScenarioError` for more jobs
    than cores.
    """
    have = cores()
    if jobs is not None and jobs > have:
        raise ScenarioError(
            f"--jobs {jobs}: more runs at once than the {have} core{'s' * (have > 1)} that this "
            f"process may use; allowed: 1 to {have}"
        )
    at_once = min(jobs or (1 if on_gpu else have), max(runs, 1))
    return at_once, have // at_once


def libraries(scenarios: Iterable[Scenario], *, timing_only: bool) -> list[str]:
    """What the runs would load one by one, which takes longer than a small run."""
    found = ["emulator.run"]
    if not timing_only:
        found.append("sklearn.datasets")
        if any(scenario.execution.executor in ("auto", "batched") for scenario in scenarios):
            found.append("torch.fx.experimental.symbolic_shapes")  # of a batched program
    return found


class LocalCrew:
    """See :class:`emulator.sweep.drive.Crew`."""

    def __init__(self, at_once: int, libraries: Sequence[str]) -> None:
        self.at_once = at_once
        self._running: dict[Connection, tuple[str, ForkServerProcess]] = {}
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([*libraries, "emulator.sweep.carry_out"])
        # Ctrl-C is the sweep's business; the server would die of it while it loads.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            forkserver.ensure_running()
        finally:
            signal.signal(signal.SIGINT, before)

    def start(self, order: Order) -> None:
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=child, args=(order, theirs), name=order.key)
        process.start()
        theirs.close()
        self._running[ours] = (order.key, process)

    def wait(self, timeout_s: float) -> list[tuple[str, Ending]]:
        # A process that dies closes its end of the pipe.
        ready = connection.wait(list(self._running), timeout_s)
        return [self._ended(pipe) for pipe in ready if isinstance(pipe, Connection)]

    def _ended(self, pipe: Connection) -> tuple[str, Ending]:
        key, process = self._running.pop(pipe)
        ending: Ending | None = None
        with pipe, contextlib.suppress(EOFError, OSError):
            ending = pipe.recv()
        process.join()
        if ending is None:
            ending = Ending("killed", death(process.exitcode))
        process.close()
        return key, ending

    def interrupt(self) -> None:
        for _, process in self._running.values():
            if process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGINT)

    def close(self) -> None:
        for _, process in self._running.values():
            process.kill()
            process.join()


def death(exit_code: int | None) -> str:
    """Why a process is gone that has not said how its run ended."""
    if exit_code is not None and exit_code < 0:
        with contextlib.suppress(ValueError):
            return f"its process was killed by {signal.Signals(-exit_code).name}"
    return f"its process ended with exit code {exit_code}"
