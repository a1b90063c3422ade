"""Divide-and-Conquer and its baselines in miniature: digits, 16 collaborators in every round.

The study behind it is in scenarios/studies/divide_and_conquer.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from analysis.curves import curve
from analysis.run_reader import Run, read_run
from emulator.run import Options, run
from emulator.scenario import load_scenario

DIVIDED = {
    "kind": "divide_and_conquer", "split": {"kind": "fixed", "layer": 1},
    "feature_learning": {"epochs": 1, "lr": 0.05}, "fine_tuning": {"epochs": 2, "lr": 0.05},
}  # fmt: skip
LINES: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "divided": {"payload": DIVIDED},
    "fedmax": {"objective": {"kind": "fedmax", "beta": 1.0}},
    "fedma": {"server_optimizer": {"kind": "fedma", "sigma0": 10.0}},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("miniature")
    found = {}
    for name, federation in LINES.items():
        config = {
            "schema": 1, "name": name, "seed": 3, "stop": {"sim_time": "100 d", "versions": 42},
            "task": {"dataset": {"kind": "digits"}, "clients": 16,
                     "partition": {"kind": "dirichlet", "alpha": 0.5, "min_samples": 10},
                     "model": {"kind": "mlp", "hidden": [64, 32]}},
            "system": {"devices": {"kind": "macs", "reference_macs": 300_000_000},
                       "availability": {"kind": "always"},
                       "network": {"client": {"down": "2 Mbps", "up": "0.5 Mbps",
                                              "latency": "50 ms"}}},
            "local": {"epochs": 1, "batch_size": 10, "optimizer": {"kind": "sgd", "lr": 0.05}},
            "federation": {
                "pacing": {"kind": "synchronous", "participants": 16, "deadline": "none"},
                **federation,
            },
            "evaluation": {"every": {"versions": 3 if name == "fedma" else 2}},
        }  # fmt: skip
        path = folder / f"{name}.yaml"
        path.write_text(json.dumps(config))  # JSON is YAML
        scenario, source = load_scenario(path)
        run(scenario, source, Options(folder / name), lambda server, accuracy: None)
        found[name] = read_run(folder / name)
    return found


def final(found: Run) -> float:
    return float(np.mean(curve(found).value[-3:]))


def test_all_of_them_learn(runs: dict[str, Run]) -> None:
    accuracy = {name: final(found) for name, found in runs.items()}
    assert accuracy["fedavg"] > 0.65
    assert accuracy["fedmax"] > 0.6
    # Every layer is trained in half of the rounds, and FedMA has made 14 rounds of the 42 versions.
    assert accuracy["divided"] > 0.55
    assert accuracy["fedma"] > 0.55


def test_half_the_bytes_and_less_than_the_time(runs: dict[str, Run]) -> None:
    """From the second round on; simulated time is mostly the upload's here."""
    parameters = {}
    for name in ("fedavg", "divided"):
        updates = runs[name].updates
        later = updates["version"] >= 2
        moved = updates["bytes_down"][later].sum() + updates["bytes_up"][later].sum()
        if name == "divided":
            moved -= updates["control_bytes"][later].sum() + updates["header_bytes"][later].sum()
        else:
            moved -= 2 * 1000 * later.sum()
        parameters[name] = moved
    assert parameters["divided"] * 2 == parameters["fedavg"]
    assert runs["divided"].simulated_s < 0.75 * runs["fedavg"].simulated_s


def test_a_round_of_fedma_takes_as_many_round_trips_as_layers(runs: dict[str, Run]) -> None:
    """Three layers: in a third of the rounds it moves about as many bytes as FedAvg in a third of
    its own, and waits for the slowest three times as often. With each of the 14 last layers go a
    client's samples of each of 10 classes."""
    moved = {name: float(np.nansum(runs[name].updates["bytes_up"])) - 1000 * 42 * 16
             for name in ("fedavg", "fedma")}  # fmt: skip
    assert (moved["fedma"] - 14 * 16 * 4 * 10) * 3 == moved["fedavg"]
