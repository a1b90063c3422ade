"""FedMA's matching (Wang et al., "Federated Learning with Matched Averaging", ICLR 2020), of one
layer, with fixed widths.

Unit l of client j has the vector w_jl [d], its incoming weights and its bias. With noise σ² and a
prior of mean 0 and variance σ0², and s = 1/σ² for every client, global unit i has
G_i = Σ s w_jl [d] and Q_i = 1/σ0² + Σ s over the units assigned to it, and is G_i / Q_i.

A layer has as many global units as the model has units in it, so every client has exactly one unit
in each of them and all models keep one layout; the paper's released code opens new units and lets
widths grow by about 1.1. What follows: the popularity term ln(m_i / (J − m_i)) is the same for all
i and drops out; Q_i is the same for all i, so the best assignment is the one of the greatest
Σ_l w_jl·G_i, whatever σ and σ0 are; they set how far a matched unit is drawn towards 0, by
J s / (1/σ0² + J s) from the clients' mean.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from emulator.errors import ScenarioError


def unit_vectors(weight: Tensor, bias: Tensor | None) -> Tensor:
    """w [U, d] of a layer: (incoming weights, bias) of each unit.

    ``weight`` is [U, C, k, k] of a Conv2d or [U, F] of a Linear, ``bias`` [U].
    """
    incoming = weight.flatten(1)
    return incoming if bias is None else torch.cat([incoming, bias[:, None]], 1)


def from_unit_vectors(
    vectors: Tensor, weight_shape: Sequence[int], has_bias: bool
) -> tuple[Tensor, Tensor | None]:
    """(weight of that shape, bias [U] or None) from :func:`unit_vectors`' [U, d]; views of it."""
    if not has_bias:
        return vectors.reshape(tuple(weight_shape)), None
    return vectors[:, :-1].reshape(tuple(weight_shape)), vectors[:, -1]


def gain(units: Tensor, precision: float, g: Tensor, q: Tensor) -> Tensor:
    """What assigning unit l to global unit i adds to Σ_i ‖G_i‖² / Q_i; [U, I].

    ‖s w_l + G_i‖² / (s + Q_i) − ‖G_i‖² / Q_i for ``units`` w [U, d], ``precision`` s, ``g`` [I, d]
    and ``q`` [I]. The square is multiplied out, which needs no [U, I, d].
    """
    own = precision * units
    squares = (g**2).sum(1)
    together = (own**2).sum(1)[:, None] + 2.0 * (own @ g.T) + squares
    return together / (precision + q) - squares / q


def _assign(units: Tensor, precision: float, g: Tensor, q: Tensor) -> Tensor:
    """The one-to-one assignment [U] of the greatest total gain."""
    # Loaded where it is used, as are scikit-learn's parts.
    from scipy.optimize import linear_sum_assignment

    _, columns = linear_sum_assignment(gain(units, precision, g, q).cpu().numpy(), maximize=True)
    return torch.as_tensor(columns, dtype=torch.int64, device=units.device)


def _add(g: Tensor, q: Tensor, units: Tensor, assignment: Tensor, precision: float) -> None:
    """Adds a client's units to ``g`` [U, d] and ``q`` [U] in place; with −s, takes them out."""
    g[assignment] += precision * units
    q[assignment] += precision


def match(
    units: Sequence[Tensor],
    *,
    sigma: float,
    sigma0: float,
    sweeps: int,
    rng: np.random.Generator,
) -> tuple[Tensor, list[Tensor]]:
    """(matched units [U, d], of each client the assignment [U], int64) of the clients' w [U, d].

    ``assignment[l]`` is the global unit of the client's unit l; ``sigma`` and ``sigma0`` are
    standard deviations. The first client's units are the global units to begin with, the others
    are added in order; then each of the sweeps takes the clients out and matches them again, one
    at a time, in a random order. Computed in float64, returned in the type of the units.

    Raises :class:`ValueError` for units that are not all finite.
    """
    w = torch.stack(list(units)).detach().double()
    if not bool(w.isfinite().all()):
        raise ValueError("units to be matched have values that are not finite")
    s, prior = sigma**-2, sigma0**-2
    clients, width, _ = w.shape
    first = torch.arange(width, device=w.device)
    g, q = torch.zeros_like(w[0]), torch.full((width,), prior, dtype=w.dtype, device=w.device)
    assignments: list[Tensor] = []
    for own in w:
        assignments.append(_assign(own, s, g, q) if assignments else first)
        _add(g, q, own, assignments[-1], s)
    # Of a single client nothing would be left to match it with.
    for _ in range(sweeps if clients > 1 else 0):
        for j in rng.permutation(clients).tolist():
            _add(g, q, w[j], assignments[j], -s)
            assignments[j] = _assign(w[j], s, g, q)
            _add(g, q, w[j], assignments[j], s)
    return (g / q[:, None]).to(units[0].dtype), assignments


def permute_inputs(weight: Tensor, assignment: Tensor) -> Tensor:
    """The next layer's weight for inputs in the global order: at ``assignment[l]`` stands what was
    for unit l.

    ``weight`` is [O, U, k, k] of a Conv2d, [O, U] of a Linear, or [O, U·b] of a Linear behind a
    flattened convolution, whose channels have b inputs each, one channel after the other. Raises
    :class:`ValueError` where the inputs cannot be those of the assigned units.
    """
    inputs, units = weight.shape[1], len(assignment)
    if weight.dim() > 2 and inputs != units:
        raise ValueError(f"a convolution of {inputs} channels cannot follow {units} matched units")
    if inputs % units:
        raise ValueError(
            f"the next layer has {inputs} inputs, which is no multiple of the {units} matched units"
        )
    blocks = weight.reshape(len(weight), units, inputs // units, *weight.shape[2:])
    permuted = torch.empty_like(blocks)
    permuted[:, assignment] = blocks
    return permuted.flatten(1, 2)


def average_by_class(
    weights: Sequence[Tensor], biases: Sequence[Tensor | None], counts: Tensor
) -> tuple[Tensor, Tensor | None]:
    """(weight [classes, F], bias [classes] or None) of the last layer, averaged class by class.

    Class c of client j counts n_jc / Σ_j n_jc, with ``counts`` n [J, classes]; a class that nobody
    has is the plain mean. Computed in float64, returned in the type of the weights.
    """
    vectors = torch.stack(
        [unit_vectors(weight, bias) for weight, bias in zip(weights, biases, strict=True)]
    )
    n = counts.to(vectors.device, torch.float64)
    total = n.sum(0)
    shares = torch.where(total > 0, n / total, 1.0 / len(n))
    mean = (shares[:, :, None] * vectors.double()).sum(0).to(vectors.dtype)
    return from_unit_vectors(mean, weights[0].shape, biases[0] is not None)


def check(model: nn.Module, layers: Sequence[str], x: Tensor) -> None:
    """Raise :class:`ScenarioError` unless ``layers``, in forward order, are convolutions and linear
    layers that each feed the next, and nothing else, and the last gives the logits.

    ``x`` [n, ...] are samples to try it with, on a copy of the model.
    """
    modules = dict(model.named_modules())
    named = [name for name, _ in model.named_parameters()]  # a shared one by its first name only
    before: nn.Conv2d | nn.Linear | None = None
    for name in layers:
        module = modules[name]
        own = [path.rpartition(".")[2] for path in named if path.rpartition(".")[0] == name]
        if (
            not isinstance(module, nn.Conv2d | nn.Linear)
            or getattr(module, "groups", 1) > 1
            or own not in (["weight"], ["weight", "bias"])
        ):
            raise ScenarioError(
                "federation.server_optimizer: 'fedma' matches the units of convolutions and linear "
                f"layers, and layer '{name}' of task.model is a {type(module).__name__}"
                f"{_unlike(module, own)}; {_OTHERS}"
            )
        if before is not None:
            weight, weight_before = module.weight, before.weight
            inputs, units = weight.shape[1], weight_before.shape[0]
            exact = isinstance(module, nn.Conv2d) or isinstance(before, nn.Linear)
            if inputs != units if exact else inputs % units:
                raise ScenarioError(
                    f"{_FEED}layer '{name}' of task.model has {inputs} inputs behind {units} "
                    f"units; {_OTHERS}"
                )
        before = module
    _try_orders(model, layers, x)


_OTHERS = "take lenet5, mcmahan_cnn, fedseq_lenet, vgg9, mlp or another server_optimizer"
_FEED = "federation.server_optimizer: 'fedma' matches layers that each feed the next, and "


def _unlike(module: nn.Module, own: Sequence[str]) -> str:
    """What such a layer has that a plain one has not."""
    if not isinstance(module, nn.Conv2d | nn.Linear):
        return ""
    if getattr(module, "groups", 1) > 1:
        return f" of {module.groups} groups"
    return f" with the parameters {', '.join(own)} of its own"


def _try_orders(model: nn.Module, layers: Sequence[str], x: Tensor) -> None:
    """Raise :class:`ScenarioError` unless a hidden layer's units can stand in another order, with
    the next layer's inputs in it, and the model still computes the same: that is what matching
    rests on. The last layer's units are the logits."""
    ghost = copy.deepcopy(model).cpu().eval()
    modules = dict(ghost.named_modules())
    with torch.no_grad():
        for parameter in ghost.parameters():  # initial values may be alike, or zero
            fan_in = max(1, parameter[0].numel())
            parameter.copy_(torch.randn(parameter.shape) / math.sqrt(fan_in))
        logits = ghost(x)
        for name, following in zip(layers, (*layers[1:], None), strict=True):
            layer = modules[name]
            place = torch.arange(len(layer.weight)).roll(1)
            for parameter in layer.parameters(recurse=False):
                parameter[place] = parameter.clone()
            if following is not None:
                weight = modules[following].weight
                weight.copy_(permute_inputs(weight.clone(), place))
            elif len(place) == logits.shape[1]:
                logits[:, place] = logits.clone()
            found, most = ghost(x), float(logits.abs().max())
            if not torch.allclose(found, logits, rtol=1e-3, atol=1e-4 * most):
                raise ScenarioError(
                    f"{_FEED}with the units of layer '{name}' of task.model in another order, and "
                    f"the inputs of {following or 'the logits'} in it, the model computes "
                    f"something else, as with connections past a layer; {_OTHERS}"
                )
