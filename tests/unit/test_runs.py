"""Finding runs, putting them together, and what they have spent until an instant."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written_runs import run_with, update, write_run

import analysis
from analysis.crossing import best_sustained, time_to_accuracy
from analysis.curves import curve
from analysis.errors import AnalysisError
from analysis.run_reader import CHAIN_COLUMNS, TABLE_COLUMNS, read_run
from analysis.runs import differences, group_runs, load_runs
from analysis.spending import bytes_sent, device_time_s, work_spans_s

ROOT = Path(__file__).resolve().parents[2]

# --- finding -------------------------------------------------------------------------------------


def test_runs_are_found_at_any_depth_once_and_by_name(tmp_path: Path) -> None:
    for place in ("sweep/b/2", "sweep/b/10", "sweep/a", "alone"):
        write_run(tmp_path / place, name=place)
    (tmp_path / "sweep" / "manifest.json").write_text("{}")  # a sweep's own, with no tables
    write_run(tmp_path / "sweep" / "a" / "inside", name="not looked for")
    given = [tmp_path / "alone", tmp_path / "sweep", tmp_path / "sweep" / "a"]
    assert [run.name for run in load_runs(given)] == ["alone", "sweep/a", "sweep/b/10", "sweep/b/2"]
    assert [run.name for run in load_runs(tmp_path / "alone")] == ["alone"]


def test_a_folder_without_runs_and_a_damaged_run_are_errors(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="neither a run directory"):
        load_runs(tmp_path)
    with pytest.raises(AnalysisError, match="does not exist"):
        load_runs(tmp_path / "no")
    write_run(tmp_path / "run")
    (tmp_path / "run" / "metrics.csv").unlink()
    with pytest.raises(AnalysisError, match=r"metrics\.csv: does not exist"):
        load_runs(tmp_path)


def test_settings_are_those_of_the_resolved_scenario(tmp_path: Path) -> None:
    run = run_with(tmp_path / "a", settings={"stop": {"target": None}, "a": {"b": [1, {"c": 2}]}})
    assert run.settings == {
        "name": "fedavg", "seed": 1, "stop.target": None, "a.b": [1, {"c": 2}],
    }  # fmt: skip
    (tmp_path / "a" / "resolved.yaml").write_text("a: [")
    with pytest.raises(AnalysisError, match=r"resolved\.yaml: is not YAML"):
        _ = read_run(tmp_path / "a").settings
    (tmp_path / "a" / "resolved.yaml").unlink()
    assert read_run(tmp_path / "a").settings == {}


# --- grouping ------------------------------------------------------------------------------------


def buffered(folder: Path, size: int, seed: int, **more: Any) -> analysis.Run:
    settings = {
        "federation": {"pacing": {"buffer": size}}, "stop": {"sim_time": 10 * seed}, "axis": 1,
        "execution": {"device": f"cuda:{seed}"},
    } | more  # fmt: skip
    return run_with(folder / f"{size}-{seed}-{len(more)}", name="fedbuff", seed=seed,
                    settings=settings)  # fmt: skip


def test_runs_of_one_name_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    runs = [buffered(tmp_path, size, seed) for seed in (2, 1) for size in (10, 5)]
    other = run_with(tmp_path / "o", name="fedavg", seed=9)
    groups = group_runs([*runs, other])
    assert [group.label for group in groups] == [
        "fedbuff (federation.pacing.buffer=10)", "fedbuff (federation.pacing.buffer=5)", "fedavg",
    ]  # fmt: skip
    assert [group.seeds for group in groups] == [(1, 2), (1, 2), (9,)]
    assert groups[0].differs == {"federation.pacing.buffer": 10}
    assert differences(groups) == {
        "federation.pacing.buffer": [10, 5, None], "axis": [1, 1, None],
    }  # fmt: skip
    assert [group.label for group in group_runs(runs[0])] == ["fedbuff"]


def test_a_setting_that_one_run_does_not_have_is_a_difference(tmp_path: Path) -> None:
    runs = [buffered(tmp_path, 5, 1), buffered(tmp_path, 5, 1, payload="full")]
    assert [group.label for group in group_runs(runs)] == ["fedbuff", "fedbuff (payload=full)"]


def test_a_seed_that_comes_twice_is_an_error(tmp_path: Path) -> None:
    runs = [run_with(tmp_path / name, name="a", seed=4) for name in ("one", "two")]
    with pytest.raises(AnalysisError, match=r"one .*two are runs of the same scenario .* \(4\)"):
        group_runs(runs)


# --- crossing ------------------------------------------------------------------------------------

HELD = [(1.0, 0.9), (2.0, 0.7), (3.0, 0.8), (4.0, 0.8)]


@pytest.mark.parametrize(
    ("points", "sustain", "censored_s"),
    [
        (HELD, 3, 3.0),  # may hold from 3 s on
        (HELD[:2], 2, 50.0),  # it does not hold at the end
        (HELD[2:], 3, 3.0),  # all meet it, and are too few
        ([], 1, 50.0),
    ],
)
def test_a_run_that_misses_is_censored_where_it_is_last_known_to(
    tmp_path: Path, points: list[tuple[float, float]], sustain: int, censored_s: float
) -> None:
    found = time_to_accuracy(run_with(tmp_path, points, end_s=50.0), 0.8, sustain=sustain)
    assert (found.reached, found.time_s, found.reached_s) == (False, censored_s, None)


@pytest.mark.parametrize(("sustain", "best"), [(1, 0.9), (2, 0.8), (3, 0.7), (5, None)])
def test_the_best_value_that_was_held_is_the_hardest_target_that_is_reached(
    tmp_path: Path, sustain: int, best: float | None
) -> None:
    run = run_with(tmp_path, HELD)
    assert best_sustained(curve(run), sustain) == best
    if best is not None:
        assert time_to_accuracy(run, best, sustain=sustain).reached
        assert not time_to_accuracy(run, best + 1e-9, sustain=sustain).reached


# --- spending ------------------------------------------------------------------------------------


def test_device_time_grows_by_each_second_of_each_device(tmp_path: Path) -> None:
    updates = [
        update(0, 0.0, 100.0),
        update(0, 40.0, 100.0),  # its device is busy until 100 s: its upload came at 140 s
        update(1, 20.0, 10.0, outcome="cancelled", wasted_s=30.0),
        update(2, 900.0, 1.0, outcome="in_flight"),
    ]
    run = run_with(tmp_path, updates=updates)
    starts_s, ends_s = work_spans_s(run)
    assert starts_s.tolist() == [0, 100, 20, 900]
    assert ends_s.tolist() == [100, 140, 50, 1000]
    at_s = np.array([0.0, 10.0, 35.0, 100.0, 120.0, 899.0, 950.0, 1000.0, 2000.0])
    assert device_time_s(run, at_s) == pytest.approx([0, 10, 50, 130, 150, 170, 220, 270, 270])


def test_what_goes_from_client_to_client_is_sent_once(tmp_path: Path) -> None:
    write_run(tmp_path)
    rows = [
        # Client 1 has its model from the server and lends it to client 2, which uploads.
        [1, "", 0, 0.0, 1.0, 2.0, 3.0, "reported", 0, 5, 100, 90, 0.0, "training", 0, 0, ""],
        [2, "", 0, 2.0, 3.0, 4.0, 5.0, "reported", 0, 5, 90, 80, 0.0, "training", 0, 0, 1],
    ]
    header = ",".join([*TABLE_COLUMNS["updates.csv"], *CHAIN_COLUMNS])
    lines = [header, *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "updates.csv").write_text("\n".join(lines) + "\n")
    run = read_run(tmp_path)
    assert bytes_sent(run, np.array([1.0, 2.9, 3.0, 5.0])).tolist() == [100, 100, 190, 270]


def test_messages_of_cohorts_count_by_their_size(tmp_path: Path) -> None:
    structure = {"structure": {"request_bytes": 16, "feedback_bytes": 4}}
    write_run(tmp_path, settings={"federation": structure})
    told = "sim_time_s,cohort,version,client,reward,side,margin\n5.0,c0,1,1,0.5,,\n7.0,c0,1,2,,,\n"
    (tmp_path / "affinity.csv").write_text(told)
    event = {"t": 2.0, "type": "check_in", "explores": True}
    log = json.dumps(event, separators=(",", ":")) + "\n"
    (tmp_path / "events.jsonl").write_text(log * 2)
    at_s = np.array([1.0, 2.0, 5.0, 7.0])
    assert bytes_sent(read_run(tmp_path), at_s).tolist() == [0, 32, 36, 40]
    (tmp_path / "resolved.yaml").unlink()
    with pytest.raises(AnalysisError, match="request_bytes is None"):
        bytes_sent(read_run(tmp_path), at_s)


# --- the library ---------------------------------------------------------------------------------


def test_every_public_name_is_there_and_nothing_is_loaded_before() -> None:
    for name in analysis.__all__:
        assert getattr(analysis, name).__doc__, name
    with pytest.raises(AttributeError, match="'comparison_tabel'"):
        _ = analysis.comparison_tabel
    code = (
        "import sys, analysis, emulator.cli; "
        "assert not {'matplotlib', 'scipy', 'numpy', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_example_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "README.md").read_text()
    example = page.split("<!-- library -->\n```python\n")[1].split("```")[0]
    for seed in (1, 2, 3):
        for name, at_s in (("fedavg", 300.0), ("fedbuff", 100.0 + seed)):
            write_run(
                tmp_path / "runs" / f"{name}-seed{seed}", [(at_s + i, 0.8) for i in range(5)],
                name=name, seed=seed, updates=[update(1, 0.0, 50.0)],
            )  # fmt: skip
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    out = capsys.readouterr().out
    assert "fedbuff 2.94" in out
    assert (tmp_path / "time_to_accuracy.pdf").read_bytes().startswith(b"%PDF")
    assert "| fedbuff | 3 of 3 |" in (tmp_path / "comparison.md").read_text()
