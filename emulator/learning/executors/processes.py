"""Operations side by side in worker processes, each with one thread.

Workers are forked once, from a server process that has loaded the libraries while this one was
still reading data, and get the data through shared memory. Training and evaluation go to
workers; aggregation, cheap and needing everything, stays here. What a worker received last it
keeps for a while, so that the model of a round travels once to each worker and not once to each
client.
"""

from __future__ import annotations

import copy
import heapq
import os
import signal
import sys
from collections import OrderedDict
from collections.abc import Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.multiprocessing as multiprocessing

from emulator.errors import RunError
from emulator.learning.executors import Done
from emulator.learning.grouping import ChooseConfig
from emulator.learning.lineage import Handle, Operation, Tensors
from emulator.learning.operations import (
    EvaluateClientsConfig,
    EvaluateConfig,
    Result,
    TrainConfig,
    Workbench,
)
from emulator.learning.pretraining import PretrainConfig

_KEPT = 4
"""How many received inputs a worker keeps."""

_FOR_WORKERS = ("train", "pretrain", "personalize", "evaluate", "evaluate_clients", "choose")

_AHEAD = 2
"""How many operations a worker holds, so that it never waits for this process."""


def prepare() -> None:
    """Begin, in the background, what starting workers takes seconds for: loading the libraries."""
    # The server is forked from nothing that has threads, unlike this process.
    multiprocessing.get_context("forkserver").set_forkserver_preload([__name__])
    forkserver.ensure_running()


class Processes:
    """See :class:`emulator.learning.executors.Executor`."""

    kind = "processes"

    def __init__(self, bench: Workbench, workers: int) -> None:
        prepare()
        self._bench = bench
        self._workers = [_Worker(bench, number) for number in range(workers)]

    def run(self, operations: Sequence[Operation], done: Done) -> None:
        waiting: dict[int, int] = {}
        dependents: dict[str, list[int]] = {}
        ready: list[tuple[float, int]] = []
        local: list[int] = []

        def enqueue(position: int) -> None:
            operation = operations[position]
            if operation.kind in _FOR_WORKERS:
                heapq.heappush(ready, (-self._cost(operation), position))
            else:
                local.append(position)

        for position, operation in enumerate(operations):
            missing = {h.id for h in operation.inputs if h is not None and h.tensors is None}
            waiting[position] = len(missing)
            for handle_id in missing:
                dependents.setdefault(handle_id, []).append(position)
            if not missing:
                enqueue(position)

        def finish(position: int, result: Result) -> None:
            operation = operations[position]
            done(operation, result)
            for name in result.outputs:
                for dependent in dependents.pop(f"{operation.id}.{name}", ()):
                    waiting[dependent] -= 1
                    if waiting[dependent] == 0:
                        enqueue(dependent)

        unfinished = len(operations)
        while unfinished:
            while ready:
                worker = min(self._workers, key=lambda w: len(w.busy_with))
                if len(worker.busy_with) >= _AHEAD:
                    break
                position = heapq.heappop(ready)[1]
                worker.send(position, operations[position])
            if local:
                position = local.pop(0)
                operation = operations[position]
                inputs = [handle.tensors if handle else None for handle in operation.inputs]
                finish(position, self._bench.run(operation.kind, operation.config, inputs))
                unfinished -= 1
                continue
            busy = {w.connection: w for w in self._workers if w.busy_with}
            sentinels = {w.process.sentinel: w for w in busy.values()}
            for signalled in wait([*busy, *sentinels]):
                if signalled in sentinels:
                    sentinels[signalled].check_alive()
                    continue
                position, result = busy[signalled].receive()  # type: ignore[index]
                finish(position, result)
                unfinished -= 1

    def _cost(self, operation: Operation) -> float:
        """Samples to go through: the longest first, so that workers end together."""
        config = operation.config
        if isinstance(config, TrainConfig | PretrainConfig):
            return len(self._bench.partition[config.client])
        if isinstance(config, ChooseConfig):
            held = sum(len(self._bench.partition[client]) for client in config.clients)
            return len(operation.inputs) * held
        if isinstance(config, EvaluateClientsConfig):
            assert self._bench.client_test is not None
            own = self._bench.client_test.indices
            return sum(len(own[client]) for client in config.clients)
        assert isinstance(config, EvaluateConfig)
        return config.stop - config.start

    def close(self) -> None:
        for worker in self._workers:
            worker.close()


class _Worker:
    """This process's end of one worker."""

    def __init__(self, bench: Workbench, number: int) -> None:
        context = multiprocessing.get_context("forkserver")
        self.connection, theirs = context.Pipe()
        held_out = bench.exemplars or ()
        for tensor in (bench.train_x, bench.train_y, bench.test_x, bench.test_y, *held_out):
            tensor.share_memory_()
        self.process = context.Process(
            target=_work,
            args=(
                theirs,
                bench.layout.model,
                bench.train_x,
                bench.train_y,
                bench.test_x,
                bench.test_y,
                bench.partition,
                bench.client_test,
                bench.exemplars,
            ),
            name=f"fedclock-worker-{number}",
            daemon=True,
        )
        self.process.start()
        theirs.close()
        self.busy_with: list[int] = []
        self._kept: OrderedDict[str, None] = OrderedDict()

    def send(self, position: int, operation: Operation) -> None:
        inputs = [self._pack(handle) for handle in operation.inputs]
        try:
            self.connection.send((position, operation.kind, operation.config, inputs))
        except (BrokenPipeError, OSError):
            self._died()
        self.busy_with.append(position)

    def _pack(self, handle: Handle | None) -> tuple[str, Tensors | None] | None:
        if handle is None:
            return None
        if handle.id in self._kept:
            self._kept.move_to_end(handle.id)
            return handle.id, None
        self._kept[handle.id] = None
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return handle.id, handle.tensors

    def receive(self) -> tuple[int, Result]:
        try:
            position, result = self.connection.recv()
        except (EOFError, OSError):
            self._died()
        if isinstance(result, str):
            raise RunError(f"an operation failed in worker {self.process.name}: {result}")
        self.busy_with.remove(position)
        # Private copies: a shared tensor would hold a file descriptor for as long as it lives.
        for tensors in result.outputs.values():
            for name, tensor in tensors.items():
                tensors[name] = tensor.clone()
        return position, result

    def check_alive(self) -> None:
        """Raise :class:`RunError` when the process is gone and has left nothing to receive."""
        if not self.process.is_alive() and not self.connection.poll():
            self._died()

    def _died(self) -> Any:
        self.process.join(timeout=5)
        raise RunError(
            f"{self.process.name} died with exit code {self.process.exitcode}; the run can be "
            "continued by running the same command again"
        ) from None

    def close(self) -> None:
        self.connection.close()
        self.process.join(timeout=0.2)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join()


def _work(
    connection: Connection,
    model: torch.nn.Module,
    train_x: torch.Tensor,
    train_y: torch.Tensor,
    test_x: torch.Tensor,
    test_y: torch.Tensor,
    partition: Any,
    client_test: Any,
    exemplars: Any,
) -> None:
    """A worker's life: receive an operation, run it, send the result; end when nobody is there."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    from emulator.learning.training import Layout

    # The model came through shared memory, and every worker got the same one: a copy to work in.
    layout = Layout(copy.deepcopy(model), torch.device("cpu"))
    bench = Workbench(layout, train_x, train_y, test_x, test_y, partition, client_test, exemplars)
    kept: OrderedDict[str, Tensors] = OrderedDict()
    while True:
        try:
            position, kind, config, packed = connection.recv()
        except (EOFError, OSError):
            break
        inputs = [None if item is None else _unpack(item, kept) for item in packed]
        try:
            result: Result | str = bench.run(kind, config, inputs)
        except Exception as error:  # told to the run, which stops with it
            result = f"{type(error).__name__}: {error}"
        try:
            connection.send((position, result))
        except (BrokenPipeError, OSError):
            break
    # Skip the interpreter's tear-down: nothing here needs it, and it takes a second.
    sys.stdout.flush()
    os._exit(0)


def _unpack(item: tuple[str, Tensors | None], kept: OrderedDict[str, Tensors]) -> Tensors:
    handle_id, tensors = item
    if tensors is None:
        kept.move_to_end(handle_id)
        return kept[handle_id]
    # A copy of one's own: the sender's memory goes when the sender lets go.
    kept[handle_id] = {name: tensor.clone() for name, tensor in tensors.items()}
    if len(kept) > _KEPT:
        kept.popitem(last=False)
    return kept[handle_id]
