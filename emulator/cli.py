"""The command line. Exit codes: 0 done, 1 the run failed, 2 bad scenario, trace or usage,
3 stopped by policy, 130 interrupted."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from emulator import (
    compare_commands,
    data_commands,
    report_commands,
    sweep_command,
    trace_commands,
)
from emulator.errors import FedclockError, ScenarioError, TraceError

app = typer.Typer(
    name="fedclock",
    help="Emulate asynchronous federated learning: the clock is simulated, the training is real.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(trace_commands.app)
app.add_typer(data_commands.app)
app.command()(compare_commands.compare)
app.command()(report_commands.report)
app.command()(report_commands.export)

ScenarioFile = Annotated[Path, typer.Argument(help="Scenario file (YAML).")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="a.b=c", help="Override a key of the scenario; repeatable."),
]


@app.command()
def run(
    scenario: Annotated[
        Path, typer.Argument(help="Scenario file (YAML), or the directory of a run to go on with.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Run directory [default: runs/NAME-seedSEED].")
    ] = None,
    memo: Annotated[
        Path | None,
        typer.Option(help="Another run's directory, to reuse what was trained there."),
    ] = None,
    overrides: Overrides = None,
    seed: Annotated[int | None, typer.Option(help="Same as --set seed=N.")] = None,
    timing_only: Annotated[
        bool, typer.Option("--timing-only", help="Only the clock and the bytes, no learning.")
    ] = False,
    workers: Annotated[
        int, typer.Option(min=0, help="Worker processes [default: one for each core].")
    ] = 0,
    device: Annotated[
        str | None, typer.Option(help="Same as --set execution.device=cpu|cuda.")
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Delete what the run directory holds, begin anew.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no table.")] = False,
) -> None:
    """Run a scenario; running it again goes on where it was interrupted.

    Example: fedclock run scenarios/quickstart.yaml --out runs/first --set stop.versions=20
    """
    from emulator.progress import ProgressLine
    from emulator.run import Options
    from emulator.run import run as execute
    from emulator.scenario import load_scenario
    from emulator.scenario.messages import placed

    path = scenario
    if os.path.isdir(scenario):  # no error where the path cannot be looked at
        path, out = scenario / "resolved.yaml", out or scenario
        timing_only = timing_only or _was_timing_only(scenario)
    given = list(overrides or [])
    if device is not None:
        given.append(f"execution.device={device}")
    loaded, source = load_scenario(path, given, seed)
    out = out or Path("runs") / f"{loaded.name}-seed{loaded.seed}"
    options = Options(out, memo, timing_only, workers, restart)
    try:
        with ProgressLine(loaded, quiet=quiet) as progress, placed(source):
            manifest = execute(loaded, source, options, progress)
    except KeyboardInterrupt:
        typer.echo(
            f"fedclock: interrupted; {out} is readable, and the same command goes on from there",
            err=True,
        )
        raise typer.Exit(130) from None
    for note in manifest["notes"]:
        typer.echo(f"note: {note}", err=True)
    if not quiet:
        _show(out, manifest)


def _was_timing_only(directory: Path) -> bool:
    """Whether the run in a directory, which must hold one, only keeps the time."""
    import json

    try:
        return bool(json.loads((directory / "manifest.json").read_text())["timing_only"])
    except (OSError, ValueError, KeyError):
        raise ScenarioError(
            f"{directory} is a directory without a run's manifest; name a scenario file or a run "
            "directory"
        ) from None


def _show(out: Path, manifest: dict[str, Any]) -> None:
    """The tables and the plots, all made from the files of the run directory."""
    from analysis.plots import save_figure, time_to_accuracy_figure
    from analysis.run_reader import read_run
    from analysis.summary import summarize, summary_table

    finished = read_run(out)
    console = Console()
    console.print(summary_table(summarize(finished)))
    if not manifest["timing_only"]:
        save_figure(time_to_accuracy_figure([finished]), out / "time_to_accuracy.png")
    if finished.superclients is not None:
        # Loaded where it is used: most runs have none.
        from analysis.superclients import superclients_table, write_superclient_figures

        console.print(superclients_table(finished.superclients))
        write_superclient_figures(finished, out)
    if finished.layers is not None:
        from analysis.parts import layers_table, write_part_figures

        console.print(layers_table(finished))
        write_part_figures(finished, out)
    if finished.cohorts is not None:
        from analysis.cohorts import cohorts_table, write_cohort_figures

        console.print(cohorts_table(finished))
        write_cohort_figures(finished, out)
    console.print(f"Run directory: {out}", highlight=False, soft_wrap=True)


app.command()(sweep_command.sweep)


@app.command()
def validate(scenario: ScenarioFile, overrides: Overrides = None) -> None:
    """Check a scenario without running it; under a second, without loading torch.

    Example: fedclock validate scenarios/quickstart.yaml --set seed=3
    """
    from emulator.scenario import load_scenario

    loaded, _ = load_scenario(scenario, overrides or [])
    typer.echo(f"{scenario}: valid (scenario '{loaded.name}', seed {loaded.seed})")


@app.command(name="list")
def list_(
    axis: Annotated[
        str | None, typer.Argument(help="One axis only, such as pacing or model.")
    ] = None,
) -> None:
    """What can be chosen on each axis of a scenario, with its options.

    Example: fedclock list pacing
    """
    from emulator.scenario.catalogue import catalogue

    typer.echo(catalogue(axis))


@app.command()
def schema() -> None:
    """The JSON schema of scenarios, for editors and other tools.

    Example: fedclock schema > schema.json
    """
    import json

    from emulator.scenario.schema import Scenario

    typer.echo(json.dumps(Scenario.model_json_schema(), indent=2))


def _check_packages() -> None:
    """``traces`` and ``analysis`` are common names: make sure that they are ours."""
    import analysis
    import emulator
    import traces

    home = Path(emulator.__file__).resolve().parent.parent
    for package in (traces, analysis):
        found = Path(package.__file__ or "").resolve().parent.parent
        if found != home:
            raise ScenarioError(
                f"the package '{package.__name__}' comes from {found} and not from fedclock "
                f"({home}): another distribution of that name shadows it; install fedclock in a "
                "virtual environment of its own"
            )


def main() -> None:
    """Entry point: every expected error becomes one message and an exit code."""
    from analysis.errors import AnalysisError

    try:
        _check_packages()
        app()
    except (FedclockError, TraceError, AnalysisError) as error:
        typer.echo(f"fedclock: {error}", err=True)
        sys.exit(error.exit_code)
