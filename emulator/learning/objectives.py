"""The client's half of every objective: what it adds to a gradient, keeps and sends.

A training asks in this order: :func:`kept_before`, :func:`correction`, :func:`gradient_term` and
:func:`penalty`; it trains; then :func:`after_training`. The equations are in
``emulator/learning/methods/``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from emulator.errors import InternalError
from emulator.learning.lineage import Tensors
from emulator.learning.methods import GradientTerm, Penalty
from emulator.learning.methods.feddyn import feddyn, next_gradient
from emulator.learning.methods.fedmax import fedmax
from emulator.learning.methods.fedprox import fedprox
from emulator.learning.methods.scaffold import control_option_2, scaffold
from emulator.learning.training import Recipe

Options = dict[str, Any]

_KEPT = {"scaffold": "control", "feddyn": "gradient"}


def kept_name(objective: Options) -> str | None:
    """The vector [P] that a client keeps from one of its tasks to the next, by its name in the
    client's state; None where the objective keeps none."""
    return None if objective.get("legacy") else _KEPT.get(objective["kind"])


def kept_before(objective: Options, base: Tensor, state: Tensors | None) -> Tensor | None:
    """The kept vector [P] (zeros at first), or None where the objective keeps none."""
    name = kept_name(objective)
    if name is None:
        return None
    return torch.zeros_like(base) if state is None else state[name]


def correction(objective: Options, server: Tensors, kept: Tensor | None) -> Tensor | None:
    """The vector [P] that :func:`gradient_term` needs, the same for the whole visit; or None."""
    if kept is None:
        return None
    if objective["kind"] == "scaffold":
        return _server_control(server) - kept
    return kept


def gradient_term(objective: Options, vector: Sequence[Tensor]) -> GradientTerm | None:
    """What is added to every mini-batch's gradient; ``vector`` is :func:`correction` in the
    shapes of the trained parameters, empty where that is None."""
    match objective["kind"]:
        case "plain" | "fedmax":
            return None
        case "fedprox":
            return fedprox(objective["mu"])
        case "scaffold":
            return scaffold(vector)
        case "feddyn" if objective.get("legacy"):
            return fedprox(objective["alpha"])
        case "feddyn":
            return feddyn(objective["alpha"], vector)
        case kind:
            raise InternalError(f"the learning plane knows no objective '{kind}'")


def penalty(objective: Options) -> Penalty | None:
    """What is added to every sample's loss, by what the last linear layer is given."""
    if objective["kind"] != "fedmax":
        return None
    return fedmax(objective["beta"], objective["direction"])


def after_training(
    objective: Options,
    recipe: Recipe,
    server: Tensors,
    kept: Tensor | None,
    delta: Tensor,
    steps: int,
    gradient_at_base: Callable[[], Tensor],
) -> tuple[Tensor | None, Tensors]:
    """(the vector [P] that the client keeps from now on or None, what it sends beside its update).

    ``gradient_at_base()`` is ∇F_k(w_t) [P]: one more pass over the client's samples.
    """
    if kept is None:
        return None, {}
    if objective["kind"] == "feddyn":
        return next_gradient(kept, delta, objective["alpha"]), {}
    if objective["option"] == "I":
        control = gradient_at_base()
    else:
        control = control_option_2(_server_control(server), kept, delta, recipe.lr, steps)
    return control, {"control_change": control - kept}


def _server_control(server: Tensors) -> Tensor:
    """SCAFFOLD's c [P]: zeros at first."""
    found = server.get("control")
    return torch.zeros_like(server["model"]) if found is None else found
