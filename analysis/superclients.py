"""What became of superclients: who was put together, and how alike the clients are.

When they trained is in ``walkers``; the figures of both are written here.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray
from rich.table import Table as RichTable
from rich.text import Text
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from analysis.errors import AnalysisError
from analysis.plots import (
    LEGEND_WIDTH,
    PALETTE,
    TARGET_GRAY,
    axes_for,
    save_figures,
    style_axes,
)
from analysis.run_reader import Run, Table
from analysis.walkers import walkers_figure

Floats = NDArray[np.float64]

MOST_ROWS = 12  # of the table: with its summary it still fits one screen
MIN_LABEL_GAP = 0.34  # of a panel's height: two lines of the labels' size
MOST_NAMED_CLIENTS = 40  # of a heat-map: their numbers would touch
MOST_ORDERED_CLIENTS = 1_000  # the best order of the leaves takes seconds beyond

# What a column is, and how its numbers are written in the table.
_COLUMNS = {
    "clients": ("clients", ".0f", ".1f"),
    "samples": ("samples", ",.0f", ",.1f"),
    "balance_ratio": ("balance ratio", ".3f", ".3f"),
    "covered_classes": ("classes covered", ".1%", ".1%"),
    "intra_distance": ("intra-distance", ".3f", ".3f"),
    "inter_distance": ("inter-distance", ".3f", ".3f"),
}
_MEASURES = ("balance_ratio", "covered_classes", "intra_distance", "inter_distance")


def write_superclient_figures(run: Run, directory: str | Path) -> list[Path]:
    """Write superclients.png, similarity.png and walkers.png; returns the paths of those written.

    None of them without superclients, and none that would be empty: similarity.png needs a pair
    of clients in ``similarity.csv``, walkers.png a row in ``chains.csv``. Raises ``AnalysisError``
    where a table is damaged, or a file cannot be written.
    """
    return save_figures(superclient_figures(run), directory)


def superclient_figures(run: Run) -> dict[str, Figure]:
    """Those figures by file name."""
    figures: dict[str, Figure] = {}
    if run.superclients is not None and run.superclients["superclient"].size:
        figures["superclients.png"] = superclients_figure(run)
    if run.similarity is not None and run.similarity["epoch"].size:
        figures["similarity.png"] = similarity_figure(run)
    if run.chains is not None and run.chains["chain"].size:
        figures["walkers.png"] = walkers_figure(run)
    return figures


# --- superclients --------------------------------------------------------------------------------


def superclients_table(superclients: Table) -> RichTable:
    """The superclients by number, the first 12 where there are many, and what holds for all.

    Columns of which nothing is known, as with declared data, are left out. A superclient's unknown
    value is a dash, and does not count in mean, least and most.
    """
    count = len(superclients["superclient"])
    names = [n for n in _COLUMNS if not np.isnan(superclients[n]).all()]
    table = RichTable(title=f"{count:,} superclients", title_style="bold")
    table.add_column("superclient", style="cyan", justify="right")
    for name in names:
        table.add_column(_COLUMNS[name][0].replace(" ", "\n").replace("-", "-\n"), justify="right")
    shown = count if count <= MOST_ROWS + 1 else MOST_ROWS  # "1 more" would take a row as well
    for row in range(shown):
        cells = [_cell(superclients[name][row], _COLUMNS[name][1]) for name in names]
        table.add_row(f"{superclients['superclient'][row]:.0f}", *map(Text, cells))
    if count > shown:
        table.add_row(Text(f"{count - shown:,} more"), *["…"] * len(names))
    table.add_section()
    for label, reduce, digits in (("mean", np.nanmean, 2), ("least", np.nanmin, 1),
                                  ("most", np.nanmax, 1)):  # fmt: skip
        values = [float(reduce(superclients[name])) for name in names]
        cells = [_cell(v, _COLUMNS[n][digits]) for n, v in zip(names, values, strict=True)]
        table.add_row(label, *map(Text, cells))
    return table


def _cell(value: float, digits: str) -> str:
    return "–" if np.isnan(value) else format(value, digits).replace("%", " %")


def superclients_figure(run: Run) -> Figure:
    """Sizes, balance ratio, covered classes and distances over the superclients' numbers.

    One panel below the other, with one common axis; only the sizes where data are declared.
    Raises ``AnalysisError`` when there are no superclients.
    """
    table = _superclients(run)
    measures = [n for n in ("clients", "samples", *_MEASURES) if not np.isnan(table[n]).all()]
    measures = list(dict.fromkeys(_of_distance(name) for name in measures))
    figure = Figure(figsize=(10.5, 0.8 + 1.35 * len(measures)), layout="constrained")
    _title(figure, f"{run.name}: {len(table['superclient'])} superclients")
    every: Any = figure.subplots(len(measures), 1, sharex=True)
    for axes, name in zip(every, measures, strict=True):
        plot_superclients(run, axes, measure=name)
        axes.set_xlabel("")
    every[-1].set_xlabel("superclient")
    return figure


def plot_superclients(run: Run, ax: Axes | None = None, *, measure: str = "clients") -> Axes:
    """One measure over the superclients' numbers, and its mean as a dashed line.

    ``measure`` is ``clients``, ``samples``, ``balance_ratio``, ``covered_classes``, or
    ``distance`` for both distances, within and between. Raises ``AnalysisError`` for another,
    when there are no superclients, or the measure is not known as data are declared.
    """
    table = _superclients(run)
    allowed = list(dict.fromkeys(map(_of_distance, ("clients", "samples", *_MEASURES))))
    if measure not in allowed:
        raise AnalysisError(f"measure is {measure!r}; one of {', '.join(allowed)} is needed")
    columns = [n for n in ("clients", "samples", *_MEASURES) if _of_distance(n) == measure]
    columns = [n for n in columns if not np.isnan(table[n]).all()]
    if not columns:
        raise AnalysisError(f"nothing to plot: no {measure} of superclients ({run.directory})")
    axes = axes_for(ax, 10.5, 2.6)
    numbers, name = table["superclient"], columns[0]
    if measure in ("clients", "samples"):
        axes.bar(numbers, table[name], width=0.8, color=PALETTE[0])
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.set_ylabel(_COLUMNS[name][0])
        _mean_lines(axes, table, [(name, "mean", TARGET_GRAY)])
    elif measure != "distance":
        axes.plot(numbers, table[name], "o", markersize=4, color=PALETTE[0])
        axes.vlines(numbers, 0, table[name], color=PALETTE[0], linewidth=0.8, alpha=0.5)
        # A point at 0 or at 1 is not cut in half.
        axes.set(ylim=(-0.06, 1.06), ylabel=_COLUMNS[name][0].replace(" ", "\n"))
        if name == "covered_classes":
            axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, symbol=" %"))
        _mean_lines(axes, table, [(name, "mean", TARGET_GRAY)])
    else:
        # Dark enough to write with, both of them.
        looks = dict(zip(columns, (("o", PALETTE[0]), ("s", PALETTE[1])), strict=False))
        for name, (marker, color) in looks.items():
            axes.plot(numbers, table[name], marker, markersize=4, color=color)
        most = max(float(np.nanmax(table[name])) for name in columns) or 1.0
        axes.set(ylim=(-0.06 * most, 1.12 * most), ylabel="distance")
        lines = [
            (name, f"mean, {name.removesuffix('_distance')}", color)
            for name, (_, color) in looks.items()
        ]
        _mean_lines(axes, table, lines)
    style_axes(axes)
    axes.set_xlim(numbers.min() - 0.6, numbers.max() + 0.6)
    axes.xaxis.set_major_locator(MaxNLocator(16, integer=True, min_n_ticks=1))
    axes.set_xlabel("superclient")
    return axes


def _superclients(run: Run) -> Table:
    table = run.superclients
    if table is None or not table["superclient"].size:
        raise AnalysisError(f"nothing to plot: no superclients yet ({run.directory})")
    return table


def _of_distance(column: str) -> str:
    """Both distances are drawn together."""
    return "distance" if column.endswith("_distance") else column


def _mean_lines(axes: Axes, table: Table, lines: list[tuple[str, str, str]]) -> None:
    """Dashed lines at the mean of columns, named in the right margin: (column, words, colour).

    To be called when the limits of the axes are final; two names that would touch are pushed apart.
    """
    low, high = axes.get_ylim()
    means = [float(np.nanmean(table[column])) for column, _, _ in lines]
    places = [(mean - low) / (high - low) for mean in means]
    if len(places) == 2 and abs(places[1] - places[0]) < MIN_LABEL_GAP:
        middle, upper = sum(places) / 2, int(places[1] >= places[0])
        places = [middle - MIN_LABEL_GAP / 2] * 2
        places[upper] += MIN_LABEL_GAP
    for (column, words, color), mean, place in zip(lines, means, places, strict=True):
        axes.axhline(mean, color=color, linestyle=(0, (5, 4)), linewidth=1, zorder=3)
        axes.text(1.005, place, f"{words}\n{_cell(mean, _COLUMNS[column][2])}", color=color,
                  transform=axes.transAxes, va="center", fontsize=8)  # fmt: skip


# --- similarity ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Similarity:
    """Cosines of every two clients' models: ``epochs`` [e] and ``clients`` [n], both ascending,
    and ``cosines`` [e, n, n], symmetric; NaN on the diagonal, and where the file has none."""

    epochs: NDArray[np.int64]
    clients: NDArray[np.int64]
    cosines: Floats


def similarity_matrices(run: Run) -> Similarity:
    """``similarity.csv``, which has each pair once, as matrices; ``AnalysisError`` without rows."""
    table = run.similarity
    if table is None or not table["epoch"].size:
        raise AnalysisError(f"nothing to plot: no similarity of clients' models ({run.directory})")
    epochs, at_epoch = np.unique(table["epoch"], return_inverse=True)
    both = np.stack([table["client"], table["other"]])
    clients, at_client = np.unique(both, return_inverse=True)
    first, second = at_client.reshape(both.shape)
    cosines = np.full((len(epochs), len(clients), len(clients)), np.nan)
    cosines[at_epoch, first, second] = cosines[at_epoch, second, first] = table["cosine"]
    diagonal = np.arange(len(clients))
    cosines[:, diagonal, diagonal] = np.nan
    return Similarity(epochs.astype(np.int64), clients.astype(np.int64), cosines)


def cluster_order(cosines: Floats) -> NDArray[np.int64]:
    """Positions [n] that put alike clients side by side: the leaves of average linkage.

    ``cosines`` [n, n] is symmetric; a pair without a finite one counts as the least alike.
    """
    distances = np.maximum(1 - cosines, 0)
    finite = np.isfinite(distances)
    distances[~finite] = distances[finite].max(initial=0)
    np.fill_diagonal(distances, 0)
    optimal = len(cosines) <= MOST_ORDERED_CLIENTS
    tree = linkage(squareform(distances), "average", optimal_ordering=optimal)
    return np.asarray(leaves_list(tree), dtype=np.int64)


def similarity_figure(run: Run) -> Figure:
    """One heat-map an epoch, with one colour scale, the clients in the order of the last epoch.

    The diagonal is blank: a model's cosine with itself is 1 and would only stretch the scale.
    Raises ``AnalysisError`` when there is no similarity to plot.
    """
    found = similarity_matrices(run)
    order = cluster_order(found.cosines[-1])
    across = min(len(found.epochs), 4)
    down = -(-len(found.epochs) // across)
    size_in = {1: 5.2, 2: 4.4}.get(across, 3.2)
    figure = Figure(figsize=(size_in * across + 1.6, size_in * down + 0.9), layout="constrained")
    _title(figure, f"{run.name}: cosine of clients' models")
    panels = figure.subplots(down, across, squeeze=False).flat
    for place, axes in zip(range(len(found.epochs)), panels, strict=False):
        image = _draw_similarity(axes, found, order, place, size_in)
    for axes in list(figure.axes)[len(found.epochs) :]:
        axes.set_visible(False)
    figure.colorbar(image, ax=figure.axes, label="cosine", shrink=0.8)
    best = "optimal leaf order" if len(order) <= MOST_ORDERED_CLIENTS else "in tree order"
    figure.supxlabel(
        f"{len(order)} clients, ordered by hierarchical clustering of epoch {found.epochs[-1]}\n"
        f"(average linkage, {best})", fontsize=9,
    )  # fmt: skip
    figure.supylabel("clients, in the same order", fontsize=9)
    return figure


def plot_similarity(run: Run, ax: Axes | None = None, *, epoch: int | None = None) -> Axes:
    """The heat-map of one epoch of pre-training, by default the last one, as in the figure.

    Raises ``AnalysisError`` when there is no similarity to plot, or not of this epoch.
    """
    found = similarity_matrices(run)
    epochs = found.epochs.tolist()
    if epoch is not None and epoch not in epochs:
        raise AnalysisError(
            f"epoch is {epoch}; one of {', '.join(map(str, epochs))} is needed ({run.directory})"
        )
    axes = axes_for(ax, 5.8, 5.2)
    place = len(epochs) - 1 if epoch is None else epochs.index(epoch)
    image = _draw_similarity(axes, found, cluster_order(found.cosines[-1]), place, 4.4)
    axes.figure.colorbar(image, ax=axes, label="cosine", shrink=0.8)
    axes.set_xlabel("clients, alike ones side by side")
    axes.set_ylabel("clients, in the same order")
    return axes


def _draw_similarity(
    axes: Axes, found: Similarity, order: NDArray[np.int64], place: int, size_in: float
) -> AxesImage:
    """One epoch of them; all have one colour scale."""
    finite = found.cosines[np.isfinite(found.cosines)]
    norm = Normalize(finite.min(initial=1), max(finite.max(initial=-1), finite.min(initial=1)))
    image = axes.imshow(
        found.cosines[place][np.ix_(order, order)], norm=norm, cmap="cividis",
        interpolation="nearest",
    )  # fmt: skip
    axes.set_title(f"after epoch {found.epochs[place]}", fontsize=10)
    axes.set_xticks([])
    axes.set_yticks([])
    names = found.clients[order].tolist()
    if len(names) <= MOST_NAMED_CLIENTS:
        size = min(8.0, 52 * size_in / len(names))  # points: they do not touch
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=size)
        axes.set_yticks(range(len(names)), names, fontsize=size)
        axes.tick_params(length=0, pad=2)
    return image


def _title(figure: Figure, text: str) -> None:
    wrapped = textwrap.fill(text, LEGEND_WIDTH)
    figure.suptitle(wrapped, x=0.01, ha="left", fontsize=11, parse_math=False)
