"""What a run's tables say of its cohorts: their tree, and the series behind the figures.

A cohort's name is a text, even where it reads like a number; the tree is that of the column
``parent``, never of the name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from analysis.errors import AnalysisError
from analysis.run_reader import Run

Floats = NDArray[np.float64]

MOVING = 10  # versions of a cohort over which its noisy values are averaged
BINS = 40  # of the simulated time: a line of so many points is read as a line


@dataclass(frozen=True, slots=True)
class Cohort:
    """What became of one cohort; None where the run has not written it.

    ``split_s`` is None for one that has not split, ``parent`` "" for the first one. ``sides`` are
    the clients whose side is known. ``served`` counts the clients whose newest evaluation was by
    its model, ``known_share`` is out of the test samples of its last evaluation those of clients
    that it knows, and ``accuracy`` that of its model on these.
    """

    name: str
    parent: str
    born_s: float
    split_s: float | None
    first_version: int
    last_version: int
    sides: tuple[int, int]
    served: int | None
    known_share: float | None
    accuracy: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """A value at instants [n] in simulated seconds; ``n`` says on how many samples, or clients."""

    time_s: Floats
    value: Floats
    n: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Smoothed:
    """A value by version, at instants [n] in simulated seconds, and the mean of it and up to nine
    versions before."""

    time_s: Floats
    value: Floats
    mean: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Quartiles:
    """Of the values in each of ``BINS`` equal steps of the simulated time that has some [n].

    ``time_s``: the mean instant of a step's values, in simulated seconds.
    """

    time_s: Floats
    lower: Floats
    median: Floats
    upper: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Newest:
    """The newest evaluation of each client [n], by client: its accuracy, and who served it."""

    clients: NDArray[np.int64]
    cohorts: NDArray[np.str_]
    accuracy: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Memberships:
    """The clients that took part, sorted by the cohort that they are in at last, and each time.

    ``clients`` and ``last`` [rows]; ``time_s``, ``rows`` and ``cohorts`` [times]: when a client's
    update was complete, the client's place in ``clients``, and the cohort in which it trained.
    """

    clients: NDArray[np.int64]
    last: NDArray[np.str_]
    time_s: Floats
    rows: NDArray[np.int64]
    cohorts: NDArray[np.str_]


# --- the tree ------------------------------------------------------------------------------------


def cohorts(run: Run) -> list[Cohort]:
    """All cohorts that ever were, each before its children; empty where there are none.

    Before the first split there is no ``cohorts.csv`` yet, and the name is that of the other
    tables. Raises ``AnalysisError`` where a table is damaged.
    """
    table, versions, clustering = run.cohorts, run.versions, run.clustering
    newest = newest_by_client(run)
    found: dict[str, Cohort] = {}

    def add(name: str, row: int | None) -> None:
        made = versions["version"][versions["cohort"] == name]
        first, last, sides = 0.0, float(made.max(initial=0)), (0.0, 0.0)
        parent, born_s, split_s = "", 0.0, None
        if table is not None and row is not None:
            parent, born_s = str(table["parent"][row]), float(table["born_s"][row])
            split_s = None if np.isnan(table["split_s"][row]) else float(table["split_s"][row])
            first = table["first_version"][row]
            last = max(last, table["last_version"][row])
            sides = table["side_0"][row], table["side_1"][row]
        if clustering is not None:
            # Later than cohorts.csv where a run is under way.
            here = np.flatnonzero(clustering["cohort"] == name)[-1:]
            for at in here:
                sides = clustering["side_0"][at], clustering["side_1"][at]
        everyone, members = (
            metric(run, f"cohort/{name}", split, "accuracy") for split in ("test", "members")
        )
        share = accuracy = None
        if everyone.n.size:
            same = members.n[members.time_s == everyone.time_s[-1]]
            share = float(same[-1:].sum() / everyone.n[-1]) if everyone.n[-1] else None
        if members.value.size:
            accuracy = float(members.value[-1])
        found[name] = Cohort(
            name, parent, born_s, split_s, int(first), int(last), (int(sides[0]), int(sides[1])),
            int((newest.cohorts == name).sum()) if newest.clients.size else None, share, accuracy,
        )  # fmt: skip

    if table is not None and table["cohort"].size:
        for row, name in enumerate(table["cohort"].tolist()):
            add(name, row)
    else:
        named = np.concatenate([versions["cohort"], run.updates["cohort"]])
        for name in sorted(set(named.tolist()) - {""}):
            add(name, None)
    lost = [c for c in found.values() if c.parent and c.parent not in found]
    if lost:
        raise AnalysisError(
            f"{run.directory / 'cohorts.csv'}: the parent of {lost[0].name} is {lost[0].parent!r}, "
            f"which is none of the cohorts; found {', '.join(found)}"
        )
    order = nx.dfs_preorder_nodes(_tree(list(found.values())), "", sort_neighbors=sorted)
    return [found[name] for name in order if name]


def leaves(found: Sequence[Cohort]) -> list[Cohort]:
    """Those that have not split, in the order of the tree."""
    return [cohort for cohort in found if cohort.split_s is None]


def lineage(found: Sequence[Cohort], cohort: Cohort) -> list[Cohort]:
    """From the first cohort down to ``cohort``, by parents."""
    line, by_name = [cohort], {c.name: c for c in found}
    while line[0].parent:
        line.insert(0, by_name[line[0].parent])
    return line


def tree_rows(found: Sequence[Cohort]) -> dict[str, int]:
    """By cohort a row of its own, from 0: between those of its two children's branches.

    The lines from a cohort to its children so cross no other one's.
    """
    graph = _tree(found)
    rows: dict[str, int] = {}
    for above, below, way in nx.dfs_labeled_edges(graph, "", sort_neighbors=sorted):
        if way != "reverse":
            continue
        # The first way back from a child is where its parent goes; a leaf goes at its own.
        for name in (below, above):
            if name and name not in rows:
                rows[name] = len(rows)
    return rows


def _tree(found: Sequence[Cohort]) -> nx.DiGraph:
    """From "", above the first cohort, along parents."""
    graph = nx.DiGraph()
    graph.add_node("")
    graph.add_edges_from((cohort.parent, cohort.name) for cohort in found)
    return graph


# --- metrics -------------------------------------------------------------------------------------


def metric(run: Run, entity: str, split: str, name: str) -> Points:
    """The values of an entity (``cohort/c0``, ``global``) on a split; no points where none."""
    table = run.metrics
    chosen = (table["entity"] == entity) & (table["split"] == split) & (table["metric"] == name)
    return Points(table["sim_time_s"][chosen], table["value"][chosen], table["n"][chosen])


def newest_by_client(run: Run) -> Newest:
    """See ``Newest``; without clients where none has been evaluated.

    Raises ``AnalysisError`` where an evaluated client has no number.
    """
    table = run.metrics
    rows = np.flatnonzero((table["split"] == "client") & (table["metric"] == "accuracy"))[::-1]
    entities, first = np.unique(table["entity"][rows], return_index=True)
    numbers = [entity.removeprefix("client/") for entity in entities.tolist()]
    wrong = [at for at, number in enumerate(numbers) if not number.isdecimal()]
    if wrong:
        raise AnalysisError(
            f"{run.directory / 'metrics.csv'}, line {rows[first][wrong[0]] + 2}: entity is "
            f"{str(entities[wrong[0]])!r}; client/ and a number are needed"
        )
    clients = np.array(numbers, dtype=np.int64)
    order = np.argsort(clients)
    newest = rows[first][order]
    return Newest(clients[order], table["cohort"][newest], table["value"][newest])


# --- clients -------------------------------------------------------------------------------------


def memberships(run: Run) -> Memberships:
    """Who trained where and when, of all updates that came to a version.

    A client's last cohort is the one that served it at its newest evaluation; where none was, the
    one in which it trained last. Raises ``AnalysisError`` where nobody has taken part yet.
    """
    table = run.updates
    taken = np.flatnonzero((table["outcome"] == "reported") & (table["cohort"] != ""))
    if not taken.size:
        raise AnalysisError(f"nothing to plot: nobody has taken part yet ({run.directory})")
    taken = taken[np.argsort(table["uploaded_s"][taken], kind="stable")]
    time_s, names = table["uploaded_s"][taken], table["cohort"][taken]
    clients, row = np.unique(table["client"][taken].astype(np.int64), return_inverse=True)
    newest = newest_by_client(run)
    # Of equal keys the last one counts.
    last: dict[int, str] = dict(zip(row.tolist(), names.tolist(), strict=True))
    served: dict[int, str] = dict(
        zip(newest.clients.tolist(), newest.cohorts.tolist(), strict=True)
    )
    homes = [served.get(client, last[i]) for i, client in enumerate(clients.tolist())]
    came_s = np.full(len(clients), np.inf)
    at_home = names == np.array(homes)[row]
    np.minimum.at(came_s, row[at_home], time_s[at_home])
    place = {cohort.name: i for i, cohort in enumerate(cohorts(run))}
    group = np.array([place.get(home, len(place)) for home in homes])
    order = np.lexsort((clients, came_s, group))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return Memberships(clients[order], np.array(homes)[order], time_s, rank[row], names)


def rewards(run: Run, cohort: str) -> Quartiles:
    """Of what the participants of a cohort were told; no steps without ``affinity.csv``."""
    table = run.affinity
    if table is None:
        return Quartiles(*np.empty((4, 0)))
    here = (table["cohort"] == cohort) & np.isfinite(table["reward"])
    time_s, values = table["sim_time_s"][here], table["reward"][here]
    step = _steps(time_s, _edges_s(run))
    found = [
        (time_s[step == i].mean(), *np.quantile(values[step == i], (0.25, 0.5, 0.75)))
        for i in np.unique(step)
    ]
    return Quartiles(*np.array(found, dtype=np.float64).reshape(-1, 4).T)


def exploring_share(run: Run) -> tuple[Floats, Floats]:
    """Edges [bins + 1] of steps of the simulated time, in seconds, and out of the check-ins in each
    the share [bins] of those that explore; NaN where nobody checks in."""
    edges_s = _edges_s(run)
    step = _steps(run.check_ins["sim_time_s"], edges_s)
    every = np.bincount(step, minlength=BINS)
    exploring = np.bincount(step, weights=run.check_ins["explores"], minlength=BINS)
    return edges_s, np.where(every, exploring / np.maximum(every, 1), np.nan)


def _edges_s(run: Run) -> Floats:
    return np.linspace(0, run.simulated_s or 1.0, BINS + 1)


def _steps(time_s: Floats, edges_s: Floats) -> NDArray[np.int64]:
    """The step [n] in which each instant is; the last one holds its end as well."""
    return np.clip(np.searchsorted(edges_s, time_s, side="right") - 1, 0, BINS - 1)


# --- clustering ----------------------------------------------------------------------------------


def correlation(run: Run, cohort: str) -> Smoothed:
    """Pearson's r between the similarities of gradients and of data, by version."""
    table = run.clustering
    if table is None:
        return _smoothed(np.empty(0), np.empty(0), np.empty(0))
    here = (table["cohort"] == cohort) & np.isfinite(table["correlation"])
    value = table["correlation"][here]
    return _smoothed(table["sim_time_s"][here], value, np.ones(value.size))


def spread_ratio(run: Run, cohort: str) -> Smoothed:
    """Mean squared distance of updates from their side's middle, over that from the cohort's.

    The mean is that of the former over that of the latter, as the rule that splits takes it.
    """
    table = run.clustering
    if table is None:
        return _smoothed(np.empty(0), np.empty(0), np.empty(0))
    here = (table["cohort"] == cohort) & (table["spread"] > 0)
    here &= np.isfinite(table["spread_of_sides"])
    return _smoothed(
        table["sim_time_s"][here], table["spread_of_sides"][here], table["spread"][here]
    )


def _smoothed(time_s: Floats, above: Floats, below: Floats) -> Smoothed:
    """Of ``above`` / ``below`` [n]; the mean is that of sums."""
    sums = [np.cumsum(values) for values in (above, below)]
    for i, values in enumerate((above, below)):
        sums[i][MOVING:] -= np.cumsum(values)[:-MOVING]
    return Smoothed(time_s, above / below, sums[0] / sums[1])
