"""What became of a model that travels in parts: where it was split, and what each part weighed on
the links.

Part A is the lower layers, part B the upper ones; a pre-pass trains and sends the whole model.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray
from rich.table import Table as RichTable
from rich.text import Text

from analysis.curves import curve
from analysis.errors import AnalysisError
from analysis.human_units import byte_unit, bytes_text, percent_text, target_text
from analysis.plots import (
    LEGEND_WIDTH,
    PALETTE,
    TARGET_GRAY,
    accuracy_figure,
    save_figures,
    style_axes,
)
from analysis.run_reader import Run
from analysis.spending import BYTES
from analysis.summary import DEFAULT_TARGETS

Floats = NDArray[np.float64]

MOST_ROWS = 20  # of the table, one a layer: with its sums it still fits one screen
MOST_NAMED = 6  # layers of part A where they are not the first ones
MOST_SHARES = 24  # numbers above bars: they do not touch
MOST_LABELS = 90  # names of layers below an axis
MOST_RIMS = 12  # lines that each hide something of the bars
MOST_BARS = 60  # versions; beyond, gaps between them would only take the colour away
MOST_STEPS = 240  # beyond, a part that comes with every other version would be a pattern of stripes

# In each step as many versions that train A as such that train B, where these take turns.
_STEP_SIZES = (1, 2, 4, 10, 20, 40)

PIECES = ("part A", "part B", "whole model", "headers and control")
_COLORS = (PALETTE[0], PALETTE[4], PALETTE[2], "#333333")

_COLUMNS = {
    "down": ("a_bytes_down", "b_bytes_down", "ab_bytes_down"),
    "up": ("a_bytes_up", "b_bytes_up", "ab_bytes_up"),
}

# Each of several partial transfers to other clients is rounded to whole bytes, and so is their sum.
_ROUNDING_BYTES = 16


def write_part_figures(run: Run, directory: str | Path) -> list[Path]:
    """Write layers.png, bytes.png and bytes_to_accuracy.png; returns the paths of those written.

    None of them where a model does not travel in parts, and none that would be empty: layers.png
    needs a split, bytes.png a participation whose record is final, bytes_to_accuracy.png an
    evaluation. Raises ``AnalysisError`` where a table is damaged, or a file cannot be written.
    """
    return save_figures(part_figures(run), directory)


def part_figures(run: Run) -> dict[str, Figure]:
    """Those figures by file name."""
    figures: dict[str, Figure] = {}
    if run.layers is not None and run.layers["layer"].size:
        figures["layers.png"] = layers_figure(run)
    if "part" in run.updates and run.updates["version"].size:
        figures["bytes.png"] = bytes_figure(run)
    if "part" in run.updates and curve(run).time_s.size:
        figures["bytes_to_accuracy.png"] = bytes_to_accuracy_figure([run])
    return figures


# --- splits --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """The layers in forward order at one time that the model was split.

    All of shape [layers]; ``divergence`` is NaN where none was measured, ``share`` is out of the
    bytes of the model, and ``in_a`` tells the layers of part A from those of part B.
    """

    version: int
    names: tuple[str, ...]
    parameters: Floats
    share: Floats
    divergence: Floats
    in_a: NDArray[np.bool_]

    @property
    def where(self) -> str:
        """``"after conv2, layer 2 of 5"``; by its names where part A is not the first layers."""
        count, lower = len(self.names), int(self.in_a.sum())
        if lower in (0, count):
            return f"with no layer in part {'B' if lower else 'A'}"
        if self.in_a[:lower].all():
            return f"after {self.names[lower - 1]}, layer {lower} of {count}"
        names = [name for name, in_a in zip(self.names, self.in_a, strict=True) if in_a]
        cut = [*names[: MOST_NAMED // 2], "…", *names[-MOST_NAMED // 2 :]]
        return f"with {', '.join(names if lower <= MOST_NAMED else cut)} in part A"

    @property
    def borders(self) -> list[float]:
        """Where another part begins, on an axis on which the first layer is 1."""
        return [float(at) + 1.5 for at in np.flatnonzero(self.in_a[1:] != self.in_a[:-1])]


def splits(run: Run) -> list[Split]:
    """Each time that the model was split, the newest last; less one of which rows are missing.

    Raises ``AnalysisError`` where there is none, or ``layers.csv`` is damaged.
    """
    table = run.layers
    if table is None or not table["layer"].size:
        raise AnalysisError(f"nothing to show: no split of a model into parts ({run.directory})")
    path, layers = run.directory / "layers.csv", table["layer"]
    rows = np.arange(len(layers))
    count = int([*np.flatnonzero(layers[1:] == 1), rows[-1]][0]) + 1
    wrong = np.flatnonzero(layers != rows % count + 1)
    if wrong.size:
        at = wrong[0]
        raise AnalysisError(
            f"{path}, line {at + 2}: layer is {layers[at]:g}; {at % count + 1} is needed, as each "
            f"split has the layers from 1 to {count} in their order"
        )
    wrong = np.flatnonzero(~np.isin(table["part"], ("A", "B")))
    if wrong.size:
        at = wrong[0]
        part = str(table["part"][at])
        raise AnalysisError(f"{path}, line {at + 2}: part is {part!r}; A or B is needed")
    found = []
    for first in range(0, len(layers) - count + 1, count):
        here = slice(first, first + count)
        sizes_bytes, divergence = table["size_bytes"][here], table["divergence"][here]
        found.append(
            Split(
                version=int(table["version"][first]),
                names=tuple(table["name"][here].tolist()),
                parameters=table["parameters"][here],
                share=sizes_bytes / (sizes_bytes.sum() or 1.0),
                divergence=np.where(np.isfinite(divergence), divergence, np.nan),
                in_a=table["part"][here] == "A",
            )
        )
    return found


def layers_table(run: Run) -> RichTable:
    """The layers of the newest split, fewer where there are many, and what each part sums up to.

    Fits 80 columns. Below it, where the model is split and why, as the event log says. Raises
    ``AnalysisError`` where there is no split, or ``layers.csv`` or the event log is damaged.
    """
    found = splits(run)
    split = found[-1]
    rule, why = run.split_reasons.get(split.version, ("", ""))
    caption = f"split {split.where}" + (f" ({rule}: {why})" if rule else "")
    if len(found) > 1:
        caption += f"; split {len(found):,} times, the last time at version {split.version:,}"
    table = RichTable(
        title=f"{len(split.names):,} layers", title_style="bold", min_width=60,
        caption=Text(caption),
    )  # fmt: skip
    table.add_column("layer", style="cyan", justify="right")
    table.add_column("name", overflow="fold", max_width=28)
    for name in ("parameters", "share of\nthe bytes", "divergence"):
        table.add_column(name, justify="right")
    table.add_column("part", justify="center")

    def add(label: str, name: str, rows: slice | NDArray[np.bool_], divergence: str) -> None:
        parts = dict.fromkeys("A" if in_a else "B" for in_a in split.in_a[rows])
        cells = (
            label, name, f"{split.parameters[rows].sum():,.0f}",
            _share_text(split.share[rows].sum()), divergence, ", ".join(parts),
        )  # fmt: skip
        # Text, not str: a name such as "[bold]" must not act as markup.
        table.add_row(*map(Text, cells))

    count = len(split.names)
    # "1 more" would take a row as well.
    above = count if count <= MOST_ROWS + 1 else MOST_ROWS // 2
    below = max(above, count - MOST_ROWS // 2)
    for row in [*range(above), *range(below, count)]:
        if row == below > above:
            add("…", f"{below - above:,} more", slice(above, below), "…")
        value = split.divergence[row]
        divergence = "–" if np.isnan(value) else f"{value:.3f}"
        add(f"{row + 1}", split.names[row], slice(row, row + 1), divergence)
    table.add_section()
    for in_part in (split.in_a, ~split.in_a):
        if in_part.any():
            size = int(in_part.sum())
            add("", f"{size:,} layer{'s' * (size > 1)}", in_part, "")
    return table


def layers_figure(run: Run) -> Figure:
    """The divergence of each layer, and below it each layer's share of the bytes, by part.

    Bars are those of the newest split, thin lines the divergence at, and dotted ones the place of,
    earlier ones. Only the shares where no divergence was measured. Raises ``AnalysisError`` where
    there is no split, or ``layers.csv`` is damaged.
    """
    found = splits(run)
    split = found[-1]
    count = len(split.names)
    measured = not np.isnan(split.divergence).all()
    labels = [n if len(n) <= 24 else f"{n[:11]}…{n[-12:]}" for n in split.names]
    width_in = min(max(7.2, 1.6 + 0.42 * count), 12.0)
    letters = max(map(len, labels))
    upright = count * (0.075 * letters + 0.08) > width_in - 1.2
    height_in = (4.8 if measured else 2.9) + (0.065 * letters if upright else 0)
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    rows: Any = figure.subplots(
        1 + measured, 1, sharex=True, squeeze=False, height_ratios=(2, 1) if measured else None
    )
    panels: list[Axes] = list(rows.flat)
    at = np.arange(1, count + 1)
    colors = [_COLORS[0] if in_a else _COLORS[1] for in_a in split.in_a]
    legend: list[Any] = [
        Patch(color=color, label=f"{part}: {_share_text(split.share[of].sum())} of the bytes")
        for part, color, of in zip(PIECES, _COLORS, (split.in_a, ~split.in_a), strict=False)
        if of.any()
    ]
    if measured:
        axes = panels[0]
        axes.bar(at, split.divergence, width=0.8, color=colors)
        for layer in at[np.isnan(split.divergence)]:
            axes.text(layer, 0, "–", ha="center", va="bottom", color=TARGET_GRAY)
        earlier = [s.divergence for s in found[:-1]]
        earlier = [d for d in earlier if not np.array_equal(d, split.divergence, equal_nan=True)]
        if earlier:
            # A white rim, so that they show on dark bars; many of them would hide the bars.
            rim = 2.4 if len(earlier) <= MOST_RIMS else 0.0
            look: dict[str, Any] = {
                "color": "0.15", "linewidth": 0.8, "alpha": max(0.15, min(0.8, 8 / len(earlier))),
                "path_effects": [withStroke(linewidth=rim, foreground="white")],
            }  # fmt: skip
            lines = [np.column_stack([at, values]) for values in earlier]
            axes.add_collection(LineCollection(lines, zorder=3, **look))
            look["alpha"] = 0.8
            legend.append(Line2D([], [], label="divergence at earlier splits", **look))
        known = np.concatenate([split.divergence, *earlier])
        low, high = min(0.0, float(np.nanmin(known))), max(0.0, float(np.nanmax(known)))
        axes.set_ylim(1.06 * low, 1.06 * high or 1)
        axes.set_ylabel("divergence (1 − cosine)")
    axes = panels[-1]
    axes.bar(at, split.share, width=0.8, color=colors)
    axes.set_ylim(0, 1.2 * float(split.share.max()) or 1)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: target_text(share)))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.set_ylabel("share of\nthe bytes" if measured else "share of the bytes")
    if count <= MOST_SHARES:
        for layer, share in zip(at, split.share, strict=True):
            number = _share_text(share).removesuffix(" %")
            axes.annotate(number, (layer, share), (0, 2), textcoords="offset points", fontsize=8,
                          ha="center", va="bottom")  # fmt: skip
    _draw_borders(panels, found, legend)
    for axes in panels:
        style_axes(axes)
        axes.grid(visible=False, axis="x")
    axes.set_xlim(0.4, count + 0.6)
    every = -(-count // MOST_LABELS)
    axes.set_xticks(
        at[::every], labels[::every], rotation=90 if upright else 0, parse_math=False,
        fontsize=9 if count <= MOST_SHARES else 7,
    )  # fmt: skip
    title = f"{run.name}: split {split.where}"
    if len(found) > 1:
        title += f"; {len(found):,} splits, the newest at version {split.version:,}"
    _finish(figure, title, legend)
    return figure


def _share_text(share: float) -> str:
    """In percent; a layer may have very little of the bytes."""
    return percent_text(float(share)) if share >= 0.001 or share == 0 else f"{100 * share:.1g} %"


def _draw_borders(panels: Sequence[Axes], found: Sequence[Split], legend: list[Any]) -> None:
    """Dashed lines where the model is split, dotted ones where it was."""
    now: dict[str, Any] = {"color": "black", "linestyle": (0, (5, 4)), "linewidth": 1.0}
    before: dict[str, Any] = {"color": TARGET_GRAY, "linestyle": ":", "linewidth": 1.2}
    newest = found[-1].borders
    older = sorted({at for split in found[:-1] for at in split.borders} - set(newest))
    for places, look, words in (
        (newest, now, "split"),
        (older, before, "where it was split before"),
    ):
        for axes in panels:
            for at in places:
                axes.axvline(at, zorder=2, **look)
        if places:
            legend.append(Line2D([], [], label=words, **look))


# --- bytes ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class PartBytes:
    """Sums over all participations that started from a version, also those that were lost.

    ``versions`` [v] ascending, those without a participation left out; ``down`` and ``up`` [4, v]
    in the order of ``PIECES``, so that over the first axis they sum to all that went that way.
    """

    versions: NDArray[np.int64]
    down: Floats
    up: Floats


def part_bytes(run: Run) -> PartBytes:
    """Bytes by version and piece, from ``updates.csv``.

    Headers and control messages are what the parts leave of ``bytes_down`` and ``bytes_up``.
    Raises ``AnalysisError`` where the table is damaged, has no rows, or models do not travel in
    parts.
    """
    table, path = run.updates, run.directory / "updates.csv"
    if "part" not in table:
        raise AnalysisError(f"nothing to plot: models do not travel in parts ({run.directory})")
    if not table["version"].size:
        raise AnalysisError(f"nothing to plot: no participation is over yet ({run.directory})")
    started_from = table["version"]
    wrong = np.flatnonzero(~((started_from >= 0) & (started_from % 1 == 0)))
    if wrong.size:
        raise AnalysisError(
            f"{path}, line {wrong[0] + 2}: version is {started_from[wrong[0]]:g}; a whole number "
            "is needed"
        )
    versions, group = np.unique(started_from, return_inverse=True)
    sums: dict[str, Floats] = {}
    for way, columns in _COLUMNS.items():
        parts = [table[column] for column in columns]
        all_bytes, of_parts = table[f"bytes_{way}"], np.sum(parts, axis=0)
        rest = all_bytes - of_parts
        wrong = np.flatnonzero(~((rest >= -_ROUNDING_BYTES) & np.isfinite(rest)))
        if wrong.size:
            at = wrong[0]
            raise AnalysisError(
                f"{path}, line {at + 2}: bytes_{way} is {all_bytes[at]:.0f}; at least "
                f"{of_parts[at]:.0f} is needed, what the parts sum up to"
            )
        sums[way] = np.stack([np.bincount(group, weights=piece) for piece in (*parts, rest)])
    return PartBytes(versions.astype(np.int64), sums["down"], sums["up"])


def bytes_figure(run: Run) -> Figure:
    """Bytes down and up by the version from which the tasks started, stacked by part.

    A bar a version; steps without gaps beyond 60 versions, and means of several versions beyond
    240. Raises ``AnalysisError`` as ``part_bytes`` does.
    """
    found = part_bytes(run)
    first, last = int(found.versions[0]), int(found.versions[-1])
    size = _step_size(last - first + 1)
    edges = np.append(np.arange(first, last + 1, size), last + 1)
    step = (found.versions - first) // size
    means = {
        way: np.stack([np.bincount(step, piece, len(edges) - 1) for piece in pieces])
        / np.diff(edges)
        for way, pieces in (("down", found.down), ("up", found.up))
    }
    most = max(float(pieces.sum(axis=0).max()) for pieces in means.values())
    unit, unit_bytes = byte_unit(most)
    handed_on = "source" in run.updates and not np.isnan(run.updates["source"]).all()
    words = {"down": "to clients", "up": "from clients"}
    if handed_on:
        words = {"down": "to clients, also from others", "up": "from clients, also to others"}

    figure = Figure(figsize=(10.5, 6.2), layout="constrained")
    panels: Any = figure.subplots(2, 1, sharex=True, sharey=True)
    shown: set[int] = set()
    for axes, (way, pieces) in zip(panels, means.items(), strict=True):
        total = (found.down if way == "down" else found.up).sum(axis=1)
        shown |= set(np.flatnonzero(total).tolist())
        _stack(axes, edges, pieces / unit_bytes)
        each = ", ".join(f"{PIECES[i]} {bytes_text(total[i])}" for i in np.flatnonzero(total))
        axes.set_title(
            f"{way}, {words[way]}: {bytes_text(total.sum())} ({each})", loc="left", fontsize=9
        )
        axes.set_ylabel(unit if size == 1 else f"{unit} a version")
        style_axes(axes)
        axes.grid(visible=False, axis="x")
    axes.set_ylim(0, 1.05 * most / unit_bytes or 1)
    axes.set_xlim(first - 0.6, last + 0.6)
    axes.xaxis.set_major_locator(MaxNLocator(16, integer=True, steps=(1, 2, 5, 10), min_n_ticks=1))
    mean = "" if size == 1 else f" (mean of every {size:,})"
    axes.set_xlabel(f"version from which the tasks started{mean}")
    names = [*PIECES[:2], f"{PIECES[2]} (pre-pass)", f"{PIECES[3]} messages"]
    handles = [Patch(color=_COLORS[i], label=names[i]) for i in sorted(shown)]
    _finish(figure, f"{run.name}: bytes by part of the model", handles)
    return figure


def _step_size(versions: int) -> int:
    """How many versions share a step so that there are not too many of them."""
    scale = 1
    while True:
        for size in _STEP_SIZES:
            if versions <= MOST_STEPS * size * scale:
                return size * scale
        scale *= 100


def _stack(axes: Axes, edges: NDArray[np.int64], pieces: Floats) -> None:
    """Pieces [4, steps] one on the other: a bar a step, or one shape each where there are many.

    A version's step goes from half a version before it to half a version behind it.
    """
    base = np.zeros(pieces.shape[1])
    for color, name, values in zip(_COLORS, PIECES, pieces, strict=True):
        if len(values) <= MOST_BARS:
            width = 0.8 * min(1.0, len(values) / 6)
            axes.bar(edges[:-1], values, bottom=base, width=width, color=color, label=name)
        else:
            axes.stairs(base + values, edges - 0.5, baseline=base, fill=True, color=color,
                        label=name)  # fmt: skip
        base = base + values


# --- accuracy ------------------------------------------------------------------------------------


def bytes_to_accuracy_figure(
    runs: Sequence[Run], targets: Sequence[float] = DEFAULT_TARGETS
) -> Figure:
    """Test accuracy over the bytes moved so far, as ``time_to_accuracy_figure`` draws it over time.

    The models of these runs need not travel in parts. Raises ``AnalysisError`` when no run has an
    evaluation yet, a target is no share between 0 and 1, or a table is damaged.
    """
    return accuracy_figure(runs, targets, BYTES)


def _finish(figure: Figure, title: str, legend: Sequence[Any]) -> None:
    """Title and legend outside of the axes, as wide as the figure."""
    letters = int(LEGEND_WIDTH * figure.get_figwidth() / 8.0)
    figure.suptitle(textwrap.fill(title, letters), x=0.01, ha="left", fontsize=11, parse_math=False)
    figure.legend(handles=legend, loc="outside lower left", ncols=4, fontsize=8, frameon=False)
