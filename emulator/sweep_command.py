"""``fedclock sweep``: many runs, side by side, as one command."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from emulator.errors import ScenarioError

if TYPE_CHECKING:
    from emulator.sweep.carry_out import Ending, Order
    from emulator.sweep.drive import Crew
    from emulator.sweep.plan import PlannedRun


def sweep(
    scenarios: Annotated[
        list[Path], typer.Argument(help="Scenario files, or one sweep file (YAML).")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the run directories and the tables.")],
    seeds: Annotated[
        str | None, typer.Option(metavar="1-5", help="Seeds, such as 1-5 or 1,2,10-12.")
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="a.b=x,y", help="A key and its values; repeatable: each with each."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="a.b=c", help="Override a key in all runs; repeatable."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Runs at once [default: one for each core, or 1 on a GPU]; the cores are divided "
            "among them.",
        ),
    ] = None,
    dask: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Run on the Dask cluster of this scheduler."),
    ] = None,
    timing_only: Annotated[
        bool, typer.Option("--timing-only", help="Only the clock and the bytes, no learning.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try again what has failed before.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no table.")] = False,
) -> None:
    """Run scenarios with several seeds and values, side by side; the same command goes on.

    Runs go to OUT/SCENARIO-VALUES/seed-N. Same seed, same draws, whatever varies. What is finished
    is not run again, what was killed goes on, and runs that train the same share it.

    Example: fedclock sweep scenarios/what_if.yaml --seeds 1-3
    --vary "system.network.server.up=1 Mbps,100 kbps" --out runs/links
    """
    from emulator.sweep.agenda import Agenda, Status
    from emulator.sweep.drive import drive
    from emulator.sweep.plan import planned
    from emulator.sweep.progress import SweepProgress
    from emulator.sweep.results import (
        Row,
        is_finished,
        measured,
        notes_of,
        sweep_table,
        targets_of,
        tried_before,
        write_results,
    )
    from emulator.sweep.study import Given, read_study

    if jobs is not None and dask is not None:
        raise ScenarioError("--jobs is for this machine; with --dask its workers' threads count")
    study = read_study(Given(scenarios, seeds, vary or (), overrides or (), timing_only))
    runs = planned(study)
    targets = targets_of(runs)
    with _alone_in(out):
        status: dict[str, Status] = {}
        reasons: dict[str, str] = {}
        memos: dict[str, str | None] = {}
        figures: dict[str, Row] = {}
        before = {} if retry_failed else tried_before(out, runs)
        for run in runs:
            key = run.directory
            status[key] = "waiting"
            if is_finished(out / key, run.scenario, timing_only=study.timing_only):
                status[key] = "done"
            elif key in before:
                status[key], reasons[key] = before[key]
            if status[key] != "waiting":
                figures[key] = measured(out / key, targets)
        agenda = Agenda(runs, status)
        to_do = agenda.count({"waiting"})
        found = len(runs) - to_do
        crew, workers = _crew(runs, to_do, jobs, dask, timing_only=study.timing_only)

        def order(run: PlannedRun, source: PlannedRun | None) -> Order:
            from emulator.sweep.carry_out import Order

            memos[run.directory] = None if source is None else source.directory
            memo = None if source is None else folder / source.directory
            return Order(
                run.directory, run.scenario, run.source, folder / run.directory, memo,
                study.timing_only, workers,
            )  # fmt: skip

        def ended(key: str, ending: Ending) -> None:
            reasons[key] = ending.reason
            figures[key] = measured(out / key, targets)
            write(over=False)
            progress.ended(key, ending)

        def write(**how: bool) -> None:
            write_results(out, study, agenda, reasons, memos, figures, targets, **how)

        folder = out.resolve()
        write(over=False)
        if not quiet and found:
            typer.echo(f"{found} of {len(runs)} runs are there already", err=True)
        interrupted = False
        with SweepProgress(out, agenda, quiet=quiet) as progress:
            try:
                drive(agenda, crew, order, ended, progress.tick)
            except KeyboardInterrupt:
                interrupted = True
            finally:
                for key in [key for key, state in status.items() if state == "running"]:
                    status[key] = "interrupted"  # left behind in a hurry
                write(over=True, interrupted=interrupted)
    failed = [run for run in runs if status[run.directory] != "done"]
    if not quiet:
        for note in notes_of(out, runs):
            typer.echo(f"note: {note}", err=True)
        console = Console()
        if not console.is_terminal:
            console = Console(width=200)  # a file or a pipe has room
        console.print(sweep_table(study, agenda, figures, targets))
        console.print(f"Tables: {out / 'sweep.csv'}", highlight=False, soft_wrap=True)
    if interrupted:
        typer.echo(
            f"fedclock: interrupted; {out} is readable, and the same command goes on from there",
            err=True,
        )
        raise typer.Exit(130)
    if failed:
        typer.echo(_told(failed, status, reasons), err=True)
        raise typer.Exit(1)


@contextmanager
def _alone_in(out: Path) -> Iterator[None]:
    """One sweep a folder."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = open(out / ".sweep.lock", "w")  # noqa: SIM115 - held until the sweep is over
    except OSError as error:
        raise ScenarioError(f"--out {out}: cannot be written to: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ScenarioError(f"{out}: another sweep is running there") from None
        yield


def _crew(
    runs: list[PlannedRun], to_do: int, jobs: int | None, dask: str | None, *, timing_only: bool
) -> tuple[Crew, int]:
    """Who carries out the runs, and with how many worker processes each."""
    from emulator.sweep.local import LocalCrew, libraries, split_cores

    if dask is not None:
        from emulator.sweep.cluster import DaskCrew

        cluster = DaskCrew(dask)
        if not cluster.workers():
            typer.echo(f"note: the Dask cluster at {dask} has no worker yet", err=True)
        return cluster, 1
    scenarios = [run.scenario for run in runs]
    on_gpu = any(scenario.execution.device == "cuda" for scenario in scenarios)
    at_once, workers = split_cores(to_do, jobs, on_gpu=on_gpu)
    return LocalCrew(at_once, libraries(scenarios, timing_only=timing_only)), workers


def _told(failed: list[PlannedRun], status: dict[str, Any], reasons: dict[str, str]) -> str:
    """The runs that are not done, each with its reason."""
    lines = [f"fedclock: {len(failed)} run{'s are' if len(failed) > 1 else ' is'} not done:"]
    for run in failed:
        reason = reasons.get(run.directory, "").replace(os.linesep, f"{os.linesep}    ")
        lines.append(f"  {run.directory}: {status[run.directory]}: {reason}")
    if any(status[run.directory] == "killed" for run in failed):
        lines.append("The same command goes on with what was killed.")
    if any(status[run.directory] in ("failed", "stopped") for run in failed):
        lines.append("--retry-failed tries again what has failed.")
    return os.linesep.join(lines)
