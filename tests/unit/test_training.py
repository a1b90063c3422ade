"""Local training against a plain PyTorch loop, bit for bit, and what it must leave alone."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from emulator.errors import ScenarioError
from emulator.learning.methods.fedprox import fedprox
from emulator.learning.models import build_model
from emulator.learning.operations import (
    EvaluateConfig,
    TrainConfig,
    Workbench,
    one_thread,
    torch_stream,
)
from emulator.learning.profile import profile_model
from emulator.learning.training import Layout, Recipe, batches, evaluate, mean_gradient, train

CPU = torch.device("cpu")
SHAPES = {
    "logistic": (1, 8, 8),
    "mlp": (1, 8, 8),
    "lenet5": (1, 12, 12),
    "mcmahan_cnn": (1, 8, 8),
    "custom": (1, 8, 8),
}


def bottleneck(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A user's model."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(input_shape), 3), nn.Tanh(), nn.Linear(3, classes)
    )


def model_of(kind: str) -> nn.Module:
    options: dict[str, Any] = {}
    if kind == "custom":
        options = {"callable": f"{__name__}:bottleneck"}
    with torch_stream(11, "initialization"):
        return build_model(kind, SHAPES[kind], 10, **options)


def recipe(**changes: Any) -> Recipe:
    given: dict[str, Any] = {
        "epochs": 2,
        "steps": None,
        "batch_size": 8,
        "lr": 0.1,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "pad": False,
    }
    return Recipe(**{**given, **changes})


def samples(n: int, shape: tuple[int, ...] = (1, 8, 8), seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.random((n, *shape), dtype=np.float32))
    return x, torch.from_numpy(rng.integers(0, 10, n))


def rng_of(seed: int = 3) -> np.random.Generator:
    return np.random.default_rng(seed)


def flat(model: nn.Module) -> Tensor:
    """All parameters, each in the logical order of its elements, whatever its memory order."""
    return torch.cat([p.detach().contiguous().view(-1) for p in model.parameters()])


def bench_of(model: nn.Module, n: int = 40, clients: int = 4) -> Workbench:
    x, y = samples(n)
    test_x, test_y = samples(30, seed=1)
    parts = [np.arange(c, n, clients) for c in range(clients)]
    return Workbench(Layout(model, CPU), x, y, test_x, test_y, parts)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """One intra-op thread, as operations have it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def two_threads(threads: None) -> None:
    torch.set_num_threads(2)


# --- the mini-batches ---------------------------------------------------------------------------


def test_epochs_are_permutations_with_a_short_last_batch() -> None:
    got = list(batches(23, recipe(epochs=3, batch_size=5), rng_of()))
    assert [len(b) for b in got] == [5, 5, 5, 5, 3] * 3
    epochs = [np.concatenate(got[i : i + 5]) for i in (0, 5, 10)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(23))
    assert not np.array_equal(epochs[0], epochs[1])
    assert not np.array_equal(epochs[1], epochs[2])


def test_steps_are_full_batches_that_run_on_into_the_next_shuffle() -> None:
    got = list(batches(7, recipe(epochs=None, steps=5, batch_size=3), rng_of()))
    assert [len(b) for b in got] == [3] * 5
    drawn = np.concatenate(got)
    assert sorted(drawn[:7]) == sorted(drawn[7:14]) == list(range(7))


def test_steps_with_fewer_samples_than_a_batch() -> None:
    got = list(batches(2, recipe(epochs=None, steps=3, batch_size=5), rng_of()))
    assert [len(b) for b in got] == [5] * 3
    drawn = np.concatenate(got)
    assert all(sorted(drawn[i : i + 2]) == [0, 1] for i in range(0, 14, 2))


def test_pad_fills_up_a_short_client_only() -> None:
    (short,) = batches(3, recipe(epochs=1, batch_size=8, pad=True), rng_of())
    assert len(short) == 8
    assert set(short[:3]) == {0, 1, 2} == set(short)
    long = list(batches(9, recipe(epochs=1, batch_size=8, pad=True), rng_of()))
    assert [len(b) for b in long] == [8, 1]
    (unpadded,) = batches(3, recipe(epochs=1, batch_size=8), rng_of())
    assert sorted(unpadded) == [0, 1, 2]


def test_no_sample_gives_no_batch() -> None:
    assert list(batches(0, recipe(), rng_of())) == []
    assert list(batches(0, recipe(epochs=None, steps=3), rng_of())) == []
    assert list(batches(0, recipe(pad=True), rng_of())) == []


# --- against a plain loop -----------------------------------------------------------------------


def plain_loop(model: nn.Module, x: Tensor, y: Tensor, how: Recipe) -> tuple[Tensor, list[float]]:
    """What anybody would write in PyTorch: the trained parameters and the loss of each step."""
    if any(isinstance(m, nn.Conv2d) for m in model.modules()):
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=how.lr, momentum=how.momentum, weight_decay=how.weight_decay
    )
    losses = []
    for positions in batches(len(y), how, rng_of()):
        chosen = torch.from_numpy(positions)
        optimizer.zero_grad()
        loss = cross_entropy(model(x[chosen]), y[chosen])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return flat(model), losses


@pytest.mark.parametrize(
    ("kind", "n", "how"),
    [
        ("logistic", 24, recipe()),
        ("mlp", 23, recipe(epochs=3)),
        ("mlp", 23, recipe(epochs=None, steps=7)),
        ("mlp", 23, recipe(momentum=0.9)),
        ("mlp", 23, recipe(weight_decay=0.01)),
        ("mlp", 23, recipe(momentum=0.5, weight_decay=0.01, epochs=None, steps=5)),
        ("mlp", 3, recipe(pad=True)),
        ("mlp", 3, recipe()),
        ("lenet5", 11, recipe(momentum=0.9)),
        ("mcmahan_cnn", 11, recipe(epochs=1)),
        ("custom", 23, recipe()),
    ],
)
def test_train_is_a_plain_loop_bit_for_bit(kind: str, n: int, how: Recipe) -> None:
    model = model_of(kind)
    x, y = samples(n, SHAPES[kind])
    base = flat(model)
    with one_thread():
        trained, losses = plain_loop(copy.deepcopy(model), x, y, how)
        delta, loss, steps = train(Layout(model, CPU), base, x, y, how, rng_of(), None)
    assert torch.equal(delta, trained - base)
    assert steps == len(losses)
    assert loss == pytest.approx(np.mean(np.array(losses, dtype=np.float64)), rel=1e-15)
    assert torch.count_nonzero(delta) > 0


def test_training_leaves_no_trace() -> None:
    """Same arguments, same bits, whatever the scratch module did in between."""
    layout = Layout(model_of("mlp"), CPU)
    x, y = samples(20)
    base = layout.flatten()
    kept = base.clone()
    how = recipe(momentum=0.9, weight_decay=0.01)
    first = train(layout, base, x, y, how, rng_of(), None)
    other_x, other_y = samples(30, seed=9)
    train(layout, base * 2, other_x, other_y, how, rng_of(8), fedprox(0.5))
    evaluate(layout, base * 3, other_x, other_y)
    mean_gradient(layout, base * 4, other_x, other_y, recipe(batch_size=7))
    again = train(layout, base, x, y, how, rng_of(), None)
    assert torch.equal(first[0], again[0])
    assert first[1:] == again[1:]
    assert torch.equal(base, kept)


def test_fedprox_without_weight_is_plain() -> None:
    layout = Layout(model_of("mlp"), CPU)
    x, y = samples(20)
    base = layout.flatten()
    plain = train(layout, base, x, y, recipe(), rng_of(), None)[0]
    assert torch.equal(plain, train(layout, base, x, y, recipe(), rng_of(), fedprox(0.0))[0])
    assert not torch.equal(plain, train(layout, base, x, y, recipe(), rng_of(), fedprox(0.5))[0])


@pytest.mark.parametrize("how", [recipe(), recipe(epochs=None, steps=3), recipe(pad=True)])
def test_without_samples_the_delta_is_zero(how: Recipe) -> None:
    layout = Layout(model_of("mlp"), CPU)
    x, y = samples(0)
    delta, loss, steps = train(layout, layout.flatten(), x, y, how, rng_of(), fedprox(0.1))
    assert torch.equal(delta, torch.zeros(layout.size))
    assert math.isnan(loss)
    assert steps == 0
    assert torch.equal(mean_gradient(layout, delta, x, y, how), torch.zeros(layout.size))


@pytest.mark.parametrize("kind", ["plain", "fedprox", "scaffold"])
def test_without_samples_as_an_operation(kind: str) -> None:
    bench = bench_of(model_of("mlp"))
    empty = Workbench(
        bench.layout, bench.train_x, bench.train_y, bench.test_x, bench.test_y, [np.empty(0, int)]
    )
    objective = {"kind": kind, "mu": 0.1, "option": "II"}
    server = {"model": bench.layout.flatten()}
    result = empty.run("train", TrainConfig(0, (0, 0), 1, recipe(), objective), [server, None])
    for tensors in result.outputs.values():
        for tensor in tensors.values():
            assert torch.equal(tensor, torch.zeros(bench.layout.size))
    assert result.values["steps"] == 0
    assert result.values["finite"] is True


def test_a_frozen_parameter_stays() -> None:
    def frozen() -> nn.Module:
        model = bottleneck((1, 8, 8), 10)
        model.get_submodule("1").requires_grad_(False)
        return model

    with torch_stream(1, "initialization"):
        layout = Layout(frozen(), CPU)
    x, y = samples(20)
    base = layout.flatten()
    delta, _, _ = train(layout, base, x, y, recipe(weight_decay=0.1), rng_of(), None)
    pieces = dict(zip(layout.names, layout.views(delta), strict=True))
    assert torch.count_nonzero(pieces["1.weight"]) == 0
    assert torch.count_nonzero(pieces["1.bias"]) == 0
    assert torch.count_nonzero(pieces["3.weight"]) > 0


# --- torch's global generator -------------------------------------------------------------------


def dropout_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, 10))


def run_all_kinds(model: nn.Module) -> None:
    bench = bench_of(model)
    server = {"model": bench.layout.flatten()}
    for objective in ({"kind": "plain"}, {"kind": "scaffold", "option": "I"}):
        config = TrainConfig(1, (0, 0), 1, recipe(), objective)
        bench.run("train", config, [server, None])
    bench.run("evaluate", EvaluateConfig(0, 30), [server])


@pytest.mark.parametrize(
    "use",
    [
        lambda: run_all_kinds(model_of("mlp")),
        lambda: run_all_kinds(dropout_model_from_stream()),
        lambda: model_of("lenet5"),
        lambda: profile_model(model_of("lenet5"), SHAPES["lenet5"], 10),
        lambda: profile_model(dropout_model_from_stream(), (1, 8, 8), 10),
    ],
    ids=["train", "train-dropout", "initialization", "profile", "profile-dropout"],
)
def test_the_global_generator_is_left_alone(use: Callable[[], object]) -> None:
    before = torch.get_rng_state()
    numpy_before = np.random.get_state(legacy=False)  # noqa: NPY002
    use()
    assert torch.equal(torch.get_rng_state(), before)
    after = np.random.get_state(legacy=False)  # noqa: NPY002
    np.testing.assert_equal(after, numpy_before)


def dropout_model_from_stream() -> nn.Module:
    with torch_stream(2, "initialization"):
        return dropout_model()


def test_the_global_generator_is_restored_after_an_error() -> None:
    before = torch.get_rng_state()

    def fail() -> None:
        with torch_stream(1, "dropout", 4):
            torch.rand(3)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_draws_from_the_visit_stream_alone() -> None:
    bench = bench_of(dropout_model_from_stream())
    server = {"model": bench.layout.flatten()}

    def delta(client: int, visit: tuple[int, ...], seed: int = 1) -> Tensor:
        config = TrainConfig(client, visit, seed, recipe(), {"kind": "plain"})
        return bench.run("train", config, [server, None]).outputs["update"]["delta"]

    first = delta(0, (0, 0))
    with torch.random.fork_rng():
        torch.rand(100)  # somebody else draws
        assert torch.equal(delta(0, (0, 0)), first)
    for other in (delta(0, (0, 1)), delta(0, (1, 0)), delta(0, (0, 0), seed=2)):
        assert not torch.equal(other, first)


def test_initialization_depends_on_its_seed_alone() -> None:
    def weights(seed: int) -> Tensor:
        with torch_stream(seed, "initialization"):
            return flat(build_model("mlp", (1, 8, 8), 10))

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


# --- flat vectors -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(SHAPES))
def test_flatten_and_load_are_inverse(kind: str) -> None:
    model = model_of(kind)
    expected = flat(model)
    layout = Layout(model, CPU)
    assert torch.equal(layout.flatten(), expected)
    assert layout.size == len(expected) == sum(layout.sizes)
    assert layout.names == [name for name, _ in model.named_parameters()]

    new = torch.from_numpy(rng_of().random(layout.size, dtype=np.float32))
    layout.load(new)
    assert torch.equal(layout.flatten(), new)
    assert torch.equal(flat(layout.model), new)
    start = 0
    for parameter, view in zip(layout.model.parameters(), layout.views(new), strict=True):
        assert torch.equal(parameter.detach(), view)
        assert torch.equal(view, new[start : start + parameter.numel()].reshape(parameter.shape))
        start += parameter.numel()


def test_a_flat_vector_is_a_copy_and_views_are_not() -> None:
    layout = Layout(model_of("mlp"), CPU)
    taken = layout.flatten()
    kept = taken.clone()
    layout.load(torch.zeros(layout.size))
    assert torch.equal(taken, kept)
    layout.views(taken)[0].fill_(7.0)
    assert taken[0] == 7.0
    assert layout.flatten()[0] == 0.0


# --- evaluation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(SHAPES))
def test_evaluation_is_the_naive_accuracy_and_loss(kind: str) -> None:
    model = model_of(kind)
    base = flat(model)
    x, y = samples(57, SHAPES[kind])
    correct, loss = 0, 0.0
    with torch.no_grad():
        for one_x, one_y in zip(x, y, strict=True):
            logits = model(one_x[None])[0].double().numpy()
            correct += int(np.argmax(logits) == int(one_y))
            loss += float(np.log(np.exp(logits).sum()) - logits[int(one_y)])
    got = evaluate(Layout(model, CPU), base, x, y, batch_size=10)
    assert got["correct"] == correct
    assert got["n"] == 57
    assert got["loss"] == pytest.approx(loss, rel=1e-6)


def test_evaluation_switches_dropout_off() -> None:
    model = dropout_model_from_stream()
    layout = Layout(model, CPU)
    x, y = samples(40)
    base = layout.flatten()
    train(layout, base, x, y, recipe(), rng_of(), None)  # leaves the module in training mode
    assert evaluate(layout, base, x, y) == evaluate(layout, base, x, y)


def test_buffers_that_are_no_running_statistics_are_refused() -> None:
    model = model_of("mlp")
    model.register_buffer("mask", torch.ones(3))
    with pytest.raises(ScenarioError, match=r"mask.*plain attribute"):
        Layout(model, CPU)


# --- threads ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("two_threads")
def test_one_thread_inside_and_the_others_back_outside() -> None:
    with one_thread():
        assert torch.get_num_threads() == 1
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_threads_come_back_after_an_error() -> None:
    def fail() -> None:
        with one_thread():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_blas_has_one_thread_too() -> None:
    with one_thread():
        assert {pool["num_threads"] for pool in threadpool_info()} == {1}
