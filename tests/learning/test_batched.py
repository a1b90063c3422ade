"""Clients trained in lanes learn what they learn alone: to rounding what ``inline`` computes, and
to the bit the same beside anybody."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from test_executors import (
    CLIENTS,
    METHOD,
    METHODS,
    RECIPE,
    Pair,
    computed,
    digits_bench,
    rounds,
    run_all,
    training,
)
from test_learning import manifest
from test_learning import run as run_scenario
from torch import Tensor, nn
from typer.testing import CliRunner

from emulator.cli import app
from emulator.errors import InternalError, RunError, ScenarioError
from emulator.learning.executors.batched import LANES, Batched
from emulator.learning.executors.inline import Inline
from emulator.learning.executors.lanes import step_program
from emulator.learning.executors.program import record
from emulator.learning.learner import Learner, Learning
from emulator.learning.lineage import Handle, Operation
from emulator.learning.memo import Memo
from emulator.learning.methods.local_dp import Privacy
from emulator.learning.models import build_model
from emulator.learning.operations import Result, TrainConfig, Workbench, one_thread, torch_stream
from emulator.learning.profile import Profile
from emulator.learning.setting import resolve_executor
from emulator.learning.training import Layout, Recipe
from emulator.scenario.schema import Execution

pytestmark = pytest.mark.timeout(120)

WIDTH = 4
"""Lanes in these tests, fewer than clients."""


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    with one_thread():
        yield


def in_lanes(bench: Workbench, rows: int, lanes: int = WIDTH, workers: int = 1) -> Batched:
    step = step_program(bench.layout, rows, lanes, bench.train_x, bench.train_y)
    return Batched(bench, step, workers)


def relative(got: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return float((got - expected).abs().max() / expected.abs().max())


# --- what inline computes -------------------------------------------------------------------


@dataclass(frozen=True)
class Digits:
    pair: Pair
    batched: Batched


@pytest.fixture(scope="module")
def digits() -> Iterator[Digits]:
    with one_thread():
        bench = digits_bench()
        batched = in_lanes(bench, RECIPE.batch_size)
        yield Digits(Pair(bench, bench.layout.flatten(), Inline(bench), batched), batched)
        batched.close()


MORE = {
    "local_dp": replace(METHOD, privacy=Privacy(0.5, 0.1)),
    "feddyn": replace(
        METHOD,
        objective={"kind": "feddyn", "alpha": 0.1},
        server_optimizer={"kind": "feddyn", "alpha": 0.1},
    ),
    "qfedavg": replace(METHOD, server_optimizer={"kind": "qfedavg", "q": 1.0, "lipschitz": 10.0}),
}


@pytest.mark.parametrize("method", sorted({**METHODS, **MORE}))
def test_rounds_are_those_of_inline(digits: Digits, tmp_path: Path, method: str) -> None:
    pair, chosen = digits.pair, {**METHODS, **MORE}[method]
    chosen = replace(chosen, recipe=replace(chosen.recipe, epochs=1, lr=0.05))
    expected, got = (
        rounds(pair, executor, chosen, tmp_path / executor.kind, range(CLIENTS), 3)
        for executor in (pair.inline, digits.batched)
    )
    assert list(got.tensors) == list(expected.tensors)
    # Adaptive steps divide by the root of sums of squares that start at next to nothing.
    tolerance = 1e-3 if "yogi" in method else 1e-5
    server = [key for key in expected.tensors if key.endswith(".server")]
    assert len(server) == 4
    for key in server:
        assert relative(got.tensors[key]["model"], expected.tensors[key]["model"]) < tolerance
    for key, tensors in expected.tensors.items():
        assert list(got.tensors[key]) == list(tensors), key
        values, right = got.values[key], expected.values[key]
        assert list(values) == list(right)
        if "loss" in right:
            assert values["loss"] == pytest.approx(right["loss"], rel=1e-3)
            assert values["steps"] == right["steps"]
    first, last = expected.metrics[-1], expected.metrics[0]
    assert first is not None
    assert last is not None
    assert last["loss"] < first["loss"]


SIZES = (0, 25, 1, 10, 3, 0, 41, 12)


def uneven_bench(kind: str = "mlp", **options: Any) -> Workbench:
    """Random samples of 6 values; the clients hold ``SIZES`` of them."""
    rng = np.random.default_rng(5)
    n = sum(SIZES)
    with torch_stream(3, "initialization"):
        model = build_model(kind, (6,), 3, **options)
    x = torch.from_numpy(rng.standard_normal((n, 6)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, 3, n))
    parts = np.split(rng.permutation(n), np.cumsum(SIZES)[:-1])
    return Workbench(Layout(model, torch.device("cpu")), x, y, x[:10], y[:10], parts)


def visits(base: Handle, recipe: Recipe, **objective: Any) -> list[Operation]:
    """One visit of every client of :func:`uneven_bench`."""
    chosen = objective or {"kind": "plain"}
    return [
        Operation(
            "train", f"{base.id}/{c}", (base, None), TrainConfig(c, (0, 0), 3, recipe, chosen)
        )
        for c in range(len(SIZES))
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"momentum": 0.9, "weight_decay": 0.01},
        {"epochs": 3, "pad": True, "momentum": 0.5},
        {"epochs": None, "steps": 7},
        {"batch_size": 1},
        {"batch_size": 50},
    ],
    ids=str,
)
def test_clients_of_any_size(changes: dict[str, Any]) -> None:
    """Short batches and lanes with fewer steps; nobody has a step in a lane without samples."""
    bench = uneven_bench(hidden=[5])
    recipe = replace(RECIPE, **changes)
    batched = in_lanes(bench, recipe.batch_size)
    operations = visits(computed("b", bench.layout.flatten()), recipe)
    expected, got = (run_all(executor, operations) for executor in (Inline(bench), batched))
    batched.close()
    assert set(got) == set(expected)
    for operation, size in zip(operations, SIZES, strict=True):
        result, right = got[operation.id], expected[operation.id]
        delta, right_delta = (r.outputs["update"]["delta"] for r in (result, right))
        assert result.values["steps"] == right.values["steps"]
        if size == 0:
            assert result.values["steps"] == 0
            assert math.isnan(result.values["loss"])
            assert torch.equal(delta, torch.zeros_like(delta))
        else:
            assert relative(delta, right_delta) < 1e-5
            assert result.values["loss"] == pytest.approx(right.values["loss"], rel=1e-5)
        assert result.values["finite"]
        assert result.host_s > 0


class Frozen(nn.Module):
    """A classifier whose first layer is not trained, and whose two biases are one in effect."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 4).requires_grad_(False)
        self.last = nn.Linear(4, 3, bias=False)
        self.one = nn.Parameter(torch.zeros(3))
        self.two = nn.Parameter(torch.ones(3))
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x))) + (self.one + self.two)  # type: ignore[no-any-return]


def test_frozen_shared_and_unused_parameters() -> None:
    """One step by hand, w ← w − η (g + λ w): decay reaches each trained parameter once."""
    with torch_stream(3, "initialization"):
        model = Frozen()
    bench = replace(uneven_bench("logistic"), layout=Layout(model, torch.device("cpu")))
    recipe = replace(RECIPE, epochs=1, batch_size=25, lr=0.2, momentum=0.9, weight_decay=0.1)
    client = SIZES.index(25)
    start = bench.layout.flatten()
    batched = in_lanes(bench, 25)
    assert torch.equal(bench.layout.flatten(), start)  # the trial left the model as it was
    operations = visits(computed("b", start.clone()), recipe)
    delta = run_all(batched, operations)[operations[client].id].outputs["update"]["delta"]
    batched.close()
    x, y = bench.samples_of(client)
    nn.functional.cross_entropy(model(x), y).backward()
    right = []
    for parameter in model.parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        step = -0.2 * (gradient + 0.1 * parameter.detach())
        right.append((step if parameter.requires_grad else 0 * step).reshape(-1))
    assert relative(delta, torch.cat(right)) < 1e-5
    assert len(torch.cat(right)) == 28 + 12 + 8


# --- a lane's bits --------------------------------------------------------------------------

MODELS: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "logistic": ("logistic", (13,), {}),
    "mlp": ("mlp", (17,), {"hidden": [33, 7]}),
    "lenet5": ("lenet5", (1, 12, 12), {}),
    "mcmahan_cnn": ("mcmahan_cnn", (3, 4, 4), {}),
    "fedseq_lenet": ("fedseq_lenet", (3, 16, 16), {}),
    "conv1d": ("conv1d", (2, 32), {}),
}
SMALL = (0, 3, 5, 8, 11)


@dataclass(frozen=True)
class Lanes:
    """A client's own result with each base, and who can be trained beside it."""

    bench: Workbench
    batched: Batched
    bases: list[Handle]
    alone: dict[tuple[int, int], Result]


@cache
def lanes_of(name: str) -> Lanes:
    kind, shape, options = MODELS[name]
    rng = np.random.default_rng(1)
    n = sum(SMALL)
    with torch_stream(3, "initialization"):
        model = build_model(kind, shape, 3, **options)
    x = torch.from_numpy(rng.random((n, *shape), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, 3, n))
    parts = np.split(np.arange(n), np.cumsum(SMALL)[:-1])
    bench = Workbench(Layout(model, torch.device("cpu")), x, y, x, y, parts)
    batched = in_lanes(bench, 4)
    start = bench.layout.flatten()
    models = [start, start * 1.5, torch.full_like(start, math.nan)]
    bases = [computed(f"base-{i}", model) for i, model in enumerate(models)]
    alone = {}
    for base in range(2):
        for client in range(len(SMALL)):
            (alone[client, base],) = run_all(batched, [task(bases, client, base)]).values()
    return Lanes(bench, batched, bases, alone)


def task(bases: Sequence[Handle], client: int, base: int, number: int = 0) -> Operation:
    recipe = replace(RECIPE, epochs=1, batch_size=4, momentum=0.9, weight_decay=0.01)
    config = TrainConfig(client, (0, 0), 3, recipe, {"kind": "fedprox", "mu": 0.1})
    return Operation("train", f"{client}/{base}/{number}", (bases[base], None), config)


@pytest.mark.parametrize("name", sorted(MODELS))
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    company=st.lists(
        st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 2)), min_size=1, max_size=9
    )
)
def test_a_lane_does_not_know_its_neighbours(name: str, company: list[tuple[int, int]]) -> None:
    """Whoever else is trained, in whatever order, with whatever model, one of NaN included."""
    of = lanes_of(name)
    operations = [task(of.bases, *pair, number) for number, pair in enumerate(company)]
    results = run_all(of.batched, operations)
    for operation, (client, base) in zip(operations, company, strict=True):
        got = results[operation.id]
        delta = got.outputs["update"]["delta"]
        if base == 2:
            assert bool(delta.isnan().all())
            continue
        expected = of.alone[client, base]
        assert torch.equal(delta, expected.outputs["update"]["delta"])
        assert got.values["steps"] == expected.values["steps"] == math.ceil(SMALL[client] / 4)
        if SMALL[client]:
            assert got.values == expected.values


def test_the_number_of_threads_changes_nothing() -> None:
    bench = digits_bench()
    base = computed("b", bench.layout.flatten())
    operations = [training(base, client, turn) for turn in range(3) for client in range(CLIENTS)]
    results = []
    for workers in (1, 3):
        batched = in_lanes(bench, RECIPE.batch_size, workers=workers)
        results.append(run_all(batched, operations))
        batched.close()
    one, three = results
    for operation in operations:
        deltas = (r[operation.id].outputs["update"]["delta"] for r in (one, three))
        assert torch.equal(*deltas)
        assert one[operation.id].values == three[operation.id].values


# --- the order of operations ----------------------------------------------------------------


def test_what_depends_on_what(digits: Digits, tmp_path: Path) -> None:
    """Trainings from versions that other trainings make, all asked for at once: each is done
    after its inputs, and none waits for more than those."""
    heard: list[str] = []

    class Listening:
        kind = "batched"

        def run(self, operations: Sequence[Operation], done: Any) -> None:
            def noted(operation: Operation, result: Result) -> None:
                assert all(h is None or h.tensors is not None for h in operation.inputs)
                heard.append(operation.kind)
                done(operation, result)

            digits.batched.run(operations, noted)

        def close(self) -> None:
            pass

    def last(executor: Any, folder: Path) -> Tensor:
        memo = Memo(folder, {})
        learning = Learning(executor, memo, digits.pair.initial, False)
        of = Learner(METHOD, learning, lambda: 0)
        versions = [of.initial()]
        # As with two clients in flight: an update starts from the version before last.
        for number in range(5):
            base = versions[max(0, number - 1)]
            update, _ = of.train(base, None, number % CLIENTS, (number, 0))
            versions.append(of.aggregate(versions[-1], [update], [1.0], [1.0]))
        model = of.tensors(versions[-1])["model"]
        memo.close()
        return model

    got = last(Listening(), tmp_path / "batched")
    assert sorted(heard) == ["aggregate"] * 5 + ["initial"] + ["train"] * 5
    assert relative(got, last(digits.pair.inline, tmp_path / "inline")) < 1e-5


def test_a_missing_input_is_a_fault(digits: Digits) -> None:
    missing = Handle("nowhere", None)
    with pytest.raises(InternalError, match="1 operations wait"):
        run_all(digits.batched, [training(missing, 0, 0)])


def test_a_failing_training_stops_the_run(digits: Digits) -> None:
    short = computed("short", digits.pair.initial[:-1].clone())
    with pytest.raises(RunError, match=r"an operation failed \(train, in lanes, clients 2, 1\)"):
        run_all(digits.batched, [training(short, 1, 0), training(short, 2, 0)])


# --- models that are refused ----------------------------------------------------------------


class AcrossTheBatch(nn.Linear):
    """Its answer for a sample depends on the others."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


class AcrossTheLanes(torch.autograd.Function):
    """The identity, whose gradient the first lane gets some of."""

    generate_vmap_rule = False

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient + gradient[:1]

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> tuple[Tensor, int]:
        return AcrossTheLanes.apply(x), in_dims[0]  # type: ignore[no-untyped-call]


class Shared(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return AcrossTheLanes.apply(super().forward(x))  # type: ignore[no-untyped-call,no-any-return]


REFUSED = {
    "batch normalization": nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
    "of the batch": nn.Sequential(
        nn.BatchNorm1d(6, affine=False, track_running_stats=False), nn.Linear(6, 3)
    ),
    "random": nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 3)),
    "recurrent": nn.Sequential(nn.Unflatten(1, (3, 2)), nn.LSTM(2, 3)),
    "across the batch": AcrossTheBatch(6, 3),
    "across the lanes": Shared(6, 3),
}
REASONS = {
    "batch normalization": "batch normalization ties",
    "of the batch": "batch normalization ties",
    "random": r"torch\.func\.vmap over it fails .*random",
    "recurrent": r"torch\.func\.vmap over it fails",
    "across the batch": "depends on the clients beside it",
    "across the lanes": "depends on the clients beside it",
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_a_model_that_lanes_cannot_train(case: str) -> None:
    bench = uneven_bench("logistic")
    layout = Layout(REFUSED[case], torch.device("cpu"))
    with pytest.raises(ScenarioError, match=REASONS[case] + ".*use executor: inline or processes"):
        in_lanes(replace(bench, layout=layout), 10)


def test_the_rule_behind_auto() -> None:
    def chosen(kind: str, macs: int, **execution: Any) -> str:
        profile = Profile((), 4, macs, 2 * macs)
        return resolve_executor(Execution.model_validate(execution), kind, profile)

    assert chosen("mlp", 999_999) == chosen("logistic", 10) == "batched"
    assert chosen("mlp", 1_000_000) == chosen("resnet8", 1_000_000) == "processes"
    assert chosen("lenet5", 999_999) == chosen("custom", 10) == "inline"
    assert chosen("mlp", 5_000_000, device="cuda") == "batched"
    assert chosen("lenet5", 5_000_000, device="cuda") == "batched"
    assert chosen("resnet8", 5_000_000, device="cuda") == "inline"
    assert chosen("lenet5", 10, executor="batched", device="cuda") == "batched"
    with pytest.raises(ScenarioError, match="processes runs on the CPU"):
        chosen("mlp", 10, executor="processes", device="cuda")


# --- programs -------------------------------------------------------------------------------


def test_a_program_plays_what_it_saw() -> None:
    """Constants, operations in place, lists, several results, what nobody needs."""
    constant = torch.tensor([1.0, 2.0, 3.0])

    def function(inputs: Sequence[Tensor]) -> list[Tensor]:
        x, y = inputs
        torch.exp(x)
        both = torch.cat([x, y])
        both.mul_(2)
        largest = both.max(0)
        return [largest.values + constant, largest.indices, x.view(2, 3)]

    def sample(seed: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [torch.randn(2, 3, generator=generator) for _ in range(2)]

    program, results = record(function, sample(0))
    for got, right in zip(results, function(sample(0)), strict=True):
        assert torch.equal(got, right)
    for seed in (1, 2, 1):
        for got, right in zip(program(sample(seed)), function(sample(seed)), strict=True):
            assert torch.equal(got, right)


def test_a_program_with_random_numbers_is_not_recorded() -> None:
    with pytest.raises(NotImplementedError, match="random numbers"):
        record(lambda inputs: [torch.rand_like(inputs[0])], [torch.zeros(2)])


# --- through the command line ---------------------------------------------------------------

UNEVEN = "task.partition={kind: dirichlet, alpha: 0.3}"


def weights(directory: Path) -> dict[str, Tensor]:
    return load_file(directory / "model.safetensors")


def test_the_executors_agree(tmp_path: Path) -> None:
    """The same events, and after ten rounds the same weights to rounding."""
    changes = (UNEVEN, "stop.versions=10", "local.epochs=1")
    inline, batched, processes = (
        run_scenario(tmp_path, *changes, f"execution.executor={kind}")
        for kind in ("inline", "auto", "processes")
    )
    for name in ("events.jsonl", "versions.csv", "updates.csv", "clients.csv"):
        for other in (batched, processes):
            assert (other / name).read_bytes() == (inline / name).read_bytes(), name
    expected, got = weights(inline), weights(batched)
    assert list(got) == list(expected)
    for name, tensor in expected.items():
        assert relative(got[name], tensor) < 1e-5, name
    resolved = yaml.safe_load((batched / "resolved.yaml").read_text())
    assert resolved["execution"]["executor"] == "batched"
    assert manifest(batched)["fingerprint"]["executor"] == f"batched, {LANES['cpu']} lanes"
    assert manifest(batched)["trainings"] == manifest(inline)["trainings"]


def test_a_refused_model_leaves_nothing_behind(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    run_scenario(tmp_path, "stop.versions=1")
    arguments = ["run", str(scenario), "--out", str(tmp_path / "out"), "--quiet"]
    for change in ("task.model={kind: resnet8}", "federation.batch_norm=average"):
        arguments += ["--set", change]
    arguments += ["--set", "execution.executor=batched"]
    with pytest.raises(ScenarioError, match=r"batched cannot train this task\.model: batch"):
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert not (tmp_path / "out").exists()
