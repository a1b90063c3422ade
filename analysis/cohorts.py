"""What became of cohorts: how they split, who was in them when, and what they are worth.

What the updates tell of them is in ``cohort_figures``; the figures of both are written here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from rich.table import Table as RichTable
from rich.text import Text

from analysis.cohort_figures import (
    WIDTH_IN,
    affinity_figure,
    clients_text,
    clustering_figure,
    cohort_colors,
    draw_splits,
    draw_steps,
    fairness_figure,
    ink,
    percent_axis,
    time_axis,
    write_legend,
    write_title,
)
from analysis.cohort_series import (
    Cohort,
    Points,
    cohorts,
    correlation,
    leaves,
    memberships,
    metric,
    newest_by_client,
    rewards,
    spread_ratio,
    tree_rows,
)
from analysis.curves import curve
from analysis.errors import AnalysisError
from analysis.human_units import percent_text, time_unit
from analysis.plots import TARGET_GRAY, axes_for, save_figures, style_axes
from analysis.run_reader import Run

MOST_ROWS = 20  # of the table: with its summary it still fits one screen
MOST_NAMED = 60  # cohorts whose names do not touch in the tree


def write_cohort_figures(run: Run, directory: str | Path) -> list[Path]:
    """Write cohorts.png, memberships.png, clustering.png, affinity.png and fairness.png.

    Returns the paths of those written: none without cohorts, and none that would be empty.
    memberships.png needs a participation that came to a version, clustering.png a value to show,
    affinity.png a reward after the first split, fairness.png an evaluation of a client. Raises
    ``AnalysisError`` where a table is damaged, or a file cannot be written.
    """
    return save_figures(cohort_figures(run), directory)


def cohort_figures(run: Run) -> dict[str, Figure]:
    """Those figures by file name."""
    figures: dict[str, Figure] = {}
    found = cohorts(run)
    if found:
        figures["cohorts.png"] = cohorts_figure(run)
        if ((run.updates["outcome"] == "reported") & (run.updates["cohort"] != "")).any():
            figures["memberships.png"] = memberships_figure(run)
        told = [s(run, c.name).value.size for c in found for s in (correlation, spread_ratio)]
        if any(told) or metric(run, "global", "members", "adjusted_rand_index").value.size:
            figures["clustering.png"] = clustering_figure(run)
        if any(rewards(run, c.name).median.size for c in found if c.parent):
            figures["affinity.png"] = affinity_figure(run)
        if np.isfinite(newest_by_client(run).accuracy).any():
            figures["fairness.png"] = fairness_figure(run)
    return figures


# --- table ---------------------------------------------------------------------------------------


def cohorts_table(run: Run) -> RichTable:
    """The cohorts in the order of their tree, the first 20 where there are many.

    Fits 80 columns. Columns of which nothing is known, as without learning, are left out; of one
    cohort that is a dash. Below stands what holds for all clients. Raises ``AnalysisError`` where
    there are no cohorts, or a table is damaged.
    """
    found = cohorts(run)
    if not found:
        raise AnalysisError(f"nothing to show: no cohorts ({run.directory})")
    at_last = len(leaves(found))
    title = f"{len(found):,} cohort{'s' * (len(found) > 1)}"
    table = RichTable(
        title=title + (f", {at_last:,} at last" if at_last < len(found) else ""),
        title_style="bold", min_width=60, caption=Text(_of_all_clients(run)),
    )  # fmt: skip
    unit, unit_s = time_unit(run.simulated_s)
    cells = [_cells(cohort, unit_s) for cohort in found]
    names = [name for name in cells[0] if any(row[name] != "–" for row in cells)]
    for name in names:
        header = name.format(unit=unit)
        if name == "cohort":
            table.add_column(header, style="cyan", overflow="fold")
        else:
            table.add_column(header, justify="right")
    shown = len(found) if len(found) <= MOST_ROWS + 1 else MOST_ROWS  # "1 more" takes a row too
    for row in cells[:shown]:
        table.add_row(*(Text(row[name]) for name in names))
    if len(found) > shown:
        table.add_row(Text(f"{len(found) - shown:,} more"), *["…"] * (len(names) - 1))
    return table


def _cells(cohort: Cohort, unit_s: float) -> dict[str, str]:
    """By header; a dash where it is not known, or nobody is served any more."""
    served = cohort.served if cohort.served or cohort.split_s is None else None
    return {
        "cohort": cohort.name,
        "born\n({unit})": f"{cohort.born_s / unit_s:.2f}",
        "split\n({unit})": "–" if cohort.split_s is None else f"{cohort.split_s / unit_s:.2f}",
        "versions": f"{cohort.first_version:,}–{cohort.last_version:,}",
        "clients": "–" if served is None else f"{served:,}",
        "known": _percent(cohort.known_share if served else None, 0),
        "accuracy\nof members": _percent(cohort.accuracy, 1),
    }


def _percent(share: float | None, digits: int) -> str:
    return "–" if share is None else percent_text(share, digits)


def _of_all_clients(run: Run) -> str:
    """Agreement and fairness at the newest evaluation, a line each; less what was not measured."""
    lines = []
    agreement = metric(run, "global", "members", "adjusted_rand_index")
    if agreement.value.size:
        lines.append(
            f"adjusted Rand index {agreement.value[-1]:.3f} (of {agreement.n[-1]:,.0f} clients)"
        )
    worst, best = (
        metric(run, "global", "client", f"accuracy_{which}_tenth").value
        for which in ("worst", "best")
    )
    if worst.size and best.size:
        lines.append(
            f"accuracy: worst tenth of clients {percent_text(worst[-1])}, best "
            f"{percent_text(best[-1])}"
        )
    return "\n".join(lines)


# --- the tree ------------------------------------------------------------------------------------


def cohorts_figure(run: Run) -> Figure:
    """The tree of cohorts over simulated time, and below it the accuracy of each one's members.

    A line goes from a cohort's birth to its split or the end of the run, and branches there to its
    children. Only the tree where no member has been evaluated. Raises ``AnalysisError`` where there
    are no cohorts.
    """
    found = cohorts(run)
    if not found:
        raise AnalysisError(f"nothing to plot: no cohorts yet ({run.directory})")
    members = _members(run, found)
    tree_in = _tree_in(found)
    accuracy_in = 3.4 if members else 0.0
    figure = Figure(figsize=(WIDTH_IN, 1.3 + tree_in + accuracy_in), layout="constrained")
    panels: Any = figure.subplots(
        1 + bool(members), 1, sharex=True, squeeze=False,
        height_ratios=(tree_in, accuracy_in) if members else None,
    ).flat  # fmt: skip
    plot_cohort_tree(run, panels[0])
    if members:
        panels[0].tick_params(length=0)
        panels[0].set_xlabel("")
        write_legend(figure, _draw_members(panels[1], run))
    write_title(figure, f"{run.name}: the tree of cohorts")
    return figure


def plot_cohort_tree(run: Run, ax: Axes | None = None) -> Axes:
    """The tree of cohorts over simulated time, a row a cohort, with their clients at the right.

    Raises ``AnalysisError`` where there are no cohorts.
    """
    found = cohorts(run)
    if not found:
        raise AnalysisError(f"nothing to plot: no cohorts yet ({run.directory})")
    rows, colors = tree_rows(found), cohort_colors(found)
    tree_in = _tree_in(found)
    axes = axes_for(ax, WIDTH_IN, 1.3 + tree_in)
    unit_s = time_axis(axes, run)
    end = run.simulated_s / unit_s
    for cohort in found:
        _draw_branch(axes, cohort, rows, colors, unit_s, end)
        _write_name(axes, cohort, rows, colors, unit_s, end, len(found), tree_in)
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.set_yticks([])
    style_axes(axes)
    axes.spines["left"].set_visible(False)
    return axes


def plot_cohort_accuracy(run: Run, ax: Axes | None = None) -> Axes:
    """The accuracy of each cohort on its members over simulated time, and dotted that of all.

    Raises ``AnalysisError`` where no member has been evaluated.
    """
    if not _members(run, cohorts(run)):
        raise AnalysisError(f"nothing to plot: no member has been evaluated ({run.directory})")
    axes = axes_for(ax, WIDTH_IN, 3.4)
    axes.legend(handles=_draw_members(axes, run), fontsize=8, frameon=False)
    return axes


def _members(run: Run, found: Sequence[Cohort]) -> list[tuple[Cohort, Points]]:
    """The cohorts whose members have been evaluated, with their accuracy."""
    series = [(c, metric(run, f"cohort/{c.name}", "members", "accuracy")) for c in found]
    return [(cohort, points) for cohort, points in series if points.value.size]


def _tree_in(found: Sequence[Cohort]) -> float:
    return min(max(1.0, 0.3 * len(found)), 12.0)


def _draw_members(axes: Axes, run: Run) -> list[Line2D]:
    """Draws all but the legend, whose entries it returns."""
    found = cohorts(run)
    members, colors = _members(run, found), cohort_colors(found)
    unit_s = time_axis(axes, run)
    for cohort, points in members:
        draw_steps(axes, points, unit_s, colors[cohort.name])
    overall = curve(run)
    axes.step(overall.time_s / unit_s, overall.value, where="post", color="black",
              linestyle=":", linewidth=1.4)  # fmt: skip
    values = np.concatenate([overall.value, *(points.value for _, points in members)])
    axes.set_ylim(0, min(1.02, float(np.nanmax(values, initial=0)) + 0.06))
    percent_axis(axes)
    axes.set_ylabel("accuracy of members")
    style_axes(axes)
    draw_splits([axes], found, unit_s, named=False)
    words = "all clients, on the model of the cohort that serves each"
    handle = Line2D([], [], color="black", linestyle=":", linewidth=1.4, label=words)
    return [handle] if overall.value.size else []


def _draw_branch(
    axes: Axes, cohort: Cohort, rows: dict[str, int], colors: dict[str, str], unit_s: float,
    end: float,
) -> None:  # fmt: skip
    """The cohort's own line, and the one down or up to it from its parent's."""
    born, color, row = cohort.born_s / unit_s, colors[cohort.name], rows[cohort.name]
    until = end if cohort.split_s is None else cohort.split_s / unit_s
    axes.plot([born, until], [row, row], color=color, linewidth=3, solid_capstyle="butt")
    if cohort.parent:
        axes.plot([born, born], [rows[cohort.parent], row], color=color, linewidth=1.2)
        axes.plot([born], [row], "o", color=color, markersize=5)


def _write_name(
    axes: Axes, cohort: Cohort, rows: dict[str, int], colors: dict[str, str], unit_s: float,
    end: float, count: int, tree_in: float,
) -> None:  # fmt: skip
    """Name, size and accuracy: in the right margin, or behind the split, where no line is."""
    if count > MOST_NAMED and cohort.split_s is not None:
        return
    size = min(8.5, 52 * tree_in / count)  # points: they do not touch
    if cohort.split_s is None:
        words = f"sides of {cohort.sides[0]:,} and {cohort.sides[1]:,}"
        if not any(cohort.sides):
            words = "no side known"
        if cohort.served is not None:
            words = clients_text(cohort.served)
        if cohort.accuracy is not None:
            words += f", {percent_text(cohort.accuracy)}"
        at, right = end, False
    else:
        words = "split"
        if any(cohort.sides):
            words += f" into {cohort.sides[0]:,} and {cohort.sides[1]:,}"
        at = cohort.split_s / unit_s
        right = at > 0.7 * end
    axes.annotate(
        f"{cohort.name}: {words}", (at, rows[cohort.name]), (-6 if right else 6, 4 * right),
        textcoords="offset points", color=ink(colors[cohort.name]), fontsize=size,
        va="bottom" if right else "center", ha="right" if right else "left",
        annotation_clip=False,
    )  # fmt: skip


# --- memberships ---------------------------------------------------------------------------------


def memberships_figure(run: Run) -> Figure:
    """``plot_memberships`` as high as its rows need, with the legend below."""
    figure = Figure(
        figsize=(WIDTH_IN, 1.5 + _rows_in(len(memberships(run).clients))), layout="constrained"
    )
    handles = _draw_memberships(figure.add_subplot(), run)
    write_title(figure, f"{run.name}: in which cohort each client trained, sorted by the last one")
    write_legend(figure, handles)
    return figure


def plot_memberships(run: Run, ax: Axes | None = None) -> Axes:
    """A row a client that took part, by its last cohort; a dot where it trained, by the cohort.

    Clients of one cohort are in the order in which they came to it. Raises ``AnalysisError`` where
    nobody has taken part.
    """
    axes = axes_for(ax, WIDTH_IN, 1.5 + _rows_in(len(memberships(run).clients)))
    axes.legend(handles=_draw_memberships(axes, run), fontsize=8, frameon=False, ncols=8,
                loc="upper left", bbox_to_anchor=(0, -0.12))  # fmt: skip
    return axes


def _rows_in(count: int) -> float:
    return min(max(3.0, 0.016 * count), 9.0)


def _draw_memberships(axes: Axes, run: Run) -> list[Line2D]:
    """Draws all but the legend, whose entries it returns."""
    shown = memberships(run)
    found = cohorts(run)
    colors = cohort_colors(found)
    count = len(shown.clients)
    height_in = _rows_in(count)
    unit_s = time_axis(axes, run)
    size = min(max(1.6, 1.4 * 72 * height_in / count), 4.0)  # points: more than a row
    own = shown.last[shown.rows] == shown.cohorts
    # A stray one would not be seen below those of its row.
    for home in (True, False):
        for cohort in found:
            here = (own == home) & (shown.cohorts == cohort.name)
            axes.plot(shown.time_s[here] / unit_s, shown.rows[here], "o", markersize=size,
                      markeredgewidth=0, color=colors[cohort.name])  # fmt: skip
    names, first, size_of = np.unique(shown.last, return_index=True, return_counts=True)
    for name, begin, clients in zip(names.tolist(), first, size_of, strict=True):
        if begin:
            axes.axhline(begin - 0.5, color="black", linewidth=0.8)
        words = f"{name}\n{clients_text(int(clients))}"
        axes.text(1.01, begin + (clients - 1) / 2, words, color=ink(colors.get(name, TARGET_GRAY)),
                  transform=axes.get_yaxis_transform(), va="center", fontsize=8)  # fmt: skip
    axes.set_ylim(count - 0.5, -0.5)
    axes.set_yticks([])
    axes.set_ylabel(f"{clients_text(count)} that took part")
    style_axes(axes)
    draw_splits([axes], found, unit_s)
    trained = [c for c in found if (shown.cohorts == c.name).any()]
    return [
        Line2D([], [], color=colors[c.name], marker="o", linestyle="none", label=c.name)
        for c in trained
    ]
