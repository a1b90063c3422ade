"""Weights to begin with, and data sets that begin later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from emulator.errors import ScenarioError
from emulator.learning.models import build_model
from emulator.learning.models.pretrained import load_pretrained
from emulator.learning.operations import torch_stream
from emulator.scenario.schema import Pretrained


def model(seed: int, **options: Any) -> torch.nn.Module:
    with torch_stream(seed, "model"):
        return build_model("mlp", (4,), 3, **{"hidden": [6, 5], **options})


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file(dict(model(1).state_dict()), str(path))
    return path


def load(ours: torch.nn.Module, path: Path, layers: tuple[str, ...] | None = None) -> str:
    return load_pretrained(ours, Pretrained(path=path, layers=layers))


def test_all_layers_or_some(weights: Path) -> None:
    given = model(1).state_dict()
    ours, untouched = model(2), model(2).state_dict()
    load(ours, weights)
    assert all(torch.equal(value, given[name]) for name, value in ours.state_dict().items())
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in given))
    ours = model(2)
    load(ours, weights, (layers[1],))
    for name, value in ours.state_dict().items():
        source = given if name.startswith(layers[1]) else untouched
        assert torch.equal(value, source[name])


def test_other_weights_are_another_start(weights: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    save_file(dict(model(3).state_dict()), str(other))
    layers = tuple(dict.fromkeys(n.rpartition(".")[0] for n in model(1).state_dict()))
    found = {load(model(2), weights), load(model(2), other), load(model(2), weights, layers[:1])}
    assert len(found) == 3
    assert load(model(5), weights) in found


def test_what_does_not_fit_is_refused(weights: Path, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"the model has no layer 'fc9'.*it has"):
        load(model(2), weights, ("fc9",))
    with pytest.raises(ScenarioError, match=r"has shape \(6, 4\), and task.model wants \(7, 4\)"):
        load(model(2, hidden=[7, 5]), weights)
    with pytest.raises(ScenarioError, match=r"'fc4.weight' is not there, and task.model wants"):
        load(model(2, hidden=[6, 5, 3]), weights)
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(weights.read_bytes()[:40])
    with pytest.raises(ScenarioError, match="cannot be read as safetensors"):
        load(model(2), damaged)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_another_precision_are_converted(
    weights: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    given = {name: value.to(dtype) for name, value in model(1).state_dict().items()}
    path = tmp_path / "converted.safetensors"
    save_file(given, str(path))
    ours = model(2)
    load(ours, path)
    for name, value in ours.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, given[name].float())
    # The identity is that of the values: of float64 nothing was lost, of the others something.
    assert (load(model(2), path) == load(model(2), weights)) == (dtype == torch.float64)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda t: t.mul(100).to(torch.int8),
            r"holds whole numbers \(int8\), and task.model wants f",
        ),
        (lambda t: t.mul(100).to(torch.int64), r"holds whole numbers \(int64\)"),
        (lambda t: t > 0, r"holds whole numbers \(bool\)"),
        (
            lambda t: t.masked_fill(t == t.max(), torch.nan),
            "1 of the 30 values of 'fc.*weight' are",
        ),
        (lambda t: t / 0.0, "30 of the 30 values of 'fc.*weight' are not finite as float32"),
        (lambda t: t.double() * 1e300, "not finite as float32; take the file of a run that has"),
    ],
)
def test_weights_that_are_no_weights_are_refused(
    tmp_path: Path, change: Callable[[Tensor], Tensor], reason: str
) -> None:
    given = dict(model(1).state_dict())
    name = next(n for n, value in given.items() if value.shape == (5, 6))
    given[name] = change(given[name])
    path = tmp_path / "odd.safetensors"
    save_file(given, str(path))
    with pytest.raises(ScenarioError, match=reason):
        load(model(2), path)
    others = {n.rpartition(".")[0] for n in given} - {name.rpartition(".")[0]}
    load(model(2), path, tuple(others))  # they are not asked for


def test_counts_of_steps_are_whole_numbers(tmp_path: Path) -> None:
    with torch_stream(1, "model"):
        given = dict(build_model("resnet8", (3, 8, 8), 3).state_dict())
        ours = build_model("resnet8", (3, 8, 8), 3)
    name = next(n for n in given if n.endswith("num_batches_tracked"))
    path = tmp_path / "model.safetensors"
    save_file({n: value.clone() for n, value in given.items()}, str(path))
    load(ours, path)
    save_file({**given, name: given[name].double()}, str(path))
    with pytest.raises(ScenarioError, match=r"holds fractions \(float64\), and task.model wants w"):
        load(ours, path)
