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
    Participants,
    cluster,
    count_sketch,
    similarity_correlation,
)
from emulator.learning.vectors import all_finite

if TYPE_CHECKING:
    from emulator.learning.operations import Workbench

Found = tuple[dict[str, Tensors], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Sketching:
    """How a sketch is taken: of the layers ``of`` (all that were trained, if none are named), and
    by a random projection to so many ``dimensions``, unless that is None."""

    of: tuple[str, ...] | None
    dimensions: int | None
    seed: int


@dataclass(frozen=True, slots=True)
class AffinityConfig:
    """``clients`` and ``who`` run along the inputs, which are the clients' updates; ``layers`` are
    those that they have trained, None for all; ``scale`` is R0."""

    clients: tuple[int, ...]
    who: Participants
    layers: tuple[str, ...] | None
    sketching: Sketching
    scale: float


def affinity(bench: Workbench, config: AffinityConfig, inputs: Sequence[Tensors | None]) -> Found:
    """The values of :func:`emulator.learning.methods.auxo.cluster`, and ``correlation``. A
    participant whose update is not finite has no reward (None) and no side."""
    updates = [update for update in inputs if update is not None]
    finite = [i for i, update in enumerate(updates) if all_finite(update)]
    n, who = len(updates), config.who
    values: dict[str, Any] = {
        "rewards": [None] * n, "sides": [NOWHERE] * n, "margins": [1.0] * n,
        "spread": None, "spread_of_sides": None, "correlation": None,
    }  # fmt: skip
    of = config.sketching.of or config.layers
    if len(finite) < 2 or (config.layers is not None and not set(of or ()) <= set(config.layers)):
        return {}, values
    vectors = torch.stack([updates[i]["delta"] for i in finite])
    if of is not None:
        vectors = vectors[:, bench.layout.positions(of)["model"].to(vectors.device)]
    sketches = _sketched(vectors, config.sketching)
    present = Participants(
        tuple(who.known[i] for i in finite), tuple(who.sides[i] for i in finite), who.first
    )
    found = cluster(sketches, present, config.scale, config.sketching.seed % 2**31)
    for name in ("rewards", "sides", "margins"):
        for position, value in zip(finite, found.pop(name), strict=True):
            values[name][position] = value
    histograms = np.stack([bench.distribution_of(config.clients[i]) for i in finite])
    found["correlation"] = similarity_correlation(sketches, histograms)
    return {}, {**values, **found}


def _sketched(vectors: torch.Tensor, sketching: Sketching) -> np.ndarray[Any, Any]:
    if sketching.dimensions is not None:
        rng = random_streams.generator(sketching.seed, "sketch")
        vectors = count_sketch(vectors, sketching.dimensions, rng)
    found: np.ndarray[Any, Any] = vectors.double().cpu().numpy()
    return found
