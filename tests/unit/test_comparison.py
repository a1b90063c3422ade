"""Comparisons of runs written by hand, worked by hand; and the command that makes them."""

from __future__ import annotations

import csv
import io
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from written_runs import reaching, run_with, update, write_run

from analysis.comparison import Needed, compare, speed_up
from analysis.comparison_plots import plot_speed_ups
from analysis.comparison_tables import comparison_csv, comparison_markdown, comparison_table
from analysis.errors import AnalysisError
from analysis.plots import save_figure
from analysis.run_reader import Run
from emulator.cli import main


def runs_of(folder: Path, name: str, *at_s: float | None, **more: Any) -> list[Run]:
    """One run a seed, by when it reaches 80 % of its 1000 s; None for never."""
    return [
        reaching(folder / f"{name}-{seed}", instant, name=name, seed=seed, **more)
        for seed, instant in enumerate(at_s, start=1)
    ]


def shown(found: Any) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(comparison_table(found))
    return console.export_text()


# --- speed-ups -----------------------------------------------------------------------------------


def needed(*amounts: float | str) -> dict[int, Needed]:
    """By seed; ``"9+"`` for a run that missed the target after 9."""
    return {
        seed: Needed(not str(amount).endswith("+"), float(str(amount).rstrip("+")))
        for seed, amount in enumerate(amounts, start=1)
    }


@pytest.mark.parametrize(
    ("base", "other", "low", "high"),
    [
        ((8, 18), (4, 2), math.sqrt(2 * 9), math.sqrt(2 * 9)),  # geometric, not 5.5
        ((2, 3), (2, 3), 1, 1),
        ((10,), (4,), 2.5, 2.5),  # one seed
        (("10+",), (4,), 2.5, math.inf),  # the baseline needs more than 10
        ((10,), ("40+",), 0, 0.25),
        (("10+", 8), (5, 2), math.sqrt(2 * 4), math.inf),  # one bound makes the mean one
        (("10+", 8), (5, "16+"), 0, math.inf),  # above here, below there: nothing
        (("10+",), ("10+",), 0, math.inf),  # all missed
        (("10+", 8), ("10+", 4), 0, math.inf),  # the pair without a bound is not dropped
        ((0.0,), (4,), 0, math.inf),  # there before anything began
    ],
)
def test_speed_up(base: tuple[Any, ...], other: tuple[Any, ...], low: float, high: float) -> None:
    found = speed_up(needed(*base), needed(*other))
    assert found.low == pytest.approx(low)
    assert found.high == pytest.approx(high)


def test_only_pairs_of_one_seed_are_compared() -> None:
    base = {1: Needed(True, 10.0), 2: Needed(True, 1e9)}
    other = {1: Needed(True, 5.0), 3: Needed(True, 1e-9)}
    found = speed_up(base, other)
    assert (found.low, found.ratios) == (pytest.approx(2), {1: (2.0, 2.0)})
    assert speed_up(base, {7: Needed(True, 1.0)}).ratios == {}


def test_interval_of_a_bound_is_open_on_its_side() -> None:
    exact = speed_up(needed(8, 6, 10), needed(4, 2, 4))
    bound = speed_up(needed(8, "6+", 10), needed(4, 2, 4))
    assert exact.interval is not None
    assert bound.interval is not None
    assert exact.interval.low < exact.low < exact.interval.high
    assert bound.interval.low == exact.interval.low
    assert bound.interval.high == math.inf
    slower = speed_up(needed(8, 6, 10), needed(4, "2+", 4)).interval
    assert slower is not None
    assert (slower.low, slower.high) == (0.0, exact.interval.high)


# --- comparisons ---------------------------------------------------------------------------------


def test_medians_bounds_and_pairs_by_hand(tmp_path: Path) -> None:
    base = runs_of(tmp_path, "fedavg", 400.0, 200.0, None)
    fast = runs_of(tmp_path, "fedbuff", 100.0, 100.0, 500.0)
    found = compare([*fast, *base], base[1], 0.8)
    first, second = found.rows
    assert [row.group.label for row in found.rows] == ["fedavg", "fedbuff"]
    assert (first.reached, second.reached) == (2, 3)
    # Kaplan and Meier: 2/3 after 200 s, 1/3 after 400 s, and the third is beyond 1000 s.
    assert (first.medians["time"].value, first.medians["time"].is_bound) == (400.0, False)
    assert second.medians["time"].value == 100.0
    assert first.needed["time"][3] == Needed(False, 1000.0)
    assert first.speed_ups == {}
    # 4, 2 and more than 2.
    assert second.speed_ups["time"].low == pytest.approx(16 ** (1 / 3))
    assert second.speed_ups["time"].high == math.inf
    assert ">2.52x" in shown(found)


def test_all_missed_says_so(tmp_path: Path) -> None:
    base, other = runs_of(tmp_path, "a", None, None, None), runs_of(tmp_path, "b", None, None, None)
    found = compare(base + other, base[0], 0.8)
    assert [row.reached for row in found.rows] == [0, 0]
    assert found.rows[0].medians["time"].is_bound
    assert found.rows[1].speed_ups["time"].interval is None
    text = shown(found)
    assert "> 16 min 40 s" in text
    assert "0 of 3" in text


def test_what_crosses_and_falls_back_has_not_reached_it(tmp_path: Path) -> None:
    points = [(100.0, 0.85), (200.0, 0.7), (300.0, 0.8), (400.0, 0.81), (500.0, 0.82)]
    base = run_with(tmp_path / "a", points, name="a")
    other = run_with(tmp_path / "b", points[:2], name="b")
    late = run_with(tmp_path / "c", points[:4], name="c")
    rows = compare([base, other, late], base, 0.8, sustain=3).rows
    assert [row.needed["time"][1] for row in rows] == [
        Needed(True, 300.0),
        Needed(False, 1000.0),
        # It may have held from 300 s on: nobody looked long enough.
        Needed(False, 300.0),
    ]
    assert compare([base, other], base, 0.8, sustain=1).rows[0].needed["time"][1].amount == 100.0


def test_costs_are_counted_until_the_crossing(tmp_path: Path) -> None:
    updates = [
        update(0, 0.0, 100.0),  # 100 B down at 10 s, 50 B up at 100 s
        update(1, 50.0, 100.0),  # down at 60 s, up at 150 s: after the crossing
        update(2, 0.0, 30.0, outcome="dropped_training", wasted_s=30.0),  # down at 3 s
        update(0, 90.0, 20.0, outcome="cancelled", wasted_s=20.0),  # waits for its device to 100 s
    ]
    base = reaching(tmp_path / "a", 120.0, updates=updates, name="a")
    other = reaching(tmp_path / "b", 120.0, updates=updates[:1], name="b")
    first, second = compare([base, other], base, 0.8).rows
    spent = {cost: by[1].amount for cost, by in first.needed.items()}
    # Versions of the written runs are made when they are evaluated, at 10 s and 120 s.
    # The cancelled one downloads from 100 s on, and its table has it at 92 s.
    assert spent["time"] == 120.0
    assert spent["versions"] == 2.0
    assert spent["bytes"] == 100 + 50 + 100 + 100 + 100
    assert spent["device_time"] == pytest.approx(100 + 70 + 30 + 20)
    assert second.needed["bytes"][1].amount == 150.0
    assert second.speed_ups["bytes"].low == pytest.approx(3.0)


def test_ends_and_their_differences(tmp_path: Path) -> None:
    slow = [update(c, 0.0, 10.0 + c) for c in range(10)]  # client 9 is the slowest
    clients = {c: 0.5 + 0.04 * c for c in range(10)}
    base = [
        run_with(tmp_path / f"a{s}", [(1.0, 0.6), (2.0, 0.6 + s / 100)], name="a", seed=s,
                 updates=slow, clients=clients)
        for s in (1, 2, 3)
    ]  # fmt: skip
    better = [
        run_with(tmp_path / f"b{s}", [(1.0, 0.6), (2.0, 0.65 + s / 100)], name="b", seed=s,
                 updates=slow, clients={**clients, 0: 0.45})
        for s in (1, 2, 3)
    ]  # fmt: skip
    first, second = compare(base + better, base[0], 0.6, sustain=1).rows
    assert first.means["final"].value == pytest.approx(0.62)
    assert first.means["final"].difference is None
    assert second.means["final"].difference == pytest.approx(0.05)
    assert first.means["stragglers"].value == pytest.approx(0.86)
    assert first.means["best_tenth"].value == pytest.approx(0.86)
    assert second.means["worst_tenth"].value == pytest.approx(0.45)
    assert second.means["worst_tenth"].difference == pytest.approx(-0.05)
    text = shown(compare(base + better, base[0], 0.6, sustain=1))
    assert "-5.0 points" in text
    assert max(map(len, text.splitlines())) <= 80


def test_automatic_target_is_what_the_weakest_run_holds(tmp_path: Path) -> None:
    # Over two in a row: 0.5 and 0.6 here, 0.7 there.
    base = run_with(tmp_path / "a", [(1.0, 0.9), (2.0, 0.5), (3.0, 0.7), (4.0, 0.6)], name="a")
    other = run_with(tmp_path / "b", [(1.0, 0.7), (2.0, 0.8)], name="b")
    found = compare([base, other], base, "auto:min_best", sustain=2)
    assert found.target == 0.6
    assert str(base.directory) in found.origin
    assert [row.reached for row in found.rows] == [1, 1]
    assert "test accuracy 60 % (auto:min_best, the least best" in shown(found)
    losses = [
        run_with(tmp_path / name, [(1.0, 2.0), (2.0, v)], name=name, metric="loss")
        for name, v in (("c", 0.5), ("d", 0.9))
    ]
    assert compare(losses, losses[0], "auto:min_best", "loss", 1).target == 0.9


def test_another_split_has_its_own_curve(tmp_path: Path) -> None:
    """Over all clients both are at 70 % from the start; on members one is at 80 % after 20 s, the
    other after 60 s."""

    def at(name: str, at_s: float) -> Run:
        members = [(10.0, 0.1), *((at_s + i, 0.8) for i in range(3))]
        return run_with(tmp_path / name, [(10.0, 0.7)], name=name, members=members)

    runs = [at("slow", 60.0), at("fast", 20.0)]
    found = compare(runs, runs[0], 0.8, "members/accuracy")
    assert found.rows[1].needed["time"] == needed(20.0)
    assert found.rows[1].speed_ups["time"].low == pytest.approx(3.0)
    assert "Target: members accuracy 80 % (given)" in shown(found)
    assert found.rows[1].means["final"].value == pytest.approx(0.8)
    assert compare(runs, runs[0], 0.7, sustain=1).rows[1].needed["time"] == needed(10.0)
    with pytest.raises(AnalysisError, match="share between 0 and 1"):
        compare(runs, runs[0], 80, "members/accuracy")
    with pytest.raises(AnalysisError, match=r"no member 'accuracy' .*: accuracy, members/accuracy"):
        compare(runs, runs[0], 0.8, "member/accuracy")


def test_notes_say_what_a_reader_must_know(tmp_path: Path) -> None:
    base = runs_of(tmp_path, "a", 100.0, 100.0)
    other = runs_of(tmp_path, "b", 50.0, 60.0, 70.0, stop_reason=None, status="running")
    stopped = [
        run_with(tmp_path / f"c{s}", [(1.0, 0.1), (2.0, 0.8)], name="c", seed=s,
                 stop_reason="target")
        for s in (1, 2, 3)
    ]  # fmt: skip
    notes = compare(base + other + stopped, base[0], 0.8).notes
    assert "warning: a has 2 seeds; differences between fewer than 3 seeds say little" in notes
    assert "b: seed 3 not in both this scenario and the baseline" in "\n".join(notes)
    assert sum("not finished (running)" in note for note in notes) == 3
    assert sum("stopped at its own target before" in note for note in notes) == 3


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("eighty", r"target is 'eighty'; a number such as 0\.8, or auto:min_best"),
        ("80", r"80 % is 0\.8"),
        ("nan", "a finite number is needed"),
    ],
)
def test_bad_targets(tmp_path: Path, target: str, message: str) -> None:
    (base,) = runs_of(tmp_path, "a", 100.0)
    with pytest.raises(AnalysisError, match=message):
        compare([base], base, target)


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    base = runs_of(tmp_path, "a", 100.0, 100.0)
    with pytest.raises(AnalysisError, match=r"no evaluation .* --timing-only"):
        compare([*base, run_with(tmp_path / "t", name="t", timing_only=True)], base[0], 0.8)
    with pytest.raises(AnalysisError, match="the baseline is none of the runs"):
        compare(base[:1], base[1], 0.8)
    again = reaching(tmp_path / "again", 5.0, name="a", seed=1)
    with pytest.raises(AnalysisError, match="are runs of the same scenario"):
        compare([*base, again], base[0], 0.8)
    with pytest.raises(AnalysisError, match="has no seed to pair runs by"):
        compare([*base, reaching(tmp_path / "n", 5.0, name="n", seed=None)], base[0], 0.8)
    never = run_with(tmp_path / "nan", [(1.0, math.nan)], name="nan")
    with pytest.raises(AnalysisError, match="auto:min_best needs one"):
        compare([*base, never], base[0], "auto:min_best", sustain=1)


def test_csv_has_each_run_and_each_bound(tmp_path: Path) -> None:
    base = runs_of(tmp_path, "a", 400.0, None)
    other = runs_of(tmp_path, "b, quoted", 100.0, 100.0)
    rows = list(csv.DictReader(io.StringIO(comparison_csv(compare(base + other, base[0], 0.8)))))
    of_time = [r for r in rows if r["quantity"] == "time_s"]
    assert [(r["scenario"], r["seed"], r["value"], r["bound"]) for r in of_time] == [
        ("a", "all", "400.0", ">"), ("a", "1", "400.0", ""), ("a", "2", "1000.0", ">"),
        ("b, quoted", "all", "100.0", ""), ("b, quoted", "1", "100.0", ""),
        ("b, quoted", "2", "100.0", ""),
    ]  # fmt: skip
    assert [(r["ratio"], r["ratio_bound"]) for r in of_time[4:]] == [("4.0", ""), ("10.0", ">")]
    assert float(of_time[3]["ratio"]) == pytest.approx(math.sqrt(40))
    assert of_time[3]["ratio_bound"] == ">"
    assert {r["baseline"] for r in of_time if r["scenario"] == "a"} == {"1"}


def test_names_are_shown_as_they_are_spelled(tmp_path: Path) -> None:
    base = runs_of(tmp_path / "1", "[bold]|<b>", 100.0)
    found = compare([*base, *runs_of(tmp_path / "2", "_b_", 50.0)], base[0], 0.8)
    assert "[bold]" in shown(found)
    assert "| \\[bold\\]\\|\\<b\\> |" in comparison_markdown(found)
    save_figure(plot_speed_ups(found).figure, tmp_path / "speed_ups.svg")
    assert "_b_" in (tmp_path / "speed_ups.svg").read_text()


def test_speed_up_plot_shows_bounds_and_needs_two_scenarios(tmp_path: Path) -> None:
    base = runs_of(tmp_path, "a", 400.0, None, 200.0)
    other = runs_of(tmp_path, "b", 100.0, 100.0, 50.0)
    axes = plot_speed_ups(compare(base + other, base[0], 0.8))
    texts = {text.get_text() for text in axes.texts}
    # 4, more than 10, and 4 in time; no bytes were sent.
    assert ">5.43x" in texts
    assert "not known: no pair bounds it" in texts
    with pytest.raises(AnalysisError, match="no other scenario"):
        plot_speed_ups(compare(base, base[0], 0.8))


# --- command -------------------------------------------------------------------------------------


def fedclock(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["fedclock", "compare", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


def test_command_writes_all_three(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep, folder = tmp_path / "sweep", tmp_path / "base"
    runs_of(sweep / "deep" / "er", "b", 100.0, 50.0, 40.0)
    base = runs_of(folder, "a", 200.0, 200.0, 120.0)
    page, table = tmp_path / "page.md", tmp_path / "table.csv"
    code = fedclock(
        monkeypatch, sweep, base[1].directory, "--baseline", folder, "--target", "0.80",
        "--csv", table, "--markdown", page,
    )  # fmt: skip
    out = capsys.readouterr().out
    assert code == 0
    assert "Target: test accuracy 80 % (given), met in 3 evaluations in a row. 3 seeds" in out
    assert "2.88x" in out  # 2, 4 and 3
    assert "2.88x" in page.read_text()
    assert table.read_text().startswith("scenario,baseline,metric,target")


def test_command_refuses_with_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (base,) = runs_of(tmp_path / "runs", "a", 100.0)
    write_run(tmp_path / "torn", name="b")
    (tmp_path / "torn" / "metrics.csv").write_text("nonsense\n1\n")
    (tmp_path / "yaml").mkdir()
    write_run(tmp_path / "yaml", [(1.0, 0.1)], name="b")
    (tmp_path / "yaml" / "resolved.yaml").write_text("[1, 2]")
    for arguments, message in [
        ([tmp_path / "no", "--baseline", base.directory, "--target", "0.8"], "does not exist"),
        ([tmp_path / "runs", "--baseline", tmp_path / "runs", "--target", "x"], "target is 'x'"),
        ([tmp_path / "torn", "--baseline", base.directory, "--target", "0.8"], "metrics.csv"),
        ([tmp_path / "yaml", "--baseline", base.directory, "--target", "0.8"], "YAML mapping"),
        ([base.directory, "--target", "0.8"], "--baseline"),
        (
            [base.directory, "--baseline", base.directory, "--target", "0.8", "--csv",
             tmp_path / "no" / "t.csv"],
            "cannot be written",
        ),
    ]:  # fmt: skip
        assert fedclock(monkeypatch, *arguments) == 2, arguments
        said = capsys.readouterr().err
        assert message in said
        assert "Traceback" not in said
