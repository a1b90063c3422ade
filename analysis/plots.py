"""Figures of runs, as PDF or PNG; drawn on ``Figure`` objects, so that no global state is used."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from analysis.errors import AnalysisError
from analysis.human_units import duration_text, target_text
from analysis.run_reader import Run
from analysis.summary import DEFAULT_TARGETS
from analysis.time_to_accuracy import curve, time_to_target

# Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), apart for every common colour
# vision; its yellow is left out, as it is too pale for a line on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINE_STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "D", "^", "v", "P", "X")

# (unit, seconds in it, the longest range in seconds for which it is chosen)
TIME_UNITS = (("s", 1, 180), ("min", 60, 3 * 3600), ("h", 3600, 96 * 3600), ("d", 86400, np.inf))

TARGET_GRAY = "#595959"
MIN_LABEL_GAP = 0.05  # of the height of the axes: the labels of two targets do not touch
LEGEND_WIDTH = 90  # characters that fit across the figure in the legend's size


def plot_time_to_accuracy(
    runs: Sequence[Run], path: str | Path, targets: Sequence[float] = DEFAULT_TARGETS
) -> None:
    """Write the time-to-accuracy figure of one run or several to ``path`` (.pdf or .png).

    Raises ``AnalysisError`` when no run has an evaluation yet, a target is no share between 0 and
    1, the suffix is another, or the file cannot be written.
    """
    path = Path(path)
    if path.suffix not in (".pdf", ".png"):
        raise AnalysisError(f"{path}: a figure ends in .pdf or .png, not in {path.suffix!r}")
    save_figure(time_to_accuracy_figure(runs, targets), path)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure to ``path`` (.pdf, .png or .svg).

    Raises ``AnalysisError`` where that cannot be done.
    """
    # Type 42 embeds TrueType fonts: publishers refuse matplotlib's default, Type 3. Without a
    # date in it, and with named parts, what is the same gives the same file.
    metadata = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}.get(path.suffix)
    with matplotlib.rc_context({"pdf.fonttype": 42, "svg.hashsalt": "fedclock"}):
        try:
            figure.savefig(path, dpi=200, metadata=metadata)
        except OSError as error:
            raise AnalysisError(f"{path}: cannot be written ({error.strerror})") from error


def time_to_accuracy_figure(
    runs: Sequence[Run], targets: Sequence[float] = DEFAULT_TARGETS
) -> Figure:
    """Test accuracy over simulated time as steps, and a marker where each target is reached.

    A step holds from its evaluation to the next, the last one to the end of the run. A run that
    misses a target gets no marker on that line, and the legend says so. Raises ``AnalysisError``
    when no run has an evaluation yet, or a target is no share between 0 and 1.
    """
    if not any(curve(run).time_s.size for run in runs):
        where = ", ".join(str(run.directory) for run in runs) or "no run was given"
        raise AnalysisError(f"nothing to plot: no evaluation of the global model yet ({where})")
    targets = sorted(set(targets))
    longest_s = max(run.simulated_s for run in runs)
    unit, unit_s = time_unit(longest_s)
    figure = Figure(figsize=(7.2, 4.0 + 0.36 * len(runs)), layout="constrained")
    axes = figure.add_subplot()
    lines = [_draw_run(axes, run, targets, unit_s, style=i) for i, run in enumerate(runs)]
    best = max(float(np.nanmax(curve(run).value, initial=0)) for run in runs)
    axes.set_xlim(0, longest_s / unit_s * 1.02 or 1)
    axes.set_ylim(0, min(1.02, max([best, *targets]) + 0.06))
    _draw_targets(axes, targets)
    axes.set_xlabel(f"simulated time ({unit})")
    axes.set_ylabel("test accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, symbol=" %"))
    style_axes(axes)
    title = runs[0].name if len(runs) == 1 else f"Time to accuracy of {len(runs)} runs"
    axes.set_title(textwrap.fill(title, LEGEND_WIDTH * 3 // 4), loc="left", parse_math=False)
    _draw_legend(figure, lines, runs, targets)
    return figure


def _draw_run(axes: Axes, run: Run, targets: Sequence[float], unit_s: float, style: int) -> Line2D:
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
        np.append(points.time_s, end_s) / unit_s,
        np.append(points.value, points.value[-1:]),
        where="post",
        linestyle=LINE_STYLES[style // len(PALETTE) % len(LINE_STYLES)],
        linewidth=1.5,
        markevery=[],  # the marker shows in the legend, and on the plot at crossings only
        **look,
    )
    reached = [(time_to_target(run, target), target) for target in targets]
    crossings = [(time_s / unit_s, target) for time_s, target in reached if time_s is not None]
    if crossings:
        axes.plot(*zip(*crossings, strict=True), linestyle="none", zorder=4, **look)
    return line


def style_axes(axes: Axes) -> None:
    """A pale grid behind what is drawn, and no frame above and at the right."""
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def time_unit(longest_s: float) -> tuple[str, float]:
    """The unit for an axis that goes up to so many simulated seconds, and the seconds in it."""
    return next((unit, unit_s) for unit, unit_s, up_to_s in TIME_UNITS if longest_s <= up_to_s)


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
    figure: Figure, lines: Sequence[Line2D], runs: Sequence[Run], targets: Sequence[float]
) -> None:
    """Below the axes, where it covers no curve: each run's name, and when it met each target."""
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
        rows += [_reached_text(run, targets)] if targets else []
        text.set_text("\n".join(textwrap.fill(row, LEGEND_WIDTH) for row in rows))


def _reached_text(run: Run, targets: Sequence[float]) -> str:
    if not curve(run).time_s.size:
        return "no evaluation yet"
    reached = [(target, time_to_target(run, target)) for target in targets]
    return "   ".join(
        f"{target_text(target)}: {'not reached' if time_s is None else duration_text(time_s)}"
        for target, time_s in reached
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
