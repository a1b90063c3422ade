"""Runs whose models travel in parts, written by hand, with answers known beforehand."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import same_color
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.patches import StepPatch
from rich.console import Console

from analysis.errors import AnalysisError
from analysis.human_units import byte_unit, bytes_text
from analysis.parts import (
    MOST_BARS,
    MOST_STEPS,
    PIECES,
    bytes_figure,
    bytes_to_accuracy_figure,
    layers_figure,
    layers_table,
    part_bytes,
    splits,
    write_part_figures,
)
from analysis.plots import PALETTE, TARGET_GRAY
from analysis.run_reader import (
    CHAIN_COLUMNS,
    PART_COLUMNS,
    PART_TABLES,
    TABLE_COLUMNS,
    Run,
    read_run,
)
from analysis.spending import bytes_sent, versions_made
from emulator import cli
from emulator.recording import tables

Rows = Iterable[Sequence[Any]]

A, B = PALETTE[0], PALETTE[4]
LAYERS = PART_TABLES["layers.csv"]
UPDATES = TABLE_COLUMNS["updates.csv"] + PART_COLUMNS
IN_CHAINS = TABLE_COLUMNS["updates.csv"] + CHAIN_COLUMNS + PART_COLUMNS
MODEL = (("conv1", 10, 40), ("conv2", 40, 160), ("fc", 200, 800))
PROFILE = (0.25, 0.5, 1.0)

VERSIONS = [
    (100.0, 1, "", 1, 0.0, 0, 100.0, 2100, 1900),
    (200.0, 2, "", 1, 0.0, 0, 100.0, 310, 1200),
    (300.0, 3, "", 1, 0.0, 0, 100.0, 1100, 250),
]


def write_table(directory: Path, file: str, columns: Sequence[str], rows: Rows) -> None:
    with (directory / file).open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def split(
    parts: str = "AAB", version: int = 0, divergence: Sequence[float | str] = PROFILE
) -> list[tuple[Any, ...]]:
    """Rows of a split of the model of three layers; a letter a layer."""
    return [
        (version, number, *layer, divergence[number - 1], parts[number - 1])
        for number, layer in enumerate(MODEL, start=1)
    ]


def reason(version: int, rule: str = "threshold", why: str = "it is low") -> str:
    event = {"t": 1.0, "type": "split", "entity": "server", "version": version, "rule": rule}
    return json.dumps({**event, "why": why, "A": ["conv1"]}, separators=(",", ":")) + "\n"


def task(
    version: int, part: str, down: Sequence[int], up: Sequence[int], chain: Sequence[Any] = ()
) -> tuple[Any, ...]:
    """A participation; ``down`` and ``up`` are (A, B, whole model, headers and control)."""
    first = (1, "", version, 0.0, 1.0, 2.0, 3.0, "reported", 0, 10, sum(down), sum(up), 0.0)
    header = (down[3] + up[3]) // 2
    rest = (header, down[3] + up[3] - header)
    return (*first, *chain, part, "", *rest, *down[:3], *up[:3])


TASKS = [
    task(0, "AB", (0, 0, 1000, 50), (0, 0, 1000, 20)),
    task(1, "B", (200, 0, 0, 50), (0, 800, 0, 20)),
    task(0, "A", (0, 0, 0, 50), (200, 0, 0, 20)),
    task(3, "B", (3, 0, 0, 50), (0, 0, 0, 0)),
]


def write_run(
    directory: Path,
    layers: Rows | None = None,
    updates: Rows = TASKS,
    *,
    columns: Sequence[str] = UPDATES,
    events: str = "",
    accuracy: Sequence[tuple[float, float]] = (),
    **manifest: Any,
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    said = {"name": "halves", "seed": 1, "stop_reason": "versions", "sim_time_s": 320.0} | manifest
    (directory / "manifest.json").write_text(json.dumps(said))
    rows: dict[str, Rows] = {
        "versions.csv": VERSIONS,
        "metrics.csv": [
            (t, 0, "", "global", "test", "accuracy", value, 9) for t, value in accuracy
        ],
    }
    for file in ("versions.csv", "metrics.csv", "clients.csv"):
        write_table(directory, file, TABLE_COLUMNS[file], rows.get(file, []))
    write_table(directory, "updates.csv", columns, updates)
    if layers is not None:
        write_table(directory, "layers.csv", LAYERS, layers)
    (directory / "events.jsonl").write_text(events or reason(0))
    return directory


def run_with(directory: Path, *args: Any, **kwargs: Any) -> Run:
    return read_run(write_run(directory, *args, **kwargs))


def text_of(run: Run) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(layers_table(run))
    return console.export_text()


def table_rows(text: str) -> list[list[str]]:
    """The cells of the rows below the header."""
    lines = [line for line in text.split("\n") if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def caption(text: str) -> str:
    return " ".join(text.split("┘")[1].split())


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


# --- reading ---------------------------------------------------------------------------------


def test_columns_are_those_that_a_run_writes() -> None:
    assert PART_COLUMNS == tables.PART_COLUMNS
    assert {"layers.csv": tables.LAYERS} == PART_TABLES


def test_tables_are_typed_and_empty_cells_are_nan(tmp_path: Path) -> None:
    run = run_with(tmp_path, split("AAB", 2, (0.5, "", 1)))
    assert run.layers is not None
    assert list(run.layers) == list(LAYERS)
    assert run.layers["name"].tolist() == ["conv1", "conv2", "fc"]
    assert run.layers["part"].tolist() == ["A", "A", "B"]
    np.testing.assert_array_equal(run.layers["divergence"], [0.5, np.nan, 1.0])
    assert run.layers["size_bytes"].tolist() == [40, 160, 800]
    assert list(run.updates) == list(UPDATES)
    assert run.updates["part"].tolist() == ["AB", "B", "A", "B"]
    assert run.updates["ab_bytes_up"].tolist() == [1000, 0, 0, 0]
    assert np.isnan(run.updates["cross_staleness"]).all()


def test_run_without_parts_has_none(tmp_path: Path) -> None:
    columns = TABLE_COLUMNS["updates.csv"]
    run = run_with(tmp_path, updates=[row[: len(columns)] for row in TASKS], columns=columns,
                   accuracy=[(100.0, 0.5)])  # fmt: skip
    assert run.layers is None
    assert list(run.updates) == list(columns)
    assert write_part_figures(run, tmp_path) == []
    for draw, message in (
        (layers_figure, "nothing to show: no split"),
        (layers_table, "nothing to show: no split"),
        (bytes_figure, "nothing to plot: models do not travel in parts"),
    ):
        with pytest.raises(AnalysisError, match=message):
            draw(run)
    assert bytes_to_accuracy_figure([run]).axes  # is for any run


def test_columns_beside_the_known_ones_are_not_read(tmp_path: Path) -> None:
    columns = (*UPDATES[:13], "colour", *UPDATES[13:], "mood")
    rows = [(*row[:13], "blue", *row[13:], "good") for row in TASKS]
    run = run_with(tmp_path, updates=rows, columns=columns)
    assert list(run.updates) == list(UPDATES)
    assert run.updates["a_bytes_down"].tolist() == [0, 200, 0, 3]


@pytest.mark.parametrize("missing", ["part", "control_bytes", "ab_bytes_up"])
def test_updates_with_some_of_the_part_columns_are_damaged(tmp_path: Path, missing: str) -> None:
    write_run(tmp_path, updates=[], columns=[name for name in UPDATES if name != missing])
    with pytest.raises(AnalysisError, match=rf"updates\.csv, line 1: column '{missing}' is miss"):
        read_run(tmp_path)


def test_missing_column_of_the_layers_is_named_on_opening(tmp_path: Path) -> None:
    write_run(tmp_path)
    write_table(tmp_path, "layers.csv", [name for name in LAYERS if name != "divergence"], [])
    with pytest.raises(AnalysisError, match=r"layers\.csv, line 1: column 'divergence' is missing"):
        read_run(tmp_path)


UPDATE = "1,,0,0,1,2,3,reported,0,10,{down},900,0,B,{cross},60,10,{a},0,0,0,800,0\n"


def update(down: str = "150", cross: str = "", a: str = "120") -> str:
    return UPDATE.format(down=down, cross=cross, a=a)


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("layers.csv", "4,1,conv1,10,40\n", r"layers\.csv, line 5: has 5 cells; the header"),
        ("layers.csv", "4,1,conv1,10,,0.5,A\n", r"line 5: size_bytes is ''; a finite number"),
        ("layers.csv", "4,1,conv1,ten,40,,A\n", r"line 5: parameters is 'ten'; a number or an"),
        ("layers.csv", "4,1,conv1,10,40,high,A\n", r"line 5: divergence is 'high'; a number"),
        ("layers.csv", "4,1,conv1,10,40,0.5,C\n", r"line 5: part is 'C'; A or B is needed"),
        ("layers.csv", "4,1,conv1,10,40,0.5,\n", r"line 5: part is ''; A or B is needed"),
        ("layers.csv", "4,2,conv2,10,40,0.5,A\n", r"line 5: layer is 2; 4 is needed, as each"),
        ("updates.csv", update(cross="old"), r"updates\.csv, line 6: cross_staleness is 'old'"),
        ("updates.csv", update(a=""), r"line 6: a_bytes_down is ''; a finite number"),
        ("updates.csv", update(down="20"), r"line 6: bytes_down is 20; at least 120 is needed"),
        ("updates.csv", update(down="inf"), r"line 6: bytes_down is inf; at least 120"),
        ("updates.csv", update(down=""), r"line 6: bytes_down is nan; at least 120"),
        ("updates.csv", update().replace("1,,0,", "1,,0.5,", 1), r"line 6: version is 0\.5; a who"),
        ("updates.csv", update().replace("1,,0,", "1,,,", 1), r"line 6: version is nan; a whole"),
    ],
)  # fmt: skip
def test_damaged_cell_is_named(tmp_path: Path, file: str, line: str, message: str) -> None:
    write_run(tmp_path, split())
    with (tmp_path / file).open("a") as stream:
        stream.write(line)
    with pytest.raises(AnalysisError, match=message):
        write_part_figures(read_run(tmp_path), tmp_path)


def test_whole_line_that_is_as_it_should_be_is_no_damage(tmp_path: Path) -> None:
    write_run(tmp_path, split())
    with (tmp_path / "updates.csv").open("a") as stream:
        stream.write(update(cross="2"))
    assert part_bytes(read_run(tmp_path)).down[:, 0].tolist() == [120, 0, 1000, 130]


@pytest.mark.parametrize("torn", ["4,1,conv1,10,40,0.5,A\n4,2,conv2,40,160,0.5", "4,1,con", "\0"])
def test_split_that_is_not_all_there_is_left_out(tmp_path: Path, torn: str) -> None:
    write_run(tmp_path, split() + split("ABB", 2))
    with (tmp_path / "layers.csv").open("a") as stream:
        stream.write(torn)
    found = splits(read_run(tmp_path))
    assert [one.version for one in found] == [0, 2]
    assert found[-1].in_a.tolist() == [True, False, False]


def test_only_split_is_shown_as_far_as_it_is_there(tmp_path: Path) -> None:
    write_run(tmp_path, split()[:2])
    with (tmp_path / "layers.csv").open("a") as stream:
        stream.write("0,3,fc,200,800,1.0,")
    (one,) = splits(read_run(tmp_path))
    assert one.names == ("conv1", "conv2")


def test_torn_last_update_is_not_counted(tmp_path: Path) -> None:
    write_run(tmp_path, stop_reason=None)
    with (tmp_path / "updates.csv").open("a") as stream:
        stream.write(update().rstrip("\n"))
    assert part_bytes(read_run(tmp_path)).down[:, 0].tolist() == [0, 0, 1000, 100]


def test_layers_without_rows_are_no_split_yet(tmp_path: Path) -> None:
    run = run_with(tmp_path, [], [])
    with pytest.raises(AnalysisError, match="no split of a model into parts"):
        layers_table(run)
    with pytest.raises(AnalysisError, match="no participation is over yet"):
        bytes_figure(run)
    assert write_part_figures(run, tmp_path) == []


def test_damaged_log_is_named_with_its_line(tmp_path: Path) -> None:
    events = '{"type":"dispatch"}\n' + reason(0) + '{"t":2.0,"type":"split","version":4}\n'
    run = run_with(tmp_path, split(), events=events)
    with pytest.raises(AnalysisError, match=r"events\.jsonl, line 3: a split needs a number"):
        layers_table(run)
    layers_figure(run)  # needs no log
    (tmp_path / "events.jsonl").unlink()
    with pytest.raises(AnalysisError, match=r"events\.jsonl: does not exist"):
        layers_table(read_run(tmp_path))


# --- table -----------------------------------------------------------------------------------


def test_table_has_a_row_a_layer_and_sums_of_the_parts(tmp_path: Path) -> None:
    text = text_of(run_with(tmp_path, split("AAB", divergence=(0.25, "", 1))))
    assert table_rows(text) == [
        ["1", "conv1", "10", "4.0 %", "0.250", "A"],
        ["2", "conv2", "40", "16.0 %", "–", "A"],
        ["3", "fc", "200", "80.0 %", "1.000", "B"],
        ["", "2 layers", "50", "20.0 %", "", "A"],
        ["", "1 layer", "200", "80.0 %", "", "B"],
    ]
    assert caption(text) == "split after conv2, layer 2 of 3 (threshold: it is low)"


def test_caption_has_the_newest_reason_and_how_often(tmp_path: Path) -> None:
    events = reason(0, "dynamic", "at first") + reason(4, "dynamic", "[bold]later") + "{torn"
    text = text_of(run_with(tmp_path, split() + split("ABB", 4), events=events))
    assert [row[5] for row in table_rows(text)[:3]] == ["A", "B", "B"]
    assert caption(text) == (
        "split after conv1, layer 1 of 3 (dynamic: [bold]later); split 2 times, the last time at "
        "version 4"
    )


def test_split_that_the_log_does_not_have_yet_is_given_no_reason(tmp_path: Path) -> None:
    text = text_of(run_with(tmp_path, split() + split("ABB", 4)))
    assert caption(text).startswith("split after conv1, layer 1 of 3; split 2 times")


@pytest.mark.parametrize(
    ("parts", "where"),
    [
        ("AAA", "with no layer in part B"),
        ("BBB", "with no layer in part A"),
        ("ABA", "with conv1, fc in part A"),
    ],
)
def test_parts_that_are_not_lower_and_upper_layers(tmp_path: Path, parts: str, where: str) -> None:
    run = run_with(tmp_path, split(parts))
    assert splits(run)[0].where == where
    assert f"split {where}" in caption(text_of(run))
    assert layers_figure(run).get_suptitle() == f"halves: split {where}"


def deep(count: int, boundary: int, divergence: str = "0.5") -> list[tuple[Any, ...]]:
    return [
        (0, n, f"block{n}.attention.output.projection.dense", 1000, 4000, divergence,
         "A" if n <= boundary else "B")
        for n in range(1, count + 1)
    ]  # fmt: skip


@pytest.mark.parametrize(("count", "rows"), [(20, 20), (21, 21), (22, 21), (500, 21)])
def test_table_of_a_deep_model_is_cut_in_the_middle(tmp_path: Path, count: int, rows: int) -> None:
    text = text_of(run_with(tmp_path, deep(count, 15)))
    assert max(map(len, text.split("\n"))) <= 80
    numbered = [row for row in table_rows(text) if row[2]]  # a long name goes on in the next line
    assert len(numbered) == rows + 2
    assert numbered[rows - 1][0] == str(count)
    if count > 21:
        more = count - 20
        assert numbered[10][:3] == ["…", f"{more} more", f"{1000 * more:,}"]
        assert numbered[10][4:] == ["…", "A" if count == 22 else "A, B"]


def test_names_beyond_a_few_are_cut(tmp_path: Path) -> None:
    rows = [(0, n, f"l{n}", 1, 4, "", "AB"[n % 2]) for n in range(1, 31)]
    assert splits(run_with(tmp_path, rows))[0].where == (
        "with l2, l4, l6, …, l26, l28, l30 in part A"
    )


def test_very_small_share_is_not_rounded_to_nothing(tmp_path: Path) -> None:
    rows = [(0, 1, "norm", 1, 4, "", "A"), (0, 2, "empty", 0, 0, "", "A"),
            (0, 3, "fc", 25_000, 99_996, "", "B")]  # fmt: skip
    shares = [row[3] for row in table_rows(text_of(run_with(tmp_path, rows)))[:3]]
    assert shares == ["0.004 %", "0.0 %", "100.0 %"]


# --- layers ----------------------------------------------------------------------------------


def bars(axes: Axes) -> list[Any]:
    """(middle, height) of each."""
    drawn: list[Any] = list(axes.patches)
    return [(p.get_x() + p.get_width() / 2, p.get_height()) for p in drawn]


def colors(axes: Axes) -> str:
    """The parts that the bars are coloured by."""
    return "".join("A" if same_color(p.get_facecolor(), A) else "B" for p in axes.patches)


def borders(axes: Axes, style: str) -> list[float]:
    lines = [line for line in axes.lines if (line.get_linestyle() == ":") == (style == ":")]
    return [float(np.asarray(line.get_xdata())[0]) for line in lines]


def test_layers_figure_has_the_profile_and_the_shares(tmp_path: Path) -> None:
    figure = layers_figure(run_with(tmp_path, split()))
    profile, shares = figure.axes
    assert bars(profile) == [(pytest.approx(n), value) for n, value in enumerate(PROFILE, 1)]
    assert bars(shares) == [(pytest.approx(n), v) for n, v in enumerate((0.04, 0.16, 0.8), 1)]
    assert [colors(axes) for axes in (profile, shares)] == ["AAB", "AAB"]
    assert [text.get_text() for text in shares.texts] == ["4.0", "16.0", "80.0"]
    assert [text.get_text() for text in shares.get_xticklabels()] == ["conv1", "conv2", "fc"]
    assert borders(profile, "--") == borders(shares, "--") == [2.5]
    assert not profile.collections
    assert legend(figure) == ["part A: 20.0 % of the bytes", "part B: 80.0 % of the bytes", "split"]
    assert figure.get_suptitle() == "halves: split after conv2, layer 2 of 3"


def test_layers_figure_without_divergence_has_the_shares_only(tmp_path: Path) -> None:
    figure = layers_figure(run_with(tmp_path, split(divergence=("", "", ""))))
    (shares,) = figure.axes
    assert shares.get_ylabel() == "share of the bytes"
    assert len(shares.patches) == 3


def test_layer_whose_divergence_is_missing_has_a_dash(tmp_path: Path) -> None:
    profile = layers_figure(run_with(tmp_path, split(divergence=(0.5, "", 1.0)))).axes[0]
    assert [(text.get_position()[0], text.get_text()) for text in profile.texts] == [(2, "–")]
    assert profile.get_ylim() == (0, pytest.approx(1.06))


def test_infinite_divergence_has_no_place_in_a_figure(tmp_path: Path) -> None:
    profile = layers_figure(run_with(tmp_path, split(divergence=(0.5, "inf", 1.0)))).axes[0]
    assert [text.get_text() for text in profile.texts] == ["–"]


def test_earlier_splits_are_lines(tmp_path: Path) -> None:
    rows = [
        *split("AAB", 0, (0.1, 0.2, 0.4)),
        *split("ABB", 4, (0.1, "", 2.0)),
        *split("ABB", 8, PROFILE),  # as the newest one: hidden by the bars
        *split("ABB", 12, PROFILE),
    ]
    figure = layers_figure(run_with(tmp_path, rows))
    profile, shares = figure.axes
    assert [height for _, height in bars(profile)] == list(PROFILE)
    assert colors(profile) == "ABB"
    (lines,) = profile.collections
    assert isinstance(lines, LineCollection)
    first, second = (np.asarray(path.vertices) for path in lines.get_paths())
    np.testing.assert_array_equal(first, [(1, 0.1), (2, 0.2), (3, 0.4)])
    assert {(x, y) for x, y in second.tolist() if not math.isnan(y)} == {(1, 0.1), (3, 2.0)}
    assert profile.get_ylim()[1] > 2
    for axes in (profile, shares):
        assert borders(axes, "--") == [1.5]
        assert borders(axes, ":") == [2.5]
    assert legend(figure)[2:] == [
        "divergence at earlier splits", "split", "where it was split before",
    ]  # fmt: skip
    assert figure.get_suptitle().endswith("; 4 splits, the newest at version 12")


@pytest.mark.parametrize("count", [3, 120])
def test_ticks_of_the_shares_differ(tmp_path: Path, count: int) -> None:
    figure = layers_figure(run_with(tmp_path, deep(count, 2)))
    figure.draw_without_rendering()
    ticks = [text.get_text() for text in figure.axes[-1].get_yticklabels()]
    assert "0 %" in ticks
    assert len(set(ticks)) == len(ticks) > 2


def test_names_of_layers_do_not_touch(tmp_path: Path) -> None:
    for count in (3, 9, 24, 41, 90, 300):
        run = run_with(tmp_path, deep(count, 2))
        figure = layers_figure(run)
        figure.draw_without_rendering()
        labels = [text for text in figure.axes[-1].get_xticklabels() if text.get_text()]
        boxes = [text.get_window_extent() for text in labels]
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes)), count
        assert all(box.y0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes), count
        assert max(len(text.get_text()) for text in labels) <= 24


def test_dollars_in_a_name_are_no_mathematics(tmp_path: Path) -> None:
    rows = [(0, 1, "$x^{$", 1, 4, 0.5, "A"), (0, 2, "_b$", 1, 4, 1, "B")]
    figure = layers_figure(run_with(tmp_path, rows, name="$_{ a"))
    figure.draw_without_rendering()
    assert [text.get_text() for text in figure.axes[-1].get_xticklabels()] == ["$x^{$", "_b$"]


# --- bytes -----------------------------------------------------------------------------------


def stacks(axes: Axes) -> dict[str, list[Any]]:
    """By piece, (base, height) of each bar."""
    drawn: list[Any] = list(axes.containers)
    return {of.get_label(): [(b.get_y(), b.get_height()) for b in of.patches] for of in drawn}


def test_bytes_are_summed_by_version_and_piece(tmp_path: Path) -> None:
    found = part_bytes(run_with(tmp_path))
    assert found.versions.tolist() == [0, 1, 3]
    assert found.down.tolist() == [[0, 200, 3], [0, 0, 0], [1000, 0, 0], [100, 50, 50]]
    assert found.up.tolist() == [[200, 0, 0], [0, 800, 0], [1000, 0, 0], [40, 20, 0]]


def test_bytes_figure_stacks_the_pieces(tmp_path: Path) -> None:
    figure = bytes_figure(run_with(tmp_path))
    down, up = figure.axes
    assert list(stacks(down)) == list(PIECES)
    # kB, as the highest bar is 1240 bytes high; no task started from version 2
    a, b, both, rest = stacks(up).values()
    assert a == [(0, pytest.approx(0.2)), (0, 0), (0, 0), (0, 0)]
    assert b == [(pytest.approx(0.2), 0), (0, pytest.approx(0.8)), (0, 0), (0, 0)]
    assert both[:2] == [(pytest.approx(0.2), pytest.approx(1.0)), (pytest.approx(0.8), 0)]
    assert rest[:2] == [(pytest.approx(1.2), pytest.approx(0.04)),
                        (pytest.approx(0.8), pytest.approx(0.02))]  # fmt: skip
    tops = [base + height for base, height in stacks(down)[PIECES[3]]]
    assert tops == [pytest.approx(v) for v in (1.1, 0.25, 0.0, 0.053)]
    assert [axes.get_ylabel() for axes in (down, up)] == ["kB", "kB"]
    assert up.get_xlabel() == "version from which the tasks started"
    assert down.get_title(loc="left") == (
        "down, to clients: 1.4 kB (part A 203 B, whole model 1 kB, headers and control 200 B)"
    )
    assert up.get_title(loc="left").startswith("up, from clients: 2.06 kB (part A 200 B, part B")
    assert legend(figure) == [
        "part A", "part B", "whole model (pre-pass)", "headers and control messages",
    ]  # fmt: skip


def test_pieces_that_never_travel_are_not_in_the_legend(tmp_path: Path) -> None:
    figure = bytes_figure(run_with(tmp_path, updates=TASKS[1:2]))
    assert legend(figure) == ["part A", "part B", "headers and control messages"]


def test_hops_between_clients_are_counted_at_both_ends(tmp_path: Path) -> None:
    rows = [
        task(0, "A", (200, 800, 0, 50), (200, 800, 0, 50), ("training", 0, 0, "")),
        task(0, "A", (200, 800, 0, 50), (200, 0, 0, 20), ("training", 0, 0, 7)),
    ]
    run = run_with(tmp_path, split(), rows, columns=IN_CHAINS)
    assert list(run.updates) == list(IN_CHAINS)
    np.testing.assert_array_equal(run.updates["source"], [np.nan, 7])
    found = part_bytes(run)
    assert found.down[:, 0].tolist() == [400, 1600, 0, 100]
    assert found.up[:, 0].tolist() == [400, 800, 0, 70]
    titles = [axes.get_title(loc="left").split(":")[0] for axes in bytes_figure(run).axes]
    assert titles == ["down, to clients, also from others", "up, from clients, also to others"]
    assert [path.name for path in write_part_figures(run, tmp_path)] == ["layers.png", "bytes.png"]


def test_chains_whose_models_all_come_from_the_server_have_no_hops(tmp_path: Path) -> None:
    rows = [task(0, "A", (200, 800, 0, 50), (200, 0, 0, 50), ("training", 0, 0, ""))]
    figure = bytes_figure(run_with(tmp_path, split(), rows, columns=IN_CHAINS))
    assert figure.axes[0].get_title(loc="left").startswith("down, to clients: ")


def test_rounding_of_partial_hops_is_no_damage(tmp_path: Path) -> None:
    rows = [task(0, "A", (200, 0, 0, 0), (200, 0, 0, -1), ("training", 0, 0, ""))]
    found = part_bytes(run_with(tmp_path, split(), rows, columns=IN_CHAINS))
    assert found.up[:, 0].tolist() == [200, 0, 0, -1]


def in_turn(versions: int) -> list[tuple[Any, ...]]:
    """Part A up in even versions, part B in odd ones; two tasks each."""
    return [
        task(v, "AB"[v % 2], (0, 0, 0, 50), (600, 0, 0, 50) if v % 2 == 0 else (0, 3000, 0, 50))
        for v in range(versions)
        for _ in range(2)
    ]


def shapes(axes: Axes) -> list[Any]:
    """(values, edges, baseline) of each piece."""
    return [patch.get_data() for patch in axes.patches if isinstance(patch, StepPatch)]


@pytest.mark.parametrize("versions", [1, MOST_BARS])
def test_few_versions_are_bars(tmp_path: Path, versions: int) -> None:
    axes = bytes_figure(run_with(tmp_path, updates=in_turn(versions))).axes[1]
    assert not shapes(axes)
    assert {name: len(of) for name, of in stacks(axes).items()} == dict.fromkeys(PIECES, versions)
    assert axes.get_xlim() == (-0.6, versions - 0.4)


@pytest.mark.parametrize("versions", [MOST_BARS + 1, MOST_STEPS])
def test_more_versions_are_one_shape_a_piece(tmp_path: Path, versions: int) -> None:
    figure = bytes_figure(run_with(tmp_path, updates=in_turn(versions)))
    axes = figure.axes[1]
    a, b, both, rest = shapes(axes)
    assert len(axes.patches) == 4
    values, edges, base = a
    np.testing.assert_array_equal(edges, np.arange(versions + 1) - 0.5)
    np.testing.assert_allclose(values[:4], [1.2, 0, 1.2, 0])
    np.testing.assert_array_equal(base, 0)
    np.testing.assert_allclose(b.values[:4], [1.2, 6, 1.2, 6])
    np.testing.assert_array_equal(b.values, both.baseline)
    np.testing.assert_allclose(rest.values[:4], [1.3, 6.1, 1.3, 6.1])
    assert axes.get_ylabel() == "kB"


@pytest.mark.parametrize(
    ("versions", "step"), [(MOST_STEPS + 1, 2), (2000, 10), (2405, 20), (9600, 40), (25_000, 200)]
)
def test_thousands_of_versions_are_means_of_several(
    tmp_path: Path, versions: int, step: int
) -> None:
    figure = bytes_figure(run_with(tmp_path, updates=in_turn(versions)))
    axes = figure.axes[1]
    a, b, _, rest = shapes(axes)
    assert len(axes.patches) == 4
    edges = a.edges
    assert len(edges) <= MOST_STEPS + 1
    assert edges[1] - edges[0] == step
    assert edges[-1] == versions - 0.5
    # what is drawn sums up to what is in the table, and does not flicker
    total = (rest.values * np.diff(edges)).sum()
    assert total == pytest.approx(sum(row[11] for row in in_turn(versions)) / 1000)
    whole = b.values[:-1]
    np.testing.assert_allclose(whole, 3.6)
    assert axes.get_ylabel() == "kB a version"
    assert axes.get_xlabel().endswith(f"(mean of every {step:,})")


def test_damaged_version_that_is_huge_does_not_fill_the_memory(tmp_path: Path) -> None:
    run = run_with(tmp_path, updates=[*TASKS, task(10**15, "A", (0, 0, 0, 1), (0, 0, 0, 0))])
    figure = bytes_figure(run)
    assert len(shapes(figure.axes[0])[0].values) <= MOST_STEPS


# --- accuracy --------------------------------------------------------------------------------

# The first three tasks one after the other: down at 40, 150 and 250 s, up at 100, 200 and 300 s.
SENT = [
    (*row[:3], *times_s, *row[7:])
    for row, times_s in zip(
        TASKS,
        [(0.0, 40.0, 50.0, 100.0), (100.0, 150.0, 160.0, 200.0), (200.0, 250.0, 260.0, 300.0)],
        strict=False,
    )
]
ACCURACY = [(0.0, 0.1), (100.0, 0.5), (250.0, 0.72), (300.0, 0.7)]


def test_bytes_at_an_instant_are_those_of_the_transfers_until_then(tmp_path: Path) -> None:
    run = run_with(tmp_path, updates=SENT)
    at_s = np.array([0, 39.9, 40, 99.9, 100, 200, 299, 300, 1e9])
    sent = [0, 0, 1050, 1050, 2070, 3140, 3190, 3410, 3410]
    assert bytes_sent(run, at_s).tolist() == sent


def test_no_transfer_no_bytes(tmp_path: Path) -> None:
    run = run_with(tmp_path, updates=[], accuracy=[(0.0, 0.1)])
    assert bytes_sent(run, np.array([0.0, 5.0])).tolist() == [0, 0]
    assert bytes_to_accuracy_figure([run]).axes[0].get_xlim() == (0, 1)


def test_curve_is_a_step_over_bytes(tmp_path: Path) -> None:
    figure = bytes_to_accuracy_figure(
        [run_with(tmp_path, updates=SENT, accuracy=ACCURACY)], (0.5, 0.7, 0.9)
    )
    (axes,) = figure.axes
    step, crossings = (line for line in axes.lines if line.get_color() == PALETTE[0])
    assert step.get_drawstyle() == "steps-post"
    np.testing.assert_allclose(np.asarray(step.get_xdata()), [0, 2.07, 3.19, 3.41, 3.41])
    np.testing.assert_allclose(np.asarray(step.get_ydata()), [0.1, 0.5, 0.72, 0.7, 0.7])
    np.testing.assert_allclose(np.asarray(crossings.get_xdata()), [2.07, 3.19])
    assert axes.get_xlabel() == "bytes sent by server and clients (kB)"
    assert axes.get_ylabel() == "test accuracy"
    (entry,) = legend(figure)
    assert entry.split("\n")[1] == "50 %: 2.07 kB   70 %: 3.19 kB   90 %: not reached"


def test_several_runs_are_told_apart(tmp_path: Path) -> None:
    runs = [
        run_with(tmp_path / "a", accuracy=ACCURACY, name="fedavg"),
        run_with(tmp_path / "b", accuracy=ACCURACY, seed=1),
        run_with(tmp_path / "c", seed=2),
    ]
    figure = bytes_to_accuracy_figure(runs)
    assert [entry.split("\n")[0] for entry in legend(figure)] == [
        "fedavg", "halves, seed 1", "halves, seed 2",
    ]  # fmt: skip
    assert legend(figure)[2].endswith("no evaluation yet")
    assert figure.axes[0].get_title(loc="left") == "Bytes to accuracy of 3 runs"
    drawn = {line.get_color() for line in figure.axes[0].lines} - {TARGET_GRAY}
    assert drawn == set(PALETTE[:3])


def test_without_an_evaluation_there_is_no_accuracy(tmp_path: Path) -> None:
    run = run_with(tmp_path, split())
    with pytest.raises(AnalysisError, match="no evaluation of the global model yet"):
        bytes_to_accuracy_figure([run])


def test_versions_whose_time_runs_backwards_are_damaged(tmp_path: Path) -> None:
    write_run(tmp_path, accuracy=ACCURACY)
    columns = TABLE_COLUMNS["versions.csv"]
    write_table(tmp_path, "versions.csv", columns, [VERSIONS[0], VERSIONS[2], VERSIONS[1]])
    with pytest.raises(AnalysisError, match=r"versions\.csv, line 4: simulated time goes from 300"):
        versions_made(read_run(tmp_path), np.zeros(1))


@pytest.mark.parametrize(
    ("most", "unit"),
    [(0, "B"), (999, "B"), (1000, "kB"), (4e6, "MB"), (999e6, "MB"), (2e9, "GB"), (3e20, "PB")],
)
def test_unit_follows_the_range(most: float, unit: str) -> None:
    name, size = byte_unit(most)
    assert name == unit
    assert bytes_text(size) == f"1 {unit}"


# --- files -----------------------------------------------------------------------------------


def test_figures_are_written_beside_the_tables(tmp_path: Path) -> None:
    run = run_with(tmp_path, split(), accuracy=ACCURACY)
    paths = write_part_figures(run, tmp_path)
    assert [p.name for p in paths] == ["layers.png", "bytes.png", "bytes_to_accuracy.png"]
    for path in paths:
        assert path.parent == tmp_path
        assert imread(path).std() > 0.05  # something is drawn


def test_figure_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    run = run_with(tmp_path, split())
    with pytest.raises(AnalysisError, match=r"layers\.png: cannot be written"):
        write_part_figures(run, tmp_path / "absent")


SHOWN: dict[str, Callable[[Path], Path]] = {
    "parts": lambda path: write_run(path, split()),
    "parts and accuracy": lambda path: write_run(path, split(), accuracy=ACCURACY),
    "pre-pass not over": lambda path: write_run(path),
}


@pytest.mark.parametrize(
    ("case", "figures"),
    [
        ("parts", ["bytes.png", "layers.png"]),
        ("parts and accuracy", ["bytes.png", "bytes_to_accuracy.png", "layers.png"]),
        ("pre-pass not over", []),
    ],
)
def test_command_line_shows_parts_where_there_are_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str, figures: list[str]
) -> None:
    SHOWN[case](tmp_path)
    cli._show(tmp_path, {"timing_only": True})
    shown = capsys.readouterr().out
    assert "simulated time" in shown
    assert ("split after conv2, layer 2 of 3" in shown) is bool(figures)
    assert sorted(path.name for path in tmp_path.glob("*.png")) == figures
