"""Figures of runs, as PDF or PNG; drawn on ``Figure`` objects, so that no global state is used."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from analysis.crossing import time_to_accuracy
from analysis.curves import curve
from analysis.errors import AnalysisError
from analysis.human_units import target_text
from analysis.run_reader import Run
from analysis.spending import TIME, Spent
from analysis.summary import DEFAULT_TARGETS

# Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), apart for every common colour
# vision; its yellow is left out, as it is too pale for a line on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINE_STYLES = ("-", "--", "-.", ":")
SUFFIXES = (".svg", ".pdf", ".png")
MARKERS = ("o", "s", "D", "^", "v", "P", "X")

TARGET_GRAY = "#595959"
MIN_LABEL_GAP = 0.05  # of the height of the axes: the labels of two targets do not touch
LEGEND_WIDTH = 90  # characters that fit across the figure in the legend's size


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure to ``path`` (.svg, .pdf or .png), for a paper or a page.

    What is the same gives the same file. Raises ``AnalysisError`` for another suffix, or where the
    file cannot be written.
    """
    path = Path(path)
    refuse_suffix(path)
    # Type 42 embeds TrueType fonts: publishers refuse matplotlib's default, Type 3. Without a
    # date in it, and with named parts, what is the same gives the same file.
    metadata = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}.get(path.suffix)
    with matplotlib.rc_context({"pdf.fonttype": 42, "svg.hashsalt": "fedclock"}):
        try:
            figure.savefig(path, dpi=200, metadata=metadata)
        except OSError as error:
            raise AnalysisError(f"{path}: cannot be written ({error.strerror})") from error


def refuse_suffix(path: Path) -> None:
    """``AnalysisError`` for a suffix that no figure has."""
    if path.suffix not in SUFFIXES:
        raise AnalysisError(
            f"{path}: a figure ends in {', '.join(SUFFIXES)}, not in {path.suffix!r}"
        )


def save_figures(figures: Mapping[str, Figure], directory: str | Path) -> list[Path]:
    """Write each figure to its file name in ``directory``; the paths, in their order.

    Raises ``AnalysisError`` as :func:`save_figure` does.
    """
    paths = [Path(directory) / name for name in figures]
    for figure, path in zip(figures.values(), paths, strict=True):
        save_figure(figure, path)
    return paths


def time_to_accuracy_figure(
    runs: Sequence[Run], targets: Sequence[float] = DEFAULT_TARGETS
) -> Figure:
    """Test accuracy over simulated time as steps, and a marker where each target is reached.

    A step holds from its evaluation to the next, the last one to the end of the run. A run that
    misses a target gets no marker on that line, and the legend says so. Raises ``AnalysisError``
    when no run has an evaluation yet, or a target is no share between 0 and 1.
    """
    return accuracy_figure(runs, targets, TIME)


def accuracy_figure(runs: Sequence[Run], targets: Sequence[float], spent: Spent) -> Figure:
    """Test accuracy over what is ``spent``; otherwise as ``time_to_accuracy_figure``."""
    if not any(curve(run).time_s.size for run in runs):
        where = ", ".join(str(run.directory) for run in runs) or "no run was given"
        raise AnalysisError(f"nothing to plot: no evaluation of the global model yet ({where})")
    targets = sorted(set(targets))
    most = max(float(spent.by(run, np.array([run.simulated_s]))[0]) for run in runs)
    unit, unit_size = spent.unit(most)
    figure = Figure(figsize=(7.2, 4.0 + 0.36 * len(runs)), layout="constrained")
    axes = figure.add_subplot()
    lines = [_draw_run(axes, run, targets, spent, unit_size, i) for i, run in enumerate(runs)]
    best = max(float(np.nanmax(curve(run).value, initial=0)) for run in runs)
    axes.set_xlim(0, most / unit_size * 1.02 or 1)
    axes.set_ylim(0, min(1.02, max([best, *targets]) + 0.06))
    _draw_targets(axes, targets)
    axes.set_xlabel(f"{spent.axis} ({unit})")
    axes.set_ylabel("test accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, symbol=" %"))
    style_axes(axes)
    title = runs[0].name if len(runs) == 1 else f"{spent.title} of {len(runs)} runs"
    axes.set_title(textwrap.fill(title, LEGEND_WIDTH * 3 // 4), loc="left", parse_math=False)
    _draw_legend(figure, lines, runs, targets, spent)
    return figure


def _draw_run(
    axes: Axes, run: Run, targets: Sequence[float], spent: Spent, unit_size: float, style: int
) -> Line2D:
    """Steps and crossings of one run; returns the line for the legend, with the run's marker."""
    points = curve(run)
    # A run without evaluations gets no point at its end either.
    end_s = np.maximum(points.time_s[-1:], run.simulated_s)
    look: dict[str, Any] = {
        "color": PALETTE[style % len(PALETTE)],
        "marker": MARKERS[style % len(MARKERS)],
        "markersize": 7,
        "markeredgecolor": "white",
        "markeredgewidth": 0.8,
    }
    (line,) = axes.step(
        spent.by(run, np.append(points.time_s, end_s)) / unit_size,
        np.append(points.value, points.value[-1:]),
        where="post",
        linestyle=LINE_STYLES[style // len(PALETTE) % len(LINE_STYLES)],
        linewidth=1.5,
        markevery=[],  # the marker shows in the legend, and on the plot at crossings only
        **look,
    )
    reached = _reached(run, targets, spent)
    crossings = [(amount / unit_size, target) for target, amount in reached if amount is not None]
    if crossings:
        axes.plot(*zip(*crossings, strict=True), linestyle="none", zorder=4, **look)
    return line


def nothing_to_plot(why: str, runs: Iterable[Run]) -> AnalysisError:
    """The error of a plot that would be empty; it names the runs."""
    where = ", ".join(str(run.directory) for run in runs) or "no run was given"
    return AnalysisError(f"nothing to plot: {why} ({where})")


def axes_for(ax: Axes | None, width_in: float = 7.2, height_in: float = 4.2) -> Axes:
    """The axes that were given, or those of a figure of their own."""
    if ax is not None:
        return ax
    return Figure(figsize=(width_in, height_in), layout="constrained").add_subplot()


def group_look(place: int) -> dict[str, Any]:
    """Colour and line style of the group at this place; the same in every plot."""
    style = LINE_STYLES[place // len(PALETTE) % len(LINE_STYLES)]
    return {"color": PALETTE[place % len(PALETTE)], "linestyle": style}


def write_legend(
    axes: Axes, handles: Sequence[Artist], labels: Sequence[str], **where: Any
) -> None:
    """A legend whose texts are shown as they are spelled: a name may hold ``_`` or ``$``."""
    if not handles:
        return
    # Texts are set after the fact: a legend drops those that begin with "_".
    legend = axes.legend(
        handles, [str(i) for i in range(len(handles))], fontsize=8, frameon=False, **where
    )
    style_legend_texts(legend, labels, LEGEND_WIDTH // 2)


def style_legend_texts(legend: Legend, labels: Sequence[str], letters: int) -> int:
    """Write the texts of a legend as they are spelled; how many lines of ``letters`` these are."""
    filled = [textwrap.fill(label, letters) for label in labels]
    for text, label in zip(legend.get_texts(), filled, strict=True):
        text.set_parse_math(False)
        text.set_text(label)
    return sum(label.count("\n") + 1 for label in filled)


def write_title(axes: Axes, title: str) -> None:
    """The title of a plot, at its left, as it is spelled."""
    axes.set_title(textwrap.fill(title, LEGEND_WIDTH * 3 // 4), loc="left", parse_math=False,
                   fontsize=11)  # fmt: skip


def style_axes(axes: Axes) -> None:
    """A pale grid behind what is drawn, and no frame above and at the right."""
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _reached(run: Run, targets: Sequence[float], spent: Spent) -> list[tuple[float, float | None]]:
    """Each target with what was spent until it was reached, or None where it was not."""
    instants = [time_to_accuracy(run, target).reached_s for target in targets]
    return [
        (target, None if time_s is None else float(spent.by(run, np.array([time_s]))[0]))
        for target, time_s in zip(targets, instants, strict=True)
    ]


def _draw_targets(axes: Axes, targets: Sequence[float]) -> None:
    """Dashed lines, named in the right margin; labels that would touch are pushed apart."""
    low, high = axes.get_ylim()
    label_at = -np.inf
    for target in targets:
        axes.axhline(target, color=TARGET_GRAY, linestyle=(0, (5, 4)), linewidth=0.8, zorder=1)
        label_at = max((target - low) / (high - low), label_at + MIN_LABEL_GAP)
        axes.text(
            1.01, label_at, target_text(target), transform=axes.transAxes,
            va="center_baseline", color=TARGET_GRAY, fontsize=9,
        )  # fmt: skip


def _draw_legend(
    figure: Figure, lines: Sequence[Line2D], runs: Sequence[Run], targets: Sequence[float],
    spent: Spent,
) -> None:  # fmt: skip
    """Below the axes, where it covers no curve: each run, and what it spent to each target."""
    # Labels are set after the fact: a legend drops those that begin with "_", and reads "$" as
    # mathematics; a run's name may hold both.
    legend = figure.legend(
        lines, [str(i) for i in range(len(lines))], loc="outside lower left", fontsize=9,
        frameon=False, alignment="left",
    )  # fmt: skip
    for text, run, name in zip(legend.get_texts(), runs, _names(runs), strict=True):
        text.set_parse_math(False)
        # The title already names a single run.
        rows = [name] if len(runs) > 1 else ["test accuracy"]
        rows += [_reached_text(run, targets, spent)] if targets else []
        text.set_text("\n".join(textwrap.fill(row, LEGEND_WIDTH) for row in rows))


def _reached_text(run: Run, targets: Sequence[float], spent: Spent) -> str:
    if not curve(run).time_s.size:
        return "no evaluation yet"
    return "   ".join(
        f"{target_text(target)}: {'not reached' if amount is None else spent.text(amount)}"
        for target, amount in _reached(run, targets, spent)
    )


def _names(runs: Sequence[Run]) -> list[str]:
    """Names that tell the runs apart: by seed, else by directory, where a name comes twice."""
    names = [run.name for run in runs]
    for longer_names in (
        [f"{run.name}, seed {run.manifest.get('seed')}" for run in runs],
        [f"{run.name} ({run.directory})" for run in runs],
    ):
        counts = Counter(names)
        names = [
            name if counts[name] == 1 else longer
            for name, longer in zip(names, longer_names, strict=True)
        ]
    return names
