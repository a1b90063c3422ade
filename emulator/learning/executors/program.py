"""A computation of fixed shapes, recorded once and played back.

``torch.func.vmap`` and the autograd engine find out anew at every call what to run: for a small
model that takes longer than running it. What they run on tensors of fixed shapes is always the
same list of torch's basic operations, so it is recorded at the first call; afterwards the list
is played with other tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils._python_dispatch import TorchDispatchMode

_ALIGNED = 4
"""Floats: 16 bytes. Where a lane's matrix starts between such places, the matrix product may add
up in another order than for its neighbour."""


@dataclass(frozen=True, slots=True)
class _Call:
    """One basic operation. Tensors are numbered by slot; ``tensors`` gives (position, slot) of
    those among ``arguments``, ``lists`` (position, slots) of the lists of tensors, where -1
    stands for None. ``forgotten`` are the slots that no later call needs."""

    function: Callable[..., Any]
    arguments: list[Any]
    keywords: dict[str, Any]
    tensors: tuple[tuple[int, int], ...]
    lists: tuple[tuple[int, tuple[int, ...]], ...]
    outputs: tuple[int, ...]
    forgotten: tuple[int, ...]


class Program:
    """What a function did with its tensors when it was recorded."""

    def __init__(self, calls: Sequence[_Call], slots: dict[int, Tensor], size: int, inputs: int,
                 outputs: Sequence[int]) -> None:  # fmt: skip
        self._calls = calls
        self._inputs = inputs
        self._outputs = tuple(outputs)
        self._constants: list[Tensor | None] = [slots.get(slot) for slot in range(size)]

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs for these inputs, which have the shapes and types of those recorded; no
        gradient can be taken through them."""
        slots = self._constants.copy()
        slots[: self._inputs] = inputs
        with torch.no_grad():
            for call in self._calls:
                arguments = call.arguments.copy()
                for position, slot in call.tensors:
                    arguments[position] = slots[slot]
                for position, group in call.lists:
                    arguments[position] = [None if s < 0 else slots[s] for s in group]
                result = call.function(*arguments, **call.keywords)
                if len(call.outputs) == 1:
                    slots[call.outputs[0]] = result
                else:
                    for slot, tensor in zip(call.outputs, result, strict=True):
                        if slot >= 0:
                            slots[slot] = tensor
                for slot in call.forgotten:
                    slots[slot] = None
        return [slots[slot] for slot in self._outputs]  # type: ignore[misc]


class _Recorder(TorchDispatchMode):
    """Notes every basic operation, below vmap and autograd."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.noted: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here, and loading torch's compiler takes seconds.
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = dict(kwargs or {})
        result = func(*args, **keywords)
        self.noted.append((func, args, keywords, result))
        return result


def record(
    function: Callable[[Sequence[Tensor]], list[Tensor]], inputs: Sequence[Tensor]
) -> tuple[Program, list[Tensor]]:
    """Run ``function(inputs)`` once and return (what it did as a program, its results).

    Its matrix products are made the same for every lane (see :func:`_aligned_product`). Raises
    NotImplementedError for an operation that cannot be played back, and whatever ``function``
    raises.
    """
    with _Recorder() as recorder:
        results = function(inputs)
    return _Writer(inputs).write(recorder.noted, results), results


class _Writer:
    """Turns noted operations into calls."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self._slot_of = {id(tensor): slot for slot, tensor in enumerate(inputs)}
        self._inputs = len(inputs)
        self._size = len(inputs)
        self._constants: dict[int, Tensor] = {}

    def write(self, noted: Sequence[Any], results: Sequence[Tensor]) -> Program:
        calls = []
        for function, arguments, keywords, result in noted:
            call = self._call(function, arguments, keywords, result)
            if call is not None:
                calls.append(call)
        outputs = [self._slot(tensor) for tensor in results]
        kept = _with_forgotten(calls, {*outputs, *range(self._inputs), *self._constants})
        return Program(kept, self._constants, self._size, self._inputs, outputs)

    def _call(
        self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], result: Any
    ) -> _Call | None:
        if torch.Tag.nondeterministic_seeded in function.tags:
            raise NotImplementedError(f"{function} draws random numbers")
        if any(isinstance(value, Tensor) for value in keywords.values()):
            raise NotImplementedError(f"{function} takes a tensor by keyword")
        template: list[Any] = list(arguments)
        tensors, lists = [], []
        for position, value in enumerate(arguments):
            if isinstance(value, Tensor):
                tensors.append((position, self._slot(value)))
                template[position] = None
            elif isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) for v in value):
                group = tuple(-1 if v is None else self._slot(v) for v in value)
                lists.append((position, group))
                template[position] = None
        several = isinstance(result, (list, tuple))
        produced = list(result) if several else [result]
        if not several and _changes_nothing(function, arguments, result):
            self._slot_of[id(result)] = self._slot_of[id(arguments[0])]
            return None
        outputs = tuple(self._new_slot(t) if isinstance(t, Tensor) else -1 for t in produced)
        if outputs == (-1,):
            raise NotImplementedError(f"{function} does not give a tensor")
        if function is torch.ops.aten.bmm.default and not _is_aligned(*arguments):
            function = _aligned_product
        return _Call(function, template, keywords, tuple(tensors), tuple(lists), outputs, ())

    def _slot(self, tensor: Tensor) -> int:
        """Where the tensor is; one that was there before the function ran is a constant."""
        slot = self._slot_of.get(id(tensor))
        if slot is None:
            slot = self._new_slot(tensor)
            self._constants[slot] = tensor.detach()
        return slot

    def _new_slot(self, tensor: Tensor) -> int:
        # An in-place operation gives the tensor that it has changed: its slot stays.
        slot = self._slot_of.setdefault(id(tensor), self._size)
        self._size = max(self._size, slot + 1)
        return slot


def _changes_nothing(function: Any, arguments: tuple[Any, ...], result: Any) -> bool:
    """Whether the result is the first argument, in the same memory and shape."""
    if function._schema.is_mutable or not arguments or not isinstance(result, Tensor):
        return False
    first = arguments[0]
    return (
        isinstance(first, Tensor)
        and first.data_ptr() == result.data_ptr()
        and first.dtype == result.dtype
        and first.shape == result.shape
        and first.stride() == result.stride()
    )


def _with_forgotten(calls: Sequence[_Call], needed: set[int]) -> list[_Call]:
    """The calls that something depends on, each with the slots that it is the last to need."""
    kept: list[_Call] = []
    needed = set(needed)
    for call in reversed(calls):
        mutable = getattr(call.function, "_schema", None)
        changes = mutable is not None and mutable.is_mutable
        if not changes and not any(slot in needed for slot in call.outputs):
            continue
        used = {slot for _, slot in call.tensors}
        used.update(slot for _, group in call.lists for slot in group if slot >= 0)
        last = {slot for slot in (*used, *call.outputs) if slot >= 0 and slot not in needed}
        needed |= used
        kept.append(replace(call, forgotten=tuple(sorted(last))))
    return kept[::-1]


def _is_aligned(a: Tensor, b: Tensor) -> bool:
    rows, inner, columns = a.shape[1], a.shape[2], b.shape[2]
    return all(n % _ALIGNED == 0 for n in (rows * inner, inner * columns, rows * columns))


def _aligned_product(a: Tensor, b: Tensor) -> Tensor:
    """``a`` [W, m, k] times ``b`` [W, k, n], each lane's matrices starting at aligned places:
    k and n are filled up with zeros, which add nothing to any sum."""
    inner, columns = a.shape[2], b.shape[2]
    wider = -inner % _ALIGNED
    product = torch.bmm(pad(a, (0, wider)), pad(b, (0, -columns % _ALIGNED, 0, wider)))
    return product[:, :, :columns].contiguous()
