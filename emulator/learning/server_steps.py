"""The server's half of a version: one step from the updates that it takes.

Which step is ``kind``; the other options are its own. The equations are in
``emulator/learning/methods/``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from emulator.errors import InternalError
from emulator.learning.lineage import Tensors
from emulator.learning.methods.average import average, mean_delta
from emulator.learning.methods.fedadagrad import fedadagrad
from emulator.learning.methods.fedadam import fedadam
from emulator.learning.methods.fedasync import fedasync
from emulator.learning.methods.fedavgm import fedavgm
from emulator.learning.methods.feddyn import feddyn_step
from emulator.learning.methods.fedyogi import fedyogi
from emulator.learning.methods.qfedavg import qfedavg

Options = dict[str, Any]

UPLOADS = {"fedasync": ("model",), "qfedavg": ("delta", "base_loss"), "fedma": ("layer",)}
"""What a step takes from each client, by its name in the update; the other steps take the delta.

``model`` [P] is the trained model, ``delta`` [P] that less the received one, ``base_loss`` [1] the
loss of the received model on all of the client's samples, ``layer`` the parameters of the layer
that is matched."""

_ADAPTIVE: dict[str, Callable[..., tuple[Tensor, Tensor, Tensor]]] = {
    "fedadagrad": fedadagrad,
    "fedadam": fedadam,
    "fedyogi": fedyogi,
}


def uploads(step: Options) -> tuple[str, ...]:
    """What the clients must send for this step."""
    return UPLOADS.get(step["kind"], ("delta",))


@dataclass(frozen=True, slots=True)
class Taken:
    """The finite updates of a version, beside them p_k, s(τ_k) and a_k = p_k s_k / D.

    ``clients`` is N, the whole population.
    """

    updates: Sequence[Tensors]
    weights: Sequence[float]
    discounts: Sequence[float]
    coefficients: Sequence[float]
    normalise: str
    clients: int


def take_step(step: Options, server: Tensors, taken: Taken) -> Tensors:
    """What changes in the server's state: the model, and the step's own vectors."""
    options = dict(step)
    kind, model = options.pop("kind"), server["model"]
    if kind == "fedasync":
        (update,), (discount,) = taken.updates, taken.discounts
        return {"model": fedasync(model, update["model"], discount, **options)}
    deltas = [update["delta"] for update in taken.updates]
    if kind == "feddyn":
        model, h = feddyn_step(model, server.get("h"), deltas, clients=taken.clients, **options)
        return {"model": model, "h": h}
    if kind == "qfedavg":
        losses = [float(update["base_loss"]) for update in taken.updates]
        products = [p * s for p, s in zip(taken.weights, taken.discounts, strict=True)]
        divisors = products if taken.normalise == "discounted" else taken.weights
        return {"model": qfedavg(model, deltas, losses, products, divisors, **options)}
    delta = mean_delta(deltas, taken.coefficients)
    if kind == "average":
        return {"model": average(model, delta, **options)}
    if kind == "fedavgm":
        model, m = fedavgm(model, delta, server.get("m"), **options)
        return {"model": model, "m": m}
    if kind in _ADAPTIVE:
        model, m, v = _ADAPTIVE[kind](model, delta, server.get("m"), server.get("v"), **options)
        return {"model": model, "m": m, "v": v}
    raise InternalError(f"the learning plane knows no server step '{kind}'")


def initial_vector(step: Options, name: str, model: Tensor) -> Tensor:
    """A vector of the step's own [P] before its first version: zeros, but for v. A part of the
    model may have had none when another has."""
    return torch.full_like(model, step["v0"] if name == "v" else 0.0)


def merge_statistics(server: Tensors, taken: Taken, share: float) -> Tensors:
    """The running statistics of batch normalization after a version, with the model's weights.

    b ← (1 − Σ a_k) b + Σ a_k b_k, each a_k times ``share`` (FedAsync's mixing, else 1): the
    average of the clients' statistics where Σ a_k = 1, and variances stay at 0 or above. No server
    learning rate, momentum or scaling: statistics are no gradients. The step counts (int64) become
    the largest ones.
    """
    factors = [share * a for a in taken.coefficients]
    merged = server["statistics"] * max(0.0, 1.0 - sum(factors))
    counts: Tensor = server["counts"]
    for update, factor in zip(taken.updates, factors, strict=True):
        merged.add_(update["statistics"], alpha=factor)
        counts = torch.maximum(counts, update["counts"])
    return {"statistics": merged, "counts": counts}
