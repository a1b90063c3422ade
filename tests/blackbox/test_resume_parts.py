"""Kill -9 in a fine-tuning round, or in a sub-round of FedMA, and run again: same log, tables and
weights, whatever the number of workers."""

from __future__ import annotations

import json
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
  clients: 12
  partition: {kind: dirichlet, alpha: 0.3}
  model: {kind: mlp, hidden: [16, 8]}
system:
  devices: {kind: phones, noise: {dist: lognormal, median: 1.0, sigma: 1.0}}
  availability: AVAILABILITY
  network: {client: {down: devices, up: devices, latency: 55 ms}}
  on_offline: pause
local: {epochs: 1, batch_size: 10, optimizer: {kind: sgd, lr: 0.05, momentum: 0.5}}
federation:
FEDERATION
evaluation: {every: {versions: 3}}
memo: {checkpoint_every: 0 s}
execution: {executor: EXECUTOR}
"""
PHONES = "{kind: phones, duty: 0.5}"
PHASES = """
    feature_learning: {epochs: 2, lr: 0.05}
    fine_tuning: {epochs: 1, lr: 0.02}"""
CASES = {
    "rounds": (
        10, PHONES,
        """
  pacing: {kind: synchronous, participants: 5, deadline: none}
  server_optimizer: {kind: fedyogi, lr: 0.05, tau: 0.1}
  payload:
    kind: divide_and_conquer
    split: {kind: dynamic, by: divergence, every: 4, rho: 0.8}
    prepass: {epochs: 2, deadline: none, participants: 5, counts: true}"""
        + PHASES,
    ),
    "client phases": (
        14, PHONES,
        """
  pacing: {kind: buffered, in_flight: 6, buffer: 3}
  objective: {kind: fedmax, beta: 1.0}
  payload:
    kind: divide_and_conquer
    split: {kind: largest_jump}
    prepass: {epochs: 2, deadline: 5 h, participants: 4}
    alternate: client_phase"""
        + PHASES,
    ),
    "fedma": (
        10, "{kind: always}",
        """
  pacing: {kind: synchronous, participants: 12, deadline: none}
  server_optimizer: {kind: fedma}""",
    ),
}  # fmt: skip


def write_scenario(folder: Path, case: str, executor: str) -> Path:
    versions, availability, federation = CASES[case]
    text = SCENARIO.replace("VERSIONS", str(versions)).replace("AVAILABILITY", availability)
    path = folder / f"{case.replace(' ', '-')}-{executor}.yaml"
    path.write_text(text.replace("FEDERATION", federation).replace("EXECUTOR", executor))
    return path


def files_of(case: str) -> tuple[str, ...]:
    return COMPARED if case == "fedma" else (*COMPARED, "layers.csv")


@pytest.fixture(scope="module", params=list(CASES))
def uninterrupted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, int]:
    """(case, run directory, trainings) of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    code, trainings = run(write_scenario(folder, request.param, "inline"), folder / "run")
    assert code == 0
    return request.param, folder / "run", trainings


@pytest.mark.parametrize(("moment", "count"), [("event", 75), ("training", 40), ("commit", 3)])
def test_killed_and_run_again(
    uninterrupted: tuple[str, Path, int], moment: str, count: int, tmp_path: Path
) -> None:
    case, expected, trainings = uninterrupted
    scenario = write_scenario(tmp_path, case, "inline")
    code, _ = run(scenario, tmp_path / "run", moment, count)
    assert code == -9
    code, total = run(scenario, tmp_path / "run")
    assert code == 0
    same_files(expected, tmp_path / "run", files_of(case))
    # A checkpoint follows every evaluation, every three versions of up to twelve clients.
    assert total <= trainings + 36


def test_killed_in_a_fine_tuning_round(
    uninterrupted: tuple[str, Path, int], tmp_path: Path
) -> None:
    """At the first upload of a task that trains part B."""
    case, expected, _ = uninterrupted
    if case == "fedma":
        pytest.skip("FedMA has no fine-tuning rounds")
    lines = [json.loads(line) for line in (expected / "events.jsonl").read_text().splitlines()]
    part = {line["task"]: line["part"] for line in lines if line["type"] == "dispatch"}
    count = next(number for number, line in enumerate(lines, start=1)
                 if line["type"] == "upload" and part[line["task"]] == "B")  # fmt: skip
    scenario = write_scenario(tmp_path, case, "inline")
    code, _ = run(scenario, tmp_path / "run", "event", count)
    assert code == -9
    code, _ = run(scenario, tmp_path / "run")
    assert code == 0
    same_files(expected, tmp_path / "run", files_of(case))


@pytest.mark.parametrize("workers", [1, 2])
def test_processes_give_the_same(
    uninterrupted: tuple[str, Path, int], workers: int, tmp_path: Path
) -> None:
    case, expected, _ = uninterrupted
    scenario = write_scenario(tmp_path, case, "processes")
    code, _ = run(scenario, tmp_path / "run", workers=workers)
    assert code == 0
    same_files(expected, tmp_path / "run", files_of(case))
