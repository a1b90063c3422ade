"""The operations themselves: what runs when a value is needed, in whatever process.

A :class:`Workbench` holds what every operation of a run needs (the model's layout, the data, who
holds which samples). Its :meth:`~Workbench.run` is a pure function of an operation's kind, its
configuration and its inputs' tensors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from emulator import random_streams
from emulator.learning import training
from emulator.learning.lineage import Tensors
from emulator.learning.methods import GradientTerm
from emulator.learning.methods.average import average, coefficients, mean_delta
from emulator.learning.methods.fedprox import fedprox
from emulator.learning.methods.fedyogi import fedyogi
from emulator.learning.methods.scaffold import control_option_2, scaffold, server_control
from emulator.learning.training import Layout, Recipe

Options = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """One visit of a client: ``visit`` names its random stream together with the seed."""

    client: int
    visit: tuple[int, ...]
    seed: int
    recipe: Recipe
    objective: Options


@dataclass(frozen=True, slots=True)
class AggregateConfig:
    """How updates are merged; the lists run along the inputs after the first."""

    weights: tuple[float, ...]
    discounts: tuple[float, ...]
    normalise: str
    optimizer: Options
    clients: int


@dataclass(frozen=True, slots=True)
class EvaluateConfig:
    """Test samples [start, stop)."""

    start: int
    stop: int


@dataclass(slots=True)
class Result:
    """Tensors by output name, small values, and the host seconds it took."""

    outputs: dict[str, Tensors]
    values: dict[str, Any]
    host_s: float = field(default=0.0)


@dataclass(frozen=True)
class Workbench:
    """``train_x`` [n, ...], ``train_y`` [n], ``test_x``, ``test_y``; ``partition[client]`` are
    the client's positions in the training set."""

    layout: Layout
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    partition: Sequence[np.ndarray[Any, np.dtype[np.int64]]]

    def run(self, kind: str, config: Any, inputs: Sequence[Tensors | None]) -> Result:
        """Run one operation (inside :func:`one_thread`); see the ``*Config`` classes."""
        started = time.perf_counter()
        result = _KINDS[kind](self, config, inputs)
        result.host_s = time.perf_counter() - started
        return result

    def samples_of(self, client: int) -> tuple[Tensor, Tensor]:
        """The client's x [n, ...] and y [n]."""
        chosen = torch.from_numpy(self.partition[client]).to(self.train_x.device)
        return self.train_x[chosen], self.train_y[chosen]


@contextmanager
def one_thread() -> Iterator[None]:
    """One intra-op thread for torch and for the BLAS under NumPy; restored on leaving.

    More threads would change sums, and so bits, with the number of cores.
    """
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    with threadpool_limits(limits=1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


@contextmanager
def torch_stream(seed: int, purpose: str, *entity: int) -> Iterator[None]:
    """The only place where torch's global generator is touched: forked, seeded from the named
    stream, and restored."""
    drawn = int(random_streams.generator(seed, purpose, *entity).integers(2**62))
    # Not torch.random.fork_rng and torch.manual_seed: they format a stack trace at every call.
    generators = [torch.default_generator]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        generators.append(torch.cuda.default_generators[torch.cuda.current_device()])
    states = [generator.get_state() for generator in generators]
    try:
        for generator in generators:
            generator.manual_seed(drawn)
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def _initial(bench: Workbench, config: Any, inputs: Sequence[Tensors | None]) -> Result:
    # ``config`` is the freshly initialized model [P], taken before anything was loaded over it.
    return Result({"server": {"model": config.clone()}}, {})


def _train(bench: Workbench, config: TrainConfig, inputs: Sequence[Tensors | None]) -> Result:
    server, state = inputs
    assert server is not None
    layout, base = bench.layout, server["model"]
    x, y = bench.samples_of(config.client)
    rng = random_streams.generator(config.seed, "training", config.client, *config.visit)
    kind = config.objective["kind"]
    term: GradientTerm | None = None
    if kind == "fedprox":
        term = fedprox(config.objective["mu"])
    zeros = torch.zeros_like(base) if kind == "scaffold" else base
    c = server.get("control", zeros)
    c_k = state["control"] if state is not None else zeros
    if kind == "scaffold":
        correction = layout.views((c - c_k).to(layout.device))
        term = scaffold(
            [v for v, p in zip(correction, layout.parameters, strict=True) if p.requires_grad]
        )
    with torch_stream(config.seed, "dropout", config.client, *config.visit):
        delta, loss, steps = training.train(layout, base, x, y, config.recipe, rng, term)
        outputs: dict[str, Tensors] = {"update": {"delta": delta}}
        finite = bool(torch.isfinite(delta).all())
        if kind == "scaffold":
            if config.objective["option"] == "I":
                new = training.mean_gradient(layout, base, x, y, config.recipe)
            else:
                new = control_option_2(c, c_k, delta, config.recipe.lr, steps)
            finite = finite and bool(torch.isfinite(new).all())
            # A client whose update is not finite keeps the control variate that it had.
            outputs["state"] = {"control": new if finite else c_k.clone()}
            outputs["update"]["control_change"] = new - c_k
    return Result(outputs, {"loss": loss, "steps": steps, "finite": finite})


def _aggregate(
    bench: Workbench, config: AggregateConfig, inputs: Sequence[Tensors | None]
) -> Result:
    server = inputs[0]
    updates = [update for update in inputs[1:] if update is not None]
    assert server is not None
    assert len(updates) == len(config.weights)
    finite = [all(bool(torch.isfinite(t).all()) for t in update.values()) for update in updates]
    values = {"nonfinite": [i for i, ok in enumerate(finite) if not ok]}
    kept = [i for i, ok in enumerate(finite) if ok]
    factors = coefficients(
        [config.weights[i] for i in kept], [config.discounts[i] for i in kept], config.normalise
    )
    if not any(factors):
        return Result({"server": server}, values)
    delta = mean_delta([updates[i]["delta"] for i in kept], factors)
    after = dict(server)
    options = dict(config.optimizer)
    optimizer = options.pop("kind")
    if optimizer == "average":
        after["model"] = average(server["model"], delta, **options)
    else:
        after["model"], after["m"], after["v"] = fedyogi(
            server["model"], delta, server.get("m"), server.get("v"), **options
        )
    changes = [updates[i]["control_change"] for i in kept if "control_change" in updates[i]]
    if changes:
        control = server.get("control", torch.zeros_like(delta))
        after["control"] = server_control(control, changes, config.clients)
    return Result({"server": after}, values)


def _evaluate(bench: Workbench, config: EvaluateConfig, inputs: Sequence[Tensors | None]) -> Result:
    server = inputs[0]
    assert server is not None
    part = slice(config.start, config.stop)
    sums = training.evaluate(bench.layout, server["model"], bench.test_x[part], bench.test_y[part])
    return Result({}, dict(sums))


_KINDS: dict[str, Callable[[Workbench, Any, Sequence[Tensors | None]], Result]] = {
    "initial": _initial,
    "train": _train,
    "aggregate": _aggregate,
    "evaluate": _evaluate,
}
