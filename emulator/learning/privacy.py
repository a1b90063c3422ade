"""What leaves a client under local differential privacy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from emulator import random_streams
from emulator.learning.lineage import Tensors
from emulator.learning.methods.local_dp import Privacy, local_dp
from emulator.learning.pretraining import Found
from emulator.learning.training import Layers, Layout

if TYPE_CHECKING:
    from emulator.learning.operations import Workbench


@dataclass(frozen=True, slots=True)
class LeavingConfig:
    """What the last ``client`` of a chain sends; ``visit`` and the seed name the noise's stream,
    ``layers`` are those that the chain has trained, None for all."""

    client: int
    visit: tuple[int, ...]
    seed: int
    privacy: Privacy
    layers: tuple[str, ...] | None


def noised(
    layout: Layout, privacy: Privacy, delta: Tensor, layers: Layers, seed: int, client: int,
    visit: Sequence[int],
) -> Tensor:  # fmt: skip
    """The update [P] of a visit, clipped, and with noise where the client has trained."""
    rng = random_streams.generator(seed, "local dp", client, *visit)
    is_trained = layout.is_trained(layers)
    if all(is_trained):
        return local_dp(delta, privacy, rng)
    pairs = zip(is_trained, layout.sizes, strict=True)
    trained = torch.cat([torch.full((size,), yes) for yes, size in pairs])
    return local_dp(delta, privacy, rng, torch.nonzero(trained).reshape(-1))


def leaving(bench: Workbench, config: LeavingConfig, inputs: Sequence[Tensors | None]) -> Found:
    """The model that ends a chain as it leaves the last client: the one that the chain began with
    and its noised update; inputs are that one and the last."""
    base, last = inputs
    assert base is not None
    assert last is not None
    begun = base["model"].to(last["model"].device)
    delta = noised(
        bench.layout, config.privacy, last["model"] - begun, config.layers, config.seed,
        config.client, config.visit,
    )  # fmt: skip
    return {"update": {**last, "model": begun + delta}}, {}
