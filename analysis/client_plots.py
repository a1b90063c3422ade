"""Who takes part, whom the model serves, and when clients are there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from analysis.client_accuracy import tenths
from analysis.cohort_series import newest_by_client
from analysis.errors import AnalysisError
from analysis.human_units import percent_text
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
from analysis.spending import work_spans_s

Floats = NDArray[np.float64]

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


def reported_by_client(run: Run) -> NDArray[np.int64]:
    """How many updates of each client [clients] were reported.

    The number of clients is that of ``clients.csv``; before a run has ended, that of its settings.
    Raises ``AnalysisError`` where neither is there.
    """
    count = len(run.clients["client"]) or run.settings.get("task.clients")
    if not isinstance(count, int):
        raise AnalysisError(
            f"{run.directory}: how many clients there are is in neither clients.csv nor "
            "resolved.yaml (task.clients)"
        )
    table = run.updates
    clients = table["client"][table["outcome"] == "reported"].astype(np.int64)
    return np.bincount(clients, minlength=count)


def lorenz(counts: NDArray[np.int64]) -> tuple[Floats, float]:
    """Lorenz curve [n + 1] of what n clients have, from those with least, and the Gini coefficient.

    The Gini coefficient is 0 where all have as much, and (n - 1) / n where one has all of it.
    """
    ordered = np.sort(counts).astype(np.float64)
    shares = np.concatenate([[0.0], np.cumsum(ordered)]) / max(ordered.sum(), 1.0)
    area = float((shares[1:] + shares[:-1]).sum()) / 2 / max(len(counts), 1)
    return shares, 1 - 2 * area


def plot_participation(runs: Run | Sequence[Run], ax: Axes | None = None) -> Axes:
    """The Lorenz curve of reported updates over clients; the mean over the seeds of a scenario.

    On the diagonal all clients take part as often. Raises ``AnalysisError`` where nothing has been
    reported yet.
    """
    groups = group_runs(runs)
    axes = axes_for(ax, 5.2, 4.6)
    grid = np.linspace(0, 1, 401)
    handles, labels = [], []
    for place, group in enumerate(groups):
        counts = [reported_by_client(run) for run in group.runs]
        found = [lorenz(each) for each in counts if each.sum()]
        if not found:
            continue
        curves = [np.interp(grid, np.linspace(0, 1, len(s)), s) for s, _ in found]
        mean = np.mean(curves, axis=0)
        handles += axes.plot(grid, mean, linewidth=1.8, **group_look(place))
        gini = float(np.mean([g for _, g in found]))
        never = float(np.mean([(each == 0).mean() for each in counts]))
        labels.append(f"{group.label}: Gini {gini:.2f}, never {percent_text(never)} of clients")
    if not handles:
        raise nothing_to_plot("no update has been reported yet", _runs(groups))
    axes.plot([0, 1], [0, 1], color=TARGET_GRAY, linestyle=(0, (5, 4)), linewidth=0.8)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_xlabel("clients, those that report least first")
    axes.set_ylabel("share of reported updates")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(xmax=1, symbol=" %"))
    style_axes(axes)
    write_title(axes, "How evenly clients take part")
    write_legend(axes, handles, labels, loc="upper left")
    return axes


def plot_fairness(runs: Run | Sequence[Run], ax: Axes | None = None) -> Axes:
    """The share of clients whose accuracy on their own test samples, at last, is no higher.

    The clients of all seeds of a scenario are pooled. Raises ``AnalysisError`` where no client has
    been evaluated.
    """
    groups = group_runs(runs)
    axes = axes_for(ax)
    handles, labels = [], []
    for place, group in enumerate(groups):
        values = np.concatenate([newest_by_client(run).accuracy for run in group.runs])
        ordered = np.sort(values[np.isfinite(values)])
        if not ordered.size:
            continue
        shares = np.arange(ordered.size + 1) / ordered.size
        handles += axes.step(np.concatenate([[0.0], ordered]), shares, where="post", linewidth=1.8,
                             **group_look(place))  # fmt: skip
        worst, best = tenths(ordered)
        labels.append(
            f"{group.label}: worst tenth {percent_text(worst)}, best {percent_text(best)}"
        )
    if not handles:
        raise nothing_to_plot("no client has been evaluated", _runs(groups))
    axes.set(xlim=(-0.02, 1.02), ylim=(0, 1.02))
    axes.set_xlabel("accuracy of a client's model, at last")
    axes.set_ylabel("share of clients with no more")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(xmax=1, symbol=" %"))
    style_axes(axes)
    write_title(axes, "How evenly clients are served")
    write_legend(axes, handles, labels, loc="best")
    return axes


def at_work_by_hour(run: Run) -> Floats:
    """The mean number of clients at work in each hour of the day [24]; NaN in hours not simulated.

    Simulated time 0 is midnight.
    """
    starts_s, ends_s = work_spans_s(run)
    edges_s = np.arange(0.0, run.simulated_s + HOUR_S, HOUR_S)
    # Seconds at work up to each edge; their differences are what each hour holds.
    so_far = np.array([np.clip(edge - starts_s, 0, ends_s - starts_s).sum() for edge in edges_s])
    lasted_s = np.diff(np.minimum(edges_s, run.simulated_s))
    hours = np.arange(len(lasted_s)) % 24
    worked_s = np.bincount(hours, weights=np.diff(so_far), minlength=24)
    passed_s = np.bincount(hours, weights=lasted_s, minlength=24)
    return np.where(passed_s > 0, worked_s / np.maximum(passed_s, 1e-300), np.nan)


def plot_clients_over_day(runs: Run | Sequence[Run], ax: Axes | None = None) -> Axes:
    """The mean number of clients at work in each hour of the simulated day, a line a scenario.

    Raises ``AnalysisError`` where no time has passed.
    """
    groups = group_runs(runs)
    if not any(run.simulated_s > 0 for group in groups for run in group.runs):
        raise nothing_to_plot("no simulated time has passed", _runs(groups))
    axes = axes_for(ax)
    handles = []
    for place, group in enumerate(groups):
        by_run = np.stack([at_work_by_hour(run) for run in group.runs])
        known = np.isfinite(by_run)
        mean = np.where(
            known.any(axis=0), np.nansum(by_run, axis=0) / np.maximum(known.sum(axis=0), 1), np.nan
        )
        handles.append(
            axes.stairs(mean, np.arange(25), baseline=None, linewidth=1.8, **group_look(place))
        )
    axes.set(xlim=(0, 24), xticks=range(0, 25, 6))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("hour of the simulated day (time 0 is 0 h)")
    axes.set_ylabel("clients at work")
    style_axes(axes)
    write_title(axes, "Clients over the day")
    write_legend(axes, handles, [group.label for group in groups], loc="best")
    return axes


def _runs(groups: Sequence[Group]) -> list[Run]:
    return [run for group in groups for run in group.runs]
