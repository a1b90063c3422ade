"""The profile: hand-computed work and bytes, and a model left as it was."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from emulator.errors import ScenarioError
from emulator.learning.models import build_model
from emulator.learning.profile import LayerProfile, profile_model

MNIST = (1, 28, 28)

# Multiply-accumulates of each layer, first to last: outputs times the inputs of each.
LOGISTIC = [784 * 10]
MLP = [784 * 64, 64 * 10]
LENET5 = [
    (6 * 28 * 28) * (1 * 25),
    (16 * 10 * 10) * (6 * 25),
    400 * 120,
    120 * 84,
    84 * 10,
]
MCMAHAN_CNN = [
    (32 * 28 * 28) * (1 * 25),
    (64 * 14 * 14) * (32 * 25),
    3136 * 512,
    512 * 10,
]


@pytest.mark.parametrize(
    ("kind", "macs", "parameters"),
    [
        ("logistic", LOGISTIC, [7_850]),
        ("mlp", MLP, [50_240, 650]),
        ("lenet5", LENET5, [156, 2_416, 48_120, 10_164, 850]),
        ("mcmahan_cnn", MCMAHAN_CNN, [832, 51_264, 1_606_144, 5_130]),
    ],
)
def test_work_and_bytes(kind: str, macs: list[int], parameters: list[int]) -> None:
    profile = profile_model(build_model(kind, MNIST, 10), MNIST, 10)
    assert profile.forward_macs == sum(macs)
    # A gradient of each weight costs what the layer does; so does that of each layer's input,
    # which the first layer does not need.
    assert profile.backward_macs == sum(macs) + sum(macs[1:])
    assert [layer.parameters for layer in profile.layers] == parameters
    assert [layer.size_bytes for layer in profile.layers] == [4 * n for n in parameters]
    assert profile.size_bytes == 4 * sum(parameters)


def test_layers_carry_their_names() -> None:
    profile = profile_model(build_model("lenet5", MNIST, 10), MNIST, 10)
    assert [layer.name for layer in profile.layers] == ["conv1", "conv2", "fc1", "fc2", "fc3"]


def test_frozen_first_layers_need_no_gradient() -> None:
    model = build_model("lenet5", MNIST, 10)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.startswith("fc")
    profile = profile_model(model, MNIST, 10)
    assert profile.forward_macs == sum(LENET5)
    assert profile.backward_macs == sum(LENET5[2:]) + sum(LENET5[3:])


class Odd(nn.Module):
    """Called in another order than declared, with normalization, dropout, noise and a tied one."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3, bias=False)
        self.norm = nn.BatchNorm1d(6)
        self.first = nn.Linear(6, 6, bias=False)
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = self.first.weight
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x.flatten(1))) + torch.rand(6)
        hidden: Tensor = nn.functional.dropout(self.tied(x), 0.5)
        logits: Tensor = self.last(hidden) * self.scale
        return logits


def test_any_module_in_the_order_of_its_calls() -> None:
    profile = profile_model(Odd().double(), (6,), 3)
    assert profile.layers == (
        LayerProfile("", 1, 8),  # the model's own parameter, called before all others
        LayerProfile("first", 36, 36 * 8),
        # Scale and shift; apart from them the running mean and variance, and the step count.
        LayerProfile("norm", 12, 12 * 8, 12 * 8 + 8),
        LayerProfile("last", 18, 18 * 8),  # the tied weight is counted with the first
    )
    assert profile.size_bytes == (1 + 36 + 12 + 18) * 8
    assert profile.statistics_bytes == 12 * 8 + 8
    assert profile.forward_macs == 36 + 36 + 18
    assert profile.backward_macs == (36 + 36 + 18) + (36 + 18)


def test_the_model_and_torchs_generator_stay_as_they_were() -> None:
    model = Odd()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    profile_model(model, (6,), 3)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(module._forward_pre_hooks == {} for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, tensor in model.state_dict().items():
        assert tensor.device.type == "cpu"
        assert torch.equal(tensor, before[name])


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 7, batch_first=True)
        self.head = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(x)
        logits: Tensor = self.head(states[:, -1])
        return logits


def test_a_recurrent_model_is_counted_step_by_step() -> None:
    profile = profile_model(Recurrent(), (11, 5), 3)
    assert profile.forward_macs == 11 * 4 * 7 * (5 + 7) + 7 * 3


class Returns(nn.Module):
    """Gives what ``function`` makes of the flattened input."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x.flatten(1) * self.weight)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 5)), r"gives \(1, 5\) .* shape \(1, 3\)"),
        (nn.Sequential(nn.Flatten(), nn.Linear(9, 3)), r"fails on one sample of shape \(1, 2, 2\)"),
        (nn.Flatten(), "no parameter to train"),
        (nn.Linear(4, 3).requires_grad_(False), "no parameter to train"),
        (Returns(lambda x: x[:, :3]), "none of its operations"),
        (Returns(lambda x: x if x.sum() > 0 else -x), r"gives \(1, 4\)"),
        (Returns(lambda x: [x]), "fails on one sample"),
    ],
)
def test_a_model_that_cannot_be_profiled_is_refused(model: nn.Module, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        profile_model(model, (1, 2, 2), 3)
