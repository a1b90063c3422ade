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
from emulator.errors import InternalError
from emulator.learning import clustering, grouping, matching, objectives, pretraining, training
from emulator.learning.lineage import Tensors
from emulator.learning.matching import Matching, layer_positions, own_model
from emulator.learning.methods.average import coefficients
from emulator.learning.methods.divide_and_conquer import divergence
from emulator.learning.methods.local_dp import Privacy
from emulator.learning.methods.scaffold import server_control
from emulator.learning.partitions import ClientTest
from emulator.learning.privacy import leaving, noised
from emulator.learning.server_steps import (
    Taken,
    initial_vector,
    merge_statistics,
    take_step,
)
from emulator.learning.training import Layout, Recipe
from emulator.learning.vectors import all_finite, cut, kind_of, put

Options = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """One visit of a client: ``visit`` names its random stream together with the seed.

    ``uploads`` is what the server's step takes (see ``server_steps.UPLOADS``); ``batch_norm`` what
    becomes of running statistics: ``average``, ``local``, ``freeze``, or None for a model that has
    none. ``layers`` are those that are trained, None for all, ``matching`` is FedMA's. With
    ``privacy`` the update is clipped and noised.
    """

    client: int
    visit: tuple[int, ...]
    seed: int
    recipe: Recipe
    objective: Options
    uploads: tuple[str, ...] = ("delta",)
    batch_norm: str | None = None
    layers: tuple[str, ...] | None = None
    matching: Matching | None = None
    privacy: Privacy | None = None


@dataclass(frozen=True, slots=True)
class AggregateConfig:
    """How updates are merged; the lists run along the inputs after the first. Only ``layers``
    change, None for all."""

    weights: tuple[float, ...]
    discounts: tuple[float, ...]
    normalise: str
    optimizer: Options
    clients: int
    layers: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class DivergenceConfig:
    """How far apart updates are in each of ``layers``, see ``divergence``; ``weights`` run along
    the inputs after the first."""

    layers: tuple[str, ...]
    metric: str
    on: str
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class EvaluateConfig:
    """Test samples [start, stop). ``by_batch``: batch normalization by the statistics of the
    samples themselves."""

    start: int
    stop: int
    by_batch: bool = False


@dataclass(frozen=True, slots=True)
class EvaluateClientsConfig:
    """Each of the clients on the samples that it is tested on. With states beside the server's
    (in the clients' order), batch normalization uses the client's own statistics."""

    clients: tuple[int, ...]


@dataclass(slots=True)
class Result:
    """Tensors by output name, small values, and the host seconds it took."""

    outputs: dict[str, Tensors]
    values: dict[str, Any]
    host_s: float = field(default=0.0)


@dataclass(frozen=True)
class Workbench:
    """``train_x`` [n, ...], ``train_y`` [n], ``test_x``, ``test_y``; ``partition[client]`` are
    the client's positions in the training set, ``client_test`` what each client is tested on,
    ``planted`` [clients] the cluster that each has been put into."""

    layout: Layout
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    partition: Sequence[np.ndarray[Any, np.dtype[np.int64]]]
    client_test: ClientTest | None = None
    exemplars: tuple[Tensor, Tensor] | None = None
    planted: np.ndarray[Any, np.dtype[np.int64]] | None = None

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

    def distribution_of(self, client: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The shares of the classes in a client's samples [classes], and zeros for the classes of
        the other planted clusters [clusters × classes]."""
        y = self.train_y[torch.from_numpy(self.partition[client]).to(self.train_y.device)]
        classes = 1 + int(self.train_y.max())
        shares = np.bincount(y.cpu().numpy(), minlength=classes) / max(1, len(y))
        if self.planted is None:
            return shares
        found = np.zeros((1 + int(self.planted.max()), classes))
        found[self.planted[client]] = shares
        return found.reshape(-1)

    def tested_on(self, client: int) -> tuple[Tensor, Tensor]:
        """The x and y that the client is tested on."""
        assert self.client_test is not None
        ours = self.client_test.split == "train"
        x, y = (self.train_x, self.train_y) if ours else (self.test_x, self.test_y)
        chosen = torch.from_numpy(self.client_test.indices[client]).to(x.device)
        return x[chosen], y[chosen]


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
    statistics = {name: t.clone() for name, t in bench.layout.initial_statistics.items()}
    return Result({"server": {"model": config.clone(), **statistics}}, {})


def _train(bench: Workbench, config: TrainConfig, inputs: Sequence[Tensors | None]) -> Result:
    layout, visit = bench.layout, begin(bench, config, inputs)
    x, y = bench.samples_of(config.client)
    rng = visit_generator(config)
    vector = layout.trained_views(visit.vector, config.layers)
    term = objectives.gradient_term(config.objective, vector)
    with torch_stream(config.seed, "dropout", config.client, *config.visit):
        delta, loss, steps = training.train(
            layout, visit.server["model"], x, y, config.recipe, rng, term, visit.statistics,
            freeze=config.batch_norm == "freeze", layers=config.layers,
            penalty=objectives.penalty(config.objective),
        )  # fmt: skip
        return finish(bench, visit, delta, loss, steps)


def visit_generator(config: TrainConfig) -> np.random.Generator:
    """The random stream of a visit's mini-batches."""
    return random_streams.generator(config.seed, "training", config.client, *config.visit)


@dataclass(frozen=True, slots=True)
class Visit:
    """What a training starts from, wherever its steps are done; ``kept`` and ``vector`` [P] as in
    ``objectives``, ``update`` what the client sends of the received model."""

    config: TrainConfig
    server: Tensors
    statistics: Tensors
    kept: Tensor | None
    vector: Tensor | None
    update: Tensors


def begin(bench: Workbench, config: TrainConfig, inputs: Sequence[Tensors | None]) -> Visit:
    """All of a training that comes before its steps."""
    server, state = inputs
    assert server is not None
    layout, objective = bench.layout, config.objective
    if config.matching is not None:
        server = {
            **server,
            "model": own_model(layout, config.matching, server, state, config.client),
        }
        state = None
    base = server["model"]
    statistics = _statistics_at_start(layout, config, server, state)
    update: Tensors = {}
    if "base_loss" in config.uploads:
        x, y = bench.samples_of(config.client)
        local = config.batch_norm == "local"
        sums = training.evaluate(layout, base, x, y, statistics=statistics, by_batch=local)
        update["base_loss"] = base.new_tensor([sums["loss"] / max(1, len(y))])
    kept = objectives.kept_before(objective, base, state)
    vector = objectives.correction(objective, server, kept)
    return Visit(config, server, statistics, kept, vector, update)


def finish(bench: Workbench, visit: Visit, delta: Tensor, loss: float, steps: int) -> Result:
    """All of a training that comes after its steps; where the trained model itself is sent, the
    layout holds it."""
    layout, config, objective = bench.layout, visit.config, visit.config.objective
    freeze, local = config.batch_norm == "freeze", config.batch_norm == "local"
    update = dict(visit.update)
    model = layout.flatten() if "model" in config.uploads else None
    if config.privacy is not None:
        # From here on there is nothing but this: the client itself goes on with what it has sent.
        delta = noised(
            layout, config.privacy, delta, config.layers, config.seed, config.client, config.visit
        )
        model = None if model is None else visit.server["model"].to(delta.device) + delta
    if "delta" in config.uploads:
        update["delta"] = delta
    if model is not None:
        update["model"] = model
    own: Tensors = {}
    if config.matching is not None:
        own["own"] = layout.flatten()
        update["layer"] = own["own"][layer_positions(layout, config.matching.layer)]
    moved = {} if freeze else layout.statistics()
    if not local:
        update.update(moved)

    def gradient_at_base() -> Tensor:
        x, y = bench.samples_of(config.client)
        return training.mean_gradient(
            layout, visit.server["model"], x, y, config.recipe, visit.statistics, freeze=freeze
        )

    new, beside = objectives.after_training(
        objective, config.recipe, visit.server, visit.kept, delta, steps, gradient_at_base
    )
    update.update(beside)
    before, after = _client_states(
        objective, visit.kept, new, visit.statistics, moved if local else {}
    )
    if own:
        before, after = {"own": visit.server["model"].clone()}, own
    finite = all_finite(update) and all_finite(after)
    outputs = {"update": update}
    if after:
        # A client whose update is not finite keeps what it had.
        outputs["state"] = after if finite else before
    return Result(outputs, {"loss": loss, "steps": steps, "finite": finite})


def _statistics_at_start(
    layout: Layout, config: TrainConfig, server: Tensors, state: Tensors | None
) -> Tensors:
    """The running statistics that a visit starts from: its own, or those that came with the
    model. Empty for a model without."""
    if not layout.norms:
        return {}
    if config.batch_norm is None:
        raise InternalError("a model with batch normalization needs a choice of batch_norm")
    source = state if config.batch_norm == "local" and state is not None else server
    if config.batch_norm == "freeze":  # what a client hands on in a chain comes without them
        source = layout.initial_statistics
    return {name: source[name] for name in layout.initial_statistics}


def _client_states(
    objective: Options,
    kept: Tensor | None,
    new: Tensor | None,
    statistics: Tensors,
    moved: Tensors,
) -> tuple[Tensors, Tensors]:
    """The client's state before and after a visit; both empty where it keeps nothing."""
    before = {name: statistics[name].clone() for name in moved}
    after = dict(moved)
    name = objectives.kept_name(objective)
    if name is not None and kept is not None and new is not None:
        before[name], after[name] = kept.clone(), new
    return before, after


def _chain_update(bench: Workbench, config: Any, inputs: Sequence[Tensors | None]) -> Result:
    server, last = inputs
    assert server is not None
    assert last is not None
    delta = last["model"] - server["model"].to(last["model"].device)
    beside = {name: tensor for name, tensor in last.items() if name != "model"}
    return Result({"update": {"delta": delta, **beside}}, {})


def _aggregate(
    bench: Workbench, config: AggregateConfig, inputs: Sequence[Tensors | None]
) -> Result:
    server = inputs[0]
    updates = [update for update in inputs[1:] if update is not None]
    assert server is not None
    assert len(updates) == len(config.weights)
    finite = [all_finite(update) for update in updates]
    values = {"nonfinite": [i for i, ok in enumerate(finite) if not ok]}
    kept = [i for i, ok in enumerate(finite) if ok]
    weights, discounts = [config.weights[i] for i in kept], [config.discounts[i] for i in kept]
    factors = coefficients(weights, discounts, config.normalise)
    if not any(factors):
        return Result({"server": server}, values)
    updates = [updates[i] for i in kept]
    before = server
    if config.layers is not None:
        positions = bench.layout.positions(config.layers)
        before = cut(server, positions)
        updates = [cut(update, positions) for update in updates]
    taken = Taken(updates, weights, discounts, factors, config.normalise, config.clients)
    after = {**before, **take_step(config.optimizer, before, taken)}
    if "statistics" in updates[0]:
        share = config.optimizer.get("mixing", 1.0)
        after.update(merge_statistics(before, taken, share))
    changes = [update["control_change"] for update in updates if "control_change" in update]
    if changes:
        control = before.get("control", torch.zeros_like(after["model"]))
        after["control"] = server_control(control, changes, config.clients)
    if config.layers is not None:
        after = {
            name: put(
                server[name]
                if name in server
                else initial_vector(config.optimizer, name, server["model"]),
                positions[kind_of(name)],
                part,
            )
            for name, part in after.items()
        }
    return Result({"server": after}, values)


def _divergence(
    bench: Workbench, config: DivergenceConfig, inputs: Sequence[Tensors | None]
) -> Result:
    server, *updates = inputs
    assert server is not None
    base = server["model"]
    changes, weights, nonfinite = [], [], []
    for number, (update, weight) in enumerate(zip(updates, config.weights, strict=True)):
        assert update is not None
        if not all_finite(update):
            nonfinite.append(number)
            continue
        changes.append(update["delta"] if "delta" in update else update["model"] - base)
        weights.append(weight)
    found = []
    for layer in config.layers:
        where = bench.layout.positions((layer,))["model"].to(base.device)
        start = base[where].double() if config.on == "weights" else 0.0
        rows = [change[where].double() + start for change in changes]
        found.append(divergence(torch.stack(rows), config.metric, weights) if rows else None)
    return Result({}, {"divergence": found, "nonfinite": nonfinite})


def _evaluate(bench: Workbench, config: EvaluateConfig, inputs: Sequence[Tensors | None]) -> Result:
    server = inputs[0]
    assert server is not None
    part = slice(config.start, config.stop)
    x, y = bench.test_x[part], bench.test_y[part]
    statistics = server if bench.layout.norms else None
    sums = training.evaluate(
        bench.layout, server["model"], x, y, statistics=statistics, by_batch=config.by_batch
    )
    return Result({}, dict(sums))


def _evaluate_clients(
    bench: Workbench, config: EvaluateClientsConfig, inputs: Sequence[Tensors | None]
) -> Result:
    server, *states = inputs
    assert server is not None
    layout = bench.layout
    sums: dict[str, list[float]] = {"correct": [], "loss": [], "n": []}
    for position, client in enumerate(config.clients):
        x, y = bench.tested_on(client)
        own = (states[position] if states else None) or server
        found = training.evaluate(
            layout, server["model"], x, y, statistics=own if layout.norms else None
        )
        for name, value in found.items():
            sums[name].append(value)
    return Result({}, dict(sums))


def _found(
    function: Callable[[Workbench, Any, Sequence[Tensors | None]], pretraining.Found],
) -> Callable[[Workbench, Any, Sequence[Tensors | None]], Result]:
    return lambda bench, config, inputs: Result(*function(bench, config, inputs))


_KINDS: dict[str, Callable[[Workbench, Any, Sequence[Tensors | None]], Result]] = {
    "initial": _initial,
    "train": _train,
    "chain_update": _chain_update,
    "aggregate": _aggregate,
    "divergence": _divergence,
    "match": _found(matching.match_layer),
    "evaluate": _evaluate,
    "evaluate_clients": _evaluate_clients,
    "personalize": _train,
    "pretrain": _found(pretraining.pretrain),
    "components": _found(pretraining.components),
    "similarity": _found(pretraining.similarity),
    "affinity": _found(clustering.affinity),
    "choose": _found(grouping.choose),
    "group": _found(grouping.group),
    "nearest": _found(grouping.nearest),
    "inter_group": _found(grouping.inter_group),
    "norms": _found(grouping.norms),
    "leaving": _found(leaving),
}
