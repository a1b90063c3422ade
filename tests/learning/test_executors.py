"""Executors change how long a run takes, and not one bit of what it computes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from emulator.errors import RunError
from emulator.learning.datasets import load_dataset
from emulator.learning.executors import Executor
from emulator.learning.executors.inline import Inline
from emulator.learning.executors.processes import Processes
from emulator.learning.learner import Learner, Learning
from emulator.learning.lineage import Handle, Operation, Tensors
from emulator.learning.memo import Memo, Values
from emulator.learning.method import Method
from emulator.learning.models import build_model
from emulator.learning.operations import Result, TrainConfig, Workbench, one_thread, torch_stream
from emulator.learning.training import Layout, Recipe

pytestmark = pytest.mark.timeout(120)

CLIENTS = 6
RECIPE = Recipe(
    epochs=2, steps=None, batch_size=10, lr=0.1, momentum=0.0, weight_decay=0.0, pad=False
)
METHOD = Method(
    root="digits, mlp",
    seed=3,
    clients=CLIENTS,
    test_samples=359,
    recipe=RECIPE,
    objective={"kind": "plain"},
    server_optimizer={"kind": "average", "lr": 1.0},
    normalise="weights",
)
YOGI = {"kind": "fedyogi", "lr": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3, "v0": 1e-6}
METHODS = {
    "plain": METHOD,
    "momentum": replace(METHOD, recipe=replace(RECIPE, momentum=0.9, weight_decay=1e-3)),
    "fedprox": replace(METHOD, objective={"kind": "fedprox", "mu": 0.5}),
    "scaffold-I": replace(METHOD, objective={"kind": "scaffold", "option": "I"}),
    "scaffold-II-yogi": replace(
        METHOD, objective={"kind": "scaffold", "option": "II"}, server_optimizer=YOGI
    ),
}


@dataclass(frozen=True)
class Pair:
    """One workbench with its first model, and two executors on it."""

    bench: Workbench
    initial: torch.Tensor
    inline: Executor
    processes: Executor


def digits_bench(kind: str = "mlp") -> Workbench:
    """The digits; client k holds more samples than client k − 1."""
    data = load_dataset("digits")
    with torch_stream(3, "initialization"):
        model = build_model(kind, data.input_shape, data.classes)
    cuts = np.cumsum([40 * (k + 1) for k in range(CLIENTS)])
    parts = np.split(np.arange(int(cuts[-1])), cuts[:-1])
    return Workbench(
        Layout(model, torch.device("cpu")),
        torch.from_numpy(data.train_x),
        torch.from_numpy(data.train_y),
        torch.from_numpy(data.test_x),
        torch.from_numpy(data.test_y),
        parts,
    )


def images_bench() -> Workbench:
    """Random images of 28x28 under the convolutional net of McMahan et al."""
    rng = np.random.default_rng(0)
    with torch_stream(3, "initialization"):
        model = build_model("mcmahan_cnn", (1, 28, 28), 10)

    def images(n: int) -> torch.Tensor:
        return torch.from_numpy(rng.random((n, 1, 28, 28), dtype=np.float32))

    def labels(n: int) -> torch.Tensor:
        return torch.from_numpy(rng.integers(0, 10, n))

    parts = [np.arange(8 * k, 8 * (k + 1)) for k in range(3)]
    return Workbench(
        Layout(model, torch.device("cpu")), images(24), labels(24), images(20), labels(20), parts
    )


def pair_on(bench: Workbench) -> Iterator[Pair]:
    initial = bench.layout.flatten()
    processes = Processes(bench, 2)
    yield Pair(bench, initial, Inline(bench), processes)
    processes.close()


@pytest.fixture(scope="module")
def digits() -> Iterator[Pair]:
    yield from pair_on(digits_bench())


@pytest.fixture(scope="module")
def images() -> Iterator[Pair]:
    yield from pair_on(images_bench())


@dataclass(frozen=True)
class Outcome:
    """All that a run leaves."""

    tensors: dict[str, Tensors]
    values: dict[str, Values]
    metrics: list[Values | None]


def rounds(
    pair: Pair, executor: Executor, method: Method, folder: Path, clients: Sequence[int], n: int
) -> Outcome:
    """``n`` versions of all clients, all computed in one forcing, then all evaluated."""
    memo = Memo(folder, {})
    of = Learner(method, Learning(executor, memo, pair.initial, False), lambda: 0)
    states: dict[int, Handle] = {}
    server = of.initial()
    handles, versions = [server], [server]
    for number in range(n):
        updates = []
        for client in clients:
            update, state = of.train(server, states.get(client), client, (number, 0))
            updates.append(update)
            if state is not None:
                states[client] = state
        weights = [float(len(pair.bench.partition[client])) for client in clients]
        server = of.aggregate(server, updates, weights, [1.0] * len(updates))
        versions.append(server)
        handles += [*updates, *states.values(), server]
    metrics = [of.evaluate(v) for v in versions[::-1]]
    tensors = {handle.id: of.tensors(handle) for handle in handles}
    values = {handle_id: of.values(handle_id.partition(".")[0]) for handle_id in tensors}
    memo.close()
    return Outcome(tensors, values, metrics)


def assert_same(got: Outcome, expected: Outcome) -> None:
    assert list(got.tensors) == list(expected.tensors)
    for handle_id, tensors in expected.tensors.items():
        assert list(got.tensors[handle_id]) == list(tensors)
        for name, tensor in tensors.items():
            assert torch.equal(got.tensors[handle_id][name], tensor), (handle_id, name)
    assert got.values == expected.values
    assert got.metrics == expected.metrics


@pytest.mark.parametrize("method", sorted(METHODS))
def test_worker_processes_compute_the_same_bits(digits: Pair, tmp_path: Path, method: str) -> None:
    everyone = range(CLIENTS)
    expected, got = (
        rounds(digits, executor, METHODS[method], tmp_path / executor.kind, everyone, 3)
        for executor in (digits.inline, digits.processes)
    )
    assert_same(got, expected)
    first, last = expected.metrics[-1], expected.metrics[0]
    assert first is not None
    assert last is not None
    assert last["loss"] != first["loss"]


@pytest.mark.parametrize("objective", [{"kind": "plain"}, {"kind": "scaffold", "option": "II"}])
def test_a_convolutional_net_too(images: Pair, tmp_path: Path, objective: dict[str, Any]) -> None:
    method = replace(
        METHOD,
        root="random images, cnn",
        test_samples=20,
        recipe=replace(RECIPE, epochs=1, batch_size=4, lr=0.01),
        objective=objective,
    )
    expected, got = (
        rounds(images, executor, method, tmp_path / executor.kind, (0, 1, 2), 1)
        for executor in (images.inline, images.processes)
    )
    assert_same(got, expected)


def training(base: Handle, client: int, turn: int, **objective: Any) -> Operation:
    config = TrainConfig(client, (turn, 0), 3, RECIPE, objective or {"kind": "plain"})
    return Operation("train", f"{base.id}/{client}/{turn}", (base, None), config)


def computed(name: str, model: torch.Tensor) -> Handle:
    handle = Handle(name, None)
    handle.resolve({"model": model})
    return handle


def run_all(executor: Executor, operations: Sequence[Operation]) -> dict[str, Result]:
    results: dict[str, Result] = {}

    def done(operation: Operation, result: Result) -> None:
        results[operation.id] = result

    with one_thread():
        executor.run(operations, done)
    return results


def test_more_bases_than_a_worker_keeps(digits: Pair) -> None:
    """Seven models, asked for again and again in an order that drives each out of the cache."""
    bases = [computed(f"base-{k}", digits.initial * (1 + k / 10)) for k in range(7)]
    order = [0, 1, 2, 3, 4, 5, 6, 0, 1, 4, 0, 5, 2, 3, 3, 6, 1, 0, 2, 5, 4, 6]
    operations = [training(bases[k], 0, turn) for turn, k in enumerate(order)]
    expected = run_all(digits.inline, operations)
    got = run_all(digits.processes, operations)
    assert set(got) == set(expected) == {operation.id for operation in operations}
    for operation_id, result in expected.items():
        assert torch.equal(
            got[operation_id].outputs["update"]["delta"], result.outputs["update"]["delta"]
        )
        assert got[operation_id].values == result.values


def test_results_are_private_and_inputs_stay(digits: Pair) -> None:
    """A result in shared memory would hold a file descriptor for as long as it lives."""
    base = computed("private", digits.initial.clone())
    assert base.tensors is not None
    before = base.tensors["model"].clone()
    results = run_all(digits.processes, [training(base, client, 0) for client in range(CLIENTS)])
    for result in results.values():
        delta = result.outputs["update"]["delta"]
        assert not delta.is_shared()  # type: ignore[no-untyped-call]
        assert result.host_s > 0
    assert torch.equal(base.tensors["model"], before)


def test_an_operation_comes_after_its_inputs(digits: Pair, tmp_path: Path) -> None:
    """``done`` hears of results in an order in which each finds its inputs computed."""
    heard: list[str] = []

    class Listening:
        kind = "processes"

        def run(
            self, operations: Sequence[Operation], done: Callable[[Operation, Result], None]
        ) -> None:
            def noted(operation: Operation, result: Result) -> None:
                assert all(h is None or h.tensors is not None for h in operation.inputs)
                heard.append(operation.id)
                done(operation, result)

            digits.processes.run(operations, noted)

        def close(self) -> None:
            pass

    rounds(digits, Listening(), METHOD, tmp_path, range(CLIENTS), 2)
    assert len(heard) == len(set(heard)) == 1 + 2 * (CLIENTS + 1) + 3


# --- what goes wrong ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Lone:
    """An executor with one worker, whose process is ``pid``."""

    executor: Processes
    base: Handle
    pid: int


@pytest.fixture
def lone() -> Iterator[Lone]:
    others = multiprocessing.active_children()
    bench = digits_bench("logistic")
    base = computed("base", bench.layout.flatten())
    executor = Processes(bench, 1)
    (worker,) = (child for child in multiprocessing.active_children() if child not in others)
    assert worker.pid is not None
    yield Lone(executor, base, worker.pid)
    executor.close()
    assert worker not in multiprocessing.active_children()


def test_an_error_in_a_worker_ends_the_run_and_is_named(lone: Lone) -> None:
    broken = training(lone.base, 1, 0, kind="fedprox")  # without its mu
    operations = [training(lone.base, 0, 0), broken, training(lone.base, 2, 0)]
    with pytest.raises(RunError, match=r"fedclock-worker-0: KeyError: 'mu'"):
        run_all(lone.executor, operations)


def test_a_killed_worker_ends_the_run(lone: Lone) -> None:
    done: list[str] = []

    def kill_after_the_first(operation: Operation, result: Result) -> None:
        if not done:
            os.kill(lone.pid, signal.SIGKILL)
        done.append(operation.id)

    operations = [
        training(lone.base, client, turn) for turn in range(5) for client in range(CLIENTS)
    ]
    with pytest.raises(RunError, match=r"fedclock-worker-0 died with exit code -9.*same command"):
        lone.executor.run(operations, kill_after_the_first)
    assert 1 <= len(done) < len(operations)
