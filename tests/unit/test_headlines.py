"""The table and the figure that a headline's sweep ends in, from runs that are written by hand."""

from __future__ import annotations

import csv
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image
from written_runs import write_run

from emulator.sweep.plan import planned
from emulator.sweep.study import Given, read_study

STUDIES = Path(__file__).resolve().parents[2] / "scenarios" / "studies"


@pytest.fixture(scope="module")
def headlines() -> ModuleType:
    spec = importlib.util.spec_from_file_location("headlines", STUDIES / "headlines.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["headlines"] = module  # its dataclasses look for it
    spec.loader.exec_module(module)
    return module


def folders(headlines: ModuleType, name: str) -> set[str]:
    headline = headlines.HEADLINES[name]
    texts = [headline.baseline, *headline.methods.values()]
    return {text.format(setting) for text in texts for setting in headline.settings}


@pytest.mark.parametrize("name", ["spread", "optimizers", "bandwidth", "together"])
def test_a_headline_takes_all_runs_of_its_sweep(headlines: ModuleType, name: str) -> None:
    sweep = STUDIES / headlines.HEADLINES[name].folder / f"{name}.yaml"
    runs = planned(read_study(Given([sweep])))
    assert {Path(run.directory).parent.name for run in runs} == folders(headlines, name)
    assert len({run.seed for run in runs}) >= 3


def written(folder: Path, setting: str, at_s: float | None, seed: int, settings: object) -> None:
    """80 % from an instant on; with None never."""
    before = [(10.0, 0.1)]
    after = [] if at_s is None else [(at_s + i, 0.8) for i in range(3)]
    write_run(
        folder / f"seed-{seed}", [*before, *after], name=folder.name, seed=seed,
        settings={"uplink": setting, "method": settings}, host={"total_s": 60.0},
    )  # fmt: skip


def test_speed_ups_are_those_over_the_baseline_of_the_same_setting(
    headlines: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FedAvg after 100 and 400 s, and the other after 50 s each: 2 and 8 times, 4 on average. At
    the last uplink the baseline never is at 80 % in its 1000 s: more than 20 times."""
    uplinks = ("100-Mbps", "20-Mbps", "5-Mbps", "1-Mbps", "250-kbps")
    for up in uplinks:
        for seed, at_s in ((1, 100.0), (2, 400.0)):
            slow = None if up == "250-kbps" else at_s
            written(tmp_path / f"fedavg-up-{up}", up, slow, seed, "fedavg")
            written(tmp_path / f"divide-and-conquer-up-{up}", up, 50.0, seed, "dc")
    headlines.main(["bandwidth", "--runs", str(tmp_path), "--results", str(tmp_path)])
    with (tmp_path / "bandwidth.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["setting"] for row in rows[::2]] == [up.replace("-", " ") for up in uplinks]
    ours = [row for row in rows if row["method"] == "Divide-and-Conquer"]
    assert [row["time_speed_up"] for row in ours] == ["4x"] * 4 + [">20x"]
    assert {row["time"] for row in ours} == {"50.0"}
    bases = [row for row in rows if row["method"] == "baseline"]
    assert [row["reached"] for row in bases] == ["2"] * 4 + ["0"]
    assert [row["time_least"] for row in bases] == ["0"] * 4 + ["1"]
    assert {row["final_difference"] for row in ours} == {"0.0", "0.7"}
    said = capsys.readouterr().out
    assert "| 250 kbps | Divide-and-Conquer | 2 of 2 | 50 s | >20x" in said
    assert "20 min of host time" in said
    assert re.search(r"\| 20 Mbps \| Divide-and-Conquer \| 2 of 2 \| [^|]+ \| 4x \[", said)
    assert min(Image.open(tmp_path / "bandwidth.png").size) > 300
