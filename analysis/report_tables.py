"""The tables of a report: what came of each scenario, what tells them apart, and each run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.comparison import Comparison
from analysis.comparison_tables import comparison_cells
from analysis.crossing import time_to_accuracy
from analysis.curves import curve
from analysis.human_units import (
    bytes_text,
    count_text,
    duration_text,
    percent_text,
    target_text,
)
from analysis.run_reader import Run
from analysis.runs import Group, differences
from analysis.statistics import censored_median
from analysis.summary import DEFAULT_TARGETS, Summary, summarize

NONE = "–"
MOST_LETTERS = 120  # of a setting; a list may be long


@dataclass(frozen=True, slots=True)
class HtmlTable:
    """Texts, which a page escapes; ``rows`` have the head of the row first."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def overview(groups: Sequence[Group]) -> HtmlTable:
    """What came of each scenario: means over its seeds, and from least to greatest."""
    columns: dict[str, Callable[[Summary], str | float | None]] = {
        "simulated time": lambda s: s.simulated_s,
        "versions": lambda s: s.versions,
        "final test accuracy": lambda s: s.final_accuracy,
        "best": lambda s: s.best_accuracy,
        "bytes down": lambda s: s.bytes_down,
        "bytes up": lambda s: s.bytes_up,
        "wasted device time": lambda s: s.wasted_share,
        "not reported": lambda s: s.not_reported_share,
    }
    texts: dict[str, Callable[[float], str]] = {
        "simulated time": duration_text, "versions": count_text,
        "final test accuracy": percent_text, "best": percent_text,
        "bytes down": bytes_text, "bytes up": bytes_text,
        "wasted device time": percent_text, "not reported": percent_text,
    }  # fmt: skip
    rows = []
    for group in groups:
        summaries = [summarize(run) for run in group.runs]
        cells = [_spread([pick(s) for s in summaries], texts[name])
                 for name, pick in columns.items()]  # fmt: skip
        seeds = ", ".join(str(seed) for seed in group.seeds)
        rows.append([group.label, seeds, *cells])
    return HtmlTable("What came of each scenario: the mean over its seeds, and from least to most",
                     ["scenario", "seeds", *columns], rows)  # fmt: skip


def times_to_targets(groups: Sequence[Group], sustain: int) -> HtmlTable:
    """Medians of the simulated time to some accuracies, where a miss counts as later; a dash for
    what was never evaluated."""
    rows = []
    for group in groups:
        cells = []
        if not all(curve(run).time_s.size for run in group.runs):
            rows.append([group.label, *[NONE] * len(DEFAULT_TARGETS)])
            continue
        for target in DEFAULT_TARGETS:
            found = [time_to_accuracy(run, target, sustain=sustain) for run in group.runs]
            reached = [crossing.reached for crossing in found]
            median = censored_median([crossing.time_s for crossing in found], reached)
            words = ("> " if median.is_bound else "") + duration_text(median.value)
            if not any(reached):
                words = f"not in {duration_text(max(crossing.time_s for crossing in found))}"
            missed = len(reached) - sum(reached)
            few = f" ({missed} of {len(reached)} missed it)" if 0 < missed < len(reached) else ""
            cells.append(words + few)
        rows.append([group.label, *cells])
    times = "1 evaluation" if sustain == 1 else f"{sustain} evaluations in a row"
    return HtmlTable(
        f"Simulated time to a test accuracy that is met in {times}: medians over seeds",
        ["scenario", *(f"to {target_text(target)}" for target in DEFAULT_TARGETS)], rows,
    )  # fmt: skip


def compared(found: Comparison) -> list[HtmlTable]:
    """The tables of a comparison."""
    needs, ends = comparison_cells(found)
    tables = [HtmlTable("Needed to reach the target", needs[0], needs[1:])]
    return tables + ([HtmlTable("At the end of the runs", ends[0], ends[1:])] if ends else [])


def setting_differences(groups: Sequence[Group]) -> HtmlTable | None:
    """The settings that are not the same in all scenarios; None where there is one scenario."""
    if len(groups) < 2:
        return None
    rows = [[key, *(_value(value) for value in values)]
            for key, values in differences(groups).items()
            if any(value is not None for value in values)]  # fmt: skip
    return HtmlTable("Settings that differ between the scenarios",
                     ["setting", *(group.label for group in groups)], rows)  # fmt: skip


def each_run(groups: Sequence[Group]) -> HtmlTable:
    """Where each run is, what became of it, and what it was made with."""
    rows = []
    for group in groups:
        for run in group.runs:
            made_with = run.manifest.get("versions_of")
            version = made_with.get("fedclock", NONE) if isinstance(made_with, dict) else NONE
            rows.append([
                str(run.directory), group.label, str(run.seed), _status(run),
                str(run.manifest.get("events_sha256") or NONE)[:12], str(version),
            ])  # fmt: skip
    return HtmlTable(
        "The runs", ["directory", "scenario", "seed", "status", "event log (SHA-256)", "fedclock"],
        rows,
    )  # fmt: skip


def _status(run: Run) -> str:
    reason = run.manifest.get("stop_reason")
    return f"{run.manifest.get('status')}" + (f" ({reason})" if reason else "")


def _spread(values: Sequence[Any], text: Callable[[float], str]) -> str:
    """``91.2 %``, and where seeds differ in it a second line with the least and the greatest."""
    known = [float(v) for v in values if v is not None and math.isfinite(v)]
    if not known:
        return NONE
    mean = text(math.fsum(known) / len(known))
    low, high = text(min(known)), text(max(known))
    return mean if low == high else f"{mean}\n{low} –\n{high}"


def _value(value: Any) -> str:
    text = NONE if value is None else str(value)
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}…"
