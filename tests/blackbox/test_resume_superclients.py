"""Kill -9 while walkers are out of sync, run again: same log, tables and weights, whatever the
number of workers. Pre-training, FedDyn's client states and models on their way are in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_resume import COMPARED, run, same_files

SCENARIO = """
schema: 1
name: resumed
seed: 5
stop: {sim_time: 1000 h, versions: VERSIONS}
task:
  dataset: {kind: digits}
  clients: 30
  partition: {kind: dirichlet, alpha: 0.3}
  model: {kind: mlp, hidden: [16]}
  exemplars: 3
system:
  devices: {kind: phones, noise: {dist: lognormal, median: 1.0, sigma: 1.0}}
  availability: {kind: phones, duty: 0.5}
  network:
    client: {down: devices, up: devices, latency: 55 ms}
    server: {down: 2 Mbps, up: 2 Mbps}
  on_offline: drop
  drop_notice: at_once
local: {epochs: 1, batch_size: 10, optimizer: {kind: sgd, lr: 0.05}}
federation:
  pacing: PACING
  objective: OBJECTIVE
  structure:
    kind: superclients
    hop: p2p
    absent: {kind: swap, timeout: 10 min}
    grouping: {kind: greedy, min_samples: 230}
    approximator: {kind: conf}
    pretraining: {epochs: 2, absent: deadline, deadline: 5 h, similarity: [1, 2]}
evaluation: {every: {hops: 4}}
memo: {checkpoint_every: 0 s}
execution: {executor: EXECUTOR}
"""
CASES = {
    "free_hops": (
        2,
        "{kind: fedseqinter, mode: free_hops, walkers: 3, weights: uniform}",
        "{kind: feddyn, alpha: 0.1}",
    ),
    "merge": (
        10,
        "{kind: fedseqinter, mode: merge, walkers: 3, mixing: 0.6, hops: 3}",
        "{kind: fedprox, mu: 0.1}",
    ),
}
FILES = (*COMPARED, "chains.csv", "superclients.csv", "similarity.csv")


def write_scenario(folder: Path, case: str, executor: str) -> Path:
    versions, pacing, objective = CASES[case]
    text = (
        SCENARIO.replace("PACING", pacing)
        .replace("VERSIONS", str(versions))
        .replace("OBJECTIVE", objective)
    )
    path = folder / f"{case}-{executor}.yaml"
    path.write_text(text.replace("EXECUTOR", executor))
    return path


@pytest.fixture(scope="module", params=list(CASES))
def uninterrupted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, int]:
    """(case, run directory, trainings) of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    code, trainings = run(write_scenario(folder, request.param, "inline"), folder / "run")
    assert code == 0
    return request.param, folder / "run", trainings


@pytest.mark.parametrize(("moment", "count"), [("event", 150), ("commit", 4)])
def test_killed_and_run_again(
    uninterrupted: tuple[str, Path, int], moment: str, count: int, tmp_path: Path
) -> None:
    case, expected, trainings = uninterrupted
    scenario = write_scenario(tmp_path, case, "inline")
    code, _ = run(scenario, tmp_path / "run", moment, count)
    assert code == -9
    run(scenario, tmp_path / "run", "replay", 20)
    code, total = run(scenario, tmp_path / "run")
    assert code == 0
    same_files(tmp_path / "run", expected, FILES)
    # An evaluation, and a checkpoint with it, follows every four hops of a few clients each.
    assert total <= trainings + 60


@pytest.mark.parametrize("case", list(CASES))
def test_workers_change_nothing(case: str, tmp_path: Path) -> None:
    scenario = write_scenario(tmp_path, case, "processes")
    assert run(scenario, tmp_path / "one", workers=1)[0] == 0
    code, _ = run(scenario, tmp_path / "two", "training", 50, workers=2)
    assert code == -9
    assert run(scenario, tmp_path / "two", workers=2)[0] == 0
    same_files(tmp_path / "one", tmp_path / "two", FILES)
