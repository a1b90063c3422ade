"""What the updates of a cohort's version tell of its participants, as an operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from emulator import random_streams
from emulator.learning.lineage import Tensors
from emulator.learning.methods.auxo import (
    NOWHERE,
    Memory,
    Participants,
    RewardRule,
    cluster,
    count_sketch,
    similarity_correlation,
)
from emulator.learning.pretraining import Found
from emulator.learning.vectors import all_finite

if TYPE_CHECKING:
    from emulator.learning.operations import Workbench


@dataclass(frozen=True, slots=True)
class Sketching:
    """How a sketch is taken: of the layers ``of`` (all that were trained, if none are named), and
    by a random projection to so many ``dimensions``, unless that is None."""

    of: tuple[str, ...] | None
    dimensions: int | None
    seed: int


@dataclass(frozen=True, slots=True)
class AffinityConfig:
    """``clients`` and ``who`` run along the inputs after the first, which are the clients' updates;
    the first is what the cohort has kept (of each part; None at first). ``layers`` are those that
    the clients have trained, None for all. ``inherits``: what was kept is the parent's."""

    clients: tuple[int, ...]
    who: Participants
    layers: tuple[str, ...] | None
    sketching: Sketching
    rule: RewardRule
    inherits: bool


def affinity(bench: Workbench, config: AffinityConfig, inputs: Sequence[Tensors | None]) -> Found:
    """The values of :func:`emulator.learning.methods.auxo.cluster`, and ``correlation``; output
    ``kept``. A participant whose update is not finite has no reward (None) and no side."""
    kept = inputs[0] or {}
    if config.inherits:
        kept = _inherited(kept)
    updates = [update for update in inputs[1:] if update is not None]
    finite = [i for i, update in enumerate(updates) if all_finite(update)]
    n, who = len(updates), config.who
    values: dict[str, Any] = {
        "rewards": [None] * n, "sides": [NOWHERE] * n, "margins": [1.0] * n,
        "spread": None, "spread_of_sides": None, "correlation": None,
    }  # fmt: skip
    of = config.sketching.of or config.layers
    if len(finite) < 2 or (config.layers is not None and not set(of or ()) <= set(config.layers)):
        return {"kept": kept}, values
    vectors = torch.stack([updates[i]["delta"] for i in finite])
    if of is not None:
        vectors = vectors[:, bench.layout.positions(of)["model"].to(vectors.device)]
    sketches = _sketched(vectors, config.sketching)
    present = Participants(tuple(who.known[i] for i in finite), tuple(who.sides[i] for i in finite))
    name = ",".join(of or ())  # parts of a model have directions of their own
    memory = _memory_of(kept, name)
    found, after = cluster(sketches, present, memory, config.rule, config.sketching.seed % 2**31)
    kept = kept | _as_tensors(after, name)
    for key in ("rewards", "sides", "margins"):
        for position, value in zip(finite, found.pop(key), strict=True):
            values[key][position] = value
    histograms = np.stack([bench.distribution_of(config.clients[i]) for i in finite])
    found["correlation"] = similarity_correlation(sketches, histograms)
    return {"kept": kept}, {**values, **found}


def _inherited(kept: Tensors) -> Tensors:
    """What a child begins with, of every part of the model."""
    found: Tensors = {}
    for key in kept:
        kind, _, name = key.partition(" ")
        memory = _memory_of(kept, name)
        if kind == "directions" and memory is not None:
            found |= _as_tensors(memory.inherited(), name)
    return found


def _as_tensors(memory: Memory, name: str) -> Tensors:
    parts = {"directions": memory.directions, "centres": memory.centres, "cuts": memory.cuts}
    return {f"{kind} {name}": torch.from_numpy(v) for kind, v in parts.items() if v is not None}


def _memory_of(kept: Tensors, name: str) -> Memory | None:
    directions, centres, cuts = (kept.get(f"{k} {name}") for k in ("directions", "centres", "cuts"))
    if directions is None or cuts is None:
        return None
    return Memory(_numpy(directions), None if centres is None else _numpy(centres), _numpy(cuts))


def _sketched(vectors: torch.Tensor, sketching: Sketching) -> np.ndarray[Any, np.dtype[np.float64]]:
    if sketching.dimensions is not None:
        rng = random_streams.generator(sketching.seed, "sketch")
        vectors = count_sketch(vectors, sketching.dimensions, rng)
    return _numpy(vectors)


def _numpy(vectors: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    found: np.ndarray[Any, np.dtype[np.float64]] = vectors.double().cpu().numpy()
    return found
