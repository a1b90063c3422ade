"""Run directories with cohorts, written by hand, with answers known beforehand."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import same_color
from matplotlib.figure import Figure
from matplotlib.image import imread
from rich.console import Console

from analysis.cohort_figures import (
    MOST_PANELS,
    affinity_figure,
    clustering_figure,
    cohort_colors,
    fairness_figure,
    plot_agreement,
    plot_cohort_fairness,
    plot_tenths,
)
from analysis.cohort_series import (
    BINS,
    MOVING,
    Cohort,
    cohorts,
    correlation,
    exploring_share,
    leaves,
    lineage,
    memberships,
    newest_by_client,
    rewards,
    spread_ratio,
    tree_rows,
)
from analysis.cohorts import (
    MOST_ROWS,
    cohorts_figure,
    cohorts_table,
    memberships_figure,
    plot_cohort_accuracy,
    plot_cohort_tree,
    plot_memberships,
    write_cohort_figures,
)
from analysis.errors import AnalysisError
from analysis.plots import PALETTE, TARGET_GRAY
from analysis.run_reader import COHORT_TABLES, TABLE_COLUMNS, Run, read_run
from analysis.summary import summarize, summary_table
from emulator import cli
from emulator.recording import tables

END_S = 400.0  # so that each of the 40 steps of a figure is of 10 s
SPLITS = ["c0 splits", "c0.0 splits"]
EVERY = ["cohorts.png", "memberships.png", "clustering.png", "affinity.png", "fairness.png"]

# c0 splits at 100 s, c0.0 at 200 s; c0.1, c0.0.0 and c0.0.1 train at last.
COHORTS = [
    ("c0", "", 0.0, 100.0, 0, 2, 3, 2),
    ("c0.0", "c0", 100.0, 200.0, 2, 3, 2, 1),
    ("c0.0.0", "c0.0", 200.0, "", 3, 4, 1, 0),
    ("c0.0.1", "c0.0", 200.0, "", 3, 5, 1, 1),
    ("c0.1", "c0", 100.0, "", 2, 3, 1, 1),
]
VERSIONS = [
    (t, version, cohort, 2, 0.0, 0, 40.0, 20, 10)
    for t, version, cohort in (
        (40.0, 1, "c0"), (100.0, 2, "c0"), (150.0, 3, "c0.1"), (200.0, 3, "c0.0"),
        (250.0, 4, "c0.0.0"), (260.0, 4, "c0.0.1"), (300.0, 5, "c0.0.1"),
    )
]  # fmt: skip


def update(client: int, cohort: str, uploaded_s: float | str, outcome: str = "reported") -> Any:
    return (client, cohort, 0, 0.0, 1.0, 11.0, uploaded_s, outcome, 0, 50, 1000, 500, 0.0)


# 0 and 3 stay where they are, 1 strays, 2 is in c0.0.0 at last and never trained there.
UPDATES = [
    update(0, "c0", 40.0), update(1, "c0", 39.0), update(2, "c0", 100.0), update(3, "c0", 99.0),
    update(3, "c0.1", 150.0), update(4, "c0.1", 149.0, "late"), update(1, "c0.1", 148.0),
    update(0, "c0.0", 200.0), update(0, "c0.0.0", 250.0), update(1, "c0.0.1", 260.0),
    update(2, "c0.0.1", 300.0), update(3, "c0.1", "", "in_flight"),
]  # fmt: skip


def evaluation(t: float, cohort: str, *clients: tuple[int, float, int, bool]) -> list[Any]:
    """Rows of a cohort on clients: their number, accuracy, samples, and whether it knows them."""
    rows = [(t, 3, cohort, f"client/{c}", "client", "accuracy", a, n) for c, a, n, _ in clients]
    for split, of in (("test", clients), ("members", [row for row in clients if row[3]])):
        n = sum(row[2] for row in of)
        if n:
            value = sum(row[1] * row[2] for row in of) / n
            rows.append((t, 3, cohort, f"cohort/{cohort}", split, "accuracy", value, n))
    return rows


def overall(t: float, test: float, worst: float, best: float, agreement: float | None) -> list[Any]:
    found = [(t, 3, "", "global", "test", "accuracy", test, 50)]
    for name, value in (("mean", 0.5), ("worst_tenth", worst), ("best_tenth", best)):
        found.append((t, 3, "", "global", "client", f"accuracy_{name}", value, 5))
    if agreement is not None:
        found.append((t, 3, "", "global", "members", "adjusted_rand_index", agreement, 4))
    return found


METRICS = [
    *evaluation(0.0, "c0", *((client, 0.1, 10, False) for client in range(5))),
    *overall(0.0, 0.1, 0.05, 0.2, None),
    *evaluation(200.0, "c0.0", (0, 0.4, 10, True), (1, 0.5, 10, True), (2, 0.2, 20, False)),
    *overall(200.0, 0.3, 0.1, 0.5, 0.25),
    *evaluation(400.0, "c0.0.0", (0, 0.5, 10, True), (2, 0.9, 20, True), (4, 0.3, 10, False)),
    *evaluation(400.0, "c0.0.1", (1, 0.7, 10, True)),
    *evaluation(400.0, "c0.1", (3, 0.8, 10, False)),
    *overall(400.0, 0.6, 0.3, 0.9, 0.75),
]
AFFINITY = [
    (40.0, "c0", 1, 0, 0.0, 1, 1.5),
    (150.0, "c0.1", 3, 1, -4.0, "", 1.0),
    (150.0, "c0.1", 3, 3, 2.0, 0, 1.25),
    (154.0, "c0.1", 3, 3, 4.0, 0, 1.25),
    (159.0, "c0.1", 3, 3, 6.0, 0, 1.25),
    (250.0, "c0.0.0", 4, 0, 1.0, 0, 1.25),
    (300.0, "c0.0.1", 5, 2, "", "", 1.0),
]


def clustering(t: float, cohort: str, sides: tuple[int, int], *values: Any) -> Any:
    spread, of_sides, r = values or ("", "", "")
    return (t, cohort, 1, 2, 1, *sides, spread, of_sides, 2.0, r, 0.75, "maturity knowledge")


CLUSTERING = [
    clustering(40.0, "c0", (2, 1)),
    clustering(100.0, "c0", (3, 2), 0.5, 0.4, 0.9),
    clustering(150.0, "c0.1", (1, 1), 0.25, 0.125, -0.5),
    clustering(250.0, "c0.0.0", (1, 0), 0.0, 0.0, 0.5),
]


def check_in(t: float, explores: bool) -> str:
    event = {"t": t, "type": "check_in", "entity": "client/1", "requested": None, "side": None,
             "explores": explores, "cohort": "c0"}  # fmt: skip
    return json.dumps(event, separators=(",", ":"))


EVENTS = [
    check_in(0.0, False),
    check_in(9.0, False),
    check_in(105.0, True),
    check_in(106.0, False),
    check_in(107.0, False),
    check_in(109.0, True),
    check_in(400.0, True),
    '{"t":100.0,"type":"partition","entity":"cohort/c0","version":2,"children":["c0.0","c0.1"]}',
]


def write_table(directory: Path, file: str, rows: Iterable[Sequence[Any]]) -> None:
    with (directory / file).open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow((TABLE_COLUMNS | COHORT_TABLES)[file])
        writer.writerows(rows)


def write_run(
    directory: Path, *, ended: bool = True, events: Sequence[str] = EVENTS,
    **files: Iterable[Sequence[Any]] | None,
) -> Path:  # fmt: skip
    """The run of above; ``files`` are tables with other rows, or None for those that are absent."""
    directory.mkdir(parents=True, exist_ok=True)
    manifest = {"name": "two kinds", "seed": 1, "stop_reason": "sim_time" if ended else None}
    (directory / "manifest.json").write_text(json.dumps(manifest | {"sim_time_s": END_S}))
    (directory / "events.jsonl").write_text("".join(f"{event}\n" for event in events))
    usual = {"versions": VERSIONS, "updates": UPDATES, "metrics": METRICS, "clients": [],
             "cohorts": COHORTS, "affinity": AFFINITY, "clustering": CLUSTERING}  # fmt: skip
    for name, rows in (usual | files).items():
        if rows is not None:
            write_table(directory, f"{name}.csv", rows)
    return directory


def run_with(directory: Path, **files: Any) -> Run:
    return read_run(write_run(directory, **files))


def by_name(run: Run) -> dict[str, Cohort]:
    return {cohort.name: cohort for cohort in cohorts(run)}


def text_of(run: Run) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(cohorts_table(run))
    return console.export_text()


def cells(text: str, label: str) -> list[str]:
    """The cells of the table's only row that begins with ``label``."""
    rows = [[cell.strip() for cell in line.strip("│┃ ").split("│")] for line in text.split("\n")]
    (row,) = [row for row in rows if row[0] == label]
    return row[1:]


def words(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def drawn(axes: Axes, color: str) -> list[tuple[list[float], list[float]]]:
    """What is drawn as lines in a colour, less those from one end of the axes to the other."""
    lines = [line for line in axes.lines if same_color(line.get_color(), color)]
    data = [np.array(line.get_data(), dtype=float) for line in lines]
    return [(x.tolist(), y.tolist()) for x, y in data if line_is_data(x, y)]


def line_is_data(x: Any, y: Any) -> bool:
    return len(x) != 2 or not (x.tolist() == [0, 1] or y.tolist() == [0, 1])


def labels(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


# --- reading ---------------------------------------------------------------------------------


def test_columns_are_those_that_a_run_writes() -> None:
    assert {
        "cohorts.csv": tables.COHORTS,
        "affinity.csv": tables.AFFINITY,
        "clustering.csv": tables.CLUSTERING,
    } == COHORT_TABLES


def test_names_are_texts_even_where_they_read_like_numbers(tmp_path: Path) -> None:
    names = ["0", "0.10", "1e3", "nan"]
    rows = [(name, "0" if i else "", 0.0, "", 0, 1, 0, 0) for i, name in enumerate(names)]
    versions = [(1.0, 1, name, 2, 0.0, 0, 1.0, 20, 10) for name in names]
    run = run_with(tmp_path, cohorts=rows, versions=versions, metrics=[], clustering=[])
    assert run.cohorts is not None
    assert run.cohorts["cohort"].tolist() == names
    assert run.cohorts["parent"].tolist() == ["", "0", "0", "0"]
    assert run.versions["cohort"].tolist() == names
    assert [cohort.name for cohort in cohorts(run)] == names
    assert [cells(text_of(run), name)[0] for name in names] == ["0.00"] * 4


def test_tables_are_typed_and_empty_cells_are_nan(tmp_path: Path) -> None:
    run = run_with(tmp_path)
    assert run.cohorts is not None
    assert run.affinity is not None
    assert run.clustering is not None
    np.testing.assert_array_equal(run.cohorts["split_s"], [100, 200, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(run.affinity["side"], [1, np.nan, 0, 0, 0, 0, np.nan])
    np.testing.assert_array_equal(run.clustering["correlation"], [np.nan, 0.9, -0.5, 0.5])
    assert set(run.clustering["unmet"].tolist()) == {"maturity knowledge"}


def test_tables_of_a_run_without_cohorts_are_none(tmp_path: Path) -> None:
    none = {"cohorts": None, "affinity": None, "clustering": None}
    run = run_with(tmp_path, **none, versions=[], updates=[], metrics=[], events=[])
    assert (run.cohorts, run.affinity, run.clustering) == (None, None, None)
    assert cohorts(run) == []
    assert run.check_ins["sim_time_s"].tolist() == []
    assert write_cohort_figures(run, tmp_path) == []
    for figure in (cohorts_figure, memberships_figure, clustering_figure, affinity_figure,
                   fairness_figure):  # fmt: skip
        with pytest.raises(AnalysisError, match="nothing to plot"):
            figure(run)
    with pytest.raises(AnalysisError, match="nothing to show"):
        cohorts_table(run)


@pytest.mark.parametrize("event", ['{"type":"check_in","t":1.0}',
                                   '{"type":"check_in","t":1.0,"explores":1}'])  # fmt: skip
def test_damaged_check_in_is_an_error(tmp_path: Path, event: str) -> None:
    run = run_with(tmp_path, events=[*EVENTS, event])
    with pytest.raises(AnalysisError, match=r"events\.jsonl, line 9: a check-in needs"):
        _ = run.check_ins


def test_split_of_a_cohort_is_none_of_a_model(tmp_path: Path) -> None:
    event = '{"t":0.0,"type":"split","entity":"server","version":1,"rule":"given","why":"so"}'
    assert run_with(tmp_path, events=[*EVENTS, event]).split_reasons == {1: ("given", "so")}


def test_cohort_born_after_the_last_row_on_file_is_within_the_run(tmp_path: Path) -> None:
    # cohorts.csv is written at once, and the other tables a while later.
    run = run_with(tmp_path, ended=False, versions=VERSIONS[:2], updates=UPDATES[:4],
                   metrics=METRICS[:5], clients=None)  # fmt: skip
    assert run.simulated_s == 200.0
    assert "c0.0.1" in by_name(run)
    assert [path.name for path in write_cohort_figures(run, tmp_path)] == EVERY


# --- what became of cohorts ------------------------------------------------------------------


def test_cohorts_by_hand(tmp_path: Path) -> None:
    found = by_name(run_with(tmp_path))
    assert list(found) == ["c0", "c0.0", "c0.0.0", "c0.0.1", "c0.1"]
    assert found["c0"] == Cohort("c0", "", 0.0, 100.0, 0, 2, (3, 2), 0, 0.0, None)
    # Of 40 samples those of 0 and 1; (0.4 · 10 + 0.5 · 10) / 20.
    assert found["c0.0"] == Cohort("c0.0", "c0", 100.0, 200.0, 2, 3, (2, 1), 0, 0.5, 0.45)
    # (0.5 · 10 + 0.9 · 20) / 30 of the 30 samples of 40 that belong to members.
    of_three = found["c0.0.0"]
    assert of_three.accuracy == pytest.approx(23 / 30)
    assert (of_three.served, of_three.known_share, of_three.sides) == (3, 0.75, (1, 0))
    assert found["c0.0.1"] == Cohort("c0.0.1", "c0.0", 200.0, None, 3, 5, (1, 1), 1, 1.0, 0.7)
    assert found["c0.1"] == Cohort("c0.1", "c0", 100.0, None, 2, 3, (1, 1), 1, 0.0, None)
    assert [c.name for c in leaves(list(found.values()))] == ["c0.0.0", "c0.0.1", "c0.1"]


def test_before_the_first_split_the_name_is_that_of_the_versions(tmp_path: Path) -> None:
    run = run_with(tmp_path, ended=False, cohorts=None, versions=VERSIONS[:2], updates=UPDATES[:4],
                   metrics=METRICS[:10], clustering=CLUSTERING[:1], affinity=AFFINITY[:1],
                   clients=None)  # fmt: skip
    assert cohorts(run) == [Cohort("c0", "", 0.0, None, 0, 2, (2, 1), 5, 0.0, None)]
    # No column "split": nothing is known in it.
    assert cells(text_of(run), "c0") == ["0.00", "0–2", "5", "0 %"]
    names = [path.name for path in write_cohort_figures(run, tmp_path)]
    assert names == ["cohorts.png", "memberships.png", "fairness.png"]


def test_newer_than_the_newest_split_are_versions_and_sides(tmp_path: Path) -> None:
    stale = [(*row[:5], row[4], 0, 0) for row in COHORTS]
    found = by_name(run_with(tmp_path, ended=False, cohorts=stale))
    assert [c.last_version for c in found.values()] == [2, 3, 4, 5, 3]
    assert [c.sides for c in found.values()] == [(3, 2), (0, 0), (1, 0), (0, 0), (1, 1)]


def test_cohort_that_is_lost_is_an_error(tmp_path: Path) -> None:
    run = run_with(tmp_path, cohorts=COHORTS[1:])
    with pytest.raises(AnalysisError, match=r"parent of c0\.0 is 'c0', which is none"):
        cohorts(run)


def test_every_cohort_has_a_row_between_its_children(tmp_path: Path) -> None:
    found = cohorts(run_with(tmp_path))
    assert tree_rows(found) == {"c0.0.0": 0, "c0.0": 1, "c0.0.1": 2, "c0": 3, "c0.1": 4}
    line = lineage(found, found[3])
    assert [cohort.name for cohort in line] == ["c0", "c0.0", "c0.0.1"]


def test_colors_tell_those_apart_that_train_at_last(tmp_path: Path) -> None:
    colors = cohort_colors(cohorts(run_with(tmp_path)))
    assert colors == {"c0": TARGET_GRAY, "c0.0.0": PALETTE[0], "c0.0.1": PALETTE[1],
                      "c0.1": PALETTE[2], "c0.0": PALETTE[3]}  # fmt: skip


def test_newest_evaluation_of_each_client(tmp_path: Path) -> None:
    newest = newest_by_client(run_with(tmp_path, metrics=METRICS[:-7]))  # less the one by c0.1
    assert newest.clients.tolist() == [0, 1, 2, 3, 4]
    assert newest.cohorts.tolist() == ["c0.0.0", "c0.0.1", "c0.0.0", "c0", "c0.0.0"]
    assert newest.accuracy.tolist() == [0.5, 0.7, 0.9, 0.1, 0.3]


def test_client_without_a_number_is_an_error(tmp_path: Path) -> None:
    wrong = (1.0, 1, "c0", "client/x", "client", "accuracy", 0.5, 10)
    run = run_with(tmp_path, metrics=[*METRICS, wrong])
    line = len(METRICS) + 2
    with pytest.raises(AnalysisError, match=rf"metrics\.csv, line {line}: entity is 'client/x'"):
        newest_by_client(run)


# --- table -----------------------------------------------------------------------------------


def test_table_by_hand(tmp_path: Path) -> None:
    text = text_of(run_with(tmp_path))
    assert max(map(len, text.split("\n"))) <= 80
    assert "5 cohorts, 3 at last" in text
    # 400 s are shown in minutes; those that have split serve nobody any more.
    assert cells(text, "c0") == ["0.00", "1.67", "0–2", "–", "–", "–"]
    assert cells(text, "c0.0") == ["1.67", "3.33", "2–3", "–", "–", "45.0 %"]
    assert cells(text, "c0.0.0") == ["3.33", "–", "3–4", "3", "75 %", "76.7 %"]
    assert cells(text, "c0.0.1") == ["3.33", "–", "3–5", "1", "100 %", "70.0 %"]
    assert cells(text, "c0.1") == ["1.67", "–", "2–3", "1", "0 %", "–"]
    assert "adjusted Rand index 0.750 (of 4 clients)" in text
    assert "accuracy: worst tenth of clients 30.0 %, best 90.0 %" in text


def test_table_without_learning_has_no_columns_of_dashes(tmp_path: Path) -> None:
    text = text_of(run_with(tmp_path, metrics=[]))
    assert cells(text, "c0.0.0") == ["3.33", "–", "3–4"]
    for word in ("known", "clients", "accuracy", "Rand"):
        assert word not in text


@pytest.mark.parametrize(("count", "more"), [(MOST_ROWS + 1, False), (MOST_ROWS + 2, True)])
def test_table_of_many_cohorts_is_cut(tmp_path: Path, count: int, more: bool) -> None:
    rows = [(f"c0.{i}" if i else "c0", "c0" if i else "", float(i), "", 0, 1, 0, 0)
            for i in range(count)]  # fmt: skip
    text = text_of(run_with(tmp_path, cohorts=rows, metrics=[], versions=[], clustering=[]))
    assert ("2 more" in text) is more
    assert f"{count} cohorts" in text


# --- the tree --------------------------------------------------------------------------------


def test_tree_figure_has_a_line_a_cohort_and_its_accuracy_below(tmp_path: Path) -> None:
    run = run_with(tmp_path)
    figure = cohorts_figure(run)
    tree, accuracy = figure.axes
    colors = cohort_colors(cohorts(run))
    own, down, dot = drawn(tree, colors["c0.0"])
    assert own == ([pytest.approx(100 / 60), pytest.approx(200 / 60)], [1, 1])
    assert down == ([pytest.approx(100 / 60)] * 2, [3, 1])  # from the row of c0 to its own
    assert dot == ([pytest.approx(100 / 60)], [1])
    assert drawn(tree, colors["c0.1"])[0][0][1] == pytest.approx(400 / 60)
    assert words(tree) == [
        "c0: split into 3 and 2",
        "c0.0: split into 2 and 1",
        "c0.0.0: 3 clients, 76.7 %",
        "c0.0.1: 1 client, 70.0 %",
        "c0.1: 1 client",
    ]
    assert accuracy.get_xlabel() == "simulated time (min)"
    assert drawn(accuracy, colors["c0.0"]) == [([pytest.approx(200 / 60)], [0.45])]
    assert drawn(accuracy, "black") == [([0, pytest.approx(200 / 60), pytest.approx(400 / 60)],
                                         [0.1, 0.3, 0.6])]  # fmt: skip
    assert drawn(accuracy, colors["c0.1"]) == []


def test_tree_figure_without_learning_is_the_tree(tmp_path: Path) -> None:
    figure = cohorts_figure(run_with(tmp_path, metrics=[]))
    (tree,) = figure.axes
    assert words(tree)[-2:] == ["c0.0.1: sides of 1 and 1", "c0.1: sides of 1 and 1"]
    assert labels(figure) == []


# --- memberships -----------------------------------------------------------------------------


def test_memberships_by_hand(tmp_path: Path) -> None:
    shown = memberships(run_with(tmp_path))
    # By the last cohort in the tree's order; 2 never trained where it is at last, and comes after.
    assert shown.clients.tolist() == [0, 2, 1, 3]
    assert shown.last.tolist() == ["c0.0.0", "c0.0.0", "c0.0.1", "c0.1"]
    by_time = sorted((u for u in UPDATES if u[7] == "reported"), key=lambda u: u[6])
    assert shown.time_s.tolist() == [u[6] for u in by_time]
    assert shown.cohorts.tolist() == [u[1] for u in by_time]
    assert shown.clients[shown.rows].tolist() == [u[0] for u in by_time]


def test_without_evaluations_a_client_is_where_it_trained_last(tmp_path: Path) -> None:
    shown = memberships(run_with(tmp_path, metrics=[]))
    assert shown.clients.tolist() == [0, 1, 2, 3]
    assert shown.last.tolist() == ["c0.0.0", "c0.0.1", "c0.0.1", "c0.1"]


def test_memberships_figure_has_a_dot_a_training_in_the_color_of_its_cohort(tmp_path: Path) -> None:
    run = run_with(tmp_path)
    figure = memberships_figure(run)
    (axes,) = figure.axes
    own, stray = drawn(axes, cohort_colors(cohorts(run))["c0.1"])  # of 3, and of 1
    assert own == ([2.5], [3])
    assert stray == ([pytest.approx(148 / 60)], [2])
    assert words(axes) == [
        "c0.0.0\n2 clients", "c0.0.1\n1 client", "c0.1\n1 client", *SPLITS,
    ]  # fmt: skip
    assert labels(figure) == ["c0", "c0.0", "c0.0.0", "c0.0.1", "c0.1"]


# --- clustering ------------------------------------------------------------------------------


def test_correlation_and_spread_ratio_by_hand(tmp_path: Path) -> None:
    run = run_with(tmp_path)
    of_root = correlation(run, "c0")
    assert (of_root.time_s.tolist(), of_root.value.tolist()) == ([100.0], [0.9])
    assert spread_ratio(run, "c0.1").value.tolist() == [0.5]
    assert spread_ratio(run, "c0.0.0").value.tolist() == []  # no spread at all
    assert correlation(run, "c0.0").value.tolist() == []


def test_mean_is_that_of_the_last_versions(tmp_path: Path) -> None:
    # r: 0, 1, 2, …; spreads: 1 but for the first, which is 3, and half of it within sides.
    rows = [clustering(float(i), "c0", (1, 1), 3.0 if i == 0 else 1.0, 0.5 if i else 3.0, float(i))
            for i in range(MOVING + 2)]  # fmt: skip
    run = run_with(tmp_path, clustering=rows)
    mean = correlation(run, "c0").mean
    assert mean[:3].tolist() == pytest.approx([0, 0.5, 1])
    assert mean[-2:].tolist() == pytest.approx([5.5, 6.5])  # of 1 to 10, of 2 to 11
    ratio = spread_ratio(run, "c0")
    assert ratio.value[:2].tolist() == [1.0, 0.5]
    # (3 + 0.5) / (3 + 1), then (3 + 9 · 0.5) / (3 + 9), then without the first.
    assert ratio.mean[[1, 9, 10]].tolist() == pytest.approx([3.5 / 4, 7.5 / 12, 0.5])


def test_clustering_figure_has_a_panel_for_what_is_known(tmp_path: Path) -> None:
    run = run_with(tmp_path)
    figure = clustering_figure(run)
    agreement, r, ratio = figure.axes
    assert drawn(agreement, "black") == [([pytest.approx(200 / 60), pytest.approx(400 / 60)],
                                          [0.25, 0.75])]  # fmt: skip
    assert words(agreement) == ["0.75", *SPLITS]
    assert "Pearson's r" in r.get_ylabel()
    assert "spread within sides" in ratio.get_ylabel()
    assert labels(figure) == ["c0", "c0.0.0", "c0.1"]


def test_splits_that_are_close_have_one_name(tmp_path: Path) -> None:
    close = [(*row[:2], 110.0 if row[1] == "c0.0" else row[2], row[3] and min(row[3], 110.0),
              *row[4:]) for row in COHORTS]  # fmt: skip
    axes = clustering_figure(run_with(tmp_path, cohorts=close)).axes[0]
    assert words(axes)[1:] == ["c0, c0.0 split"]


def test_clustering_figure_leaves_out_what_is_not_known(tmp_path: Path) -> None:
    without_r = [(*row[:-3], "", *row[-2:]) for row in CLUSTERING]
    figure = clustering_figure(run_with(tmp_path / "a", metrics=[], clustering=without_r))
    (axes,) = figure.axes
    assert "spread within sides" in axes.get_ylabel()
    figure = clustering_figure(run_with(tmp_path / "b", clustering=None))
    (axes,) = figure.axes
    assert "Rand" in axes.get_ylabel()
    assert labels(figure) == []


# --- affinity --------------------------------------------------------------------------------


def test_rewards_by_hand(tmp_path: Path) -> None:
    run = run_with(tmp_path)
    found = rewards(run, "c0.1")
    # One step of 10 s with −4, 2, 4 and 6.
    assert found.time_s.tolist() == [(150 + 150 + 154 + 159) / 4]
    values = found.lower.tolist(), found.median.tolist(), found.upper.tolist()
    assert values == ([0.5], [3.0], [4.5])
    assert rewards(run, "c0.0.1").median.tolist() == []  # an empty cell is none


def test_exploring_share_by_hand(tmp_path: Path) -> None:
    edges_s, share = exploring_share(run_with(tmp_path))
    assert edges_s.tolist() == [10.0 * i for i in range(BINS + 1)]
    known = np.flatnonzero(np.isfinite(share))
    assert known.tolist() == [0, 10, 39]  # the end of the run is in the last one
    assert share[known].tolist() == [0.0, 0.5, 1.0]


def test_affinity_figure_has_a_panel_for_each_cohort_at_last(tmp_path: Path) -> None:
    run = run_with(tmp_path)
    figure = affinity_figure(run)
    first, second, explore = figure.axes  # c0.0.1 was told nothing, nor was c0.0
    assert words(first) == ["c0.0.0", *SPLITS]
    assert words(second) == ["c0.1"]
    assert [patch.get_height() for patch in explore.patches if patch.get_height() > 0] == [0.5, 1]
    low, high = first.get_ylim()
    assert low < 0.5 < 4.5 < high


def test_affinity_figure_names_what_a_cohort_comes_from(tmp_path: Path) -> None:
    told = [*AFFINITY, (120.0, "c0.0", 3, 0, 1.0, 0, 1.0), (260.0, "c0.0.1", 4, 0, 1.0, 0, 1.0)]
    figure = affinity_figure(run_with(tmp_path, affinity=told, events=[]))
    assert [words(axes) for axes in figure.axes] == [
        ["c0.0.0", "from c0.0", *SPLITS], ["c0.0.1", "from c0.0"], ["c0.1"],
    ]  # fmt: skip


def test_affinity_figure_of_many_cohorts_is_cut(tmp_path: Path) -> None:
    names = [f"c0.{i}" for i in range(MOST_PANELS + 1)]
    rows = [COHORTS[0], *((name, "c0", 100.0, "", 2, 3, 1, 1) for name in names)]
    told = [(200.0, name, 3, 0, 1.0, 0, 1.0) for name in names]
    figure = affinity_figure(run_with(tmp_path, cohorts=rows, affinity=told, events=[]))
    assert len(figure.axes) == MOST_PANELS
    assert f"the first {MOST_PANELS} of {MOST_PANELS + 1} cohorts" in figure.get_suptitle().replace(
        "\n", " "
    )


# --- fairness --------------------------------------------------------------------------------


def test_fairness_figure_by_hand(tmp_path: Path) -> None:
    figure = fairness_figure(run_with(tmp_path))
    shares, over_time = figure.axes
    (line,) = [line for line in shares.lines if same_color(line.get_color(), "black")]
    x, y = np.array(line.get_data(), dtype=float)
    assert x[1:].tolist() == [0.3, 0.5, 0.7, 0.8, 0.9]
    assert y.tolist() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert labels(figure) == [
        "all 5 clients", "c0.0.0 (3 clients)", "c0.0.1 (1 client)", "c0.1 (1 client)",
    ]  # fmt: skip
    minutes = [0, pytest.approx(200 / 60), pytest.approx(400 / 60)]
    assert drawn(over_time, PALETTE[2]) == [(minutes, [0.2, 0.5, 0.9])]
    assert drawn(over_time, PALETTE[1]) == [(minutes, [0.05, 0.1, 0.3])]
    assert words(over_time)[:3] == ["best tenth\n90.0 %", "mean\n50.0 %", "worst tenth\n30.0 %"]


def test_clients_alone_are_one_panel(tmp_path: Path) -> None:
    only = [row for row in METRICS if row[3].startswith("client/")]
    figure = fairness_figure(run_with(tmp_path, metrics=only))
    assert len(figure.axes) == 1


# --- runs that have little to show -----------------------------------------------------------

ROOT = [("c0", "", 0.0, "", 0, 2, 3, 2)]
OF_ROOT: dict[str, Any] = {
    "cohorts": ROOT, "versions": VERSIONS[:2], "updates": UPDATES[:4], "affinity": AFFINITY[:1],
    "metrics": METRICS[:11], "events": EVENTS[:2],
}  # fmt: skip
NOTHING: dict[str, Any] = {
    "cohorts": ROOT, "versions": [], "updates": [], "affinity": [], "clustering": [],
    "metrics": [], "events": [],
}  # fmt: skip


@pytest.mark.parametrize(
    ("files", "names"),
    [
        ({}, EVERY),
        # One cohort: every reward is 0.
        (OF_ROOT | {"clustering": CLUSTERING[:2]}, [*EVERY[:3], "fairness.png"]),
        (OF_ROOT | {"clustering": []}, ["cohorts.png", "memberships.png", "fairness.png"]),
        # Without learning, or without an evaluation.
        ({"metrics": []}, EVERY[:4]),
        ({"metrics": [], "clustering": [(*row[:-2], "", row[-1]) for row in CLUSTERING]},
         EVERY[:4]),
        (NOTHING, ["cohorts.png"]),
        # Some of the files only.
        ({"affinity": None}, [name for name in EVERY if name != "affinity.png"]),
        ({"clustering": None}, EVERY),
        ({"updates": []}, [name for name in EVERY if name != "memberships.png"]),
        ({"cohorts": None, "clients": None, "ended": False}, EVERY[:3] + EVERY[4:]),
    ],
)  # fmt: skip
def test_figures_that_would_be_empty_are_not_written(
    tmp_path: Path, files: dict[str, Any], names: list[str]
) -> None:
    run = run_with(tmp_path, **files)
    assert [path.name for path in write_cohort_figures(run, tmp_path)] == names
    assert sorted(path.name for path in tmp_path.glob("*.png")) == sorted(names)
    assert text_of(run)
    for name in names:
        assert imread(tmp_path / name).std() > 0.01  # something is drawn


def test_run_that_was_killed_is_read_up_to_the_torn_lines(tmp_path: Path) -> None:
    write_run(tmp_path, ended=False, clients=None)
    for file in ("versions.csv", "updates.csv", "metrics.csv", "affinity.csv", "clustering.csv",
                 "events.jsonl"):  # fmt: skip
        whole = (tmp_path / file).read_bytes()
        (tmp_path / file).write_bytes(whole[: len(whole) * 2 // 3])
    run = read_run(tmp_path)
    assert write_cohort_figures(run, tmp_path)
    assert text_of(run)
    (tmp_path / "events.jsonl").unlink()
    assert write_cohort_figures(read_run(tmp_path), tmp_path)


def test_figure_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match=r"cohorts\.png: cannot be written"):
        write_cohort_figures(run_with(tmp_path), tmp_path / "absent")


# --- the summary, and the command line -------------------------------------------------------


def test_summary_is_of_all_cohorts_and_all_clients(tmp_path: Path) -> None:
    run = run_with(tmp_path)
    summary = summarize(run, (0.25, 0.7))
    assert (summary.versions, summary.cohorts, summary.evaluations) == (7, 5, 3)
    assert (summary.final_accuracy, summary.best_accuracy) == (0.6, 0.6)
    assert summary.time_to_target_s == {0.25: 200.0, 0.7: None}
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(summary_table(summary))
    assert cells(console.export_text(), "versions") == ["7 of 5 cohorts"]


def test_summary_of_one_cohort_names_none(tmp_path: Path) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(summary_table(summarize(run_with(tmp_path, **OF_ROOT))))
    assert cells(console.export_text(), "versions") == ["2"]


@pytest.mark.parametrize("some", [True, False])
def test_command_line_shows_cohorts_where_there_are_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], some: bool
) -> None:
    write_run(tmp_path, **({} if some else NOTHING | {"cohorts": None, "affinity": None}))
    cli._show(tmp_path, {"timing_only": True})
    shown = capsys.readouterr().out
    assert "simulated time" in shown
    assert ("5 cohorts, 3 at last" in shown) is some
    assert sorted(path.name for path in tmp_path.glob("*.png")) == (sorted(EVERY) if some else [])


# --- on given axes ---------------------------------------------------------------------------


def test_each_panel_is_a_plot_on_given_axes_or_its_own(tmp_path: Path) -> None:
    run = run_with(tmp_path)
    plots = (
        plot_cohort_tree, plot_cohort_accuracy, plot_memberships, plot_agreement,
        plot_cohort_fairness, plot_tenths,
    )  # fmt: skip
    for plot in plots:
        given = Figure().add_subplot()
        assert plot(run, given) is given
        assert given.get_xlabel(), plot
        assert plot(run).figure is not given.figure
