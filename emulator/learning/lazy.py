"""Laziness: an operation runs when a value that rests on it is asked for.

Then the whole pending ancestry of that value is known, and the executor runs all of it that is
ready side by side.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from torch import Tensor

from emulator.learning.executors import Executor
from emulator.learning.lineage import Handle, Operation, Tensors
from emulator.learning.memo import CacheLost, Memo, Values
from emulator.learning.operations import Result, one_thread


@dataclass(slots=True)
class HostTime:
    """Operations run in this process's life and the host seconds inside them, by kind."""

    count: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    forcing_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Learning:
    """What a run that learns has and a timing-only run has not; ``more_models`` are those that
    others begin with, where there are several."""

    executor: Executor
    memo: Memo
    initial_model: Tensor
    keep_versions: bool
    pretraining_model: Tensor | None = None
    more_models: tuple[Tensor, ...] = ()


class Lazy:
    """Makes handles, and computes them when a value is asked for.

    ``position()`` tells how far the event log has come: before the checkpoint's sequence number a
    handle keeps its parents only if the checkpoint lists it as pending, since everything else was
    computed before. Without ``learning`` handles are bare ids and no value can be asked for.
    """

    def __init__(self, learning: Learning | None, position: Callable[[], int]) -> None:
        self._learning = learning
        self._position = position
        self._alive: WeakValueDictionary[str, Handle] = WeakValueDictionary()
        self._keep: dict[str, Handle] = {}
        self.host = HostTime()

    @property
    def learns(self) -> bool:
        """False in a timing-only run."""
        return self._learning is not None

    def values(self, operation_id: str) -> Values:
        """The small values of an operation that has run, in this run or an earlier one.

        Raises :class:`CacheLost` when no memo knows them.
        """
        assert self._learning is not None
        found = self._learning.memo.value(operation_id)
        if found is None:
            raise CacheLost(operation_id)
        return found

    def tensors(self, handle: Handle) -> Tensors:
        """The handle's tensors, computed now if need be."""
        if handle.tensors is None and not self._attach(handle):
            if handle.operation is None:
                raise CacheLost(handle.id)
            self._force([handle.operation])
        assert handle.tensors is not None
        return handle.tensors

    def _value_of(
        self, kind: str, operation_id: str, inputs: Sequence[Handle | None], config: Any
    ) -> Values:
        """The values of an operation without outputs, computed now unless they are known."""
        assert self._learning is not None
        if self._learning.memo.value(operation_id) is None:
            self._force([Operation(kind, operation_id, tuple(inputs), config)])
        return self.values(operation_id)

    def _handles(
        self,
        kind: str,
        operation_id: str,
        inputs: tuple[Handle | None, ...],
        config: Any,
        names: tuple[str, ...],
    ) -> list[Handle]:
        found = {name: self._alive.get(f"{operation_id}.{name}") for name in names}
        if all(found.values()):
            return [handle for handle in found.values() if handle is not None]
        # An output that somebody still holds brings its operation along: it must not run twice.
        operation = next((h.operation for h in found.values() if h and h.operation), None)
        learning = self._learning
        if learning is not None and operation is None:
            before_checkpoint = self._position() < learning.memo.sequence
            stored = all(learning.memo.has(f"{operation_id}.{name}") for name in names)
            if not stored and (not before_checkpoint or operation_id in learning.memo.pending):
                operation = Operation(kind, operation_id, inputs, config)
        handles = []
        for name, alive in found.items():
            handle = alive
            if handle is None:
                handle = Handle(f"{operation_id}.{name}", operation)
                self._alive[handle.id] = handle
            if operation is not None and handle.tensors is None:
                operation.outputs[name] = handle
            handles.append(handle)
        return handles

    def _kept(self, state: Handle) -> Handle:
        """A version's state, which ``memo: {keep: versions}`` stores for good."""
        if self._learning and self._learning.keep_versions and state.operation is not None:
            self._keep[state.id] = state
        return state

    def _attach(self, handle: Handle) -> bool:
        """Take the handle's tensors from the memo, if it has them."""
        assert self._learning is not None
        if not self._learning.memo.has(handle.id):
            return False
        device = self._learning.initial_model.device
        stored = self._learning.memo.load(handle.id)
        handle.resolve({name: tensor.to(device) for name, tensor in stored.items()})
        return True

    def _force_values(self, handles: Sequence[Handle]) -> None:
        """Run the operations behind these handles whose values are not known."""
        assert self._learning is not None
        wanted = []
        for handle in handles:
            if self._learning.memo.value(handle.id.partition(".")[0]) is None:
                if handle.operation is None:
                    raise CacheLost(handle.id)
                wanted.append(handle.operation)
        self._force(wanted)

    def _force(self, wanted: Sequence[Operation]) -> None:
        """Run the given operations and all of their pending ancestry."""
        if not wanted:
            return
        assert self._learning is not None
        started = time.perf_counter()
        memo, host = self._learning.memo, self.host

        def done(operation: Operation, result: Result) -> None:
            memo.remember(operation.id, result.values)
            host.count[operation.kind] = host.count.get(operation.kind, 0) + 1
            host.seconds[operation.kind] = host.seconds.get(operation.kind, 0.0) + result.host_s
            for name, tensors in result.outputs.items():
                handle = operation.outputs.get(name)
                if handle is not None:
                    handle.resolve(tensors)
            operation.inputs = ()

        with one_thread():
            self._learning.executor.run(self._ancestry(wanted), done)
        host.forcing_s += time.perf_counter() - started

    def _ancestry(self, wanted: Sequence[Operation]) -> list[Operation]:
        """The pending operations that ``wanted`` needs, inputs first."""
        order: list[Operation] = []
        seen: set[str] = set()
        stack: list[tuple[Operation, bool]] = [(operation, False) for operation in wanted[::-1]]
        while stack:
            operation, inputs_done = stack.pop()
            if inputs_done:
                order.append(operation)
                continue
            if operation.id in seen:
                continue
            seen.add(operation.id)
            stack.append((operation, True))
            for handle in operation.inputs:
                if handle is None or handle.tensors is not None or self._attach(handle):
                    continue
                if handle.operation is None:
                    raise CacheLost(handle.id)
                stack.append((handle.operation, False))
        return order

    # --- checkpoints ----------------------------------------------------------------------

    def checkpoint(self, *, force: bool = False, sequence: int | None = None) -> None:
        """Write a checkpoint if one is due: all that the simulation still holds.

        It stands for event ``sequence`` of the log, the last one unless said otherwise.
        """
        if self._learning is None:
            return
        memo = self._learning.memo
        sequence = self._position() if sequence is None else sequence
        if sequence < memo.sequence or not (force or memo.due()):
            return
        live: dict[str, Tensors] = {}
        stored: list[str] = []
        pending: set[str] = set()
        for handle in list(self._alive.values()):
            if handle.tensors is not None:
                live[handle.id] = handle.tensors
            elif handle.operation is not None:
                pending.add(handle.operation.id)
            else:
                stored.append(handle.id)
        keep = {h.id: h.tensors for h in self._keep.values() if h.tensors is not None}
        memo.checkpoint(live, stored, pending, sequence, keep)
        for handle_id in keep:
            del self._keep[handle_id]
