"""FedSeq's pre-training as operations: what a client's own model tells of its data.

One client's training, from the common model, gives at once what its approximator ψ asks for, so
that no model is kept; principal components and similarities need those of all clients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from emulator import random_streams
from emulator.learning import training
from emulator.learning.lineage import Tensors
from emulator.learning.methods.fedseq import (
    classifier_weights,
    confidence,
    pairwise_cosine,
    principal_components,
)
from emulator.learning.training import Recipe

if TYPE_CHECKING:
    from emulator.learning.operations import Workbench

Found = tuple[dict[str, Tensors], dict[str, Any]]
"""Tensors by output name, and small values."""


@dataclass(frozen=True, slots=True)
class Pretraining:
    """What all clients' pre-trainings have in common. ``layers`` are those of ψ_clf, None for
    ψ_conf; ``similarity`` lists the epochs after which the model is given out."""

    recipe: Recipe
    layers: int | None
    similarity: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PretrainConfig:
    """One client's."""

    client: int
    seed: int
    common: Pretraining


def pretrain(bench: Workbench, config: PretrainConfig, inputs: Sequence[Tensors | None]) -> Found:
    """Train ``client`` from the common model; outputs ``update`` (ψ_clf: the classifier's
    ``weights`` [d]) and ``after{e}`` (the ``model`` [P] after epoch e), values ``confidence``
    [classes] (ψ_conf)."""
    initial, common, layout = inputs[0], config.common, bench.layout
    assert initial is not None
    x, y = bench.samples_of(config.client)
    rng = random_streams.generator(config.seed, "pre-training", config.client)
    outputs: dict[str, Tensors] = {}
    steps_an_epoch = max(1, math.ceil(len(y) / common.recipe.batch_size))

    def after_step(steps: int) -> None:
        epoch, rest = divmod(steps, steps_an_epoch)
        if rest == 0 and epoch in common.similarity:
            outputs[f"after{epoch}"] = {"model": layout.flatten()}

    _, loss, _ = training.train(
        layout, initial["model"], x, y, common.recipe, rng, None, initial if layout.norms else None,
        after_step=after_step,
    )  # fmt: skip
    for epoch in common.similarity:  # a client without samples has taken no step
        outputs.setdefault(f"after{epoch}", {"model": initial["model"].clone()})
    if common.layers is not None:
        outputs["update"] = {"weights": classifier_weights(layout.model, common.layers).clone()}
        return outputs, {"loss": loss}
    assert bench.exemplars is not None
    layout.model.eval()
    exemplar_x, exemplar_y = bench.exemplars
    with torch.no_grad():
        logits = torch.cat(
            [layout.model(layout.inputs(part)) for part in torch.split(exemplar_x, 500)]
        )
    return outputs, {"loss": loss, "confidence": confidence(logits, exemplar_y, logits.shape[1])}


def components(bench: Workbench, config: Any, inputs: Sequence[Tensors | None]) -> Found:
    """ψ_clf of all clients: ``components`` [clients, m] of their classifiers' weights; a row of
    NaN where those are not finite."""
    rows = np.stack([w["weights"].double().cpu().numpy() for w in inputs if w is not None])
    finite = np.isfinite(rows).all(1)
    found = np.full((len(rows), 1), np.nan)
    if finite.any():
        own = principal_components(rows[finite])
        found = np.full((len(rows), own.shape[1]), np.nan)
        found[finite] = own
    return {}, {"components": found.tolist()}


def similarity(bench: Workbench, config: Any, inputs: Sequence[Tensors | None]) -> Found:
    """``cosine`` [clients, clients] of every two models (FedSeq, section III)."""
    models = [torch.nan_to_num(m["model"]) for m in inputs if m is not None]
    return {}, {"cosine": pairwise_cosine(models).tolist()}
