"""Run directories written by hand, with answers known beforehand."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from rich.console import Console

from analysis import plots
from analysis.crossing import time_to_accuracy
from analysis.curves import curve
from analysis.errors import AnalysisError
from analysis.human_units import bytes_text, duration_text, target_text
from analysis.plots import save_figure, time_to_accuracy_figure
from analysis.run_reader import CHUNK_ROWS, PRESENCE_TABLES, TABLE_COLUMNS, Run, read_run
from analysis.summary import summarize, summary_table
from emulator.recording import tables

MANIFEST: dict[str, Any] = {
    "status": "done",
    "name": "fedbuff-phones",
    "scenario_sha256": "00",
    "seed": 7,
    "stop_reason": "sim_time",
    "sim_time_s": 500.0,
    "versions": 3,
    "events_sha256": "11",
    "host": {"total_s": 42.5},
    "trainings": {"run": 5, "aggregated": 4, "reused": 1},
}

VERSIONS = [
    (100.0, 1, "", 2, 0.5, 1, 100.0, 20, 10),
    (200.0, 2, "", 2, 1.0, 2, 100.0, 20, 10),
    (300.0, 3, "", 2, 0.0, 0, 100.0, 20, 10),
]

# client, cohort, version, dispatched, downloaded, trained, uploaded, outcome, staleness, samples,
# bytes down, bytes up, wasted
UPDATES = [
    (0, "", 0, 0.0, 1.0, 11.0, 12.0, "reported", 0, 50, 1000, 500, 0.0),
    (1, "", 0, 0.0, 1.0, 11.0, 13.0, "reported", 0, 50, 1000, 500, 0.0),
    (2, "", 0, 0.0, 1.0, 11.0, 410.5, "late", "", 50, 1000, 500, 30.0),
    (3, "", 1, 5.0, "", "", "", "dropped_download", "", 50, 250, 0, 7.5),
    (0, "", 2, 20.0, "", "", "", "in_flight", "", 50, 0, 0, 0.0),
]

CLIENTS = [
    (0, 2, 1, 0.75, 400.0, 80.0, 1500),
    (1, 1, 1, "", 400.0, 20.0, 1500),
    (2, 1, 0, 0.5, 400.0, 40.0, 1500),
    (3, 1, 0, "", 400.0, 10.0, 250),
]


def evaluations(*points: tuple[float, float], metric: str = "accuracy") -> list[tuple[Any, ...]]:
    return [(t, i, "", "global", "test", metric, value, 100) for i, (t, value) in enumerate(points)]


def write_table(directory: Path, file: str, rows: Iterable[Sequence[Any]]) -> None:
    with (directory / file).open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(TABLE_COLUMNS[file])
        writer.writerows(rows)


def write_run(
    directory: Path,
    metrics: Iterable[Sequence[Any]] = (),
    *,
    updates: Iterable[Sequence[Any]] = UPDATES,
    clients: Iterable[Sequence[Any]] | None = CLIENTS,
    **manifest: Any,
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "manifest.json").write_text(json.dumps(MANIFEST | manifest), encoding="utf-8")
    write_table(directory, "versions.csv", VERSIONS)
    write_table(directory, "updates.csv", updates)
    write_table(directory, "metrics.csv", metrics)
    if clients is not None:
        write_table(directory, "clients.csv", clients)
    return directory


def run_with(directory: Path, *points: tuple[float, float], **manifest: Any) -> Run:
    return read_run(write_run(directory, evaluations(*points), **manifest))


# --- reading ---------------------------------------------------------------------------------


def test_columns_are_typed_and_empty_cells_are_nan(tmp_path: Path) -> None:
    run = run_with(tmp_path, (100.0, 0.5))
    assert run.name == "fedbuff-phones"
    assert run.manifest["seed"] == 7
    assert list(run.updates) == list(TABLE_COLUMNS["updates.csv"])
    assert run.updates["outcome"].tolist() == [row[7] for row in UPDATES]
    np.testing.assert_array_equal(run.updates["uploaded_s"], [12.0, 13.0, 410.5, np.nan, np.nan])
    np.testing.assert_array_equal(run.clients["accuracy"], [0.75, np.nan, 0.5, np.nan])
    assert run.metrics["cohort"].tolist() == [""]
    assert {column.dtype.kind for column in run.versions.values()} == {"f", "U"}


def test_columns_are_those_that_a_run_writes() -> None:
    assert {
        "versions.csv": tables.VERSIONS,
        "updates.csv": tables.UPDATES,
        "metrics.csv": tables.METRICS,
        "clients.csv": tables.CLIENTS,
    } == TABLE_COLUMNS
    assert {"online.csv": tables.ONLINE, "sessions.csv": tables.SESSIONS} == PRESENCE_TABLES


def test_floats_round_trip(tmp_path: Path) -> None:
    times = [0.1 + 0.2, 1e-300, 123456789.123456789]
    run = run_with(tmp_path, *((t, 0.5) for t in times))
    assert run.metrics["sim_time_s"].tolist() == times


def test_many_rows_are_read_in_order_across_chunks(tmp_path: Path) -> None:
    count = 2 * CHUNK_ROWS + 3
    outcomes = ["late" if i < CHUNK_ROWS else "dropped_training" for i in range(count)]
    rows = [(i, "", 0, i, "", "", "", outcomes[i], "", 1, 1, 1, 0) for i in range(count)]
    run = read_run(write_run(tmp_path, updates=rows))
    assert run.updates["client"].tolist() == list(range(count))
    assert run.updates["outcome"].tolist() == outcomes


@pytest.mark.parametrize("torn", ["300.0,3,,glo", "300.0,2,,global,test,accuracy,0.9,10", "\0\0\0"])
def test_torn_last_line_is_dropped(tmp_path: Path, torn: str) -> None:
    # The second would pass for a whole row: only its line end is missing (n is 100, not 10).
    write_run(tmp_path, evaluations((100.0, 0.5), (200.0, 0.6)))
    with (tmp_path / "metrics.csv").open("a", encoding="utf-8", newline="") as stream:
        stream.write(torn)
    points = curve(read_run(tmp_path))
    assert points.time_s.tolist() == [100.0, 200.0]
    assert points.value.tolist() == [0.5, 0.6]


def test_line_torn_inside_its_line_end_or_a_character_is_dropped(tmp_path: Path) -> None:
    write_run(tmp_path, evaluations((100.0, 0.5)))
    whole = (tmp_path / "metrics.csv").read_bytes()
    for torn in (b"200.0,2,,global,test,accuracy,0.9,100\r", b"200.0,2,\xc3"):
        (tmp_path / "metrics.csv").write_bytes(whole + torn)
        assert read_run(tmp_path).metrics["sim_time_s"].tolist() == [100.0]


@pytest.mark.parametrize("content", ["", "sim_time_s,version,coh", "sim_time_s,version"])
def test_file_torn_inside_its_header_has_no_rows(tmp_path: Path, content: str) -> None:
    write_run(tmp_path, stop_reason=None)
    (tmp_path / "metrics.csv").write_text(content, encoding="utf-8")
    run = read_run(tmp_path)
    assert list(run.metrics) == list(TABLE_COLUMNS["metrics.csv"])
    assert run.metrics["value"].size == 0
    assert time_to_accuracy(run, 0.8).reached_s is None


def test_columns_in_another_order_and_more_of_them_are_read(tmp_path: Path) -> None:
    write_run(tmp_path)
    names = ["extra", *reversed(TABLE_COLUMNS["clients.csv"])]
    (tmp_path / "clients.csv").write_text(f"{','.join(names)}\nx,9,8,7,6,5,4,3\n", encoding="utf-8")
    run = read_run(tmp_path)
    assert run.clients["client"].tolist() == [3]
    assert run.clients["bytes"].tolist() == [9]
    assert "extra" not in run.clients


def test_missing_directory_and_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="nowhere: does not exist; give the directory of a run"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(AnalysisError, match=r"manifest.json: does not exist; .* is not a run dir"):
        read_run(tmp_path)
    write_run(tmp_path / "run")
    with pytest.raises(AnalysisError, match="is a file, not a directory"):
        read_run(tmp_path / "run" / "updates.csv")
    (tmp_path / "run" / "updates.csv").unlink()
    with pytest.raises(AnalysisError, match=r"updates\.csv: does not exist"):
        read_run(tmp_path / "run")


def test_error_is_one_string(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError) as caught:
        read_run(tmp_path / "nowhere")
    assert len(caught.value.args) == 1
    assert isinstance(caught.value.args[0], str)


def test_missing_column_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    write_run(tmp_path)
    path = tmp_path / "versions.csv"
    path.write_text(path.read_text("utf-8").replace("bytes_up", "byte_up"), encoding="utf-8")
    with pytest.raises(AnalysisError, match=r"line 1: column 'bytes_up' is missing.*'byte_up'"):
        read_run(tmp_path)


def test_damaged_row_is_named_by_line(tmp_path: Path) -> None:
    good = (0, "", 0, 0.0, "", "", "", "late", "", 1, 1, 1, 0)
    bad = (0, "", 0, "soon", "", "", "", "late", "", 1, 1, 1, 0)
    run = read_run(write_run(tmp_path / "a", updates=[good] * (CHUNK_ROWS + 1) + [bad, good]))
    with pytest.raises(AnalysisError, match=rf"line {CHUNK_ROWS + 3}: dispatched_s is 'soon'"):
        _ = run.updates
    run = read_run(write_run(tmp_path / "b", updates=[good, good[:-1], good]))
    with pytest.raises(AnalysisError, match="line 3: has 12 cells; the header names 13"):
        _ = run.updates


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is not JSON"), ("[1]", "holds a list"), ('{"name": 3}', "'name' is 3")],
)
def test_bad_manifest_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    write_run(tmp_path)
    (tmp_path / "manifest.json").write_text(text, encoding="utf-8")
    with pytest.raises(AnalysisError, match=message):
        read_run(tmp_path)


def test_clients_may_be_missing_only_before_the_end(tmp_path: Path) -> None:
    running = read_run(write_run(tmp_path / "a", clients=None, status="running", stop_reason=None))
    assert not running.ended
    assert running.clients["client"].size == 0
    with pytest.raises(AnalysisError, match=r"clients\.csv: does not exist"):
        read_run(write_run(tmp_path / "b", clients=None))


# --- time to accuracy ------------------------------------------------------------------------

POINTS = ((100.0, 0.5), (200.0, 0.81), (300.0, 0.7), (400.0, 0.8), (500.0, 0.9))


@pytest.mark.parametrize(
    ("target", "sustain", "expected"),
    [
        (0.5, 1, 100.0),  # met from the first evaluation on
        (0.8, 1, 200.0),
        (0.8, 2, 400.0),  # 0.81 at 200 s did not hold; 0.8 meets 0.8
        (0.7, 4, 200.0),  # the first of the four, not the last
        (0.8, 3, None),  # only two evaluations were left to see it hold
        (0.91, 1, None),
        (0.5, 6, None),  # more than there are
    ],
)
def test_time_to_accuracy(
    tmp_path: Path, target: float, sustain: int, expected: float | None
) -> None:
    run = run_with(tmp_path, *POINTS)
    assert time_to_accuracy(run, target, sustain=sustain).reached_s == expected


def test_a_target_not_reached_is_none_even_at_the_horizon(tmp_path: Path) -> None:
    assert time_to_accuracy(run_with(tmp_path, (500.0, 0.7999)), 0.8).reached_s is None


def test_only_the_global_model_on_the_test_split_counts(tmp_path: Path) -> None:
    others = [
        (10.0, 0, "", "global", "train", "accuracy", 0.99, 100),
        (10.0, 0, "", "client:3", "test", "accuracy", 0.99, 100),
        (10.0, 0, "0.1", "global", "test", "accuracy", 0.99, 100),
        (10.0, 0, "", "global", "test", "loss", 0.99, 100),
    ]
    run = read_run(write_run(tmp_path, others + evaluations((50.0, 0.9))))
    assert time_to_accuracy(run, 0.8).reached_s == 50.0
    assert curve(run).value.tolist() == [0.9]


def test_nan_never_meets_a_target(tmp_path: Path) -> None:
    run = run_with(tmp_path, (1.0, 0.9), (2.0, math.nan), (3.0, 0.9), (4.0, 0.9))
    assert time_to_accuracy(run, 0.8, sustain=2).reached_s == 3.0


def test_loss_is_met_from_above(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, evaluations((1.0, 2.0), (2.0, 0.5), metric="loss")))
    assert time_to_accuracy(run, 1.0, metric="loss").reached_s == 2.0


def test_no_evaluation_yet_is_an_empty_curve(tmp_path: Path) -> None:
    run = run_with(tmp_path)
    assert curve(run).time_s.size == 0
    assert time_to_accuracy(run, 0.8).reached_s is None


def test_bad_questions_are_errors(tmp_path: Path) -> None:
    run = run_with(tmp_path, *POINTS)
    with pytest.raises(AnalysisError, match=r"no test 'acuracy' .* measured were: accuracy"):
        curve(run, "acuracy")
    with pytest.raises(AnalysisError, match=r"target is 80; .* 80 % is 0\.8"):
        time_to_accuracy(run, 80)
    with pytest.raises(AnalysisError, match="target is nan"):
        time_to_accuracy(run, math.nan)
    with pytest.raises(AnalysisError, match="sustain is 0"):
        time_to_accuracy(run, 0.8, sustain=0)


def test_time_that_runs_backwards_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match=r"goes from 200\.0 s to 100\.0 s"):
        curve(run_with(tmp_path, (200.0, 0.5), (100.0, 0.6)))


# --- summary ---------------------------------------------------------------------------------


def test_summary_of_a_run_that_ended(tmp_path: Path) -> None:
    summary = summarize(run_with(tmp_path, *POINTS, (500.0, 0.85)), targets=(0.7, 0.95))
    assert summary.name == "fedbuff-phones"
    assert (summary.status, summary.stop_reason) == ("done", "sim_time")
    assert summary.simulated_s == 500.0
    assert summary.versions == 3
    assert summary.evaluations == 6
    assert (summary.final_accuracy, summary.best_accuracy) == (0.85, 0.9)
    assert summary.time_to_target_s == {0.7: 200.0, 0.95: None}
    assert (summary.bytes_down, summary.bytes_up) == (3250, 1500)
    assert summary.wasted_device_s == 37.5
    assert summary.busy_device_s == 150.0
    assert summary.wasted_share == 0.25
    assert list(summary.outcomes.items()) == [
        ("reported", 2),
        ("late", 1),
        ("dropped_download", 1),
        ("in_flight", 1),
    ]
    assert summary.not_reported_share == 0.5  # of four that are over, not of five
    assert summary.trainings_run == 5
    assert summary.trainings_aggregated == 4
    assert summary.trainings_reused == 1
    assert summary.host_s == 42.5


def test_summary_of_a_killed_run(tmp_path: Path) -> None:
    run = run_with(
        tmp_path,
        (250.0, 0.6),
        clients=None,
        status="running",
        stop_reason=None,
        sim_time_s=0.0,
        host={},
        trainings=None,
    )
    summary = summarize(run)
    assert summary.simulated_s == 410.5  # the late upload is the last thing on file
    assert summary.final_accuracy == 0.6
    assert summary.wasted_device_s == 37.5
    assert (summary.busy_device_s, summary.wasted_share) == (None, None)
    assert (summary.trainings_run, summary.host_s) == (None, None)


def test_summary_of_a_run_that_has_just_begun(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, updates=[], clients=None, stop_reason=None))
    write_table(tmp_path, "versions.csv", [])
    summary = summarize(run)
    assert (summary.simulated_s, summary.versions, summary.evaluations) == (0.0, 0, 0)
    assert (summary.final_accuracy, summary.best_accuracy) == (None, None)
    assert set(summary.time_to_target_s.values()) == {None}
    assert (summary.bytes_down, summary.bytes_up, summary.outcomes) == (0, 0, {})
    assert summary.not_reported_share is None
    assert "none" in render(run)


def test_summary_of_a_model_that_diverged(tmp_path: Path) -> None:
    run = run_with(tmp_path, (1.0, 0.4), (2.0, math.nan))
    summary = summarize(run)
    assert math.isnan(summary.final_accuracy or 0.0)
    assert summary.best_accuracy == 0.4
    assert "not finite" in render(run)


def render(run: Run, width: int = 80) -> str:
    console = Console(width=width, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(summary_table(summarize(run)))
    return capture.get()


def test_table_fits_80_columns_and_reads_well(tmp_path: Path) -> None:
    text = render(run_with(tmp_path, *POINTS, sim_time_s=11520.0))
    assert max(len(line) for line in text.splitlines()) <= 80
    rows = {
        cells[1].strip(): cells[2].strip()
        for line in text.splitlines()
        if len(cells := line.split("│")) == 4
    }
    assert rows["status"] == "done (sim_time)"
    assert rows["simulated time"] == "3 h 12 min"
    assert rows["final test accuracy"] == "90.00 %"
    assert rows["time to 80 %"] == "3 min 20 s"
    assert rows["time to 85 %"] == "8 min 20 s"
    assert rows["bytes down"] == "3.25 kB"
    assert rows["wasted share"] == "25.0 % of busy device time"
    assert rows["not reported"] == "50.0 % of 4 that are over"
    assert rows["dropped_download"] == "1"
    assert rows["host time"] == "42.5 s"


def test_a_name_is_shown_as_spelled_and_folded_not_cut(tmp_path: Path) -> None:
    name = "[bold]x[/bold] " + "n" * 150
    text = render(run_with(tmp_path, (1.0, 0.5), name=name))
    assert "[bold]x[/bold]" in text
    assert text.count("n" * 10) > 0
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (0.0, "0 s"),
        (0.0421, "0.0421 s"),
        (12.34, "12.3 s"),
        (59.7, "1 min"),
        (252.0, "4 min 12 s"),
        (3599.7, "1 h"),
        (11520.0, "3 h 12 min"),
        (95 * 3600.0, "95 h"),
        (99 * 3600.0, "4 d 3 h"),
    ],
)
def test_duration_text(duration_s: float, text: str) -> None:
    assert duration_text(duration_s) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (41_300_000, "41.3 MB"),
        (999_600, "1 MB"),
        (5 * 10**18, "5000 PB"),
    ],
)
def test_bytes_text_is_decimal(size_bytes: int, text: str) -> None:
    assert bytes_text(size_bytes) == text


def test_target_text() -> None:
    assert [target_text(t) for t in (0.8, 0.855, 0.29, 1.0)] == ["80 %", "85.5 %", "29 %", "100 %"]


# --- plots -----------------------------------------------------------------------------------


def test_curve_is_a_step_to_the_end_and_crossings_are_marked(tmp_path: Path) -> None:
    run = run_with(tmp_path, *POINTS, sim_time_s=600.0)
    figure = time_to_accuracy_figure([run], targets=(0.8, 0.95))
    (axes,) = figure.axes
    step, crossings = (line for line in axes.lines if line.get_color() == plots.PALETTE[0])
    assert step.get_drawstyle() == "steps-post"
    np.testing.assert_allclose(
        np.asarray(step.get_xdata()), np.array([100, 200, 300, 400, 500, 600]) / 60
    )
    np.testing.assert_allclose(
        np.asarray(step.get_ydata()), np.array([0.5, 0.81, 0.7, 0.8, 0.9, 0.9])
    )
    np.testing.assert_allclose(
        np.asarray(crossings.get_xdata()), np.array([200 / 60])
    )  # 0.95 has none
    np.testing.assert_allclose(np.asarray(crossings.get_ydata()), np.array([0.8]))
    assert axes.get_xlabel() == "simulated time (min)"
    assert axes.get_title(loc="left") == "fedbuff-phones"
    (entry,) = figure.legends[0].get_texts()
    assert entry.get_text().split("\n")[1] == "80 %: 3 min 20 s   95 %: not reached"


@pytest.mark.parametrize(
    ("end_s", "unit"), [(90.0, "s"), (3600.0, "min"), (48 * 3600.0, "h"), (30 * 86400.0, "d")]
)
def test_time_unit_follows_the_range(tmp_path: Path, end_s: float, unit: str) -> None:
    run = run_with(tmp_path, (end_s / 2, 0.5), sim_time_s=end_s)
    axes = time_to_accuracy_figure([run]).axes[0]
    assert axes.get_xlabel() == f"simulated time ({unit})"


def test_several_runs_are_told_apart(tmp_path: Path) -> None:
    runs = [
        run_with(tmp_path / "a", (1.0, 0.5), name="_fedavg $x$"),
        run_with(tmp_path / "b", (1.0, 0.6), name="fedbuff", seed=1),
        run_with(tmp_path / "c", (1.0, 0.7), name="fedbuff", seed=2),
        run_with(tmp_path / "d", (1.0, 0.7), name="fedasync", seed=2),
        run_with(tmp_path / "e", name="fedasync", seed=2),
    ]
    figure = time_to_accuracy_figure(runs)
    labels = [text.get_text().split("\n") for text in figure.legends[0].get_texts()]
    assert [label[0] for label in labels[:3]] == [
        "_fedavg $x$",
        "fedbuff, seed 1",
        "fedbuff, seed 2",
    ]
    assert len({tuple(label) for label in labels}) == 5
    assert labels[4][-1] == "no evaluation yet"
    colors = [
        line.get_color() for line in figure.axes[0].lines if line.get_color() != plots.TARGET_GRAY
    ]
    assert len(set(colors)) == 5


def test_files_are_written_and_hold_a_picture(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", *POINTS, (500.0, math.nan), name="_$x^{$ a_b")
    save_figure(time_to_accuracy_figure([run]), tmp_path / "figure.png")
    pixels = imread(tmp_path / "figure.png")
    assert pixels.shape[1] == 1440
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 10
    save_figure(time_to_accuracy_figure([run]), tmp_path / "a.pdf")
    save_figure(time_to_accuracy_figure([run]), tmp_path / "b.pdf")
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "a.pdf").read_bytes() == (tmp_path / "b.pdf").read_bytes()


def test_what_cannot_be_plotted_is_an_error(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", *POINTS)
    with pytest.raises(AnalysisError, match=r"ends in \.svg, \.pdf, \.png, not in '\.jpg'"):
        save_figure(time_to_accuracy_figure([run]), tmp_path / "figure.jpg")
    with pytest.raises(AnalysisError, match="cannot be written"):
        save_figure(time_to_accuracy_figure([run]), tmp_path / "nowhere" / "figure.png")
    with pytest.raises(AnalysisError, match="no evaluation of the global model yet"):
        save_figure(
            time_to_accuracy_figure([run_with(tmp_path / "empty")]), tmp_path / "figure.png"
        )
    with pytest.raises(AnalysisError, match="no run was given"):
        save_figure(time_to_accuracy_figure([]), tmp_path / "figure.png")
