"""Many clients' trainings as one program, in this process.

Trainings that are ready go together in chunks of as many as there are lanes, the longest first.
All that depends on a client's number of samples is data, not shape: a short batch is filled up
with rows of weight 0, and a lane that has no step left is not advanced: neither its parameters nor
its momentum are touched. So what a client learns does not depend on who is trained beside it.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emulator.errors import InternalError, RunError
from emulator.learning import objectives, training
from emulator.learning.executors import Done
from emulator.learning.executors.lanes import StepProgram
from emulator.learning.lineage import Operation, Tensors, canonical
from emulator.learning.operations import Visit, Workbench, begin, finish, visit_generator
from emulator.learning.training import Indices

LANES = {"cpu": 25, "cuda": 100}
"""Clients trained at once, by device. On the CPU, where more of them would not stay in the cache,
measured with a multilayer perceptron of 784-64-10; on a GPU not measured."""


class Batched:
    """See :class:`emulator.learning.executors.Executor`.

    ``workers`` threads compute a chunk each: torch lets go of Python's lock in every operation.
    """

    kind = "batched"

    def __init__(self, bench: Workbench, step: StepProgram, workers: int) -> None:
        self._bench = bench
        self._step = step
        self._workers = workers
        self._threads = ThreadPoolExecutor(
            workers, "fedclock-lanes", initializer=torch.set_num_threads, initargs=(1,)
        )

    def run(self, operations: Sequence[Operation], done: Done) -> None:
        pending = list(operations)
        while pending:
            ready: list[Operation] = []
            waiting: list[Operation] = []
            for operation in pending:
                if any(h is not None and h.tensors is None for h in operation.inputs):
                    waiting.append(operation)
                elif operation.kind == "train":
                    ready.append(operation)
                else:
                    with _failing(f"{operation.kind} {operation.config}"):
                        result = self._bench.run(
                            operation.kind, operation.config, _inputs(operation)
                        )
                    done(operation, result)
            if len(waiting) == len(pending):
                raise InternalError(f"{len(waiting)} operations wait for what nobody computes")
            chunks, rest = self._chunks(ready)
            self._run_chunks(chunks, done)
            pending = [*rest, *waiting]

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)

    def _chunks(self, ready: Sequence[Operation]) -> tuple[list[list[Operation]], list[Operation]]:
        """(the chunks to run now, what is left): full ones and, only where there are none, one
        that is not; what is left may be joined by trainings that are not ready yet."""
        alike: dict[tuple[object, ...], list[Operation]] = {}
        for operation in ready:
            config = operation.config
            what = (config.recipe, canonical(config.objective), config.layers)
            alike.setdefault(what, []).append(operation)
        full: list[list[Operation]] = []
        rest: list[list[Operation]] = []
        for group in alike.values():
            group.sort(key=lambda o: -len(self._bench.partition[o.config.client]))
            for start in range(0, len(group), self._step.lanes):
                chunk = group[start : start + self._step.lanes]
                (full if len(chunk) == self._step.lanes else rest).append(chunk)
        if full:
            return full, [operation for chunk in rest for operation in chunk]
        return rest, []

    def _run_chunks(self, chunks: Sequence[list[Operation]], done: Done) -> None:
        running: deque[tuple[list[Operation], list[Visit], Future[_Lanes]]] = deque()
        for chunk in chunks:
            with _failing(_named(chunk)):
                visits = [begin(self._bench, o.config, _inputs(o)) for o in chunk]
            running.append((chunk, visits, self._threads.submit(self._learn, visits)))
            if len(running) > self._workers:
                self._finish(*running.popleft(), done)
        while running:
            self._finish(*running.popleft(), done)

    def _finish(
        self, chunk: list[Operation], visits: list[Visit], future: Future[_Lanes], done: Done
    ) -> None:
        with _failing(_named(chunk)):
            lanes = future.result()
        layout = self._bench.layout
        for operation, visit, own in zip(chunk, visits, lanes.learned, strict=True):
            started = time.perf_counter()
            with _failing(f"{operation.kind} {operation.config}"):
                if visit.config.uploads != ("delta",):
                    layout.load(own.model)
                result = finish(self._bench, visit, own.delta, own.loss, own.steps)
            result.host_s = lanes.host_s / len(chunk) + time.perf_counter() - started
            done(operation, result)

    def _learn(self, visits: Sequence[Visit]) -> _Lanes:
        """What up to W visits of one recipe and objective learn; in their order."""
        started = time.perf_counter()
        batches = [_batches(self._bench, visit) for visit in visits]
        # The longest first: at any step the lanes still at work are the first ones.
        order = sorted(range(len(visits)), key=lambda i: -len(batches[i]))
        learned = _learn_in_lanes(
            self._bench, self._step, [visits[i] for i in order], [batches[i] for i in order]
        )
        found = dict(zip(order, learned, strict=True))
        return _Lanes([found[i] for i in range(len(visits))], time.perf_counter() - started)


@dataclass(frozen=True, slots=True)
class _Learned:
    """A client's trained model [P], that less the one it started from, its mean loss over the
    mini-batches, its number of steps."""

    model: Tensor
    delta: Tensor
    loss: float
    steps: int


@dataclass(frozen=True, slots=True)
class _Lanes:
    """What a chunk's clients have learned, and the host seconds that it took."""

    learned: list[_Learned]
    host_s: float


@contextmanager
def _failing(what: str) -> Iterator[None]:
    """Raise :class:`RunError` for whatever a user's model fails with."""
    try:
        yield
    except Exception as error:
        raise RunError(f"an operation failed ({what}): {type(error).__name__}: {error}") from error


def _named(chunk: Sequence[Operation]) -> str:
    clients = ", ".join(str(operation.config.client) for operation in chunk)
    return f"train, in lanes, clients {clients}"


def _inputs(operation: Operation) -> list[Tensors | None]:
    return [handle.tensors if handle else None for handle in operation.inputs]


def _learn_in_lanes(
    bench: Workbench, step: StepProgram, visits: Sequence[Visit], batches: Sequence[list[Indices]]
) -> list[_Learned]:
    """Local SGD as :func:`training.train` does it for one visit, lane by lane; the lane with most
    ``batches`` first."""
    layout, recipe, objective = bench.layout, visits[0].config.recipe, visits[0].config.objective
    rows = _Rows.of(batches, step, bench.train_y)
    parameters = step.parameters(layout, [visit.server["model"] for visit in visits])
    # The program has the gradients of all that is ever trained; here a part of it may be.
    here = layout.is_trained(visits[0].config.layers)
    trained = [p for p, is_trained in zip(parameters, here, strict=True) if is_trained]
    used = [now for now, ever in zip(here, step.trained, strict=True) if ever]
    if not trained:
        return [_unchanged(visit.server["model"].to(layout.device)) for visit in visits]
    vectors = [layout.trained_views(visit.vector) for visit in visits]
    vector = [v for v, now in zip(step.of_trained(vectors), used, strict=True) if now
              ] if vectors[0] else []  # fmt: skip
    has_term = objectives.gradient_term(objective, vector) is not None
    anchor = [p.clone() for p in trained] if has_term else []
    velocity: list[Tensor] = []
    losses = torch.zeros(len(rows.at_work), step.lanes, device=layout.device)
    for number, k in enumerate(rows.at_work):
        x = bench.train_x.index_select(0, rows.chosen[number])
        x = x.view(step.lanes, step.rows, *x.shape[1:])
        gradients, losses[number] = step.gradients(
            parameters, x, rows.y[number], rows.weights[number]
        )
        # Views of the lanes that are still at work; the others stay as they are.
        gradients = [g[:k] for g, now in zip(gradients, used, strict=True) if now]
        working = [p[:k] for p in trained]
        term = objectives.gradient_term(objective, [v[:k] for v in vector])
        if term is not None:
            term(gradients, working, [a[:k] for a in anchor])
        moving = [v[:k] for v in velocity] if velocity else velocity
        training.sgd_step(working, gradients, moving, recipe)
    of_lanes = losses.double()
    learned = []
    for lane, (visit, own) in enumerate(zip(visits, batches, strict=True)):
        model = torch.cat([p[lane].reshape(-1) for p in parameters])
        delta = model - visit.server["model"].to(layout.device)
        loss = float(of_lanes[: len(own), lane].mean()) if own else math.nan
        learned.append(_Learned(model, delta, loss, len(own)))
    return learned


def _unchanged(model: Tensor) -> _Learned:
    """Of a training in which all layers are frozen."""
    return _Learned(model, torch.zeros_like(model), math.nan, 0)


def _batches(bench: Workbench, visit: Visit) -> list[Indices]:
    """The client's mini-batches as positions in the training set."""
    own = bench.partition[visit.config.client]
    rng = visit_generator(visit.config)
    return [own[batch] for batch in training.batches(len(own), visit.config.recipe, rng)]


@dataclass(frozen=True, slots=True)
class _Rows:
    """What every step (S of them) works on: positions in the training set ``chosen`` [S, W · rows],
    labels ``y`` and ``weights`` [S, W, rows, 1], how many lanes are still ``at_work`` [S]."""

    chosen: Tensor
    y: Tensor
    weights: Tensor
    at_work: list[int]

    @classmethod
    def of(cls, batches: Sequence[Sequence[Indices]], step: StepProgram, labels: Tensor) -> _Rows:
        """``batches`` by lane, the longest lane first."""
        shape = (len(batches[0]), step.lanes, step.rows)
        chosen: NDArray[np.int64] = np.zeros(shape, dtype=np.int64)
        weights: NDArray[np.float32] = np.zeros(shape, dtype=np.float32)
        for lane, own in enumerate(batches):
            for number, batch in enumerate(own):
                # Rows that fill up repeat a true one: what they give is finite if that is.
                chosen[number, lane] = batch[0]
                chosen[number, lane, : len(batch)] = batch
                weights[number, lane, : len(batch)] = 1.0 / len(batch)
        at_work = [sum(len(own) > number for own in batches) for number in range(shape[0])]
        flat = torch.from_numpy(chosen).to(labels.device).view(shape[0], step.lanes * step.rows)
        return cls(
            flat,
            labels[flat].view(*shape, 1),
            torch.from_numpy(weights).to(labels.device).unsqueeze(-1),
            at_work,
        )
