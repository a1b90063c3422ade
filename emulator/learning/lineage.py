"""Handles: what the simulation holds instead of tensors.

An :class:`Operation` is a pure function applied to inputs; its id is a hash of its name, the ids
of its inputs and its configuration, so equal ids mean equal results, whatever the clock did in
between. A :class:`Handle` is one output of an operation. It keeps its operation, and with it all
that the operation still needs, until its tensors are there; then the past is let go. A handle that
nobody holds any more is never computed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

import torch

Tensors = dict[str, torch.Tensor]
"""Named flat vectors, e.g. ``model`` [P]."""


def identity(name: str, *parts: str | int | float) -> str:
    """The id of an operation: 32 hexadecimal digits."""
    return digest("\x1f".join((name, *map(str, parts))))


def digest(text: str) -> str:
    """The hash that ids are made of."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def canonical(config: Mapping[str, Any]) -> str:
    """A configuration as text that does not depend on the order of its keys."""
    return json.dumps(config, sort_keys=True, separators=(",", ":"), default=str)


class Operation:
    """A function of named inputs: ``kind`` says which, ``config`` how.

    ``inputs`` are the handles whose tensors it needs, in the order its function expects; None
    stands for a state that does not exist yet. ``outputs`` maps the name of an output to its
    handle, for as long as somebody holds that handle.
    """

    __slots__ = ("__weakref__", "config", "id", "inputs", "kind", "outputs")

    def __init__(
        self, kind: str, operation_id: str, inputs: tuple[Handle | None, ...], config: Any
    ) -> None:
        self.kind = kind
        self.id = operation_id
        self.inputs = inputs
        self.config = config
        self.outputs: WeakValueDictionary[str, Handle] = WeakValueDictionary()


class Handle:
    """One output of an operation: pending (``operation`` set), computed (``tensors`` set) or,
    while an earlier run is replayed or nothing is learned, a bare id."""

    __slots__ = ("__weakref__", "id", "operation", "tensors")

    def __init__(self, handle_id: str, operation: Operation | None) -> None:
        self.id = handle_id
        self.operation = operation
        self.tensors: Tensors | None = None

    def resolve(self, tensors: Tensors) -> None:
        """The value is there: keep it, let the past go."""
        self.tensors = tensors
        self.operation = None

    def __repr__(self) -> str:
        state = "computed" if self.tensors is not None else "pending" if self.operation else "bare"
        return f"<Handle {self.id} {state}>"
