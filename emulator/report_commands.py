"""``fedclock export`` and ``fedclock report``: what other programs, and people, read of runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class ExportKind(StrEnum):
    """What a run can be exported to."""

    PERFETTO = "perfetto"
    PARQUET = "parquet"


def export(
    run: Annotated[Path, typer.Argument(help="Directory of a run.")],
    to: Annotated[ExportKind, typer.Option(help="A timeline for ui.perfetto.dev, or tables.")],
    out: Annotated[
        Path | None,
        typer.Option(help="File, or folder of tables [default: RUN/perfetto.json, RUN/parquet]."),
    ] = None,
) -> None:
    """Write a run as a timeline (perfetto) or as column files (parquet).

    Example: fedclock export runs/quickstart-seed7 --to perfetto
    """
    from analysis.run_reader import read_run

    read = read_run(run)
    if to is ExportKind.PARQUET:
        from analysis.parquet import export_parquet

        written = export_parquet(read, out or run / "parquet")
        for path in written:
            typer.echo(path)
        return
    from analysis.perfetto import export_perfetto

    path = out or run / "perfetto.json"
    done = export_perfetto(read, path)
    typer.echo(
        f"{path}: {done.events:,} events of {done.clients:,} clients; open it in "
        "https://ui.perfetto.dev"
    )
    for note in done.notes:
        typer.echo(f"note: {note}", err=True)


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN…", help="Run directories, or folders that hold some."),
    ],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    target: Annotated[
        str, typer.Option(help="A test accuracy such as 0.80; auto:min_best: what all reach.")
    ] = "auto:min_best",
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="A run of what to compare with [default: the first]."),
    ] = None,
    sustain: Annotated[
        int, typer.Option(min=1, help="In how many evaluations in a row it must be met.")
    ] = 3,
) -> None:
    """Write one HTML page about runs: tables and figures, to read anywhere, without a network.

    Example: fedclock report runs/* --out report.html --target 0.80
    """
    from analysis.report import write_report
    from analysis.run_reader import read_run
    from analysis.runs import load_runs

    found = load_runs([*runs, *([] if baseline is None else [baseline])])
    base = found[0] if baseline is None else read_run(baseline)
    for note in write_report(found, out, target=target, baseline=base, sustain=sustain):
        typer.echo(f"note: {note}", err=True)
    size = out.stat().st_size / 1e6
    typer.echo(f"{out}: {len(found)} run{'s' * (len(found) > 1)}, {size:.2f} MB")
