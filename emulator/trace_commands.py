"""``fedclock trace``: look at traces, convert them, make them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from emulator.errors import ScenarioError

if TYPE_CHECKING:
    from emulator.scenario.schema import PhoneAvailability, RenewalAvailability

app = typer.Typer(
    name="trace",
    help="Traces of availability and of device speeds: inspect, convert, synthesize.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Kind = Literal["devices", "availability"]

TraceFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="FedScale's pickle (.pkl, no suffix) or a table (.csv, .csv.gz)."
    ),
]
GivenKind = Annotated[
    Kind | None, typer.Option(help="What it must be [default: told by the content].")
]
Period = Annotated[
    str | None,
    typer.Option(help="Length of a table of sessions without a column for it, such as '7 d'."),
]
Output = Annotated[
    Path, typer.Argument(metavar="OUT", help="A table (.csv, .csv.gz) or FedScale's pickle (.pkl).")
]
Force = Annotated[bool, typer.Option("--force", help="Replace OUT if it is there.")]


@app.command()
def inspect(
    file: TraceFile,
    kind: GivenKind = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw a figure too: .png, .pdf or .svg.")
    ] = None,
    period: Period = None,
) -> None:
    """What a trace says as a whole, and everything malformed in it, by kind.

    The figures are of the well-formed clients, after mending what a run mends in FedScale's
    files. Exit code 0 whatever is malformed, 2 when the file is no trace at all.

    Example: fedclock trace inspect client_behave_trace --plot availability.png
    """
    from rich.console import Console

    from analysis.plots import refuse_suffix
    from analysis.trace_plots import plot_trace
    from analysis.trace_tables import trace_report
    from traces.inspection import check_trace
    from traces.unchecked import CheckedDevices

    if plot is not None:
        refuse_suffix(plot)
    checked = check_trace(file, kind, _seconds("--period", period))
    Console().print(trace_report(file.name, checked))
    if plot is None:
        return
    trace = checked.devices if isinstance(checked, CheckedDevices) else checked.sessions
    if trace is None or not len(trace):
        raise ScenarioError(f"{file}: has no well-formed client to plot; {plot} was not written")
    plot_trace(trace, plot, file.name)


@app.command()
def convert(
    file: TraceFile,
    out: Output,
    repair: Annotated[
        Literal["mend", "drop"] | None,
        typer.Option(
            help="mend: drop sessions of no length, sort, merge. drop: mend, and leave out the "
            "clients that cannot be mended. [default: refuse what is malformed]"
        ),
    ] = None,
    kind: GivenKind = None,
    period: Period = None,
    force: Force = False,
) -> None:
    """From FedScale's pickle to a plain table or back, as the suffix of OUT says.

    Clients keep their order and are numbered anew; numbers survive to the bit.

    Example: fedclock trace convert client_behave_trace behaviour.csv.gz --repair mend
    """
    from traces.conversion import convert as converted

    done = converted(
        file, out, repair=repair, kind=kind, period_s=_seconds("--period", period), force=force
    )
    for finding in done.findings:
        typer.echo(
            f"{finding.kind}: {finding.count} in {finding.clients} clients; first: ", nl=False
        )
        typer.echo(finding.examples[0])
    if done.silent:
        typer.echo(f"never online, which FedScale's file cannot hold: {done.silent} clients")
    typer.echo(f"{out}: {done.written} clients written, {done.dropped} left out")


@app.command()
def synthesize(
    what: Annotated[Kind, typer.Argument(metavar="devices|availability", help="What to make.")],
    out: Output,
    clients: Annotated[int, typer.Option(min=1, help="How many, as task.clients.")],
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="As the scenario's seed.")],
    generator: Annotated[
        Literal["phones", "renewal"], typer.Option("--kind", help="The generator.")
    ] = "phones",
    days: Annotated[int | None, typer.Option(help="phones: as days [default: 7].")] = None,
    duty: Annotated[
        float | None, typer.Option(help="phones: as duty [default: as published, 0.095].")
    ] = None,
    on: Annotated[
        str | None, typer.Option(help="renewal: as on, such as '{dist: exponential, mean: 1 h}'.")
    ] = None,
    off: Annotated[str | None, typer.Option(help="renewal: as off.")] = None,
    horizon: Annotated[str | None, typer.Option(help="renewal: as horizon, such as '7 d'.")] = None,
    force: Force = False,
) -> None:
    """Write down what a scenario's generator makes: the same seed gives the same clients.

    A scenario that had system.availability {kind: phones} stays what it was with {kind: fedscale,
    path: OUT}, and so it is with devices.

    Example: fedclock trace synthesize availability phones.csv.gz --clients 1000 --seed 7 --days 7
    """
    from emulator.assembly import Draws, drawn_devices, drawn_sessions
    from traces.conversion import refuse_to_overwrite, write_trace
    from traces.tables import is_table

    is_table(out)  # a suffix that says nothing is refused before the work
    refuse_to_overwrite(out, force)
    draws = Draws(seed, clients)
    options = {"days": days, "duty": duty, "on": on, "off": off, "horizon": horizon}
    given = {key: value for key, value in options.items() if value is not None}
    if what == "devices":
        if given or generator != "phones":
            said = "--kind renewal" if generator != "phones" else f"--{next(iter(given))}"
            raise ScenarioError(f"{said}: goes with availability; devices are phones, as they are")
        write_trace(out, drawn_devices(draws))
    else:
        write_trace(out, drawn_sessions(_section(generator, given), clients, draws))
    typer.echo(f"{out}: {clients} clients written")


def _section(
    generator: str, given: dict[str, str | int | float]
) -> PhoneAvailability | RenewalAvailability:
    """The section that a scenario would have; its own checks apply."""
    from pydantic import ValidationError

    from emulator.scenario.schema import PhoneAvailability, RenewalAvailability
    from emulator.scenario.source import compose

    values: dict[str, object] = {"kind": generator, "at_end": "wrap"}
    for key, value in given.items():
        node = None
        if isinstance(value, str):
            node = compose(value, lambda place, key=key: f"--{key}", override=f"--{key}")  # type: ignore[misc]
        values[key] = value if node is None else node.plain()
    try:
        if generator == "phones":
            return PhoneAvailability.model_validate(values)
        return RenewalAvailability.model_validate(values)
    except ValidationError as error:
        lines = []
        for item in error.errors(include_url=False):
            place = ".".join(str(part) for part in item["loc"]) or f"kind {generator}"
            why = item["msg"].removeprefix("Value error, ")
            if item["type"] == "extra_forbidden":
                why = f"goes with another --kind than {generator}"
            lines.append(f"--{place}: {why}")
        raise ScenarioError("\n".join(lines)) from None


def _seconds(option: str, text: str | None) -> float | None:
    from emulator.scenario.units import parse_seconds

    if text is None:
        return None
    try:
        seconds = parse_seconds(float(text) if text.replace(".", "", 1).isdigit() else text)
    except ValueError as error:
        raise ScenarioError(f"{option}: {error}") from None
    if seconds <= 0:
        raise ScenarioError(f"{option}: {text!r} is not allowed; allowed: greater than 0")
    return seconds
