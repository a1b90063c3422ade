"""What the plots of runs draw, from runs written by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from written_runs import run_with, update

import analysis
from analysis.accuracy_plots import (
    mean_steps,
    plot_accuracy_against_bytes,
    plot_accuracy_against_device_time,
    plot_accuracy_against_versions,
    plot_time_to_accuracy,
)
from analysis.client_plots import (
    at_work_by_hour,
    lorenz,
    plot_clients_over_day,
    plot_fairness,
    plot_participation,
)
from analysis.errors import AnalysisError
from analysis.participation_plots import (
    phase_durations_s,
    plot_round_durations,
    plot_staleness,
    plot_wasted_work,
)
from analysis.plots import PALETTE, save_figure
from analysis.run_reader import Run

UPDATES = [
    update(0, 0.0, 100.0),
    update(1, 0.0, 200.0, staleness=2),
    update(0, 300.0, 100.0, staleness=1),
    update(2, 100.0, 30.0, outcome="cancelled", wasted_s=100.0),
]


def seeds(folder: Path, *finals: float, name: str = "fedavg") -> list[Run]:
    """Runs of a scenario that are at 20 % at 0 s and at these values from 120 s on."""
    return [
        run_with(folder / f"{name}{seed}", [(0.0, 0.2), (120.0, value)], name=name, seed=seed,
                 end_s=600.0, updates=UPDATES, clients={0: 0.2, 1: 0.6, 2: 1.0})
        for seed, value in enumerate(finals, start=1)
    ]  # fmt: skip


def legend(axes: Axes) -> list[str]:
    found = axes.get_legend()
    assert found is not None
    return [text.get_text().replace("\n", " ") for text in found.get_texts()]


def thick(axes: Axes) -> list[tuple[list[float], list[float]]]:
    """The lines of means: (x, y)."""
    lines = [line for line in axes.lines if line.get_linewidth() == 2.0]
    return [(np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist())
            for line in lines]  # fmt: skip


# --- accuracy ------------------------------------------------------------------------------------


def test_seeds_have_a_mean_a_band_and_a_dot_each(tmp_path: Path) -> None:
    runs = [*seeds(tmp_path, 0.6, 0.8, 1.0), *seeds(tmp_path, 0.5, name="one")]
    axes = plot_time_to_accuracy(runs, targets=[0.8])
    assert legend(axes) == ["fedavg (3 seeds)", "one"]
    ((x, y),) = thick(axes)
    assert x == [0, 2, 10]  # minutes
    assert y == pytest.approx([0.2, 0.8, 0.8])
    (band,) = axes.collections
    low, high = band.get_paths()[0].get_extents().intervaly
    assert (low, high) == pytest.approx((0.2, 1.0))
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [line.get_xydata().tolist() for line in dots] == [[[2.0, 0.8]], [[2.0, 0.8]]]
    assert axes.get_xlabel() == "simulated time (min)"
    assert axes.get_ylabel() == "test accuracy"


def test_mean_ends_where_the_first_seed_does() -> None:
    long = (np.array([0.0, 10.0, 30.0]), np.array([0.1, 0.5, 0.9]))
    short = (np.array([5.0, 20.0]), np.array([0.3, 0.3]))
    grid, values = mean_steps([long, short])
    assert grid.tolist() == [5.0, 10.0, 20.0]
    assert values.tolist() == [[0.1, 0.5, 0.5], [0.3, 0.3, 0.3]]


def test_accuracy_over_what_was_spent(tmp_path: Path) -> None:
    runs = seeds(tmp_path, 0.6, 0.8)
    over = {
        # One version at 0 s and one at 120 s.
        plot_accuracy_against_versions: ([1.0, 2.0], "versions"),
        # By 0 s nothing. By 120 s down at 10, 20 and 103 s, up at 100 s; by 600 s all of it.
        plot_accuracy_against_bytes: ([0.0, 350.0, 550.0], "bytes sent by server and clients (B)"),
        # 100 + 120 + 20 by 120 s; then 80, 100 and 80 more, in minutes.
        plot_accuracy_against_device_time: ([0.0, 4.0, 500 / 60], "device time (min)"),
    }
    for plot, (amounts, label) in over.items():
        axes = plot(runs)
        ((x, _),) = thick(axes)
        assert x == pytest.approx(amounts), plot
        assert axes.get_xlabel() == label


def test_another_metric_is_no_share(tmp_path: Path) -> None:
    runs = [run_with(tmp_path / "a", [(1.0, 3.0), (2.0, 2.5)], metric="loss")]
    axes = plot_time_to_accuracy(runs, metric="loss", targets=[2.75])
    assert axes.get_ylabel() == "test loss"
    assert [line.get_xydata().tolist() for line in axes.lines if line.get_marker() == "o"]
    assert "2.75" in [text.get_text() for text in axes.texts]


# --- participations ------------------------------------------------------------------------------


def test_phases_last_what_the_table_says(tmp_path: Path) -> None:
    (run,) = seeds(tmp_path, 0.6)
    found = phase_durations_s(run)
    assert found["download"] == pytest.approx([10, 20, 10, 3])
    assert found["training"] == pytest.approx([80, 160, 80])
    assert found["upload"] == pytest.approx([10, 20, 10])
    texts = legend(plot_round_durations(run))
    assert texts[:2] == ["download: median 10 s", "training: median 1 min 20 s"]
    assert texts[3] == "round: median 10 s"


def test_staleness_is_that_of_reported_updates(tmp_path: Path) -> None:
    axes = plot_staleness(seeds(tmp_path, 0.6, 0.8))
    assert legend(axes) == ["fedavg: mean 1.00, most 2"]
    assert axes.patches[0].get_data().values.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3])


def test_wasted_work_is_device_time_by_outcome(tmp_path: Path) -> None:
    axes = plot_wasted_work([*seeds(tmp_path, 0.6, 0.8), *seeds(tmp_path, 0.5, name="_$b")])
    # 400 s reported and 100 s cancelled in each run.
    widths = [[bar.get_width() for bar in bars] for bars in axes.containers]
    assert np.array(widths) == pytest.approx(np.array([[400, 400], [100, 100]]) / 60)
    assert [text.get_text().strip() for text in axes.texts] == ["20.0 % wasted"] * 2
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["fedavg", "_$b"]


# --- clients -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "shares", "gini"),
    [
        ([5, 5, 5, 5], [0, 0.25, 0.5, 0.75, 1], 0.0),
        ([0, 0, 8, 0], [0, 0, 0, 0, 1], 0.75),
        ([3, 1], [0, 0.25, 1], 0.25),
    ],
)
def test_lorenz(counts: list[int], shares: list[float], gini: float) -> None:
    found, coefficient = lorenz(np.array(counts))
    assert found.tolist() == shares
    assert coefficient == pytest.approx(gini)


def test_participation_counts_who_never_reports(tmp_path: Path) -> None:
    # Two, one and none of three: shares 0, 1/3 and 2/3.
    assert legend(plot_participation(seeds(tmp_path, 0.6))) == [
        "fedavg: Gini 0.44, never 33.3 % of clients"
    ]


def test_fairness_is_of_clients_own_accuracy(tmp_path: Path) -> None:
    axes = plot_fairness(seeds(tmp_path, 0.6))
    assert legend(axes) == ["fedavg: worst tenth 20.0 %, best 100.0 %"]
    x, y = axes.lines[0].get_data()
    np.testing.assert_allclose(np.asarray(x), [0, 0.2, 0.6, 1.0])
    np.testing.assert_allclose(np.asarray(y), [0, 1 / 3, 2 / 3, 1])


def test_clients_at_work_by_hour_of_the_day(tmp_path: Path) -> None:
    updates = [update(0, 0.0, 1800.0), update(1, 3600.0, 7200.0), update(2, 24 * 3600.0, 3600.0)]
    run = run_with(tmp_path, updates=updates, end_s=25 * 3600.0)
    # Hour 0 comes twice: half an hour, and a whole one.
    found = at_work_by_hour(run)
    assert found[:4] == pytest.approx([0.75, 1, 1, 0])
    assert plot_clients_over_day(run).patches[0].get_data().values == pytest.approx(found)
    short = run_with(tmp_path / "short", updates=updates[:1], end_s=3600.0)
    assert np.isnan(at_work_by_hour(short)[1:]).all()


# --- all of them ---------------------------------------------------------------------------------

# Those of a comparison, and of one run with its event log, have tests of their own.
OTHERS = {"plot_speed_ups", "plot_client_timeline"}
PLOTS = [
    getattr(analysis, name)
    for name in analysis.__all__
    if name.startswith("plot_") and name not in OTHERS
]


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.__name__)
def test_plots_draw_on_given_axes_or_their_own(plot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (run,) = seeds(tmp_path / "run", 0.6)
    given = Figure().add_subplot()
    assert plot(run, given) is given
    assert given.get_title(loc="left")
    assert given.get_xlabel()
    assert given.get_legend() is not None
    own = plot(run)
    assert isinstance(own, Axes)
    assert own.figure is not given.figure
    with pytest.raises(AnalysisError, match="nothing to plot"):
        plot(run_with(tmp_path / "empty", end_s=0.0, settings={"task": {"clients": 3}}))
    with pytest.raises(AnalysisError, match="nothing to plot"):
        plot([])


def test_a_figure_is_written_as_svg_pdf_and_png_the_same_each_time(tmp_path: Path) -> None:
    axes = plot_time_to_accuracy(seeds(tmp_path / "runs", 0.6, 0.8))
    heads = {".svg": b"<?xml", ".pdf": b"%PDF", ".png": b"\x89PNG"}
    for suffix, head in heads.items():
        files = [tmp_path / f"{name}{suffix}" for name in "ab"]
        for path in files:
            save_figure(axes.figure, path)
        assert files[0].read_bytes().startswith(head)
        assert files[0].read_bytes() == files[1].read_bytes()
    assert PALETTE[0].lower() in (tmp_path / "a.svg").read_text()
