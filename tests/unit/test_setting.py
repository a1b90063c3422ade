"""From a scenario's task to data, clients and what each client is tested on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from test_datasets_hapt import FOUR, recording, write

from emulator.errors import ScenarioError
from emulator.learning import training
from emulator.learning.setting import Setting, build, recipe, workbench
from emulator.random_streams import generator
from emulator.scenario import load_scenario
from emulator.scenario.schema import Local, Scenario

BASE: dict[str, Any] = {
    "schema": 1,
    "name": "setting",
    "seed": 3,
    "stop": {"sim_time": "1 h"},
    "system": {
        "devices": {"kind": "phones"},
        "availability": {"kind": "always"},
        "network": {"kind": "none"},
    },
    "local": {"epochs": 1, "batch_size": 10, "optimizer": {"kind": "sgd", "lr": 0.1}},
    "federation": {
        "pacing": {
            "kind": "synchronous",
            "participants": 2,
            "deadline": "none",
            "too_few": "proceed",
            "stragglers": "cancel",
        }
    },
    "evaluation": {"every": {"versions": 1}},
}
DIGITS: dict[str, Any] = {
    "dataset": {"kind": "digits"},
    "clients": 20,
    "partition": {"kind": "dirichlet", "alpha": 0.5},
    "model": {"kind": "logistic"},
}


def scenario(tmp_path: Path, **task: Any) -> Scenario:
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump({**BASE, "task": task}))
    loaded, _ = load_scenario(path, [])
    return loaded


def setting(tmp_path: Path, **task: Any) -> Setting:
    return build(scenario(tmp_path, **task))


def test_samples_set_aside_are_not_trained_on(tmp_path: Path) -> None:
    whole = setting(tmp_path, **DIGITS)
    split = setting(tmp_path, **DIGITS, client_test=0.2)
    assert whole.client_test is None
    assert split.client_test is not None
    assert split.client_test.split == "train"
    pairs = zip(whole.partition, split.partition, split.client_test.indices, strict=True)
    for all_of, train, test in pairs:
        np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), all_of)
        assert len(test) == len(all_of) // 5
    assert split.samples.tolist() == [len(part) for part in split.partition]
    assert split.samples.sum() < whole.samples.sum() == 1_438
    other = setting(tmp_path, **DIGITS, client_test=0.25)
    assert len({whole.root, split.root, other.root}) == 3


def hapt(tmp_path: Path) -> dict[str, Any]:
    """Three users: of each activity a user trains on 2 windows and is tested on 1."""
    users = {
        1: [recording([1] * FOUR)],
        2: [recording([2] * FOUR), recording([3] * FOUR)],
        3: [recording([6] * FOUR)],
    }
    write(tmp_path, users)
    return {
        "dataset": {"kind": "hapt", "path": ".", "test_fraction": 0.25},
        "clients": 3,
        "partition": {"kind": "natural"},
        "model": {"kind": "conv1d"},
    }


def test_natural_clients_are_tested_on_their_own_test_samples(tmp_path: Path) -> None:
    task = hapt(tmp_path)
    three = setting(tmp_path, **task)
    assert three.samples.tolist() == [2, 4, 2]
    assert three.client_test is not None
    assert three.client_test.split == "test"
    assert [part.tolist() for part in three.client_test.indices] == [[0], [1, 2], [3]]
    two = setting(tmp_path, **{**task, "clients": 2})
    assert two.samples.tolist() == [2, 4]
    mixed = setting(tmp_path, **{**task, "partition": {"kind": "iid"}}, client_test=0.5)
    assert mixed.samples.tolist() == [2, 2, 1]  # of 3, 3 and 2
    with pytest.raises(ScenarioError, match=r"4 clients, and the data set has 3 natural ones"):
        setting(tmp_path, **{**task, "clients": 4})


def test_text_is_trained_on_and_evaluated(tmp_path: Path) -> None:
    """A language of one word: the next character follows from the last one."""
    (tmp_path / "play.md").write_text("".join(f"**{r}**\n{'abcd' * 75}\n" for r in ("A", "B")))
    found = setting(
        tmp_path,
        dataset={"kind": "shakespeare", "path": ".", "hop": 3, "test_fraction": 0.3},
        clients=2,
        partition={"kind": "natural"},
        model={"kind": "char_lstm", "embedding": 4, "hidden": 8, "layers": 1},
    )
    assert found.dataset is not None
    assert found.dataset.classes == 5
    steps = 80 * 4 * 8 * (4 + 8)
    assert found.profile.forward_macs == steps + 8 * 5
    bench = workbench(found, torch.device("cpu"))
    assert bench.train_x.dtype == torch.int64
    x, y = bench.samples_of(1)
    base = bench.layout.flatten()
    local = Local.model_validate(
        {"epochs": 60, "batch_size": 10, "optimizer": {"kind": "sgd", "lr": 1.0}}
    )
    rng = generator(1, "training")
    trained = training.train(bench.layout, base, x, y, recipe(local), rng, None)
    after = training.evaluate(bench.layout, base + trained[0], bench.test_x, bench.test_y)
    # Of each role's 90 characters for testing every third is asked for, from the 81st: four, and
    # the last of them is the line's end, which training never saw.
    assert (after["n"], after["correct"]) == (8, 6)


def test_declared_text_is_profiled(tmp_path: Path) -> None:
    found = setting(
        tmp_path,
        dataset={
            "kind": "declared",
            "samples_per_client": 5,
            "input_shape": [80],
            "classes": 81,
        },
        clients=2,
        model={"kind": "char_lstm"},
    )
    assert found.profile.size_bytes == 4 * 820_185


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            {"model": {"kind": "char_lstm"}},
            "'char_lstm' does not take dataset 'digits'.*: log",
        ),
        ({"model": {"kind": "conv1d"}}, "models that do: logistic, mlp, lenet5, .* and custom"),
        ({"partition": {"kind": "natural"}}, "dataset 'digits' does not say whose .*hapt and shak"),
        ({"client_test": 1.0}, "client_test"),
        ({"client_test": 0}, "client_test"),
        ({"partition": {"kind": "file", "path": "no.csv"}}, "no such file or folder"),
        ({"dataset": {"kind": "cifar10", "path": "nowhere"}}, "no such file or folder"),
        ({"dataset": {"kind": "emnist", "path": "."}}, "split"),
        ({"dataset": {"kind": "hapt", "hop": 0}, "model": {"kind": "conv1d"}}, "hop"),
        (
            {"dataset": {"kind": "shakespeare"}, "model": {"kind": "mlp"}},
            "'mlp' does not take dataset 'shakespeare'.*: char_lstm and custom",
        ),
        (
            {
                "dataset": {"kind": "hapt"},
                "partition": {"kind": "natural"},
                "client_test": 0.5,
                "model": {"kind": "conv1d"},
            },
            "natural clients have the test samples of the data set",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, task: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        scenario(tmp_path, **{**DIGITS, **task})


def test_a_partition_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "who.csv").write_text("sample,client\n7,1\n3,0\n1437,1\n")
    found = setting(
        tmp_path, **{**DIGITS, "partition": {"kind": "file", "path": "who.csv"}, "clients": 2}
    )
    assert [part.tolist() for part in found.partition] == [[3], [7, 1437]]
