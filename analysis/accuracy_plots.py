"""Accuracy over what it has cost: simulated time, versions, bytes, device time.

The runs of a scenario share a colour. Where it has several seeds, each one's steps are thin, their
mean is a thick line, and a band spans from the least to the greatest of them. Mean and band end
where the first of the seeds does: what the others do later is no mean of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from analysis.crossing import time_to_accuracy
from analysis.curves import curve
from analysis.metric_names import is_accuracy, metric_text, value_text
from analysis.plots import (
    TARGET_GRAY,
    axes_for,
    group_look,
    nothing_to_plot,
    style_axes,
    write_legend,
    write_title,
)
from analysis.run_reader import Run
from analysis.runs import Group, group_runs
from analysis.spending import BYTES, DEVICE_TIME, TIME, VERSIONS, Spent

Floats = NDArray[np.float64]


def plot_time_to_accuracy(
    runs: Run | Sequence[Run], ax: Axes | None = None, *, targets: Sequence[float] = (),
    metric: str = "accuracy", sustain: int = 1,
) -> Axes:  # fmt: skip
    """The test metric over simulated time, and a dot where a run reaches a target and holds it.

    Raises ``AnalysisError`` where no run has an evaluation yet, or a target is none.
    """
    return _plot(runs, ax, TIME, targets, metric, sustain)


def plot_accuracy_against_versions(
    runs: Run | Sequence[Run], ax: Axes | None = None, *, targets: Sequence[float] = (),
    metric: str = "accuracy", sustain: int = 1,
) -> Axes:  # fmt: skip
    """The same over versions (rounds): what simulated time hides, and what it adds."""
    return _plot(runs, ax, VERSIONS, targets, metric, sustain)


def plot_accuracy_against_bytes(
    runs: Run | Sequence[Run], ax: Axes | None = None, *, targets: Sequence[float] = (),
    metric: str = "accuracy", sustain: int = 1,
) -> Axes:  # fmt: skip
    """The same over the bytes that server and clients have sent."""
    return _plot(runs, ax, BYTES, targets, metric, sustain)


def plot_accuracy_against_device_time(
    runs: Run | Sequence[Run], ax: Axes | None = None, *, targets: Sequence[float] = (),
    metric: str = "accuracy", sustain: int = 1,
) -> Axes:  # fmt: skip
    """The same over the time that devices were at work, useful or not."""
    return _plot(runs, ax, DEVICE_TIME, targets, metric, sustain)


def _plot(
    runs: Run | Sequence[Run], ax: Axes | None, spent: Spent, targets: Sequence[float], metric: str,
    sustain: int,
) -> Axes:  # fmt: skip
    groups = group_runs(runs)
    every = [run for group in groups for run in group.runs]
    if not any(curve(run, metric).time_s.size for run in every):
        raise nothing_to_plot("no evaluation of the global model yet", every)
    axes = axes_for(ax)
    steps = {run: _steps(run, spent, metric) for run in every}
    most = max(float(amounts.max(initial=0.0)) for amounts, _ in steps.values())
    unit, unit_size = spent.unit(most)
    handles, labels = [], []
    for place, group in enumerate(groups):
        of_group = [steps[run] for run in group.runs]
        drawn = _draw_group(axes, of_group, unit_size, group_look(place))
        for target in targets:
            _mark_crossings(axes, group, target, metric, sustain, spent, unit_size, place)
        if drawn is not None:
            handles.append(drawn)
            seeds = f" ({len(group.runs)} seeds)" if len(group.runs) > 1 else ""
            labels.append(group.label + seeds)
    for target in targets:
        axes.axhline(target, color=TARGET_GRAY, linestyle=(0, (5, 4)), linewidth=0.8, zorder=1)
        axes.text(1.01, target, value_text(target, metric), va="center", color=TARGET_GRAY,
                  transform=axes.get_yaxis_transform(), fontsize=8)  # fmt: skip
    axes.set_xlim(left=0)
    axes.set_xlabel(f"{spent.axis} ({unit})" if unit else spent.axis)
    axes.set_ylabel(metric_text(metric))
    if is_accuracy(metric):
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, symbol=" %"))
    style_axes(axes)
    write_title(axes, spent.title if is_accuracy(metric) else metric_text(metric).capitalize())
    write_legend(axes, handles, labels, loc="best")
    return axes


def _draw_group(
    axes: Axes, of_group: Sequence[tuple[Floats, Floats]], unit_size: float, look: dict[str, Any]
) -> Line2D | None:
    """The line for the legend; None where the group has no evaluation."""
    steps = [s for s in of_group if s[0].size]
    if not steps:
        return None
    if len(steps) == 1:
        amounts, values = steps[0]
        return axes.step(amounts / unit_size, values, where="post", linewidth=1.6, **look)[0]
    for amounts, values in steps:
        axes.step(amounts / unit_size, values, where="post", linewidth=0.6, alpha=0.45, **look)
    grid, values = mean_steps(steps)
    axes.fill_between(
        grid / unit_size, values.min(axis=0), values.max(axis=0), step="post", alpha=0.18,
        color=look["color"], linewidth=0,
    )  # fmt: skip
    mean = values.mean(axis=0)
    return axes.step(grid / unit_size, mean, where="post", linewidth=2.0, **look)[0]


def mean_steps(steps: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Step functions (amounts, values) where all of them have a value: amounts [n] at which any of
    them changes, and the values there [functions, n]."""
    first = max(amounts[0] for amounts, _ in steps)
    last = min(amounts[-1] for amounts, _ in steps)
    grid = np.unique(np.concatenate([amounts for amounts, _ in steps]))
    grid = grid[(grid >= first) & (grid <= last)]
    if not grid.size:
        return grid, np.empty((len(steps), 0))
    values = [values[np.searchsorted(amounts, grid, side="right") - 1] for amounts, values in steps]
    return grid, np.stack(values)


def _steps(run: Run, spent: Spent, metric: str) -> tuple[Floats, Floats]:
    """What was spent at each evaluation and at the end of the run, and the value from there on."""
    points = curve(run, metric)
    end_s = np.maximum(points.time_s[-1:], run.simulated_s)
    amounts = spent.by(run, np.append(points.time_s, end_s))
    return amounts, np.append(points.value, points.value[-1:])


def _mark_crossings(
    axes: Axes, group: Group, target: float, metric: str, sustain: int, spent: Spent,
    unit_size: float, place: int,
) -> None:  # fmt: skip
    for run in group.runs:
        crossing = time_to_accuracy(run, target, metric, sustain)
        if crossing.reached:
            amount = spent.by(run, np.array([crossing.time_s])) / unit_size
            axes.plot(amount, [target], "o", markersize=6, markeredgecolor="white", zorder=4,
                      markeredgewidth=0.8, color=group_look(place)["color"])  # fmt: skip
