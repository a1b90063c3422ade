"""Where clients diverge, on real data: Divide-and-Conquer's profile over the layers of VGG9 (a
quarter of its width) on handwritten digits of 16x16, six clients, five epochs."""

from __future__ import annotations

import csv
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.ndimage import zoom
from scipy.stats import spearmanr
from sklearn.datasets import load_digits

from emulator.run import Options, run
from emulator.scenario import load_scenario


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """scikit-learn's digits, twice as large, in MNIST's files."""
    folder = tmp_path_factory.mktemp("digits")
    data = load_digits()
    larger = zoom(data.images, (1, 2, 2), order=1)
    pixels = np.clip(larger * 15.9, 0, 255).astype(np.uint8)
    labels = data.target.astype(np.uint8)
    is_test = np.arange(len(labels)) % 5 == 4
    for prefix, chosen in (("train", ~is_test), ("t10k", is_test)):
        images = struct.pack(">IIII", 0x803, int(chosen.sum()), 16, 16) + pixels[chosen].tobytes()
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(images)
        head = struct.pack(">II", 0x801, int(chosen.sum()))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(head + labels[chosen].tobytes())
    return folder


def profile(digits: Path, out: Path, partition: Any, on: str) -> list[float]:
    """The divergence of each layer after a pre-pass."""
    phase = {"epochs": 1, "lr": 0.01}
    config = {
        "schema": 1, "name": "divergence", "seed": 1, "stop": {"sim_time": "10 d", "versions": 1},
        "task": {"dataset": {"kind": "idx", "path": str(digits)}, "clients": 6,
                 "partition": partition, "model": {"kind": "vgg9", "width": 0.25}},
        "system": {"devices": {"kind": "scripted", "training": "1 s"},
                   "availability": {"kind": "always"}, "network": {"kind": "none"}},
        "local": {"epochs": 1, "batch_size": 32,
                  "optimizer": {"kind": "sgd", "lr": 0.01, "momentum": 0.9}},
        "federation": {
            "pacing": {"kind": "synchronous", "participants": 6, "deadline": "none"},
            "payload": {
                "kind": "divide_and_conquer", "split": {"kind": "largest_jump"},
                "prepass": {"deadline": "none", "epochs": 5, "on": on},
                "feature_learning": phase, "fine_tuning": phase,
            },
        },
        "evaluation": {"every": {"versions": 1}}, "execution": {"executor": "processes"},
    }  # fmt: skip
    path = out.with_suffix(".yaml")
    path.write_text(json.dumps(config))  # JSON is YAML
    scenario, source = load_scenario(path)
    run(scenario, source, Options(out), lambda server, accuracy: None)
    with (out / "layers.csv").open(newline="") as file:
        return [float(row["divergence"]) for row in csv.DictReader(file)]


SKEWED = {"kind": "dirichlet", "alpha": 0.1}


def test_on_updates_it_rises_with_depth_where_data_are_skewed(digits: Path, tmp_path: Path) -> None:
    found = profile(digits, tmp_path / "run", SKEWED, "updates")
    assert len(found) == 9
    assert spearmanr(range(9), found).statistic > 0.85
    assert found[-1] == max(found)
    assert found[-1] / found[0] > 2


def test_on_updates_it_is_flat_where_they_are_not(digits: Path, tmp_path: Path) -> None:
    found = profile(digits, tmp_path / "run", {"kind": "iid"}, "updates")
    assert max(found) / min(found) < 2.5
    assert max(found) < 0.6


def test_on_weights_only_the_head_shows(digits: Path, tmp_path: Path) -> None:
    *below, head = profile(digits, tmp_path / "run", SKEWED, "weights")
    assert max(below) < 0.1
    assert head > 2 * max(below)
