"""Per-client evaluation: each client's own test samples, by hand from the model that was saved."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from emulator.errors import ScenarioError
from emulator.learning import setting as settings
from emulator.random_streams import generator
from emulator.run import Options, run
from emulator.scenario import load_scenario

SCENARIO = """
schema: 1
name: clients
seed: 3
stop: {sim_time: 1 h, versions: 6}
task:
  dataset: {kind: digits}
  clients: 12
  partition: {kind: dirichlet, alpha: 0.5}
  client_test: 0.25
  model: MODEL
system:
  devices: {kind: phones}
  availability: {kind: always}
  network: {kind: none}
local: {epochs: 1, batch_size: 10, optimizer: {kind: sgd, lr: 0.1}}
federation:
  pacing: {kind: synchronous, participants: 4, deadline: none}
  BATCH_NORM
evaluation: {every: {versions: 3}, clients: CLIENTS}
execution: {executor: EXECUTOR}
"""


def ran(
    folder: Path,
    clients: str,
    *,
    model: str = "{kind: logistic}",
    batch_norm: str = "",
    executor: str = "inline",
) -> Path:
    folder.mkdir(parents=True)
    text = SCENARIO.replace("CLIENTS", clients).replace("MODEL", model)
    text = text.replace("BATCH_NORM", batch_norm or "on_nonfinite: drop")
    (folder / "scenario.yaml").write_text(text.replace("EXECUTOR", executor))
    scenario, source = load_scenario(folder / "scenario.yaml")
    out = folder / "run"
    run(scenario, source, Options(out, workers=2), lambda server, accuracy: None)
    return out


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_every_client_is_measured_on_its_own_samples(tmp_path: Path) -> None:
    out = ran(tmp_path / "a", "always")
    scenario, _ = load_scenario(tmp_path / "a" / "scenario.yaml")
    setting = settings.build(scenario)
    assert setting.dataset is not None
    assert setting.client_test is not None
    weights = load_file(out / "model.safetensors")
    (weight,) = [t for t in weights.values() if t.dim() == 2]
    (bias,) = [t for t in weights.values() if t.dim() == 1]
    measured = {
        row["entity"]: row
        for row in rows(out / "metrics.csv")
        if row["split"] == "client" and row["metric"] == "accuracy" and row["version"] == "6"
    }
    by_client = {row["client"]: row for row in rows(out / "clients.csv")}
    for client, own in enumerate(setting.client_test.indices):
        assert not set(own.tolist()) & set(setting.partition[client].tolist())
        if not len(own):
            assert f"client/{client}" not in measured
            assert by_client[str(client)]["accuracy"] == ""
            continue
        x = torch.from_numpy(setting.dataset.train_x[own]).flatten(1)
        y = setting.dataset.train_y[own]
        right = np.mean((x @ weight.T + bias).argmax(1).numpy() == y)
        row = measured[f"client/{client}"]
        assert float(row["value"]) == pytest.approx(right, abs=1e-12)
        assert int(row["n"]) == len(own)
        assert by_client[str(client)]["accuracy"] == row["value"]
    versions = {row["version"] for row in rows(out / "metrics.csv") if row["split"] == "client"}
    assert versions == {"0", "3", "6"}


FTFA = "at_end, personalization: {kind: ftfa, epochs: 2, lr: 0.05}"
ONCE = "at_end, personalization: {kind: ftfa, lr: 0.01}"


def test_at_the_end_only_and_the_same_in_worker_processes(tmp_path: Path) -> None:
    here = ran(tmp_path / "a", FTFA)
    there = ran(tmp_path / "b", FTFA, executor="processes")
    assert (here / "metrics.csv").read_text() == (there / "metrics.csv").read_text()
    assert (here / "clients.csv").read_text() == (there / "clients.csv").read_text()
    versions = {row["version"] for row in rows(here / "metrics.csv") if row["split"] == "client"}
    assert versions == {"6"}


def test_clients_with_their_own_statistics_are_tested_with_them(tmp_path: Path) -> None:
    local = ran(tmp_path / "a", ONCE, model="{kind: resnet8}", batch_norm="batch_norm: local")
    own = {r["client"]: r for r in rows(local / "clients.csv")}
    trained = [r for r in own.values() if int(r["reported"]) and r["accuracy"]]
    never = [r for r in own.values() if not int(r["reported"]) and r["accuracy"]]
    assert trained
    assert never  # they are tested with the statistics that the model began with
    frozen = ran(tmp_path / "b", ONCE, model="{kind: resnet8}", batch_norm="batch_norm: freeze")
    for out in (local, frozen):
        found = [row for row in rows(out / "metrics.csv") if row["split"] == "personalized"]
        assert len(found) == 2 * len(trained + never) + 6
        assert all(np.isfinite(float(row["value"])) for row in found)
    assert (frozen / "metrics.csv").read_text() != (local / "metrics.csv").read_text()


def test_a_client_makes_the_last_model_its_own(tmp_path: Path) -> None:
    """FTFA by hand: two epochs of mini-batches of 10 from the model that was saved, in the order of
    the client's own stream. Nobody waits for it, and nothing is sent."""
    out, without = ran(tmp_path / "a", FTFA), ran(tmp_path / "b", "at_end")
    scenario, _ = load_scenario(tmp_path / "a" / "scenario.yaml")
    setting = settings.build(scenario)
    assert setting.dataset is not None
    assert setting.client_test is not None
    last = load_file(out / "model.safetensors")
    names = sorted(last, key=lambda name: last[name].dim())
    train_x = torch.from_numpy(setting.dataset.train_x).flatten(1)
    train_y = torch.from_numpy(setting.dataset.train_y)
    found = {(row["entity"], row["metric"]): float(row["value"])
             for row in rows(out / "metrics.csv") if row["split"] == "personalized"}  # fmt: skip
    accuracies, correct, tested = [], 0.0, 0
    for client, own in enumerate(setting.client_test.indices):
        if not len(own):
            assert (f"client/{client}", "accuracy") not in found
            continue
        bias, weight = (last[name].clone().requires_grad_() for name in names)
        mine, rng = setting.partition[client], generator(scenario.seed, "training", client)
        for _ in range(2):
            order = mine[rng.permutation(len(mine))]
            for start in range(0, len(order), 10):
                batch = order[start : start + 10]
                loss = cross_entropy(train_x[batch] @ weight.T + bias, train_y[batch])
                gradients = torch.autograd.grad(loss, (bias, weight))
                with torch.no_grad():
                    for parameter, gradient in zip((bias, weight), gradients, strict=True):
                        parameter -= 0.05 * gradient
        with torch.no_grad():
            logits = train_x[own] @ weight.T + bias
        assert found[f"client/{client}", "loss"] == pytest.approx(
            float(cross_entropy(logits, train_y[own])), rel=1e-4
        )
        right = int((logits.argmax(1) == train_y[own]).sum())
        accuracies.append(right / len(own))
        assert found[f"client/{client}", "accuracy"] == pytest.approx(accuracies[-1])
        correct, tested = correct + right, tested + len(own)
    assert found["global", "accuracy"] == pytest.approx(correct / tested)
    assert found["global", "accuracy_mean"] == pytest.approx(np.mean(accuracies))
    assert found["global", "accuracy_variance"] == pytest.approx(np.var(accuracies))
    assert found["global", "accuracy_worst_tenth"] == pytest.approx(min(accuracies))
    assert found["global", "accuracy_best_tenth"] == pytest.approx(max(accuracies))
    for name in ("updates.csv", "versions.csv", "clients.csv"):
        assert (out / name).read_text() == (without / name).read_text()
    log = (out / "events.jsonl").read_text().splitlines()
    kept = [line for line in log if '"type":"personalize"' not in line]
    assert len(kept) == len(log) - 1
    assert kept == (without / "events.jsonl").read_text().splitlines()


@pytest.mark.parametrize("wanted", ["always", "never, personalization: {kind: ftfa}"])
def test_nothing_to_test_clients_on_is_refused(wanted: str, tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    text = SCENARIO.replace("  client_test: 0.25\n", "").replace("CLIENTS", wanted)
    text = text.replace("MODEL", "{kind: logistic}").replace("EXECUTOR", "inline")
    path.write_text(text.replace("BATCH_NORM", "on_nonfinite: drop"))
    with pytest.raises(ScenarioError, match=r"evaluation\.(clients|personal).*client_test"):
        load_scenario(path)
