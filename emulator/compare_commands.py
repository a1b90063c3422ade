"""``fedclock compare``: which of several scenarios reaches a target sooner, with less."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN…", help="Run directories, or folders that hold some."),
    ],
    baseline: Annotated[
        Path,
        typer.Option(
            metavar="RUN", help="A run, or a folder with the runs, of what to compare with."
        ),
    ],
    target: Annotated[
        str,
        typer.Option(help="A value of the metric, such as 0.80; auto:min_best: what all reach."),
    ],
    metric: Annotated[
        str, typer.Option(help="Of the test split, or for instance members/accuracy (cohorts).")
    ] = "accuracy",
    sustain: Annotated[
        int, typer.Option(min=1, help="In how many evaluations in a row it must be met.")
    ] = 3,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the numbers, also of each run.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the tables as Markdown.")
    ] = None,
) -> None:
    """Time, versions, bytes and device time to a target: medians, speed-ups with intervals.

    Runs of one scenario are put together and paired with the baseline's by seed. A run that
    misses the target counts as needing more than it has spent.

    Example: fedclock compare runs/* --baseline runs/fedavg-seed1 --target 0.80 --csv table.csv
    """
    from rich.console import Console

    from analysis.comparison import compare as compared
    from analysis.comparison_tables import (
        comparison_csv,
        comparison_markdown,
        comparison_table,
    )
    from analysis.errors import AnalysisError
    from analysis.output_file import write_file
    from analysis.runs import group_runs, load_runs

    of_baseline = load_runs(baseline)
    groups = group_runs(of_baseline)
    if len(groups) > 1:
        raise AnalysisError(
            f"--baseline {baseline}: holds runs of {len(groups)} scenarios "
            f"({', '.join(group.label for group in groups)}); name one of its run directories"
        )
    found = compared(load_runs([*runs, baseline]), of_baseline[0], target, metric, sustain)
    for path, text in ((csv, comparison_csv), (markdown, comparison_markdown)):
        if path is not None:
            write_file(path, text(found).encode())
    Console().print(comparison_table(found))
