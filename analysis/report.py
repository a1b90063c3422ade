"""Runs as one page of HTML: no network, no script, readable on a phone, in the dark and on paper.

What comes from scenarios, traces and tables is text and escaped; a policy in the page (CSP) forbids
scripts and requests beside, whatever it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from analysis.comparison import AUTO_TARGET, Comparison, compare
from analysis.comparison_tables import method_line, target_line
from analysis.curves import curve
from analysis.errors import AnalysisError
from analysis.output_file import refuse_place, write_file
from analysis.report_sections import (
    accuracy_section,
    clients_section,
    structure_section,
    timeline_section,
    work_section,
)
from analysis.report_tables import (
    compared,
    each_run,
    overview,
    setting_differences,
    times_to_targets,
)
from analysis.run_reader import Run
from analysis.runs import Group, group_runs
from analysis.whole_lines import open_lines


@dataclass(frozen=True, slots=True)
class Resolved:
    """The resolved scenario of a group's first run, as it is on disk."""

    label: str
    seed: int | None
    text: str


def write_report(
    runs: Sequence[Run], path: Path, *, target: float | str, baseline: Run, sustain: int = 3
) -> list[str]:
    """Write the page; returns what a reader should know beside, such as a comparison's warnings.

    Scenarios are compared with that of ``baseline``, one of ``runs``, by what they need to a
    ``target`` (see ``compare``). Raises ``AnalysisError`` where a run is damaged, a scenario has a
    seed twice, or ``path`` cannot be written.
    """
    refuse_place(path)
    groups = group_runs(list(runs))
    found, notes = _compared(runs, target, baseline, sustain)
    sections = [
        accuracy_section(runs, found, sustain),
        work_section(groups, runs),
        clients_section(runs),
        structure_section(groups),
        timeline_section(groups),
    ]
    names = list(dict.fromkeys(group.name for group in groups))
    environment = Environment(
        loader=PackageLoader("analysis", "."), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    assert environment.loader is not None
    style, _, _ = environment.loader.get_source(environment, "report.css")
    page = environment.get_template("report.html").render(
        title=", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else ""),
        style=Markup(style),
        groups=groups,
        runs=runs,
        overview=overview(groups),
        times=times_to_targets(groups, sustain)
        if any(curve(r).time_s.size for r in runs)
        else None,
        comparison=None if found is None else target_line(found),
        method=None if found is None else method_line(found),
        compared=[] if found is None else compared(found),
        notes=notes,
        sections=[section for section in sections if section.figures or section.notes],
        differences=setting_differences(groups),
        resolved=[_resolved(group) for group in groups],
        each_run=each_run(groups),
    )
    write_file(path, page.encode())
    return notes


def _compared(
    runs: Sequence[Run], target: float | str, baseline: Run, sustain: int
) -> tuple[Comparison | None, list[str]]:
    """The comparison of the runs that were evaluated, and what is to be said of the others."""
    measured = _measured(runs)
    if not measured:
        return None, ["no times to a target: no run has an evaluation of the global model"]
    notes = []
    if len(measured) < len(runs):
        notes.append(
            f"{len(runs) - len(measured)} of {len(runs)} runs have no evaluation of the global "
            "model; the others are compared"
        )
    if baseline not in measured:
        baseline = measured[0]
    try:
        found = compare(measured, baseline, target, sustain=sustain)
    except AnalysisError as error:
        if target != AUTO_TARGET:
            raise
        return None, [*notes, f"nothing is compared: {error}"]
    return found, [*notes, *found.notes]


def _measured(runs: Sequence[Run]) -> list[Run]:
    """Those whose global model was evaluated."""
    return [run for run in runs if curve(run).time_s.size]


def _resolved(group: Group) -> Resolved:
    run = group.runs[0]
    path = run.directory / "resolved.yaml"
    text = "resolved.yaml is missing"
    if path.exists():
        with open_lines(path) as stream:
            text = stream.read()
    return Resolved(group.label, run.seed, text)
