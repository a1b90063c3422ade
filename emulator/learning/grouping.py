"""What clustered baselines ask of clients' updates, as operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from emulator.learning import training
from emulator.learning.lineage import Tensors
from emulator.learning.methods import cfl, fl_hc, flexcfl, ifca
from emulator.learning.pretraining import Found
from emulator.learning.vectors import all_finite

if TYPE_CHECKING:
    from emulator.learning.operations import Workbench

Options = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChooseConfig:
    """Which of the models, the inputs, is best for each of these clients."""

    clients: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """How the updates, the inputs, are grouped: ``kind`` and the options of the method."""

    method: Options
    seed: int


def choose(bench: Workbench, config: ChooseConfig, inputs: Sequence[Tensors | None]) -> Found:
    """Values ``choices`` [clients]: see :func:`emulator.learning.methods.ifca.choose`."""
    layout, choices, losses = bench.layout, [], []
    models = [model for model in inputs if model is not None]
    for client in config.clients:
        x, y = bench.samples_of(client)
        found = []
        for model in models:
            sums = training.evaluate(
                layout, model["model"], x, y, statistics=model if layout.norms else None
            )
            found.append(sums["loss"] / max(1, len(y)))
        losses.append(found)
        choices.append(ifca.choose(found))
    return {"choice": {"losses": torch.tensor(losses)}}, {"choices": choices}


def group(bench: Workbench, config: GroupConfig, inputs: Sequence[Tensors | None]) -> Found:
    """Values ``groups``, the number of each update's group, None where it is not finite; groups are
    numbered as they appear. Output ``references``: the mean update of each group [groups, P]."""
    finite = [i for i, update in enumerate(inputs) if update is not None and all_finite(update)]
    groups: list[int | None] = [None] * len(inputs)
    deltas = _deltas(inputs, finite)
    labels = _labels(deltas, config) if finite else []
    order = list(dict.fromkeys(labels))
    for i, label in zip(finite, labels, strict=True):
        groups[i] = order.index(label)
    where = np.array(labels)
    means = [torch.from_numpy(deltas[where == label].mean(axis=0)) for label in order]
    references = torch.stack(means).float() if means else torch.zeros(0, 0)
    return {"references": {"references": references}}, {"groups": groups}


def _labels(deltas: NDArray[np.float64], config: GroupConfig) -> list[int]:
    options = dict(config.method)
    kind = options.pop("kind")
    if kind == "cfl":
        return cfl.bipartition(deltas, **options) if len(deltas) > 1 else [0]
    if kind == "fl_hc":
        return fl_hc.agglomerate(deltas, **options)
    return flexcfl.group(deltas, **options, seed=config.seed % 2**31)


def nearest(bench: Workbench, config: None, inputs: Sequence[Tensors | None]) -> Found:
    """Value ``group``, of the update, the second input, among the references, the first; None for
    one that is not finite."""
    references, update = inputs
    assert references is not None
    assert update is not None
    if not all_finite(update):
        return {}, {"group": None}
    means = references["references"].double().cpu().numpy()
    return {}, {"group": flexcfl.nearest(_deltas([update], [0])[0], means)}


def inter_group(bench: Workbench, config: float, inputs: Sequence[Tensors | None]) -> Found:
    """Outputs ``server0`` and so on: the states of the groups, the inputs, with models as in
    :func:`emulator.learning.methods.flexcfl.inter_group`; ``config`` is its rate."""
    states = [state for state in inputs if state is not None]
    models = flexcfl.inter_group(torch.stack([state["model"] for state in states]), config)
    return {f"server{j}": {**state, "model": models[j].clone()}
            for j, state in enumerate(states)}, {}  # fmt: skip


def norms(bench: Workbench, config: None, inputs: Sequence[Tensors | None]) -> Found:
    """Values ``mean`` and ``largest``, see :func:`emulator.learning.methods.cfl.norms`, of those
    updates that are finite; None where none is."""
    finite = [i for i, update in enumerate(inputs) if update is not None and all_finite(update)]
    if not finite:
        return {}, {"mean": None, "largest": None}
    mean, largest = cfl.norms(_deltas(inputs, finite))
    return {}, {"mean": mean, "largest": largest}


def _deltas(inputs: Sequence[Tensors | None], chosen: Sequence[int]) -> NDArray[np.float64]:
    """The updates Δ [chosen, P]."""
    vectors = [update["delta"] for i in chosen if (update := inputs[i]) is not None]
    if not vectors:
        return np.zeros((0, 0))
    found: NDArray[np.float64] = torch.stack(vectors).double().cpu().numpy()
    return found
