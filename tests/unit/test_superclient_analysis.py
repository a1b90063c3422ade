"""Run directories with superclients, written by hand, with answers known beforehand."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import same_color
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.patches import Rectangle
from rich.console import Console

from analysis.errors import AnalysisError
from analysis.plots import PALETTE
from analysis.run_reader import CHAIN_COLUMNS, SUPERCLIENT_TABLES, TABLE_COLUMNS, Run, read_run
from analysis.superclients import (
    cluster_order,
    plot_similarity,
    plot_superclients,
    similarity_figure,
    similarity_matrices,
    superclients_figure,
    superclients_table,
    write_superclient_figures,
)
from analysis.walkers import MOST_CHAINS, plot_walkers, walkers_figure
from emulator import cli
from emulator.recording import tables

UPDATES = TABLE_COLUMNS["updates.csv"] + CHAIN_COLUMNS

# superclient, clients, samples, balance ratio, covered classes, intra, inter, members
SUPERCLIENTS = [
    (0, 3, 300, 0.0, 0.8, 1.25, 0.5, "4 0 2"),
    (1, 1, 100, 0.5, 1.0, "", 0.25, "1"),
    (2, 2, 260, 0.25, 0.6, 0.75, 0.75, "3 5"),
]
DECLARED = [(number, 2, 20, "", "", "", "", "0 1") for number in range(30)]

# chain, walker, superclient, version, dispatched, uploaded, outcome, staleness, samples,
# trainings, left out; as they are closed, and so not in the order of their dispatch
CHAINS = [
    (1, 1, 1, 0, 100.0, "", "discarded", "", 0, 0, 1),
    (0, 0, 0, 0, 100.0, 160.0, "reported", 0, 300, 3, 0),
    (2, 1, 2, 0, 130.0, 190.0, "reported", 0, 260, 2, 0),
    (3, 0, 1, 1, 200.0, "", "cancelled", "", 0, 0, 0),
    (4, 1, 0, 1, 200.0, "", "in_flight", "", 0, 1, 0),
]
END_S = 400.0
VERSIONS = [(200.0, 1, "", 2, 0.0, 0, 100.0, 20, 10), (250.0, 2, "", 1, 0.0, 0, 50.0, 20, 10)]
EVENTS = (
    '{"t":130.0,"type":"chain_end","entity":"superclient/1","chain":1,"how":"given_up"}\n'
    '{"t":160.0,"type":"chain_end","entity":"superclient/0","chain":0,"how":"uploaded"}\n'
    '{"t":250.0,"type":"chain_end","entity":"superclient/1","chain":3,"how":"cancelled"}\n'
)

# Two kinds of clients, 0 and 2 against 1 and 3, more apart after epoch 3 than after epoch 1.
SIMILARITY = [
    (epoch, i, j, (0.99 if (i + j) % 2 == 0 else far) - 0.001 * (i + j))
    for epoch, far in ((1, 0.9), (3, 0.5))
    for i in range(4)
    for j in range(i + 1, 4)
]


def write_table(
    directory: Path, file: str, rows: Iterable[Sequence[Any]], columns: Sequence[str] = ()
) -> None:
    columns = columns or (TABLE_COLUMNS | SUPERCLIENT_TABLES)[file]
    with (directory / file).open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def write_run(directory: Path, *, ended: bool = True, **files: Iterable[Sequence[Any]]) -> Path:
    """A run directory with versions and these tables beside; no rows in the others."""
    manifest = {"name": "walk", "seed": 1, "stop_reason": "sim_time" if ended else None}
    (directory / "manifest.json").write_text(json.dumps(manifest | {"sim_time_s": END_S}))
    for file in TABLE_COLUMNS:
        write_table(directory, file, VERSIONS if file == "versions.csv" else [])
    (directory / "events.jsonl").write_text(EVENTS)
    for name, rows in files.items():
        write_table(directory, f"{name}.csv", rows)
    return directory


def run_with(directory: Path, **files: Iterable[Sequence[Any]]) -> Run:
    return read_run(write_run(directory, **files))


def text_of(run: Run) -> str:
    assert run.superclients is not None
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(superclients_table(run.superclients))
    return console.export_text()


def cells(text: str, label: str) -> list[str]:
    """The cells of the table's only row that begins with ``label``."""
    rows = [[cell.strip() for cell in line.strip("│┃ ").split("│")] for line in text.split("\n")]
    (row,) = [row for row in rows if row[0] == label]
    return row[1:]


# --- reading ---------------------------------------------------------------------------------


def test_columns_are_those_that_a_run_writes() -> None:
    assert CHAIN_COLUMNS == tables.CHAIN_COLUMNS
    assert {
        "superclients.csv": tables.SUPERCLIENTS,
        "chains.csv": tables.CHAINS,
        "similarity.csv": tables.SIMILARITY,
    } == SUPERCLIENT_TABLES


def test_tables_are_typed_and_empty_cells_are_nan(tmp_path: Path) -> None:
    run = run_with(tmp_path, superclients=SUPERCLIENTS, chains=CHAINS, similarity=SIMILARITY)
    assert run.superclients is not None
    assert run.chains is not None
    assert run.similarity is not None
    assert run.superclients["members"].tolist() == ["4 0 2", "1", "3 5"]
    np.testing.assert_array_equal(run.superclients["intra_distance"], [1.25, np.nan, 0.75])
    assert run.chains["outcome"].tolist() == [row[6] for row in CHAINS]
    np.testing.assert_array_equal(run.chains["uploaded_s"], [np.nan, 160.0, 190.0, np.nan, np.nan])
    assert run.similarity["cosine"].tolist() == [row[3] for row in SIMILARITY]


def test_tables_of_a_run_without_superclients_are_none(tmp_path: Path) -> None:
    run = run_with(tmp_path)
    assert (run.superclients, run.chains, run.similarity) == (None, None, None)
    assert list(run.updates) == list(TABLE_COLUMNS["updates.csv"])
    assert write_superclient_figures(run, tmp_path) == []
    for figure in (superclients_figure, similarity_figure, walkers_figure):
        with pytest.raises(AnalysisError, match="nothing to plot"):
            figure(run)
    with pytest.raises(AnalysisError, match="no chains"):
        _ = run.chain_ends_s


def test_updates_have_their_place_in_a_chain(tmp_path: Path) -> None:
    write_run(tmp_path)
    first = (7, "", 0, 0.0, 1.0, 6.5, 7.5, "reported", 0, 10, 100, 100, 0.0)
    rows = [(*first, "pretraining", "", "", ""), (*first, "training", 0, 1, 9)]
    write_table(tmp_path, "updates.csv", rows, UPDATES)
    updates = read_run(tmp_path).updates
    assert list(updates) == list(UPDATES)
    assert updates["phase"].tolist() == ["pretraining", "training"]
    for column, value in (("chain", 0), ("ring_pass", 1), ("source", 9)):
        np.testing.assert_array_equal(updates[column], [np.nan, value])


def test_updates_with_a_part_of_the_chain_columns_are_damaged(tmp_path: Path) -> None:
    write_run(tmp_path)
    write_table(tmp_path, "updates.csv", [], [n for n in UPDATES if n != "ring_pass"])
    with pytest.raises(AnalysisError, match=r"updates\.csv, line 1: column 'ring_pass' is missing"):
        read_run(tmp_path)


@pytest.mark.parametrize("torn", ["5,0,2,1,250.0,300.0,reported,0,10,1", "5,0,2", "\0"])
def test_torn_last_chain_is_not_read(tmp_path: Path, torn: str) -> None:
    write_run(tmp_path, ended=False, superclients=SUPERCLIENTS, chains=CHAINS)
    with (tmp_path / "chains.csv").open("a") as stream:
        stream.write(torn)
    run = read_run(tmp_path)
    assert run.chains is not None
    assert run.chains["chain"].tolist() == [row[0] for row in CHAINS]
    assert len(bars(walkers_figure(run))) == len(CHAINS)


@pytest.mark.parametrize(
    ("file", "row", "message"),
    [
        ("chains.csv", "5,0,2,1,250.0", r"chains\.csv, line 3: has 5 cells; the header names 11"),
        ("chains.csv", "5,0,2,1,soon,,reported,0,1,1,0", r"line 3: dispatched_s is 'soon'"),
        ("chains.csv", "5,0,2,1,,,reported,0,1,1,0", r"line 3: dispatched_s is ''; a finite"),
        ("chains.csv", "5,0,nan,1,1.0,,reported,0,1,1,0", r"line 3: superclient is 'nan'"),
        ("superclients.csv", "1,,10,,,,,1 2", r"superclients\.csv, line 3: clients is ''"),
        ("superclients.csv", "1,2,10,x,,,,1 2", r"line 3: balance_ratio is 'x'; a number or an"),
        ("similarity.csv", "1,,3,0.5", r"similarity\.csv, line 3: client is ''"),
    ],
)
def test_damaged_row_is_named(tmp_path: Path, file: str, row: str, message: str) -> None:
    files = {"chains": CHAINS, "superclients": SUPERCLIENTS, "similarity": SIMILARITY}
    write_run(tmp_path, **{name: rows[:1] for name, rows in files.items()})
    with (tmp_path / file).open("a") as stream:
        stream.write(row + "\n")
    with pytest.raises(AnalysisError, match=message):
        write_superclient_figures(read_run(tmp_path), tmp_path)


def test_missing_column_is_named_on_opening(tmp_path: Path) -> None:
    write_run(tmp_path)
    write_table(tmp_path, "chains.csv", [], ["chain", "walkers"])
    with pytest.raises(AnalysisError, match=r"chains\.csv, line 1: column 'walker', 'superclient'"):
        read_run(tmp_path)


# --- ends of chains --------------------------------------------------------------------------


def test_chain_without_an_upload_ends_as_the_log_says(tmp_path: Path) -> None:
    run = run_with(tmp_path, chains=CHAINS)
    assert run.chain_ends_s.tolist() == [130.0, 160.0, 190.0, 250.0, END_S]


def test_log_is_not_needed_where_every_chain_has_uploaded(tmp_path: Path) -> None:
    write_run(tmp_path, chains=CHAINS[1:3])
    (tmp_path / "events.jsonl").unlink()
    assert read_run(tmp_path).chain_ends_s.tolist() == [160.0, 190.0]
    write_table(tmp_path, "chains.csv", CHAINS)
    with pytest.raises(AnalysisError, match=r"events\.jsonl: does not exist"):
        _ = read_run(tmp_path).chain_ends_s


def test_chain_that_the_log_does_not_have_ends_at_no_known_instant(tmp_path: Path) -> None:
    write_run(tmp_path, chains=CHAINS[:1])
    (tmp_path / "events.jsonl").write_text(EVENTS[:60])  # torn
    run = read_run(tmp_path)
    assert math.isnan(run.chain_ends_s[0])
    assert bars(walkers_figure(run)) == {(1, 100.0, 100.0)}


def test_damaged_log_is_named_with_its_line(tmp_path: Path) -> None:
    write_run(tmp_path, chains=CHAINS)
    (tmp_path / "events.jsonl").write_text(EVENTS + '{"t":1.0,"type":"chain_end"}\n')
    with pytest.raises(AnalysisError, match=r"events\.jsonl, line 4: the end of a chain needs"):
        _ = read_run(tmp_path).chain_ends_s


# --- table -----------------------------------------------------------------------------------


def test_table_has_each_superclient_and_what_holds_for_all(tmp_path: Path) -> None:
    text = text_of(run_with(tmp_path, superclients=SUPERCLIENTS))
    assert "3 superclients" in text
    assert cells(text, "0") == ["3", "300", "0.000", "80.0 %", "1.250", "0.500"]
    assert cells(text, "1") == ["1", "100", "0.500", "100.0 %", "–", "0.250"]
    assert cells(text, "mean") == ["2.0", "220.0", "0.250", "80.0 %", "1.000", "0.500"]
    assert cells(text, "least") == ["1", "100", "0.000", "60.0 %", "0.750", "0.250"]
    assert cells(text, "most") == ["3", "300", "0.500", "100.0 %", "1.250", "0.750"]


def test_table_is_cut_and_has_no_columns_of_which_nothing_is_known(tmp_path: Path) -> None:
    text = text_of(run_with(tmp_path, superclients=DECLARED))
    assert cells(text, "11") == ["2", "20"]
    assert "│ 12 │" not in text.replace("  ", "")
    assert cells(text, "18 more") == ["…", "…"]
    assert "balance" not in text


def test_thirteen_superclients_are_not_cut(tmp_path: Path) -> None:
    text = text_of(run_with(tmp_path, superclients=DECLARED[:13]))
    assert cells(text, "12") == ["2", "20"]
    assert "more" not in text


# --- superclients ----------------------------------------------------------------------------


def labels(figure: Figure) -> list[str]:
    return [axes.get_ylabel().replace("\n", " ") for axes in figure.axes]


def points(axes: Axes, marker: str) -> list[tuple[float, float]]:
    (line,) = [line for line in axes.lines if line.get_marker() == marker]
    return [(float(x), float(y)) for x, y in line.get_xydata() if not math.isnan(y)]


def test_superclients_figure_has_a_panel_a_measure(tmp_path: Path) -> None:
    figure = superclients_figure(run_with(tmp_path, superclients=SUPERCLIENTS))
    assert labels(figure) == ["clients", "samples", "balance ratio", "classes covered", "distance"]
    clients, samples, balance, covered, distance = figure.axes
    for axes, column in ((clients, 1), (samples, 2)):
        found = [(p.get_x() + p.get_width() / 2, p.get_height()) for p in axes.patches]
        assert found == [(pytest.approx(row[0]), row[column]) for row in SUPERCLIENTS]
        assert axes.get_ylim()[0] == 0
    assert points(balance, "o") == [(0, 0.0), (1, 0.5), (2, 0.25)]
    assert points(covered, "o") == [(0, 0.8), (1, 1.0), (2, 0.6)]
    assert points(distance, "o") == [(0, 1.25), (2, 0.75)]
    assert points(distance, "s") == [(0, 0.5), (1, 0.25), (2, 0.75)]
    words = [text.get_text() for text in distance.texts]
    assert words == ["mean, intra\n1.000", "mean, inter\n0.500"]


def test_superclients_figure_of_declared_data_shows_sizes_only(tmp_path: Path) -> None:
    figure = superclients_figure(run_with(tmp_path, superclients=DECLARED))
    assert labels(figure) == ["clients", "samples"]
    assert figure.axes[-1].get_xlabel() == "superclient"
    assert len(figure.axes[0].patches) == 30


def test_names_of_two_means_do_not_touch(tmp_path: Path) -> None:
    near = [(0, 3, 300, 0.0, 0.8, 0.5, 0.51, "4 0 2"), (1, 3, 300, 0.0, 0.8, 0.5, 0.51, "1 3 5")]
    figure = superclients_figure(run_with(tmp_path, superclients=near))
    figure.draw_without_rendering()
    intra, inter = (text.get_window_extent() for text in figure.axes[-1].texts)
    assert intra.y1 < inter.y0


# --- similarity ------------------------------------------------------------------------------


def test_pairs_become_symmetric_matrices(tmp_path: Path) -> None:
    rows = [(2, 7, 9, 0.5), (2, 7, 30, 0.25), (2, 9, 30, ""), (1, 7, 9, 0.75)]
    found = similarity_matrices(run_with(tmp_path, similarity=rows))
    assert found.epochs.tolist() == [1, 2]
    assert found.clients.tolist() == [7, 9, 30]
    nan = math.nan
    np.testing.assert_array_equal(
        found.cosines,
        [
            [[nan, 0.75, nan], [0.75, nan, nan], [nan, nan, nan]],
            [[nan, 0.5, 0.25], [0.5, nan, nan], [0.25, nan, nan]],
        ],
    )


def test_alike_clients_stand_side_by_side() -> None:
    kinds = np.array([0, 1, 2, 0, 1, 2, 0, 1])
    cosines = np.where(kinds[:, None] == kinds, 0.9, 0.1)
    np.fill_diagonal(cosines, np.nan)
    ordered = kinds[cluster_order(cosines)]
    assert int((np.diff(ordered) != 0).sum()) == 2
    assert sorted(cluster_order(np.full((3, 3), np.nan)).tolist()) == [0, 1, 2]


def test_similarity_figure_orders_by_the_last_epoch_on_one_scale(tmp_path: Path) -> None:
    figure = similarity_figure(run_with(tmp_path, similarity=SIMILARITY))
    first, last, bar = figure.axes
    assert [axes.get_title() for axes in (first, last)] == ["after epoch 1", "after epoch 3"]
    cosines = [row[3] for row in SIMILARITY]
    for axes in (first, last):
        assert axes.images[0].get_clim() == (min(cosines), max(cosines))
    names = [int(text.get_text()) for text in last.get_xticklabels()]
    assert {frozenset(names[:2]), frozenset(names[2:])} == {frozenset({0, 2}), frozenset({1, 3})}
    shown = np.ma.filled(last.images[0].get_array(), math.nan)
    assert np.isnan(np.diag(shown)).all()
    by_pair = {(i, j): cosine for epoch, i, j, cosine in SIMILARITY if epoch == 3}
    assert shown[0, 2] == shown[2, 0] == by_pair[min(names[0], names[2]), max(names[0], names[2])]
    assert bar.get_ylabel() == "cosine"
    assert "hierarchical clustering of epoch 3" in figure.get_supxlabel()


def test_similarity_figure_of_many_epochs_has_rows_and_no_empty_frames(tmp_path: Path) -> None:
    rows = [(epoch, 0, 1, 0.5) for epoch in range(1, 6)]
    figure = similarity_figure(run_with(tmp_path, similarity=rows))
    shown = [axes for axes in figure.axes if axes.get_visible() and axes.images]
    assert len(shown) == 5
    assert len([axes for axes in figure.axes if axes.get_visible()]) == 6  # and the colour bar


# --- walkers ---------------------------------------------------------------------------------


def drawn(figure: Figure) -> list[Rectangle]:
    """The bars, less those of the legend."""
    return [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]


def bars(figure: Figure) -> set[tuple[int, float, float]]:
    """(row, begin, end) of each bar, in seconds; the axis of all these runs is in minutes."""
    assert "(min)" in figure.axes[0].get_xlabel()
    return {
        (
            round(p.get_y() + p.get_height() / 2),
            round(60 * p.get_x(), 6),
            round(60 * (p.get_x() + p.get_width()), 6),
        )
        for p in drawn(figure)
    }


def lines(figure: Figure) -> list[float]:
    """Where versions stand."""
    return [float(line.get_xdata()[0]) for line in figure.axes[0].lines]  # type: ignore[index]


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_one_row_a_walker_one_bar_a_chain_one_line_a_version(tmp_path: Path) -> None:
    # 400 s are beyond what an axis in seconds shows.
    figure = walkers_figure(run_with(tmp_path, superclients=SUPERCLIENTS, chains=CHAINS))
    (axes,) = figure.axes
    assert axes.get_ylabel() == "walker"
    assert axes.get_xlabel() == "simulated time (min); the axis begins with the first chain"
    assert bars(figure) == {
        (0, 100, 160),
        (1, 100, 130),
        (1, 130, 190),
        (0, 200, 250),
        (1, 200, 400),
    }
    assert [60 * at for at in lines(figure)] == pytest.approx([200, 250])
    words = [text.get_text() for text in axes.texts]
    assert sorted(words) == sorted(["0", "1", "2", "1", "0", "1", "2"])  # and the versions 1 and 2
    assert (
        axes.get_title(loc="left") == "walk: chains of walkers, with the number of the superclient"
    )


def test_what_went_into_no_version_is_hatched(tmp_path: Path) -> None:
    figure = walkers_figure(run_with(tmp_path, chains=CHAINS))
    by_place = {(round(p.get_y() + 0.38), round(60 * p.get_x())): p for p in drawn(figure)}
    hatches = {place: bar.get_hatch() for place, bar in by_place.items()}
    assert hatches[0, 100] is None
    assert hatches[1, 130] is None
    others = [hatches[1, 100], hatches[0, 200], hatches[1, 200]]
    assert all(others)
    assert len(set(others)) == 3
    assert same_color(by_place[0, 100].get_facecolor(), PALETTE[0])
    assert same_color(by_place[1, 130].get_facecolor(), PALETTE[2])
    assert same_color(by_place[1, 100].get_edgecolor(), PALETTE[1])
    assert legend(figure) == [
        "superclient 0", "superclient 1", "superclient 2", "given up or discarded", "cancelled",
        "in flight at the end", "new version",
    ]  # fmt: skip


def test_an_outcome_of_another_name_is_drawn_too(tmp_path: Path) -> None:
    figure = walkers_figure(
        run_with(tmp_path, chains=[(0, 0, 0, 0, 0.0, 9.0, "eaten", "", 1, 1, 0)])
    )
    assert "eaten" in legend(figure)
    assert bars(figure) == {(0, 0, 9)}


def test_without_walkers_a_row_is_a_superclient(tmp_path: Path) -> None:
    chains = [(0, "", 1, 0, 0.0, 60.0, "reported", 0, 1, 1, 0),
              (1, "", 1, 0, 60.0, 120.0, "reported", 0, 1, 1, 0)]  # fmt: skip
    figure = walkers_figure(run_with(tmp_path, superclients=SUPERCLIENTS, chains=chains))
    (axes,) = figure.axes
    assert axes.get_ylabel() == "superclient"
    assert axes.get_xlabel() == "simulated time (min)"
    assert axes.get_ylim() == (2.6, -0.6)  # also those that never trained
    assert bars(figure) == {(1, 0, 60), (1, 60, 120)}
    first, second = drawn(figure)
    assert first.get_facecolor() != second.get_facecolor()


def many(count: int, apart_s: float) -> list[tuple[Any, ...]]:
    return [(i, 0, i % 9, 0, apart_s * i, apart_s * i + 1, "reported", 0, 1, 1, 0)
            for i in range(count)]  # fmt: skip


@pytest.mark.parametrize(
    ("count", "apart_s", "shown", "words"),
    [
        (MOST_CHAINS, 5.0, MOST_CHAINS, None),
        (MOST_CHAINS + 1, 1.2, math.ceil(200 / 1.2), "; up to the first version"),
        (3 * MOST_CHAINS, 2.0, 125, "; up to the first 2 of 2 versions"),
        (3 * MOST_CHAINS, 0.5, MOST_CHAINS, "; the first 200 of 600 chains"),
        (3 * MOST_CHAINS, 0.0, MOST_CHAINS, "; the first 200 of 600 chains"),
    ],
)
def test_many_chains_are_cut_and_the_title_says_so(
    tmp_path: Path, count: int, apart_s: float, shown: int, words: str | None
) -> None:
    figure = walkers_figure(run_with(tmp_path, chains=many(count, apart_s)))
    title = figure.axes[0].get_title(loc="left").replace("\n", " ")
    assert len(drawn(figure)) == shown
    assert title.endswith(words or "number of the superclient")


def test_version_at_the_instant_of_the_first_chain_leaves_no_empty_figure(tmp_path: Path) -> None:
    write_run(tmp_path, chains=many(MOST_CHAINS + 1, 0.0))
    write_table(tmp_path, "versions.csv", [(0.0, 1, "", 2, 0.0, 0, 0.0, 20, 10)])
    figure = walkers_figure(read_run(tmp_path))
    assert len(drawn(figure)) == MOST_CHAINS
    assert lines(figure) == [0.0]


def test_name_is_left_out_where_a_bar_is_too_short(tmp_path: Path) -> None:
    chains = [(0, 0, 7, 0, 0.0, 1.0, "reported", 0, 1, 1, 0),
              (1, 0, 8, 0, 1.0, 250.0, "reported", 0, 1, 1, 0)]  # fmt: skip
    figure = walkers_figure(run_with(tmp_path, chains=chains))
    words = [text.get_text() for text in figure.axes[0].texts]
    assert "8" in words
    assert "7" not in words


# --- files -----------------------------------------------------------------------------------


def test_figures_are_written_beside_the_tables(tmp_path: Path) -> None:
    run = run_with(tmp_path, superclients=SUPERCLIENTS, chains=CHAINS, similarity=SIMILARITY)
    paths = write_superclient_figures(run, tmp_path)
    assert [path.name for path in paths] == ["superclients.png", "similarity.png", "walkers.png"]
    for path in paths:
        assert path.parent == tmp_path
        assert imread(path).std() > 0.05  # something is drawn


def test_figures_without_rows_are_not_written(tmp_path: Path) -> None:
    run = run_with(tmp_path, superclients=SUPERCLIENTS, chains=[], similarity=[])
    assert [p.name for p in write_superclient_figures(run, tmp_path)] == ["superclients.png"]
    assert sorted(p.name for p in tmp_path.glob("*.png")) == ["superclients.png"]


def test_figure_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    run = run_with(tmp_path, superclients=SUPERCLIENTS)
    with pytest.raises(AnalysisError, match=r"superclients\.png: cannot be written"):
        write_superclient_figures(run, tmp_path / "absent")


@pytest.mark.parametrize("superclients", [True, False])
def test_command_line_shows_superclients_where_there_are_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], superclients: bool
) -> None:
    files = {"superclients": SUPERCLIENTS, "chains": CHAINS} if superclients else {}
    write_run(tmp_path, **files)
    cli._show(tmp_path, {"timing_only": True})
    shown = capsys.readouterr().out
    assert "simulated time" in shown
    assert ("3 superclients" in shown) is superclients
    figures = ["superclients.png", "walkers.png"] if superclients else []
    assert sorted(path.name for path in tmp_path.glob("*.png")) == figures


# --- on given axes ---------------------------------------------------------------------------


def test_each_panel_is_a_plot_on_given_axes_or_its_own(tmp_path: Path) -> None:
    run = run_with(tmp_path, superclients=SUPERCLIENTS, chains=CHAINS, similarity=SIMILARITY)
    for plot in (plot_walkers, plot_superclients, plot_similarity):
        given = Figure().add_subplot()
        assert plot(run, given) is given
        assert given.get_xlabel()
        assert plot(run).figure is not given.figure
    assert plot_superclients(run, measure="distance").get_ylabel() == "distance"
    with pytest.raises(AnalysisError, match="measure is 'size'; one of clients, samples"):
        plot_superclients(run, measure="size")
    with pytest.raises(AnalysisError, match="epoch is 77; one of"):
        plot_similarity(run, epoch=77)
