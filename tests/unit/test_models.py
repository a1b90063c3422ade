"""The models: hand-computed sizes, shapes, functional calls, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.utils.flop_counter import FlopCounterMode

from emulator.errors import ScenarioError
from emulator.learning.models import build_model, parameter_count, resolve_callable
from emulator.learning.profile import profile_model

MNIST = (1, 28, 28)
DIGITS = (1, 8, 8)


@pytest.mark.parametrize(
    ("kind", "shape", "classes", "options", "parameters"),
    [
        ("logistic", MNIST, 10, {}, 784 * 10 + 10),
        ("logistic", (3, 32, 32), 100, {}, 3072 * 100 + 100),
        ("logistic", (5,), 2, {}, 5 * 2 + 2),
        ("mlp", MNIST, 10, {}, (784 * 64 + 64) + (64 * 10 + 10)),
        (
            "mlp",
            DIGITS,
            10,
            {"hidden": [32, 16]},
            (64 * 32 + 32) + (32 * 16 + 16) + (16 * 10 + 10),
        ),
        (
            "lenet5",  # 28 + 4 - 4 = 28, pool 14, - 4 = 10, pool 5: 16 * 5 * 5 = 400
            MNIST,
            10,
            {},
            (25 * 6 + 6)
            + (6 * 25 * 16 + 16)
            + (400 * 120 + 120)
            + (120 * 84 + 84)
            + (84 * 10 + 10),
        ),
        (
            "lenet5",  # 32 - 4 = 28 without padding, then as above
            (3, 32, 32),
            10,
            {},
            (3 * 25 * 6 + 6)
            + (6 * 25 * 16 + 16)
            + (400 * 120 + 120)
            + (120 * 84 + 84)
            + (84 * 10 + 10),
        ),
        (
            "mcmahan_cnn",  # 28, pool 14, pool 7: 64 * 7 * 7 = 3,136
            MNIST,
            10,
            {},
            (25 * 32 + 32) + (32 * 25 * 64 + 64) + (3136 * 512 + 512) + (512 * 10 + 10),
        ),
        (
            "fedseq_lenet",  # 32 - 4 = 28, pool 14, - 4 = 10, pool 5: 64 * 5 * 5 = 1,600
            (3, 32, 32),
            10,
            {},
            (3 * 25 * 64 + 64)
            + (64 * 25 * 64 + 64)
            + (1600 * 384 + 384)
            + (384 * 192 + 192)
            + (192 * 10 + 10),
        ),
        (
            "conv1d",  # 128 - 4 = 124, pool 62, - 4 = 58, pool 29: 64 * 29 = 1,856
            (6, 128),
            6,
            {},
            (6 * 5 * 32 + 32) + (32 * 5 * 64 + 64) + (1856 * 64 + 64) + (64 * 6 + 6),
        ),
    ],
)
def test_parameter_count(
    kind: str, shape: tuple[int, ...], classes: int, options: dict[str, Any], parameters: int
) -> None:
    model = build_model(kind, shape, classes, **options)
    assert parameter_count(model) == parameters
    assert model(torch.zeros(3, *shape)).shape == (3, classes)


def test_published_totals() -> None:
    assert parameter_count(build_model("mcmahan_cnn", MNIST, 10)) == 1_663_370  # the paper's
    assert parameter_count(build_model("lenet5", MNIST, 10)) == 61_706
    # FedSeq's, from the layers that the paper and FedDyn give.
    assert parameter_count(build_model("fedseq_lenet", (3, 32, 32), 10)) == 797_962
    assert parameter_count(build_model("fedseq_lenet", (3, 32, 32), 100)) == 815_332


def test_char_lstm_by_hand() -> None:
    """A layer has four gates, each with weights for its input and its state, and two biases."""
    model = build_model("char_lstm", (80,), 81)
    first, second = 4 * (256 * (8 + 256) + 2 * 256), 4 * (256 * (256 + 256) + 2 * 256)
    assert parameter_count(model) == 81 * 8 + first + second + (256 * 81 + 81)
    small = build_model("char_lstm", (5,), 7, embedding=3, hidden=4, layers=1)
    assert parameter_count(small) == 7 * 3 + 4 * (4 * (3 + 4) + 2 * 4) + (4 * 7 + 7)
    text = torch.tensor([[0, 1, 2, 3, 4], [6, 6, 6, 6, 6]])
    logits = small(text)
    assert logits.shape == (2, 7)
    # The last character matters, and so does the first; the other text of the batch does not.
    for place in (0, 4):
        other = text.clone()
        other[0, place] = 5
        changed = small(other)
        assert not torch.allclose(changed[0], logits[0])
        assert torch.equal(changed[1], logits[1])


def test_work_by_hand() -> None:
    """Multiply-accumulates of one sample; a recurrent layer's of all its steps."""
    lenet = profile_model(build_model("fedseq_lenet", (3, 32, 32), 10), (3, 32, 32), 10)
    convolutions = 64 * 75 * 28 * 28 + 64 * 1600 * 10 * 10
    assert lenet.forward_macs == convolutions + 1600 * 384 + 384 * 192 + 192 * 10
    signals = profile_model(build_model("conv1d", (6, 128), 6), (6, 128), 6)
    assert signals.forward_macs == 32 * 30 * 124 + 64 * 160 * 58 + 1856 * 64 + 64 * 6
    text = profile_model(build_model("char_lstm", (80,), 81), (80,), 81, is_text=True)
    steps = 80 * 4 * (256 * (8 + 256) + 256 * (256 + 256))
    assert text.forward_macs == steps + 256 * 81
    assert [layer.name for layer in text.layers] == ["embed", "lstm", "fc"]
    assert text.size_bytes == 4 * 820_185
    # Gradients of both factors of each product, but for the states before the first step.
    assert text.backward_macs == 2 * text.forward_macs - 2 * 4 * 256 * 256


def test_a_recurrent_layers_work_is_what_torch_counts_step_by_step() -> None:
    model = build_model("char_lstm", (6,), 5, embedding=3, hidden=4, layers=2)
    profile = profile_model(model, (6,), 5, is_text=True)
    plain = nn.LSTM(3, 4, 2, batch_first=True, device="meta")
    with FlopCounterMode(display=False) as counter:
        last = plain(torch.zeros(1, 6, 3, device="meta", requires_grad=True))[0][:, -1]
        forward = counter.get_total_flops() // 2
        last.sum().backward()
    backward = counter.get_total_flops() // 2 - forward
    assert profile.forward_macs == forward + 4 * 5
    assert profile.backward_macs == backward + 2 * 4 * 5


def test_what_is_no_text_or_no_signal_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"'conv1d' takes signals .*got \(6, 15\).*hapt"):
        build_model("conv1d", (6, 15), 6)
    with pytest.raises(ScenarioError, match=r"'conv1d' takes .*got \(1, 28, 28\)"):
        build_model("conv1d", MNIST, 6)
    with pytest.raises(ScenarioError, match=r"'char_lstm' takes .*got \(1, 28, 28\)"):
        build_model("char_lstm", MNIST, 10)
    with pytest.raises(ScenarioError, match=r"model.hidden: 0 is not allowed"):
        build_model("char_lstm", (80,), 81, hidden=0)
    with pytest.raises(ScenarioError, match=r"cannot be profiled: it fails on one sample"):
        profile_model(build_model("logistic", (80,), 81), (80,), 81, is_text=True)


@pytest.mark.parametrize("samples", [16, 17, 31, 128])
def test_conv1d_fits_any_signal_from_the_shortest(samples: int) -> None:
    model = build_model("conv1d", (3, samples), 4)
    assert model(torch.zeros(2, 3, samples)).shape == (2, 4)


@pytest.mark.parametrize("height", [16, 17, 33])
def test_fedseq_lenet_fits_any_image_from_the_smallest(height: int) -> None:
    model = build_model("fedseq_lenet", (2, height, 19), 4)
    assert model(torch.zeros(2, 2, height, 19)).shape == (2, 4)


@pytest.mark.parametrize("height", [12, 13, 27, 28, 31, 32, 33, 40])
def test_lenet5_fits_any_image_from_the_smallest(height: int) -> None:
    model = build_model("lenet5", (2, height, 17), 4)
    assert model(torch.zeros(2, 2, height, 17)).shape == (2, 4)


@pytest.mark.parametrize("height", [4, 5, 7, 30])
def test_mcmahan_cnn_fits_any_image_from_the_smallest(height: int) -> None:
    model = build_model("mcmahan_cnn", (1, height, 9), 3)
    assert model(torch.zeros(2, 1, height, 9)).shape == (2, 3)


@pytest.mark.parametrize(
    ("kind", "smallest"), [("lenet5", 12), ("mcmahan_cnn", 4), ("fedseq_lenet", 16)]
)
def test_a_too_small_image_is_refused_with_the_smallest(kind: str, smallest: int) -> None:
    with pytest.raises(ScenarioError, match=f"{smallest}x{smallest} or larger, got {smallest - 1}"):
        build_model(kind, (1, smallest - 1, 28), 10)
    with pytest.raises(ScenarioError, match=r"channels, height, width.*got \(64,\)"):
        build_model(kind, (64,), 10)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("logistic", (1, 12, 12)),
        ("mlp", (1, 12, 12)),
        ("lenet5", (1, 12, 12)),
        ("mcmahan_cnn", (1, 12, 12)),
        ("fedseq_lenet", (1, 16, 16)),
        ("conv1d", (2, 20)),
    ],
)
def test_many_copies_run_side_by_side(kind: str, shape: tuple[int, ...]) -> None:
    """A stack of parameters under vmap gives what each model gives alone, and has no buffers."""
    models = [build_model(kind, shape, 3) for _ in range(2)]
    assert not list(models[0].buffers())
    stacked = {
        name: torch.stack([dict(m.named_parameters())[name].detach() for m in models])
        for name, _ in models[0].named_parameters()
    }
    x = torch.rand(2, 5, *shape, generator=torch.Generator().manual_seed(0))
    together = vmap(lambda p, x: functional_call(models[0], p, (x,)))(stacked, x)
    alone = torch.stack([model(xi) for model, xi in zip(models, x, strict=True)])
    torch.testing.assert_close(together, alone.detach())


def test_the_weights_come_from_torchs_generator_alone() -> None:
    with torch.random.fork_rng(devices=[]):
        state = torch.get_rng_state()
        first = build_model("mlp", DIGITS, 10)
        torch.set_rng_state(state)
        second = build_model("mlp", DIGITS, 10)
        third = build_model("mlp", DIGITS, 10)
    assert torch.equal(first[1].weight, second[1].weight)  # type: ignore[index]
    assert not torch.equal(first[1].weight, third[1].weight)  # type: ignore[index]


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("lenet", {}, r"task.model.kind: 'lenet' is not known \(did you mean 'lenet5'\?\)"),
        ("mlp", {"hiden": [3]}, r"no option 'hiden' \(did you mean 'hidden'\?\)"),
        ("logistic", {"hidden": [3]}, "its options: none"),
        ("mlp", {"hidden": 64}, "hidden: 64 is not a list"),
        ("mlp", {"hidden": []}, "use kind: logistic"),
        ("mlp", {"hidden": [64, 0]}, r"hidden: \[64, 0\]"),
        ("mlp", {"hidden": [True]}, r"hidden: \[True\]"),
        ("custom", {}, "'custom' needs the option 'callable'"),
    ],
)
def test_a_wrong_kind_or_option_is_refused(
    kind: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ScenarioError, match=message):
        build_model(kind, DIGITS, 10, **options)


def test_a_wrong_shape_or_number_of_classes_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"input shape \(\) "):
        build_model("logistic", (), 10)
    with pytest.raises(ScenarioError, match=r"input shape \(1, 0, 8\)"):
        build_model("logistic", (1, 0, 8), 10)
    with pytest.raises(ScenarioError, match="1 classes"):
        build_model("logistic", DIGITS, 1)


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "fc_user_models.py").write_text(
        "from torch import nn\n"
        "def tiny(input_shape, classes, width=2):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, classes))\n"
        "def text(input_shape, classes):\n"
        "    return 'a model'\n"
        "def broken(input_shape, classes):\n"
        "    raise ZeroDivisionError('oh')\n"
        "number = 3\n"
    )
    (tmp_path / "fc_user_broken.py").write_text("import fc_not_there\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "fc_user_models"


def test_custom_model(user_module: str) -> None:
    model = build_model("custom", DIGITS, 10, callable=f"{user_module}:tiny", width=3)
    assert parameter_count(model) == (64 * 3 + 3) + (3 * 10 + 10)
    assert resolve_callable(f"{user_module}:tiny").__module__ == user_module


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("fc_user_models", {}, "not of the form 'package.module:function'"),
        ("fc user:tiny", {}, "not of the form"),
        ("fc_missing:tiny", {}, "'fc_missing' cannot be imported.*PYTHONPATH"),
        ("fc_user_broken:tiny", {}, "ModuleNotFoundError: No module named 'fc_not_there'"),
        ("fc_user_models:tinny", {}, r"has no 'tinny' \(did you mean 'tiny'\?\)"),
        ("fc_user_models:number", {}, "is a int, which cannot be called"),
        ("fc_user_models:text", {}, "returned a str.*must return a torch.nn.Module"),
        ("fc_user_models:broken", {}, "ZeroDivisionError: oh"),
        ("fc_user_models:tiny", {"depth": 2}, "depth=2.*unexpected keyword argument 'depth'"),
    ],
)
@pytest.mark.usefixtures("user_module")
def test_a_wrong_custom_model_is_refused(
    target: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ScenarioError, match=message):
        build_model("custom", DIGITS, 10, callable=target, **options)
