"""What no result depends on is never trained, and what was trained once is not trained again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from emulator.run import Options, run
from emulator.scenario import load_scenario

SCENARIO = """
schema: 1
name: lazy
seed: 4
stop: {sim_time: 200 h, versions: 12}
task:
  dataset: {kind: digits}
  clients: 40
  partition: {kind: dirichlet, alpha: 0.3}
  model: {kind: mlp, hidden: [16]}
system:
  devices: {kind: phones, noise: {dist: lognormal, median: 1.0, sigma: 0.5}}
  availability: AVAILABILITY
  network:
    client: {down: devices, up: devices, latency: 55 ms}
    server: {down: 2 Mbps, up: 2 Mbps}
local: {epochs: 1, batch_size: 10, optimizer: {kind: sgd, lr: 0.05}}
federation:
  pacing: PACING
  objective: OBJECTIVE
evaluation: {every: {versions: 4}}
"""
OVER_COMMITTED = (
    "{kind: synchronous, participants: 6, over_commitment: 1.3, deadline: 1 h, too_few: proceed}"
)


def execute(
    folder: Path, name: str, *, availability: str, pacing: str, objective: str = "{kind: plain}",
    overrides: tuple[str, ...] = (), memo: Path | None = None, timing_only: bool = False,
) -> dict[str, Any]:  # fmt: skip
    text = SCENARIO.replace("AVAILABILITY", availability).replace("PACING", pacing)
    path = folder / f"{name}.yaml"
    path.write_text(text.replace("OBJECTIVE", objective))
    scenario, source = load_scenario(path, overrides)
    options = Options(folder / name, memo, timing_only)
    return run(scenario, source, options, lambda server, accuracy: None)


@pytest.mark.parametrize("objective", ["{kind: plain}", "{kind: scaffold, option: I}"])
def test_only_what_versions_take_is_trained(objective: str, tmp_path: Path) -> None:
    manifest = execute(
        tmp_path, "run", availability="{kind: phones, duty: 0.4}", pacing=OVER_COMMITTED,
        objective=objective,
    )  # fmt: skip
    rows = (tmp_path / "run" / "updates.csv").read_text().split()[1:]
    outcomes = [row.split(",")[7] for row in rows]
    assert outcomes.count("reported") == manifest["trainings"]["aggregated"]
    assert manifest["trainings"]["run"] == outcomes.count("reported")
    assert len(outcomes) > 1.1 * outcomes.count("reported")


@pytest.mark.parametrize("pacing", [OVER_COMMITTED, "{kind: buffered, in_flight: 8, buffer: 4}"])
def test_timing_only_tells_the_same_story(pacing: str, tmp_path: Path) -> None:
    for timing_only in (False, True):
        execute(
            tmp_path, f"timing-{timing_only}", availability="{kind: phones, duty: 0.4}",
            pacing=pacing, timing_only=timing_only,
        )  # fmt: skip
    logs = [(tmp_path / f"timing-{t}" / "events.jsonl").read_bytes() for t in (False, True)]
    assert logs[0] == logs[1]


def test_another_network_trains_nothing_again(tmp_path: Path) -> None:
    pacing = "{kind: synchronous, participants: 6, deadline: none}"
    fast = execute(tmp_path, "fast", availability="{kind: always}", pacing=pacing)
    slow = execute(
        tmp_path, "slow", availability="{kind: always}", pacing=pacing, memo=tmp_path / "fast",
        overrides=("system.network.server.down=0.2 Mbps", "system.network.server.up=0.2 Mbps"),
    )  # fmt: skip
    assert fast["trainings"] == {"run": 72, "aggregated": 72, "reused": 0}
    assert slow["trainings"] == {"run": 0, "aggregated": 72, "reused": 72}
    assert slow["sim_time_s"] > fast["sim_time_s"]
    values = [
        [row.split(",")[1:] for row in (tmp_path / name / "metrics.csv").read_text().split()]
        for name in ("fast", "slow")
    ]
    assert values[0] == values[1]
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("fast", "slow")]
    assert models[0] == models[1]


def test_kept_versions_are_where_another_run_starts_from(tmp_path: Path) -> None:
    pacing = "{kind: synchronous, participants: 6, deadline: none}"
    kept = ("memo.keep=versions",)
    execute(tmp_path, "long", availability="{kind: always}", pacing=pacing, overrides=kept)
    # Evaluated at other versions: every version's model is there, and none is trained again.
    other = execute(
        tmp_path, "other", availability="{kind: always}", pacing=pacing, memo=tmp_path / "long",
        overrides=("evaluation.every.versions=3",),
    )  # fmt: skip
    assert other["trainings"]["run"] == 0


def test_a_finished_run_is_extended(tmp_path: Path) -> None:
    settings = {"availability": "{kind: phones, duty: 0.4}", "pacing": OVER_COMMITTED}
    execute(tmp_path, "run", **settings)
    extended = execute(tmp_path, "run", **settings, overrides=("stop.versions=18",))
    at_once = execute(tmp_path, "at-once", **settings, overrides=("stop.versions=18",))
    assert extended["trainings"]["run"] == at_once["trainings"]["run"] - 72
    for name in ("events.jsonl", "updates.csv", "versions.csv", "metrics.csv", "clients.csv",
                 "model.safetensors"):  # fmt: skip
        one, other = (tmp_path / d / name for d in ("run", "at-once"))
        assert one.read_bytes() == other.read_bytes(), name
    earlier = json.loads((tmp_path / "run" / "manifest.json").read_text())["earlier"]
    assert [e["status"] for e in earlier] == ["done"]
