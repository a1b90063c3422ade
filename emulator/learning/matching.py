"""FedMA's sub-rounds on whole models; the matching itself is in ``methods/fedma.py``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from emulator import random_streams
from emulator.learning.lineage import Tensors
from emulator.learning.methods.fedma import (
    average_by_class,
    from_unit_vectors,
    match,
    permute_inputs,
    unit_vectors,
)
from emulator.learning.pretraining import Found
from emulator.learning.training import Layout
from emulator.learning.vectors import all_finite, put

if TYPE_CHECKING:
    from emulator.learning.operations import Workbench

Options = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Matching:
    """A sub-round of FedMA: all ``layers`` in forward order, and the ``number`` from 0 of the one
    that is matched."""

    layers: tuple[str, ...]
    number: int

    @property
    def layer(self) -> str:
        return self.layers[self.number]


@dataclass(frozen=True, slots=True)
class MatchConfig:
    """How layer ``matching.number`` of FedMA is matched: of these ``clients``, in the order of the
    inputs after the first, with ``population`` clients in all; ``key`` names the random stream
    together with the seed."""

    matching: Matching
    clients: tuple[int, ...]
    population: int
    optimizer: Options
    seed: int
    key: int


def layer_positions(layout: Layout, layer: str) -> Tensor:
    """Where a layer's parameters lie in the flat vector."""
    return layout.positions((layer,))["model"].to(layout.device)


def _weight_and_bias(layout: Layout, layer: str, flat: Tensor) -> tuple[Tensor, Tensor | None]:
    """A layer's flat parameters in their shapes."""
    module = dict(layout.model.named_modules())[layer]
    shape = module.weight.shape
    size = shape.numel()
    return flat[:size].view(shape), flat[size:] if len(flat) > size else None


def _flat(weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.cat([weight.reshape(-1), *([] if bias is None else [bias])])


def own_model(
    layout: Layout, matching: Matching, server: Tensors, state: Tensors | None, client: int
) -> Tensor:
    """What a client of FedMA starts a sub-round from [P]: the server's model in the first; later
    the matched layers below, and of its own model the others, the lowest with its inputs where the
    matched units are."""
    if matching.number == 0:
        return server["model"]
    assert state is not None
    model, matched = state["own"].clone(), server["matched"]
    for layer in matching.layers[: matching.number]:
        where = layer_positions(layout, layer)
        model[where] = matched[where]
    where = layer_positions(layout, matching.layer)
    weight, bias = _weight_and_bias(layout, matching.layer, model[where])
    model[where] = _flat(permute_inputs(weight, server["assignment"][client]), bias)
    return model


def match_layer(bench: Workbench, config: MatchConfig, inputs: Sequence[Tensors | None]) -> Found:
    """The server's state after a sub-round of FedMA."""
    server, *updates = inputs
    assert server is not None
    layout, matching, options = bench.layout, config.matching, config.optimizer
    found = [update["layer"] for update in updates if update is not None]
    finite = [i for i, vector in enumerate(found) if all_finite({"layer": vector})]
    values = {"nonfinite": sorted(set(range(len(found))) - set(finite))}
    where = layer_positions(layout, matching.layer)
    last = matching.number == len(matching.layers) - 1
    model = server["model"] if matching.number == 0 else server["matched"]
    layers = [_weight_and_bias(layout, matching.layer, found[i]) for i in finite]
    clients = [config.clients[i] for i in finite]
    if not finite:  # the layer stays, and so do everybody's units
        layers = [_weight_and_bias(layout, matching.layer, model[where])]
    if last:
        classes = layers[0][0].shape[0]
        labels = [bench.samples_of(client)[1] for client in clients]
        counts = torch.stack([torch.bincount(y, minlength=classes) for y in labels] or
                             [torch.zeros(classes, dtype=torch.int64)])  # fmt: skip
        weight, bias = average_by_class([w for w, _ in layers], [b for _, b in layers], counts)
        after = {"model": put(model, where, _flat(weight, bias))}
        return ({"server": after}, values)
    units = [unit_vectors(weight, bias) for weight, bias in layers]
    matched, assignments = units[0], [torch.arange(len(units[0]), device=where.device)]
    if finite:
        matched, assignments = match(
            units, sigma=options["sigma"], sigma0=options["sigma0"], sweeps=options["sweeps"],
            rng=random_streams.generator(config.seed, "fedma", config.key),
        )  # fmt: skip
    shape, has_bias = layers[0][0].shape, layers[0][1] is not None
    place = torch.arange(len(matched), device=where.device).repeat(config.population, 1)
    for client, assignment in zip(clients, assignments, strict=False):
        place[client] = assignment
    flat = _flat(*from_unit_vectors(matched, shape, has_bias))
    after = {**server, "matched": put(model, where, flat), "assignment": place}
    return ({"server": after}, values)
