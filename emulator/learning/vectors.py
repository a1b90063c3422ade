"""Named vectors along a model's parameters, or along its running statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from emulator.learning.lineage import Tensors


def all_finite(tensors: Tensors) -> bool:
    """Whether all values are."""
    # A finite sum has finite terms only, and costs a tenth of torch.isfinite; another sum may have
    # overflowed.
    return all(
        math.isfinite(float(t.sum())) or bool(torch.isfinite(t).all()) for t in tensors.values()
    )


def kind_of(name: str) -> str:
    """Which of a layout's positions go with that vector of a state or an update."""
    return name if name in ("statistics", "counts") else "model"


def cut(tensors: Tensors, positions: Mapping[str, Tensor]) -> Tensors:
    """Of every vector along the parameters or the running statistics only these positions."""
    found = {}
    for name, tensor in tensors.items():
        where = positions[kind_of(name)].to(tensor.device)
        found[name] = tensor if name == "base_loss" else tensor[where]
    return found


def put(whole: Tensor, positions: Tensor, part: Tensor) -> Tensor:
    """``whole`` with ``part`` at these positions."""
    found = whole.clone()
    found[positions.to(found.device)] = part
    return found
