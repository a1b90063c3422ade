"""Kill -9 at any moment, run the same command again: the result is that of a run never killed.

Also: the number of workers changes nothing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import killer
import pytest

killer.start_server()

COMPARED = ("events.jsonl", "metrics.csv", "versions.csv", "updates.csv", "clients.csv",
            "online.csv", "sessions.csv", "model.safetensors")  # fmt: skip
SCENARIO = """
schema: 1
name: resumed
seed: 5
stop: {sim_time: 100 h, versions: 12}
task:
  dataset: {kind: digits}
  clients: 30
  partition: {kind: dirichlet, alpha: 0.3}
  model: {kind: mlp, hidden: [16]}
system:
  devices: {kind: phones, noise: {dist: lognormal, median: 1.0, sigma: 0.3}}
  availability: {kind: phones, duty: 0.5}
  network:
    client: {down: devices, up: devices, latency: 55 ms}
    server: {down: 2 Mbps, up: 2 Mbps}
local: {epochs: 1, batch_size: 10, optimizer: {kind: sgd, lr: 0.05}}
federation:
  pacing: PACING
  objective: OBJECTIVE
  server_optimizer: OPTIMIZER
evaluation: {every: {versions: 2}}
memo: {checkpoint_every: 0 s}
execution: {executor: EXECUTOR}
"""
SYNCHRONOUS = (
    "{kind: synchronous, participants: 5, over_commitment: 1.3, deadline: 1 h, too_few: proceed}"
)
BUFFERED = "{kind: buffered, in_flight: 8, buffer: 4}"
CASES = {
    "synchronous-scaffold": (SYNCHRONOUS, "{kind: scaffold, option: II}", "{kind: average}"),
    "buffered-scaffold-yogi": (BUFFERED, "{kind: scaffold, option: I}", "{kind: fedyogi}"),
}


def write_scenario(folder: Path, case: str, executor: str) -> Path:
    pacing, objective, optimizer = CASES[case]
    text = SCENARIO.replace("PACING", pacing).replace("OBJECTIVE", objective)
    path = folder / f"{case}-{executor}.yaml"
    path.write_text(text.replace("OPTIMIZER", optimizer).replace("EXECUTOR", executor))
    return path


def run(
    scenario: Path, out: Path, moment: str = "never", count: int = 0, workers: int = 1
) -> tuple[int, int]:
    """(exit code, trainings so far in this directory, killed processes included)."""
    log = out.with_suffix(".trainings")
    arguments = ("run", scenario, "--out", out, "--workers", workers, "--quiet")
    code = killer.run(arguments, moment, count, log)
    return code, log.stat().st_size if log.exists() else 0


def planted_phones(
    rest: str, *, versions: int, clients: int, clusters: int, on_offline: str
) -> str:
    """A scenario of clients of several kinds on phones that come and go; ``rest`` begins with
    ``federation``."""
    return f"""
schema: 1
name: resumed
seed: 3
stop: {{sim_time: 1000 h, versions: {versions}}}
task:
  dataset: {{kind: digits}}
  clients: {clients}
  partition: {{kind: iid}}
  planted: {{kind: label_permutation, clusters: {clusters}}}
  client_test: 0.2
  model: {{kind: logistic}}
system:
  devices: {{kind: phones, noise: {{dist: lognormal, median: 1.0, sigma: 1.0}}}}
  availability: {{kind: phones, duty: 0.5}}
  network: {{client: {{down: devices, up: devices, latency: 55 ms}}}}
  on_offline: {on_offline}
local: {{epochs: 1, batch_size: 10, optimizer: {{kind: sgd, lr: 0.1}}}}
{rest.strip()}
memo: {{checkpoint_every: 0 s}}
execution: {{executor: EXECUTOR}}
"""


def undisturbed(
    scenario: Path, folder: Path, models: int, tables: Sequence[str]
) -> tuple[Path, tuple[str, ...]]:
    """(the directory, files to compare) of a run that nobody disturbed, with so many models."""
    assert run(scenario, folder / "run")[0] == 0
    found = sorted(path.name for path in (folder / "run").glob("model-*.safetensors"))
    assert len(found) == models
    return folder / "run", (*tables, *found)


def same_files(one: Path, other: Path, names: Sequence[str] = COMPARED) -> None:
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.fixture(scope="module", params=list(CASES))
def uninterrupted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, int]:
    """(case, run directory, trainings) of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    code, trainings = run(write_scenario(folder, request.param, "inline"), folder / "run")
    assert code == 0
    return request.param, folder / "run", trainings


def test_trainings_are_the_updates_that_versions_took(
    uninterrupted: tuple[str, Path, int],
) -> None:
    _, directory, trainings = uninterrupted
    taken = sum(
        int(row.split(",")[3]) for row in (directory / "versions.csv").read_text().split()[1:]
    )
    assert trainings == taken


@pytest.mark.parametrize(
    "moment",
    ["event", "training", "checkpoint", "commit", "delete"],
)
def test_killed_and_run_again(
    uninterrupted: tuple[str, Path, int], moment: str, tmp_path: Path
) -> None:
    case, expected, trainings = uninterrupted
    drawn = random.Random(f"{case}/{moment}")
    count = {
        "event": drawn.randrange(40, 120),
        "training": drawn.randrange(15, 40),
        "checkpoint": drawn.randrange(6, 30),
        "commit": drawn.randrange(2, 6),
        "delete": drawn.randrange(2, 6),
    }[moment]
    scenario = write_scenario(tmp_path, case, "inline")
    code, _ = run(scenario, tmp_path / "run", moment, count)
    assert code == -9
    # Killed once more while the replay compares lines: it has written nothing yet.
    run(scenario, tmp_path / "run", "replay", 20)
    code, total = run(scenario, tmp_path / "run")
    assert code == 0
    same_files(tmp_path / "run", expected)
    # A checkpoint follows every evaluation, and there is one every two versions: at most what two
    # versions take (5 or 4 updates each) can be lost.
    assert total <= trainings + 10


def test_damaged_checkpoints_are_computed_again(
    uninterrupted: tuple[str, Path, int], tmp_path: Path
) -> None:
    case, expected, _ = uninterrupted
    scenario = write_scenario(tmp_path, case, "inline")
    code, _ = run(scenario, tmp_path / "run", "event", 100)
    assert code == -9
    for number, file in enumerate(sorted((tmp_path / "run" / "checkpoints").iterdir())):
        if number % 2:
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:-3] + b"abc")
    assert run(scenario, tmp_path / "run")[0] == 0
    same_files(tmp_path / "run", expected)


@pytest.mark.parametrize("case", list(CASES))
def test_workers_change_nothing(case: str, tmp_path: Path) -> None:
    scenario = write_scenario(tmp_path, case, "processes")
    assert run(scenario, tmp_path / "one", workers=1)[0] == 0
    code, _ = run(scenario, tmp_path / "two", "training", 20, workers=2)
    assert code == -9
    assert run(scenario, tmp_path / "two", workers=2)[0] == 0
    same_files(tmp_path / "one", tmp_path / "two")


def test_processes_give_the_bits_of_inline(
    uninterrupted: tuple[str, Path, int], tmp_path: Path
) -> None:
    case, expected, _ = uninterrupted
    assert run(write_scenario(tmp_path, case, "processes"), tmp_path / "run", workers=2)[0] == 0
    same_files(tmp_path / "run", expected)
