"""Figures of a comparison: how many times sooner, or with how much less, the target is reached."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from analysis.comparison import COSTS, Comparison, SpeedUp
from analysis.comparison_tables import HEADS, speed_up_text
from analysis.errors import AnalysisError
from analysis.metric_names import metric_text, value_text
from analysis.plots import (
    PALETTE,
    TARGET_GRAY,
    axes_for,
    style_axes,
    write_legend,
    write_title,
)

BAR = 0.8  # of a row: the bars of all costs together


def plot_speed_ups(comparison: Comparison, ax: Axes | None = None) -> Axes:
    """Speed-ups over the baseline as bars with their 95 % intervals, a row a scenario.

    A dot is a pair of one seed. Where a run missed the target, the bar is hatched, and an arrow
    shows on which side of its end the speed-up is; hollow dots are bounds as well. Raises
    ``AnalysisError`` without another scenario than the baseline.
    """
    others = comparison.rows[1:]
    if not others:
        raise AnalysisError("nothing to plot: there is no other scenario than the baseline")
    axes = axes_for(ax, height_in=1.8 + 0.85 * len(others))
    axes.set_xscale("log")
    height = BAR / len(COSTS)
    ends = [1.0]
    for row, other in enumerate(others):
        for place, cost in enumerate(COSTS):
            at = row + (place - (len(COSTS) - 1) / 2) * height
            ends += _draw(axes, other.speed_ups[cost], at, height, PALETTE[place])
    axes.axvline(1.0, color=TARGET_GRAY, linewidth=0.9)
    low, high = min(ends), max(ends)
    axes.set_xlim(low / 1.3, high * (high / low) ** 0.12 * 1.5)
    axes.set_yticks(range(len(others)))
    axes.set_yticklabels([other.group.label for other in others], parse_math=False)
    axes.set_ylim(len(others) - 0.5, -0.5)
    few = math.log10(axes.get_xlim()[1] / axes.get_xlim()[0]) < 2
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("what the baseline needs, over what this needs (logarithmic)")
    style_axes(axes)
    base = comparison.rows[0].group.label
    target = value_text(comparison.target, comparison.metric)
    write_title(axes, f"Speed-up over {base} to {metric_text(comparison.metric)} {target}")
    handles = [Patch(color=PALETTE[place]) for place in range(len(COSTS))]
    write_legend(axes, handles, [HEADS[cost] for cost in COSTS], loc="upper center",
                 bbox_to_anchor=(0.5, -0.16 - 0.2 / len(others)), ncols=len(COSTS))  # fmt: skip
    return axes


def _draw(axes: Axes, speed_up: SpeedUp, at: float, height: float, color: str) -> list[float]:
    """One bar; the ratios at which something of it is drawn."""
    exact = speed_up.low == speed_up.high
    end = speed_up.low if speed_up.low > 0 else speed_up.high
    if not math.isfinite(end):
        axes.annotate("not known: no pair bounds it", (1.0, at), (4, 0), fontsize=7, va="center",
                      textcoords="offset points", color=TARGET_GRAY)  # fmt: skip
        return []
    axes.barh(at, end - 1, left=1.0, height=height * 0.88, color=color, alpha=0.85,
              hatch=None if exact else "////", edgecolor="white")  # fmt: skip
    drawn, label_at = [end], max(end, 1.0)
    if speed_up.interval is not None:
        low = speed_up.interval.low if speed_up.interval.low > 0 else end
        high = speed_up.interval.high if math.isfinite(speed_up.interval.high) else end
        axes.plot([low, high], [at, at], color="black", linewidth=1.2, solid_capstyle="butt")
        axes.plot([low, high], [at, at], "|", color="black", markersize=7)
        drawn += [low, high]
        label_at = max(label_at, high)
    if not exact:
        axes.plot([end], [at], ">" if speed_up.low > 0 else "<", color="black", markersize=5)
    for low, high in speed_up.ratios.values():
        ratio = low if low > 0 else high
        if math.isfinite(ratio):
            filled = color if low == high else "white"
            axes.plot([ratio], [at], "o", markersize=3.2, color=color, markerfacecolor=filled,
                      markeredgecolor="black", markeredgewidth=0.5, zorder=4)  # fmt: skip
            drawn.append(ratio)
            label_at = float(np.maximum(label_at, ratio))
    axes.annotate(speed_up_text(speed_up), (label_at, at), (6, 0), textcoords="offset points",
                  fontsize=8, va="center")  # fmt: skip
    return drawn
