"""How well cohorts fit their clients: what the updates tell, rewards, and fairness, over time."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from analysis.cohort_series import (
    MOVING,
    Cohort,
    Points,
    Quartiles,
    cohorts,
    correlation,
    exploring_share,
    leaves,
    lineage,
    metric,
    newest_by_client,
    rewards,
    spread_ratio,
)
from analysis.errors import AnalysisError
from analysis.human_units import percent_text, target_text, time_unit
from analysis.plots import LEGEND_WIDTH, PALETTE, TARGET_GRAY, axes_for, style_axes
from analysis.run_reader import Run

WIDTH_IN = 10.5
MOST_LEGENDS = 24  # names below a figure
MOST_PANELS = 8
MOST_NAMED = 5  # cohorts beside a panel

_LINES_IN_A_ROW = 8
_DASHED = (0, (5, 4))


# --- looks ---------------------------------------------------------------------------------------


def cohort_colors(found: Sequence[Cohort]) -> dict[str, str]:
    """By cohort: gray for the first one, which holds everybody; apart for those that train at last.

    Beyond six others they are paler, then darker ones of the same six.
    """
    rest = [c for c in leaves(found) if c.parent]
    rest += sorted(
        (c for c in found if c.parent and c.split_s is not None), key=lambda c: -c.born_s
    )
    few = PALETTE[:6]
    looks = [*few, *(_mixed(c, "white", 0.5) for c in few), *(_mixed(c, "black", 0.4) for c in few)]
    colors = {cohort.name: TARGET_GRAY for cohort in found}
    return colors | {cohort.name: looks[i % len(looks)] for i, cohort in enumerate(rest)}


def _mixed(color: str, other: str, share: float) -> str:
    red, green, blue = (1 - share) * np.array(to_rgb(color)) + share * np.array(to_rgb(other))
    return to_hex((float(red), float(green), float(blue)))


def ink(color: str) -> str:
    """The colour, dark enough to write with."""
    red, green, blue = to_rgb(color)
    brightness = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return _mixed(color, "black", max(0.1, 1 - 0.42 / max(brightness, 0.42)))


def write_title(figure: Figure, text: str) -> None:
    """Above all axes, from the left."""
    letters = int(LEGEND_WIDTH * figure.get_figwidth() / 8.0)
    figure.suptitle(textwrap.fill(text, letters), x=0.01, ha="left", fontsize=11, parse_math=False)


def write_legend(figure: Figure, handles: Sequence[Any]) -> None:
    """Below all axes."""
    if len(handles) > MOST_LEGENDS:
        more = Patch(color="none", label=f"{len(handles) - MOST_LEGENDS + 1:,} more")
        handles = [*handles[: MOST_LEGENDS - 1], more]
    figure.legend(handles=handles, loc="outside lower left", ncols=_LINES_IN_A_ROW, fontsize=8,
                  frameon=False)  # fmt: skip


def draw_splits(
    panels: Sequence[Axes], found: Sequence[Cohort], unit_s: float, *, named: bool = True
) -> None:
    """Dashed lines where cohorts split, named above the first panel; close ones by one name.

    To be called when the limits of the axes are final.
    """
    low, high = panels[0].get_xlim()
    width_in = panels[0].get_position().width * WIDTH_IN
    splits = sorted((c.split_s / unit_s, c.name) for c in found if c.split_s is not None)
    groups: list[list[tuple[float, str]]] = []
    for at, name in splits:
        for axes in panels:
            axes.axvline(at, color=TARGET_GRAY, linestyle=_DASHED, linewidth=0.9, zorder=1.5)
        taken_in = 0.07 * sum(len(n) + 2 for _, n in groups[-1]) + 0.4 if groups else 0.0
        if groups and (at - groups[-1][0][0]) / (high - low) * width_in < taken_in:
            groups[-1].append((at, name))
        else:
            groups.append([(at, name)])
    for group in groups if named else ():
        names = [name for _, name in group]
        words = ", ".join(names if len(names) <= 6 else [*names[:5], f"{len(names) - 5} more"])
        right = (group[0][0] - low) / (high - low) > 0.75
        panels[0].annotate(
            f"{words} split{'s' * (len(names) == 1)}", (group[0][0], 1), (0, 4), fontsize=8,
            xycoords=panels[0].get_xaxis_transform(), textcoords="offset points",
            color=TARGET_GRAY, ha="right" if right else "left", va="bottom",
        )  # fmt: skip


def clients_text(count: int) -> str:
    return f"{count:,} client{'s' * (count != 1)}"


def time_axis(axes: Axes, run: Run) -> float:
    """From the run's begin to its end; returns the seconds in the axis' unit."""
    unit, unit_s = time_unit(run.simulated_s)
    axes.set_xlim(0, 1.01 * run.simulated_s / unit_s or 1)
    axes.set_xlabel(f"simulated time ({unit})")
    return unit_s


def draw_steps(axes: Axes, points: Points, unit_s: float, color: str) -> None:
    """A value that holds from its evaluation, a dot, to the next."""
    axes.step(points.time_s / unit_s, points.value, "o-", where="post", color=color, linewidth=1.5,
              markersize=3.5)  # fmt: skip


def percent_axis(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: target_text(share)))


def _lines(shown: Sequence[Cohort], colors: dict[str, str]) -> list[Line2D]:
    """For a legend."""
    return [Line2D([], [], color=colors[c.name], label=c.name, linewidth=2) for c in shown]


# --- clustering ----------------------------------------------------------------------------------


def clustering_figure(run: Run) -> Figure:
    """Agreement with the planted clusters, and what the updates of each cohort's versions tell.

    One panel below the other, over simulated time; those without a value are left out. Thick is the
    mean of ten versions, pale each version. Raises ``AnalysisError`` where there is none.
    """
    found = cohorts(run)
    colors = cohort_colors(found)
    agreement = metric(run, "global", "members", "adjusted_rand_index")
    # What each panel shows, the value that says that there are no clusters, and by cohort.
    all_panels = [
        ("correlation of gradients\nwith data (Pearson's r,\n", 0.0, correlation),
        ("spread within sides,\nof that in the cohort\n(", 1.0, spread_ratio),
    ]
    drawn = []
    for words, neutral, series in all_panels:
        of_cohorts = {cohort.name: series(run, cohort.name) for cohort in found}
        of_cohorts = {name: found for name, found in of_cohorts.items() if found.value.size}
        if of_cohorts:
            drawn.append((words, neutral, of_cohorts))
    count = bool(agreement.value.size) + len(drawn)
    if not count:
        raise AnalysisError(f"nothing to plot: updates tell nothing of cohorts ({run.directory})")
    figure = Figure(figsize=(WIDTH_IN, 1.5 + 2.1 * count), layout="constrained")
    rows: Any = figure.subplots(count, 1, sharex=True, squeeze=False)
    panels: list[Axes] = list(rows.flat)
    unit_s = time_axis(panels[-1], run)
    left = iter(panels)
    if agreement.value.size:
        axes = plot_agreement(run, next(left))
        axes.set_xlabel(panels[-1].get_xlabel() if axes is panels[-1] else "")
    for words, neutral, of_cohorts in drawn:
        axes = next(left)
        axes.axhline(neutral, color="black", linewidth=0.8, zorder=1)
        for name, smoothed in of_cohorts.items():
            look: dict[str, Any] = {"color": colors[name]}
            at = smoothed.time_s / unit_s
            axes.plot(at, smoothed.value, linewidth=0.5, alpha=0.2, **look)
            axes.plot(at, smoothed.mean, "o-", linewidth=1.6, markersize=3, markevery=[-1], **look)
        axes.set_ylabel(f"{words}mean of {MOVING} versions)")
        values = np.concatenate([smoothed.value for smoothed in of_cohorts.values()])
        means = np.concatenate([smoothed.mean for smoothed in of_cohorts.values()])
        low, high = np.quantile(values, (0.005, 0.995))  # a single one must not flatten the rest
        low, high = min(low, neutral, means.min()), max(high, neutral, means.max())
        axes.set_ylim(low - 0.06 * (high - low or 1), high + 0.06 * (high - low or 1))
    for axes in panels:
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=(1, 2, 2.5, 5, 10)))
        style_axes(axes)
    draw_splits(panels, found, unit_s)
    write_title(figure, f"{run.name}: how clear the clusters are")
    names = {name for _, _, of_cohorts in drawn for name in of_cohorts}
    write_legend(figure, _lines([cohort for cohort in found if cohort.name in names], colors))
    return figure


def plot_agreement(run: Run, ax: Axes | None = None) -> Axes:
    """How well cohorts agree with the planted clusters, over simulated time.

    Raises ``AnalysisError`` where that was not measured.
    """
    agreement = metric(run, "global", "members", "adjusted_rand_index")
    if not agreement.value.size:
        raise AnalysisError(f"nothing to plot: no adjusted Rand index ({run.directory})")
    axes = axes_for(ax, WIDTH_IN, 3.4)
    draw_steps(axes, agreement, time_axis(axes, run), "black")
    axes.set_ylim(min(0.0, float(np.nanmin(agreement.value))) - 0.03, 1.04)
    axes.set_ylabel("adjusted Rand index\nof cohorts and\nplanted clusters")
    style_axes(axes)
    _write_last(axes, agreement.value)
    return axes


def _write_last(axes: Axes, values: Any) -> None:
    """The last value in the right margin, at its height."""
    axes.text(1.005, float(values[-1]), f"{values[-1]:.2f}", fontsize=9, va="center",
              transform=axes.get_yaxis_transform())  # fmt: skip


# --- affinity ------------------------------------------------------------------------------------


def affinity_figure(run: Run) -> Figure:
    """Rewards of the participants, median and quartiles, and below them how many explore.

    Over simulated time, in steps; one panel for each cohort that trains at last, with those that it
    comes from, but for the first of all, in which every reward is 0. The medians of the others are
    pale. Raises ``AnalysisError`` where no cohort has split.
    """
    found = cohorts(run)
    told = {c.name: rewards(run, c.name) for c in found if c.parent}
    told = {name: of_bins for name, of_bins in told.items() if of_bins.median.size}
    if not told:
        raise AnalysisError(f"nothing to plot: no rewards beside others yet ({run.directory})")
    lines = [lineage(found, leaf) for leaf in leaves(found)]
    lines = [line for line in lines if any(cohort.name in told for cohort in line)]
    shown = lines[:MOST_PANELS]
    edges_s, share = exploring_share(run)
    explored = bool(np.isfinite(share).any())
    count = len(shown) + explored
    figure = Figure(figsize=(WIDTH_IN, 1.4 + 1.4 * count), layout="constrained")
    rows: Any = figure.subplots(count, 1, sharex=True, squeeze=False)
    panels: list[Axes] = list(rows.flat)
    unit_s = time_axis(panels[-1], run)
    colors = cohort_colors(found)
    for axes, line in zip(panels, shown, strict=False):
        _draw_rewards(axes, line, told, colors, unit_s)
        axes.set_ylim(_reward_limits(told))
        axes.set_ylabel("reward")
        draw_splits([axes], line, unit_s, named=False)
    if explored:
        axes = panels[-1]
        axes.bar(edges_s[:-1] / unit_s, share, width=np.diff(edges_s) / unit_s, align="edge",
                 color=TARGET_GRAY, edgecolor="white", linewidth=0.5)  # fmt: skip
        axes.set_ylim(0, 1.1 * float(np.nanmax(share)) or 1)
        percent_axis(axes)
        axes.set_ylabel("check-ins\nthat explore")
        draw_splits([axes], found, unit_s, named=False)
    draw_splits(panels[:1], found, unit_s)
    for axes in panels:
        axes.yaxis.set_major_locator(MaxNLocator(4))
        style_axes(axes)
    more = f"; the first {MOST_PANELS} of {len(lines):,} cohorts" * (len(lines) > len(shown))
    write_title(figure, f"{run.name}: rewards of participants (line: median; shaded: quartiles; "
                f"gray: medians in other cohorts{more})")  # fmt: skip
    return figure


def _reward_limits(told: dict[str, Quartiles]) -> tuple[float, float]:
    """Those of the quartiles, and 0; a few that are far off must not flatten the rest."""
    lower = np.concatenate([of_bins.lower for of_bins in told.values()])
    high = max(float(np.concatenate([of_bins.upper for of_bins in told.values()]).max()), 0.0)
    medians = np.concatenate([of_bins.median for of_bins in told.values()])
    usual = min(float(np.quantile(lower, 0.05)), float(medians.min()), 0.0)
    low = max(min(float(lower.min()), 0.0), usual - 0.5 * (high - usual))
    return low - 0.1 * (high - low or 1), high + 0.1 * (high - low or 1)


def _draw_rewards(
    axes: Axes, line: Sequence[Cohort], told: dict[str, Quartiles], colors: dict[str, str],
    unit_s: float,
) -> None:  # fmt: skip
    """Those of a cohort and of the ones that it comes from, before those of all."""
    names = [cohort.name for cohort in line if cohort.name in told]
    for name, of_bins in told.items():
        at = of_bins.time_s / unit_s
        look: dict[str, Any] = {"color": colors[name]}
        if name not in names:
            axes.plot(at, of_bins.median, color="0.75", linewidth=0.8, zorder=1.2)
            continue
        axes.fill_between(at, of_bins.lower, of_bins.upper, alpha=0.2, linewidth=0, **look)
        axes.plot(at, of_bins.median, "o-", markersize=3, linewidth=1.6, **look)
    axes.axhline(0, color="black", linewidth=0.8, zorder=1)
    # Those that it comes from are named as well: they have a colour here and no place elsewhere.
    for i, name in enumerate(reversed(names[-MOST_NAMED:])):
        axes.text(1.01, 0.95 - 0.17 * i, name if i == 0 else f"from {name}", fontsize=8,
                  color=ink(colors[name]), transform=axes.transAxes, va="top")  # fmt: skip


# --- fairness ------------------------------------------------------------------------------------

_TENTHS = (
    ("accuracy_best_tenth", "best tenth", PALETTE[2]),
    ("accuracy_mean", "mean", "black"),
    ("accuracy_worst_tenth", "worst tenth", PALETTE[1]),
)


def fairness_figure(run: Run) -> Figure:
    """Who gains how much: accuracies of the clients at their newest evaluation, and over time.

    At the left the share of clients up to an accuracy, by cohort and of all; at the right best
    tenth, mean and worst tenth. Raises ``AnalysisError`` where no client has been evaluated.
    """
    newest = newest_by_client(run)
    finite = np.isfinite(newest.accuracy)
    if not finite.any():
        raise AnalysisError(f"nothing to plot: no client has been evaluated ({run.directory})")
    found = cohorts(run)
    over_time = any(metric(run, "global", "client", name).value.size for name, _, _ in _TENTHS)
    figure = Figure(figsize=(WIDTH_IN if over_time else 6.0, 4.6), layout="constrained")
    columns: Any = figure.subplots(1, 1 + over_time, squeeze=False)
    handles = _draw_fairness(columns.flat[0], run)
    if over_time:
        plot_tenths(run, columns.flat[1])
        draw_splits([columns.flat[1]], found, time_unit(run.simulated_s)[1])
    write_title(figure, f"{run.name}: accuracy of each client on its own test samples")
    write_legend(figure, handles)
    return figure


def plot_cohort_fairness(run: Run, ax: Axes | None = None) -> Axes:
    """The share of clients up to an accuracy at their newest evaluation, by cohort and of all.

    Raises ``AnalysisError`` where no client has been evaluated.
    """
    axes = axes_for(ax)
    axes.legend(handles=_draw_fairness(axes, run), fontsize=8, frameon=False)
    return axes


def _draw_fairness(axes: Axes, run: Run) -> list[Line2D]:
    """Draws all but the legend, whose entries it returns."""
    newest, found = newest_by_client(run), cohorts(run)
    finite, colors = np.isfinite(newest.accuracy), cohort_colors(found)
    if not finite.any():
        raise AnalysisError(f"nothing to plot: no client has been evaluated ({run.directory})")
    handles: list[Line2D] = []
    for cohort in found:
        values = newest.accuracy[finite & (newest.cohorts == cohort.name)]
        if values.size and values.size < finite.sum():
            axes.ecdf(values, color=colors[cohort.name], linewidth=1.1)
            words = f"{cohort.name} ({clients_text(values.size)})"
            handles.append(Line2D([], [], color=colors[cohort.name], label=words))
    axes.ecdf(newest.accuracy[finite], color="black", linewidth=2.2)
    words = f"all {clients_text(int(finite.sum()))}"
    handles.insert(0, Line2D([], [], color="black", linewidth=2.2, label=words))
    axes.set(xlim=(-0.02, 1.02), ylim=(0, 1.02), xlabel="accuracy of a client's model, at last")
    axes.set_ylabel("share of clients with\nthis accuracy or less")
    percent_axis(axes)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: target_text(share)))
    style_axes(axes)
    return handles


def plot_tenths(run: Run, ax: Axes | None = None) -> Axes:
    """Accuracy of the best tenth of clients, mean, and of the worst tenth, over simulated time.

    Raises ``AnalysisError`` where none of them was measured.
    """
    series = [(metric(run, "global", "client", name), words, c) for name, words, c in _TENTHS]
    over_time = [entry for entry in series if entry[0].value.size]
    if not over_time:
        raise AnalysisError(f"nothing to plot: no accuracies of clients ({run.directory})")
    axes = axes_for(ax)
    unit_s = time_axis(axes, run)
    for points, _, color in over_time:
        draw_steps(axes, points, unit_s, color)
    axes.set_ylim(0, 1.02)
    percent_axis(axes)
    axes.set_ylabel("accuracy of clients")
    style_axes(axes)
    label_at = np.inf
    for points, words, color in over_time:
        label_at = min(float(points.value[-1]), label_at - 0.1)
        axes.text(1.015, label_at / 1.02, f"{words}\n{percent_text(points.value[-1])}",
                  color=color, transform=axes.transAxes, va="center", fontsize=8)  # fmt: skip
    return axes
