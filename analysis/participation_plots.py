"""What became of participations: how long their phases took, staleness, waste, when they were."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from analysis.human_units import duration_text, time_unit
from analysis.plots import (
    PALETTE,
    axes_for,
    group_look,
    nothing_to_plot,
    style_axes,
    write_legend,
    write_title,
)
from analysis.run_reader import Run
from analysis.runs import group_runs
from analysis.spending import work_spans_s
from analysis.summary import OUTCOME_ORDER

Floats = NDArray[np.float64]

PHASES = ("download", "training", "upload")
PHASE_COLORS = (PALETTE[5], PALETTE[0], PALETTE[2])
MOST_POINTS = 5_000  # of a step curve: beyond, a file shows no more, only grows

_OUTCOME_COLORS = {
    "reported": PALETTE[2], "late": PALETTE[4], "dropped_download": PALETTE[5],
    "dropped_training": PALETTE[0], "dropped_upload": PALETTE[3], "cancelled": PALETTE[1],
    "discarded": "#000000", "server_failed": "#777777", "in_flight": "#BBBBBB",
}  # fmt: skip


def phase_durations_s(run: Run) -> dict[str, Floats]:
    """By phase, the seconds that it took in each participation that came through it.

    With links that cost no time the first and the last are 0 s long.
    """
    table = run.updates
    starts_s, _ = work_spans_s(run)
    bounds = (starts_s, table["downloaded_s"], table["trained_s"], table["uploaded_s"])
    found = {}
    for phase, begin_s, end_s in zip(PHASES, bounds[:-1], bounds[1:], strict=True):
        lasted_s = end_s - begin_s
        found[phase] = lasted_s[np.isfinite(lasted_s)]
    return found


def plot_round_durations(runs: Run | Sequence[Run], ax: Axes | None = None) -> Axes:
    """The share of downloads, trainings, uploads and rounds that took no longer; pooled over runs.

    A round is what lies between two versions (of a cohort). Time is logarithmic; what took no time
    at all stands at the left edge. Raises ``AnalysisError`` where nothing has lasted yet.
    """
    every = [run for group in group_runs(runs) for run in group.runs]
    phases = [phase_durations_s(run) for run in every]
    found = {
        phase: np.concatenate([each[phase] for each in phases] or [np.empty(0)]) for phase in PHASES
    }
    rounds_s = [run.versions["round_duration_s"] for run in every]
    found["round"] = np.concatenate([*rounds_s, np.empty(0)])
    longest_s = max(float(np.nanmax(values, initial=0.0)) for values in found.values())
    if not longest_s > 0:
        raise nothing_to_plot("no participation has taken time yet", every)
    axes = axes_for(ax)
    unit, unit_s = time_unit(longest_s)
    axes.set_xscale("log")
    shortest_s = min(
        float(values[values > 0].min()) for values in found.values() if (values > 0).any()
    )
    handles, labels = [], []
    for (name, values), color in zip(found.items(), (*PHASE_COLORS, "#000000"), strict=True):
        ordered = np.sort(values[np.isfinite(values)])
        if not ordered.size:
            continue
        at = np.unique(np.linspace(0, ordered.size - 1, MOST_POINTS).round().astype(np.int64))
        amounts = np.maximum(ordered[at], shortest_s / 2) / unit_s
        (line,) = axes.step(amounts, (at + 1) / ordered.size, where="post", color=color,
                            linewidth=2.2 if name == "round" else 1.5)  # fmt: skip
        handles.append(line)
        labels.append(f"{name}: median {duration_text(float(np.median(ordered)))}")
    axes.set_ylim(0, 1.02)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel(f"simulated time ({unit}, logarithmic)")
    axes.set_ylabel("share that took no longer")
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, symbol=" %"))
    style_axes(axes)
    write_title(axes, "How long rounds and their phases take")
    write_legend(axes, handles, labels, loc="best")
    return axes


def plot_staleness(runs: Run | Sequence[Run], ax: Axes | None = None) -> Axes:
    """The share of reported updates by their staleness in versions, a line a scenario.

    Seeds are pooled. Raises ``AnalysisError`` where no update has been reported.
    """
    groups = group_runs(runs)
    found = []
    for group in groups:
        values = [run.updates["staleness"][run.updates["outcome"] == "reported"]
                  for run in group.runs]  # fmt: skip
        pooled = np.concatenate(values)
        found.append(pooled[np.isfinite(pooled)])
    most = max((int(values.max(initial=-1)) for values in found), default=-1)
    if most < 0:
        every = [run for group in groups for run in group.runs]
        raise nothing_to_plot("no update has been reported yet", every)
    axes = axes_for(ax)
    handles, labels = [], []
    # Few enough steps to be seen; a step that holds several versions shows their mean share.
    width = -(-(most + 1) // 200)
    edges = np.arange(0, most + 1 + width, width) - 0.5
    for place, (group, values) in enumerate(zip(groups, found, strict=True)):
        if not values.size:
            continue
        counts, _ = np.histogram(values, edges)
        handles.append(
            axes.stairs(counts / values.size / width, edges, linewidth=1.6, **group_look(place))
        )
        labels.append(f"{group.label}: mean {values.mean():.2f}, most {int(values.max())}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlim(-0.5, max(edges[-1], 2.5))
    axes.set_xlabel("staleness (versions)")
    axes.set_ylabel("share of reported updates")
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, symbol=" %", decimals=None))
    style_axes(axes)
    write_title(axes, "Staleness of the updates that versions are made of")
    write_legend(axes, handles, labels, loc="best")
    return axes


def plot_wasted_work(runs: Run | Sequence[Run], ax: Axes | None = None) -> Axes:
    """Device time by what became of it, a stacked bar a scenario, the mean of its seeds.

    All but that of reported and unfinished tasks is wasted. Raises ``AnalysisError`` where no
    device has worked yet.
    """
    groups = group_runs(runs)
    spent: list[dict[str, float]] = []
    for group in groups:
        sums: dict[str, float] = {}
        for run in group.runs:
            starts_s, ends_s = work_spans_s(run)
            for outcome in np.unique(run.updates["outcome"]).tolist():
                chosen = run.updates["outcome"] == outcome
                worked_s = float((ends_s - starts_s)[chosen].sum()) / len(group.runs)
                sums[outcome] = sums.get(outcome, 0.0) + worked_s
        spent.append(sums)
    most_s = max((sum(sums.values()) for sums in spent), default=0.0)
    if not most_s > 0:
        every = [run for group in groups for run in group.runs]
        raise nothing_to_plot("no device has worked yet", every)
    axes = axes_for(ax, height_in=1.6 + 0.5 * len(groups))
    unit, unit_s = time_unit(most_s)
    known = [outcome for outcome in OUTCOME_ORDER if any(outcome in sums for sums in spent)]
    known += sorted({name for sums in spent for name in sums} - set(known))
    left = np.zeros(len(groups))
    for outcome in known:
        widths = np.array([sums.get(outcome, 0.0) for sums in spent]) / unit_s
        axes.barh(np.arange(len(groups)), widths, left=left, height=0.62,
                  color=_OUTCOME_COLORS[outcome])  # fmt: skip
        left += widths
    for row, sums in enumerate(spent):
        total_s = sum(sums.values())
        wasted_s = sum(s for name, s in sums.items() if name not in ("reported", "in_flight"))
        if total_s > 0:
            axes.text(total_s / unit_s, row, f" {100 * wasted_s / total_s:.1f} % wasted",
                      va="center", fontsize=8)  # fmt: skip
    axes.set_yticks(np.arange(len(groups)))
    axes.set_yticklabels([group.label for group in groups], parse_math=False)
    axes.invert_yaxis()
    axes.set_xlim(0, most_s / unit_s * 1.18)
    axes.set_xlabel(f"device time ({unit}), mean over seeds")
    style_axes(axes)
    write_title(axes, "What became of the devices' work")
    handles = [Patch(color=_OUTCOME_COLORS[outcome]) for outcome in known]
    write_legend(axes, handles, known, loc="upper left", bbox_to_anchor=(0, -0.3), ncols=4)
    return axes
