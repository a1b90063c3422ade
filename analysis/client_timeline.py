"""What clients did, one by one, and when they were there to do it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path as Outline
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from analysis.errors import AnalysisError
from analysis.human_units import duration_text, time_unit
from analysis.phases import KINDS, Floats, Ints, Phases, phases_of, read_tasks
from analysis.plots import (
    PALETTE,
    axes_for,
    group_look,
    nothing_to_plot,
    style_axes,
    write_legend,
    write_title,
)
from analysis.run_reader import Run
from analysis.runs import group_runs
from analysis.spending import work_spans_s

MOST_BARS = 1_500  # more do not show one by one
AWAY_GRAY = "#E8E8E8"
LOST_COLOR = PALETTE[1]
# Words, colour and height of each kind, in the order in which they are drawn: a client may be at
# its next task while what it did before waits.
_LOOKS = {
    "wait": ("waits for the version", "#8C8C8C", 0.22),
    "hold": ("holds the model", "#595959", 0.22),
    "queued": ("waits for its device", PALETTE[4], 0.22),
    "download": ("download", PALETTE[5], 0.7),
    "train": ("training", PALETTE[0], 0.7),
    "upload": ("upload", PALETTE[2], 0.7),
}


def plot_client_timeline(
    run: Run, ax: Axes | None = None, *, clients: int = 24, from_s: float = 0.0,
    to_s: float | None = None,
) -> Axes:  # fmt: skip
    """The phases of clients over simulated time, a row a client, evenly chosen of those asked.

    Behind them it is grey while the client was offline, where the run has recorded that; where its
    work stood still for that, the bar is pale. A red stroke ends what was not reported. Without
    ``to_s`` the figure ends with the run, or where it would have more than 1,500 bars. Raises
    ``AnalysisError`` where nobody took part in that time, or a file is damaged.
    """
    tasks = read_tasks(run)
    last_s = run.simulated_s if to_s is None else to_s
    phases = phases_of(tasks)
    here = (phases.start_s < last_s) & (phases.end_s > from_s)
    everyone = np.unique(tasks.client[phases.task[here]])
    if not everyone.size:
        raise AnalysisError(
            f"nothing to plot: nobody took part from {from_s} s to {last_s} s ({run.directory})"
        )
    evenly = np.linspace(0, len(everyone) - 1, min(clients, len(everyone)))
    shown = everyone[evenly.round().astype(np.int64)]
    here &= np.isin(tasks.client[phases.task], shown)
    if to_s is None and here.sum() > MOST_BARS:
        begun_s = np.sort(phases.start_s[here])
        last_s = float(np.fmax(begun_s[MOST_BARS], begun_s[begun_s > from_s].min(initial=last_s)))
        here &= phases.start_s < last_s
    height_in = 1.8 + 0.2 * len(shown)
    axes = axes_for(ax, 10.5, height_in)
    unit, unit_s = time_unit(last_s - from_s)
    # The limits stand before anything is drawn: what lies beyond is not written to a file.
    axes.set_xlim(from_s / unit_s, last_s / unit_s)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    handles, labels = _draw_absences(axes, run, shown, from_s, last_s, unit_s)
    rows = np.searchsorted(shown, tasks.client[phases.task])
    for name, (words, color, height) in _LOOKS.items():
        chosen = here & (phases.kind == KINDS.index(name))
        if chosen.any():
            _draw_bars(axes, rows[chosen], phases.start_s[chosen] / unit_s,
                       phases.end_s[chosen] / unit_s, color=color, height=height)  # fmt: skip
            handles.append(Patch(color=color))
            labels.append(words)
    if run.settings.get("system.on_offline") == "pause":
        _draw_pauses(axes, run, shown, phases, here, rows, unit_s)
    outcome = run.updates["outcome"][tasks.row]
    lost = (outcome != "reported") & (outcome != "in_flight") & np.isin(tasks.client, shown)
    lost &= (tasks.ended_s >= from_s) & (tasks.ended_s <= last_s)
    if lost.any():
        stroke: dict[str, Any] = {
            "marker": "|",
            "color": LOST_COLOR,
            "markersize": 9,
            "markeredgewidth": 1.8,
        }
        axes.plot(tasks.ended_s[lost] / unit_s, np.searchsorted(shown, tasks.client[lost]),
                  linestyle="none", **stroke)  # fmt: skip
        handles.append(Line2D([], [], linestyle="none", **stroke))
        labels.append("not reported")
    axes.set_yticks(range(len(shown)), [str(client) for client in shown.tolist()], fontsize=7)
    axes.set_ylabel("client")
    axes.set_xlabel(f"simulated time ({unit})")
    style_axes(axes)
    axes.grid(visible=False)
    words = "" if len(shown) == len(everyone) else f", {len(shown)} of {len(everyone):,}"
    if last_s < run.simulated_s or from_s > 0:
        since = "first " if not from_s else f"{duration_text(from_s)} and the next "
        words += f"; the {since}{duration_text(last_s - from_s)}"
    write_title(axes, f"{run.name}: what clients did{words}")
    write_legend(axes, handles, labels, loc="upper left", ncols=4,
                 bbox_to_anchor=(0, -0.5 / (height_in - 1.2)))  # fmt: skip
    return axes


def _draw_absences(
    axes: Axes, run: Run, shown: Ints, from_s: float, to_s: float, unit_s: float
) -> tuple[list[Artist], list[str]]:
    """Grey where clients were offline; what a legend needs for it."""
    rows, starts, ends = _absences(run, shown, from_s, to_s)
    if not rows.size:
        return [], []
    _draw_bars(axes, rows, starts / unit_s, ends / unit_s, color=AWAY_GRAY, height=1.0)
    return [Patch(color=AWAY_GRAY)], ["offline"]


def _absences(run: Run, shown: Ints, from_s: float, to_s: float) -> tuple[Ints, Floats, Floats]:
    """(row, start, end) of the spans between the sessions of the clients whose these are known."""
    rows, spans = list[int](), list[tuple[float, float]]()
    sessions = run.sessions
    for row, client in enumerate([] if sessions is None else shown.tolist()):
        assert sessions is not None
        its = sessions["client"] == client
        if its.any():
            edges = np.stack([sessions["start_s"][its], sessions["end_s"][its]], axis=1).ravel()
            edges = np.clip(np.concatenate([[from_s], edges, [to_s]]), from_s, to_s)
            gaps = edges.reshape(-1, 2)
            gaps = gaps[gaps[:, 1] > gaps[:, 0]]
            rows += [row] * len(gaps)
            spans += [(float(a), float(b)) for a, b in gaps]
    found = np.array(spans, dtype=np.float64).reshape(-1, 2)
    return np.array(rows, dtype=np.int64), found[:, 0], found[:, 1]


def _draw_pauses(
    axes: Axes,
    run: Run,
    shown: Ints,
    phases: Phases,
    here: NDArray[np.bool_],
    rows: Ints,
    unit_s: float,
) -> None:
    """Make pale what stood still."""
    away_rows, away_from, away_to = _absences(run, shown, 0.0, run.simulated_s)
    work = here & np.isin(phases.kind, [KINDS.index(k) for k in ("download", "train", "upload")])
    found: list[tuple[int, float, float]] = []
    for at in np.flatnonzero(work).tolist():
        cut = (away_rows == rows[at]) & (away_from < phases.end_s[at])
        for i in np.flatnonzero(cut & (away_to > phases.start_s[at])).tolist():
            found.append((int(rows[at]), max(away_from[i], phases.start_s[at]),
                          min(away_to[i], phases.end_s[at])))  # fmt: skip
    if found:
        each = np.array(found)
        _draw_bars(axes, each[:, 0].astype(np.int64), each[:, 1] / unit_s, each[:, 2] / unit_s,
                   color="white", height=0.7, alpha=0.6)  # fmt: skip


def _draw_bars(
    axes: Axes, rows: Ints, starts: Floats, ends: Floats, *, color: str, height: float,
    alpha: float = 1.0,
) -> None:  # fmt: skip
    """Horizontal bars as one shape: a file of many single ones would be ten times as large."""
    low, high = rows - height / 2, rows + height / 2
    corners = np.stack([starts, low, starts, high, ends, high, ends, low, starts, low], axis=1)
    one = [Outline.MOVETO, Outline.LINETO, Outline.LINETO, Outline.LINETO, Outline.CLOSEPOLY]
    outline = Outline(corners.reshape(-1, 2), np.tile(one, len(rows)))
    axes.add_patch(PathPatch(outline, facecolor=color, edgecolor="none", alpha=alpha))


def plot_presence(runs: Run | Sequence[Run], ax: Axes | None = None) -> Axes:
    """How many clients were online, and at work, over simulated time, a colour a scenario.

    Of each scenario its first seed. Online clients are dashed, and counted at equal steps. Raises
    ``AnalysisError`` where nobody took part.
    """
    groups = group_runs(runs)
    first = [group.runs[0] for group in groups]
    if not any(run.updates["client"].size for run in first):
        raise nothing_to_plot("nobody took part", first)
    axes = axes_for(ax)
    unit, unit_s = time_unit(max(run.simulated_s for run in first))
    handles, labels = list[Artist](), list[str]()
    for place, (group, run) in enumerate(zip(groups, first, strict=True)):
        color = group_look(place)["color"]
        instants_s, at_work = _at_work(run)
        handles += axes.step(instants_s / unit_s, at_work, where="post", color=color, linewidth=1)
        labels.append(f"{group.label}: at work")
        if run.online is not None and run.online["of"].size:
            online = run.online
            scale = len(run.clients["client"]) / online["of"] if run.clients["client"].size else 1
            handles += axes.plot(online["sim_time_s"] / unit_s, online["online"] * scale,
                                 linestyle="--", color=color, linewidth=1.4)  # fmt: skip
            labels.append(f"{group.label}: online")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(f"simulated time ({unit})")
    axes.set_ylabel("clients")
    style_axes(axes)
    write_title(axes, "Clients online and at work")
    write_legend(axes, handles, labels, loc="best")
    return axes


def _at_work(run: Run) -> tuple[Floats, Floats]:
    """At 400 equal steps, how many clients were at a task."""
    starts_s, ends_s = work_spans_s(run)
    steps_s = np.linspace(0, run.simulated_s, 401)
    begun = np.searchsorted(np.sort(starts_s), steps_s, side="right")
    over = np.searchsorted(np.sort(ends_s), steps_s, side="left")
    return steps_s, (begun - over).astype(np.float64)
