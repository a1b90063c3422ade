"""What one client does: stochastic gradient descent from a frozen model on its own samples.

A pure function of (base, client state, samples, recipe, named random stream). Models travel as
one flat vector of all parameters, in the order of ``model.named_parameters()``. The running
statistics of batch normalization are no parameters: they lie in vectors of their own, beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from emulator.errors import ScenarioError
from emulator.learning.methods import GradientTerm, Penalty

Indices = NDArray[np.int64]
Layers = Sequence[str] | None
"""Names of modules that own parameters; None stands for all of them."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a client trains; part of every training's identity."""

    epochs: int | None
    steps: int | None
    batch_size: int
    lr: float
    momentum: float
    weight_decay: float
    pad: bool


class Layout:
    """Where each parameter lies in the flat vector, and the module that computes with it.

    The module is scratch space: its parameters and running statistics are overwritten by every
    call, so one module serves all clients. On the CPU convolutions run in channels-last order,
    measured 1.3 times as fast as the default there.

    Raises ScenarioError for buffers other than the running statistics of batch normalization.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        statistics = {id(buffer) for norm in running_norms(model) for buffer in norm.buffers()}
        others = [name for name, b in model.named_buffers() if id(b) not in statistics]
        if others:
            raise ScenarioError(
                f"task.model: it keeps {', '.join(others[:3])} beside its parameters, and buffers "
                "other than the running statistics of batch normalization are not exchanged; make "
                "a constant a plain attribute, and anything else a parameter (requires_grad=False "
                "where it is not trained)"
            )
        self.device = device
        self.model = model.to(device)
        convolutional = any(isinstance(m, nn.Conv2d) for m in model.modules())
        self.channels_last = convolutional and device.type == "cpu"
        if self.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.parameters: list[Tensor] = list(self.model.parameters())
        self.names = [name for name, _ in self.model.named_parameters()]
        self.shapes = [p.shape for p in self.parameters]
        self.sizes = [p.numel() for p in self.parameters]
        self.size = sum(self.sizes)
        self.trained = [p for p in self.parameters if p.requires_grad]
        self.norms = running_norms(self.model)
        self._names_of_norms = {m: name for name, m in self.model.named_modules()}
        buffers = list(self.model.buffers())
        self._statistics = [b for b in buffers if b.is_floating_point()]
        self._counts = [b for b in buffers if not b.is_floating_point()]
        self._statistics_sizes = [b.numel() for b in self._statistics]
        self.initial_statistics = self.statistics()
        self._positions: dict[tuple[str, ...], dict[str, Tensor]] = {}

    def flatten(self) -> Tensor:
        """The module's parameters as one new vector [P]."""
        with torch.no_grad():
            return torch.cat([p.reshape(-1) for p in self.parameters])

    def flat_of(self, model: nn.Module) -> Tensor:
        """As :meth:`flatten`, of another module of the same kind."""
        with torch.no_grad():
            return torch.cat([p.reshape(-1) for p in model.parameters()]).to(self.device)

    def views(self, flat: Tensor) -> list[Tensor]:
        """The flat vector [P] as tensors in the parameters' shapes, sharing its memory."""
        pieces = torch.split(flat, self.sizes)
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def is_trained(self, layers: Layers = None) -> list[bool]:
        """Of every parameter whether it is trained where only ``layers`` are, all of them unless
        said otherwise."""
        found = zip(self.names, self.parameters, strict=True)
        return [p.requires_grad and _lies_in(name, layers) for name, p in found]

    def trained_views(self, flat: Tensor | None, layers: Layers = None) -> list[Tensor]:
        """As :meth:`views`, of the trained parameters only (see :meth:`is_trained`) and on the
        layout's device; none without a vector."""
        if flat is None:
            return []
        pieces = zip(self.views(flat.to(self.device)), self.is_trained(layers), strict=True)
        return [view for view, is_trained in pieces if is_trained]

    def norms_of(self, layers: Layers) -> list[_BatchNorm]:
        """The layers of batch normalization among ``layers``."""
        if layers is None:
            return self.norms
        return [norm for norm in self.norms if self._names_of_norms[norm] in layers]

    def positions(self, layers: Sequence[str]) -> dict[str, Tensor]:
        """Where these layers lie in the flat vectors: ``model`` [positions in 0..P-1], and those in
        ``statistics`` and ``counts``. Sorted, int64, on the CPU; not to be changed, for they are
        found once."""
        known = self._positions.get(key := tuple(layers))
        if known is None:
            sizes = {"model": list(zip(self.names, self.sizes, strict=True)), "statistics": [],
                     "counts": []}  # fmt: skip
            for name, buffer in self.model.named_buffers():
                kind = "statistics" if buffer.is_floating_point() else "counts"
                sizes[kind].append((name, buffer.numel()))
            known = {kind: _ranges(named, layers) for kind, named in sizes.items()}
            self._positions[key] = known
        return known

    def load(self, flat: Tensor, statistics: Mapping[str, Tensor] | None = None) -> None:
        """Overwrite the module's parameters by the flat vector [P], and its running statistics by
        ``statistics`` (see :meth:`statistics`), or by those it was built with."""
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.views(flat.to(self.device)))
            if not self.norms:
                return
            given = self.initial_statistics if statistics is None else statistics
            flat = given["statistics"].to(self.device)
            pieces = torch.split(flat, self._statistics_sizes)
            torch._foreach_copy_(self._statistics, pieces)
            torch._foreach_copy_(self._counts, given["counts"].to(self.device).unbind())

    def statistics(self) -> dict[str, Tensor]:
        """The module's running statistics as new vectors: ``statistics`` [S], the means and
        variances in the order of ``model.named_buffers()``, and ``counts`` [layers], the steps
        behind them (int64). Empty for a model without."""
        if not self.norms:
            return {}
        return {"statistics": torch.cat(self._statistics), "counts": torch.stack(self._counts)}

    def inputs(self, x: Tensor) -> Tensor:
        """Samples in the memory order in which the model runs fastest."""
        if self.channels_last and x.dim() == 4:
            return x.contiguous(memory_format=torch.channels_last)
        return x


def state_dict(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``model`` [P] and the running statistics beside it as new tensors, by torch's names."""
    found: dict[str, Tensor] = {}
    at = {"model": 0, "statistics": 0, "counts": 0}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if isinstance(tensor, nn.Parameter):
            key = "model"
        else:
            key = "statistics" if tensor.is_floating_point() else "counts"
        stop = at[key] + tensor.numel()
        found[name] = tensors[key][at[key] : stop].cpu().reshape(tensor.shape).clone()
        at[key] = stop
    return found


def _lies_in(name: str, layers: Layers) -> bool:
    """Whether the tensor of that name belongs to one of these layers."""
    return layers is None or name.rpartition(".")[0] in layers


def _ranges(named: Sequence[tuple[str, int]], layers: Sequence[str]) -> Tensor:
    """The positions of the tensors (name, size) of these layers, laid end to end."""
    found, start = [torch.empty(0, dtype=torch.int64)], 0
    for name, size in named:
        if _lies_in(name, layers):
            found.append(torch.arange(start, start + size))
        start += size
    return torch.cat(found)


def running_norms(model: nn.Module) -> list[_BatchNorm]:
    """The layers of batch normalization that keep running statistics."""
    found = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    return [norm for norm in found if norm.running_mean is not None]


def _normalize_by_batch(norms: list[_BatchNorm], samples: int) -> None:
    """Let batch normalization use the statistics of a batch and count them into the running ones;
    but one sample has no spread, so it is normalized by the running ones, which stay."""
    for norm in norms:
        norm.training = samples > 1


def batches(n: int, recipe: Recipe, rng: np.random.Generator) -> Iterator[Indices]:
    """Positions 0..n-1 in mini-batches, reshuffled every epoch.

    With ``epochs`` the last batch of an epoch may be short; with ``steps`` every batch is full,
    running on into the next shuffle. ``pad`` fills a client of less than one batch up to a whole
    one by drawing from its samples again.
    """
    if n == 0:
        return
    size = recipe.batch_size
    if recipe.epochs is not None:
        for _ in range(recipe.epochs):
            order = rng.permutation(n)
            if recipe.pad and n < size:
                order = np.concatenate([order, rng.integers(0, n, size - n)])
            for start in range(0, len(order), size):
                yield order[start : start + size]
        return
    assert recipe.steps is not None
    order = np.empty(0, dtype=np.int64)
    for _ in range(recipe.steps):
        while len(order) < size:
            order = np.concatenate([order, rng.permutation(n)])
        yield order[:size]
        order = order[size:]


def train(
    layout: Layout,
    base: Tensor,
    x: Tensor,
    y: Tensor,
    recipe: Recipe,
    rng: np.random.Generator,
    term: GradientTerm | None,
    statistics: Mapping[str, Tensor] | None = None,
    *,
    freeze: bool = False,
    layers: Layers = None,
    penalty: Penalty | None = None,
    after_step: Callable[[int], None] | None = None,
) -> tuple[Tensor, float, int]:
    """Local SGD from ``base`` [P] and running ``statistics`` on ``x`` [n, ...], ``y`` [n].

    Returns (delta [P] = trained − base, mean loss over the mini-batches, number of steps). No
    sample, or nothing to train: a zero delta, a loss of NaN and 0 steps. The layout then holds the
    trained model and its statistics. ``freeze`` normalizes by the given statistics, which stay.
    Other layers than ``layers`` stay as they are, in every respect: no gradient, no weight decay,
    and batch normalization by the given statistics; dropout is as in training everywhere.
    ``penalty`` adds the mean of what it gives to the loss, but not to the one that is returned.
    ``after_step(n)`` is called after the n-th step, when the layout holds the model as it is then.
    """
    layout.load(base, statistics)
    is_trained = layout.is_trained(layers)
    parameters = [p for p, yes in zip(layout.parameters, is_trained, strict=True) if yes]
    if not parameters:
        return torch.zeros_like(base, device=layout.device), math.nan, 0
    velocity: list[Tensor] = []
    anchor = [p.detach().clone() for p in parameters] if term is not None else []
    losses: list[Tensor] = []
    norms = [] if freeze else layout.norms_of(layers)
    layout.model.train()
    _normalize_by_batch(layout.norms, 0)
    for positions in batches(len(y), recipe, rng):
        if norms:
            _normalize_by_batch(norms, len(positions))
        chosen = torch.from_numpy(positions).to(x.device)
        xb, yb = layout.inputs(x[chosen]), y[chosen]
        if penalty is None:
            total = loss = cross_entropy(layout.model(xb), yb)
        else:
            logits, activations = with_activations(layout.model, partial(layout.model, xb))
            loss = cross_entropy(logits, yb)
            total = loss + penalty(activations).mean()
        gradients = list(torch.autograd.grad(total, parameters, materialize_grads=True))
        if term is not None:
            term(gradients, parameters, anchor)
        sgd_step(parameters, gradients, velocity, recipe)
        losses.append(loss.detach())
        if after_step is not None:
            after_step(len(losses))
    mean_loss = float(torch.stack(losses).double().mean()) if losses else math.nan
    return layout.flatten() - base.to(layout.device), mean_loss, len(losses)


def with_activations(model: nn.Module, call: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """(the logits that ``call()`` gets from the model, what its last linear layer got [n, d]).

    Raises ScenarioError where the logits do not come from a linear layer.
    """
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    seen: list[tuple[Tensor, Tensor]] = []
    hooks = [m.register_forward_hook(lambda _m, args, out: seen.append((args[0], out)))
             for m in linear[-1:]]  # fmt: skip
    try:
        logits = call()
    finally:
        for hook in hooks:
            hook.remove()
    if not seen or seen[-1][1] is not logits:
        raise ScenarioError(
            "federation.objective: 'fedmax' goes by what the last linear layer is given, and the "
            "logits of task.model do not come from one; take another model or objective"
        )
    return logits, seen[-1][0]


def sgd_step(
    parameters: list[Tensor], gradients: list[Tensor], velocity: list[Tensor], recipe: Recipe
) -> None:
    """One step of SGD, bit for bit torch.optim.SGD's, which takes longer than a small model.

    g ← g + λ w;  v ← μ v + g (v ← g at first);  w ← w − η v.
    """
    with torch.no_grad():
        if recipe.weight_decay:
            torch._foreach_add_(gradients, parameters, alpha=recipe.weight_decay)
        if recipe.momentum:
            if velocity:
                torch._foreach_mul_(velocity, recipe.momentum)
                torch._foreach_add_(velocity, gradients)
            else:
                velocity.extend(gradient.clone() for gradient in gradients)
            gradients = velocity
        torch._foreach_add_(parameters, gradients, alpha=-recipe.lr)


def mean_gradient(
    layout: Layout,
    at: Tensor,
    x: Tensor,
    y: Tensor,
    recipe: Recipe,
    statistics: Mapping[str, Tensor] | None = None,
    *,
    freeze: bool = False,
) -> Tensor:
    """The gradient [P] at ``at`` of what the client minimizes: the mean loss over all samples,
    and weight decay as training adds it; zeros without samples. Batch normalization as in
    :func:`train`."""
    layout.load(at, statistics)
    total = {p: torch.zeros_like(p) for p in layout.parameters}
    trained = [total[p] for p in layout.trained]
    layout.model.train()
    size = recipe.batch_size
    for start in range(0, len(y), size):
        xb, yb = x[start : start + size], y[start : start + size]
        _normalize_by_batch(layout.norms, 0 if freeze else len(yb))
        loss = cross_entropy(layout.model(layout.inputs(xb)), yb, reduction="sum") / len(y)
        gradients = torch.autograd.grad(loss, layout.trained, materialize_grads=True)
        torch._foreach_add_(trained, gradients)
    if recipe.weight_decay and len(y):
        with torch.no_grad():
            torch._foreach_add_(trained, layout.trained, alpha=recipe.weight_decay)
    return torch.cat([g.reshape(-1) for g in total.values()])


def evaluate(
    layout: Layout,
    model: Tensor,
    x: Tensor,
    y: Tensor,
    batch_size: int = 500,
    statistics: Mapping[str, Tensor] | None = None,
    *,
    by_batch: bool = False,
) -> dict[str, float]:
    """Sums over the samples: ``correct`` and ``loss`` (in float64), and their number ``n``.

    Batch normalization uses ``statistics`` or, ``by_batch``, those of each batch evaluated, and
    the batches are then of equal size, give or take one sample.
    """
    layout.load(model, statistics)
    layout.model.eval()
    n = len(y)
    starts = list(range(0, n, batch_size))
    if by_batch:
        starts = [n * i // len(starts) for i in range(len(starts))]
    correct, loss = 0, 0.0
    with torch.no_grad():
        for start, stop in pairwise([*starts, n]):
            xb, yb = x[start:stop], y[start:stop]
            if by_batch:
                _normalize_by_batch(layout.norms, len(yb))
            output = layout.model(layout.inputs(xb))
            loss += float(cross_entropy(output.double(), yb, reduction="sum"))
            correct += int((output.argmax(1) == yb).sum())
    return {"correct": correct, "loss": loss, "n": n}
