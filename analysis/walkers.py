"""The timeline of chains: where each model was trained, and when it came back."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from analysis.errors import AnalysisError
from analysis.human_units import time_unit
from analysis.plots import LEGEND_WIDTH, PALETTE, TARGET_GRAY, axes_for, style_axes
from analysis.run_reader import Run, Table

MOST_CHAINS = 200  # more bars than that do not show one by one

# How a chain is drawn that no version was made of.
_HATCHES = {
    "discarded": ("////", "given up or discarded"),
    "cancelled": ("xxxx", "cancelled"),
    "late": ("\\\\\\\\", "late"),
    "in_flight": ("....", "in flight at the end"),
}
_DARK = PALETTE[:3]  # on the others, black is easier to read than white
_BOX = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"}
_WIDTH_IN = 10.5


@dataclass(frozen=True, slots=True, eq=False)
class _Span:
    """The chains to show, as positions [shown] in the table by instant of dispatch, and where the
    figure ends, in simulated seconds; ``words`` say what is left out."""

    chains: NDArray[np.int64]
    end_s: float
    words: str


def _span(run: Run, chains: Table, ends_s: NDArray[np.float64]) -> _Span:
    """All chains; beyond 200 those of the first versions, or, if one alone has more, the first."""
    dispatched_s, versions_s = chains["dispatched_s"], run.versions["sim_time_s"]
    order = np.lexsort((chains["chain"], dispatched_s))
    if len(order) <= MOST_CHAINS:
        return _Span(order, float(np.nanmax([*ends_s, *versions_s, *dispatched_s])), "")
    begin_s, beyond_s = dispatched_s[order[0]], dispatched_s[order[MOST_CHAINS]]
    whole = int((versions_s <= beyond_s).sum())
    if whole and versions_s[whole - 1] > begin_s:
        end_s = float(versions_s[whole - 1])
        words = f"{whole:,} of {len(versions_s):,} versions" if whole > 1 else "version"
        return _Span(order[dispatched_s[order] < end_s], end_s, f"up to the first {words}")
    first = order[:MOST_CHAINS]
    end_s = float(np.nanmax([*ends_s[first], *dispatched_s[first]]))
    return _Span(first, end_s, f"the first {MOST_CHAINS} of {len(order):,} chains")


def walkers_figure(run: Run) -> Figure:
    """``plot_walkers`` as high as its rows need, with the legend below."""
    figure = Figure(figsize=(_WIDTH_IN, _height_in(run)), layout="constrained")
    legend = _draw_walkers(figure.add_subplot(), run)
    figure.legend(handles=legend, loc="outside lower left", ncols=6, fontsize=8, frameon=False)
    return figure


def plot_walkers(run: Run, ax: Axes | None = None) -> Axes:
    """A timeline with one row a walker, or, without FedSeqInter, a superclient; one bar a chain.

    A bar goes from the dispatch to the end of the chain, in simulated time from the first chain
    on; hatched, it went into no version. A line stands where a version was made. Only the span
    of the first versions where there are more than 200 chains; the title says so. Raises
    ``AnalysisError`` when no chain is over yet, or the event log lacks what it is needed for.
    """
    axes = axes_for(ax, _WIDTH_IN, _height_in(run))
    legend = _draw_walkers(axes, run)
    axes.legend(handles=legend, loc="upper left", bbox_to_anchor=(0, -0.12), ncols=6, fontsize=8,
                frameon=False)  # fmt: skip
    return axes


def _rows(run: Run) -> tuple[Table, bool, NDArray[np.int64], int]:
    """The chains, whether walkers walk, the row of each chain, and how many rows there are."""
    chains = run.chains
    if chains is None or not chains["chain"].size:
        raise AnalysisError(f"nothing to plot: no chain is over yet ({run.directory})")
    walks = not np.isnan(chains["walker"]).any()
    rows = chains["walker" if walks else "superclient"].astype(np.int64)
    count = int(rows.max()) + 1
    if not walks and run.superclients is not None:
        count = max(count, len(run.superclients["superclient"]))
    return chains, walks, rows, count


def _height_in(run: Run) -> float:
    _, walks, _, count = _rows(run)
    return min(14.0, 1.9 + count * (0.34 if walks else 0.2))


def _draw_walkers(axes: Axes, run: Run) -> list[Any]:
    """Draws all but the legend, whose entries it returns."""
    chains, walks, rows, count = _rows(run)
    ends_s = run.chain_ends_s
    span = _span(run, chains, ends_s)
    shown = span.chains
    begin_s = float(chains["dispatched_s"][shown[0]])
    unit, unit_s = time_unit(span.end_s)

    axes.set_xlim(begin_s / unit_s, (span.end_s + 0.01 * (span.end_s - begin_s or 1)) / unit_s)
    axes.set_ylim(count - 0.4, -0.6)
    colors, legend = _colors(chains["superclient"][shown].astype(np.int64), rows[shown], walks)
    outcomes = chains["outcome"][shown]
    # One whose end is not known is a mere stroke.
    last_s = np.where(np.isnan(ends_s), chains["dispatched_s"], ends_s)[shown]
    starts, ends = chains["dispatched_s"][shown] / unit_s, last_s / unit_s
    for outcome in dict.fromkeys(["reported", *_HATCHES, *np.unique(outcomes).tolist()]):
        here = np.flatnonzero(outcomes == outcome)
        if not here.size:
            continue
        whole = outcome == "reported"
        hatch, words = (None, "") if whole else _HATCHES.get(outcome, ("++", outcome))
        of_these = [colors[i] for i in here]
        axes.barh(
            rows[shown][here], (ends - starts)[here], left=starts[here], height=0.76,
            color=of_these if whole else "white", edgecolor="white" if whole else of_these,
            hatch=hatch, linewidth=0.5, label=outcome,
        )  # fmt: skip
        if hatch:
            legend.append(Patch(facecolor="white", edgecolor="0.3", hatch=hatch, label=words))
    if walks:
        for i in range(len(shown)):
            name = f"{chains['superclient'][shown[i]]:.0f}"
            look: dict[str, Any] = {"color": "white" if colors[i] in _DARK else "black"}
            if outcomes[i] != "reported":
                look = {"color": "black", "bbox": _BOX}
            _write_in_bar(axes, rows[shown][i], (starts[i], ends[i]), name, look)
    _draw_versions(axes, run, unit_s, legend)

    later = "; the axis begins with the first chain" if begin_s > 0 else ""
    axes.set_xlabel(f"simulated time ({unit}){later}")
    axes.ticklabel_format(axis="x", useOffset=False, style="plain")
    axes.set_ylabel("walker" if walks else "superclient")
    axes.yaxis.set_major_locator(MaxNLocator(32, integer=True, min_n_ticks=1))
    style_axes(axes)
    axes.grid(visible=False, axis="y")
    what = "chains of walkers, with the number of the superclient" if walks else "chains"
    title = f"{run.name}: {what}" + (f"; {span.words}" if span.words else "")
    axes.set_title(
        textwrap.fill(title, LEGEND_WIDTH), loc="left", fontsize=11, pad=18, parse_math=False
    )
    return legend


def _colors(
    superclients: NDArray[np.int64], rows: NDArray[np.int64], walks: bool
) -> tuple[list[str], list[Any]]:
    """A colour a chain, and what the legend says of it; both inputs [shown], by instant.

    By superclient where there are few; else two colours in turn along a row, so that one bar
    can be told from the next.
    """
    few = np.unique(superclients)
    if walks and len(few) <= 5:
        by_number = {int(number): PALETTE[i] for i, number in enumerate(few)}
        legend = [Patch(color=c, label=f"superclient {n}") for n, c in by_number.items()]
        return [by_number[number] for number in superclients.tolist()], [*legend]
    so_far = [int((rows[:i] == row).sum()) for i, row in enumerate(rows)]
    legend = [Patch(color=PALETTE[0], label="chain"), Patch(color=PALETTE[5], label="the next")]
    return [(PALETTE[0], PALETTE[5])[n % 2] for n in so_far], [*legend]


def _write_in_bar(
    axes: Axes, row: int, ends: tuple[float, float], name: str, look: dict[str, Any]
) -> None:
    """A name in the middle of what is seen of a bar, where it fits."""
    low, high = axes.get_xlim()
    start, end = max(ends[0], low), min(ends[1], high)
    # The axes take nine tenths of the figure, a digit of this size 0.06 inches.
    if (end - start) / (high - low) * 0.9 * _WIDTH_IN < 0.06 * len(name) + 0.05:
        return
    axes.text((start + end) / 2, row, name, ha="center", va="center_baseline", fontsize=7,
              clip_on=True, **look)  # fmt: skip


def _draw_versions(axes: Axes, run: Run, unit_s: float, legend: list[Any]) -> None:
    """A line at each version, numbered above the axes where the numbers do not touch."""
    look: dict[str, Any] = {"color": TARGET_GRAY, "linewidth": 0.9, "linestyle": (0, (4, 2))}
    low, high = axes.get_xlim()
    label_from = low
    seen = False
    for sim_time_s, version in zip(
        run.versions["sim_time_s"], run.versions["version"], strict=True
    ):
        at = sim_time_s / unit_s
        if not low <= at <= high:
            continue
        axes.axvline(at, zorder=4, **look)
        seen = True
        if at >= label_from:
            axes.annotate(f"{version:.0f}", (at, 1), (0, 3), textcoords="offset points",
                          xycoords=axes.get_xaxis_transform(), ha="center", va="bottom",
                          color=TARGET_GRAY, fontsize=8)  # fmt: skip
            label_from = at + 0.03 * (high - low)
    if seen:
        legend.append(Line2D([], [], label="new version", **look))
