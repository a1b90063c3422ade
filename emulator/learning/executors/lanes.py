"""One step of stochastic gradient descent for many clients at once.

A lane is a client's training; a step computes every lane's gradient by one program of fixed shape
(so many lanes, so many rows), ``torch.func.vmap`` over the model, recorded (see ``program``). What
a lane computes must not depend on the others, on its place, nor on how many are empty;
:func:`step_program` tries it out, and refuses a model for which it is not so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import log_softmax
from torch.nn.modules.batchnorm import _BatchNorm

from emulator import random_streams
from emulator.errors import ScenarioError
from emulator.learning.executors.program import Program, record
from emulator.learning.methods import Penalty
from emulator.learning.training import Layout, with_activations

TOLERANCE = 1e-4
"""How far a lane's gradient may be from the one that the model gives alone, relative to the
largest value in it: rounding in another order stays well below."""


@dataclass(frozen=True, slots=True)
class StepProgram:
    """The gradients of all lanes: ``lanes`` (W) of them, each with a batch of ``rows``.

    Of every parameter it is known whether it is ``trained``, and whether its lanes are kept
    ``transposed``: in memory a parameter lies as its gradient does, for else every step would
    go across the one while going along the other.
    """

    lanes: int
    rows: int
    program: Program
    trained: tuple[bool, ...]
    transposed: tuple[bool, ...]

    def gradients(
        self, parameters: Sequence[Tensor], x: Tensor, y: Tensor, weights: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        """(gradients of the trained parameters, each [W, ...]; losses [W]).

        ``parameters`` are all of the model's, each [W, ...]; ``x`` [W, rows, ...], ``y`` and
        ``weights`` [W, rows, 1]: a lane's loss is the sum of its samples' losses times weights.
        """
        *gradients, losses = self.program([*parameters, x, y, weights])
        return gradients, losses

    def parameters(self, layout: Layout, models: Sequence[Tensor]) -> list[Tensor]:
        """Models [P], one a lane, as the parameters of all lanes, each [W, ...]; the lanes that
        are left over hold the first model."""
        return _stacked(layout, models, self.lanes, self.transposed)

    def of_trained(self, lanes: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """For each of some lanes one tensor a trained parameter, as tensors of all these lanes."""
        kept = zip(self.transposed, self.trained, strict=True)
        transposed = [is_transposed for is_transposed, is_trained in kept if is_trained]
        pairs = zip(zip(*lanes, strict=True), transposed, strict=True)
        return [_stack(same, t) for same, t in pairs]


def _stacked(
    layout: Layout, models: Sequence[Tensor], lanes: int, transposed: Sequence[bool]
) -> list[Tensor]:
    views = {id(model): layout.views(model.to(layout.device)) for model in models}
    filled = [views[id(model)] for model in models]
    filled += [filled[0]] * (lanes - len(filled))
    return [_stack(same, t) for same, t in zip(zip(*filled, strict=True), transposed, strict=True)]


def _stack(same: Sequence[Tensor], transposed: bool) -> Tensor:
    return torch.stack([one.mT for one in same]).mT if transposed else torch.stack(list(same))


def step_program(
    layout: Layout, rows: int, lanes: int, x: Tensor, y: Tensor, penalty: Penalty | None = None
) -> StepProgram:
    """The program of the layout's model for batches of ``rows``, tried out on samples of the
    training set, ``x`` [n, ...] and ``y`` [n]; ``penalty`` as in :func:`training.train`.

    Raises :class:`ScenarioError` for a model that cannot be trained in lanes.
    """
    if any(isinstance(module, _BatchNorm) for module in layout.model.modules()):
        _refuse(
            "batch normalization ties the samples of a batch together, and lanes fill theirs up"
        )
    layout.model.train()
    chosen = torch.arange(rows + 1, device=y.device) % len(y)
    sample_x, sample_y = x[chosen], y[chosen, None]
    weights = torch.full((rows, 1), 1.0 / max(1, rows - 1), device=layout.device)
    if rows > 1:
        weights[-1] = 0.0  # as where a batch is short
    start = layout.flatten()
    everywhere = (
        torch.stack([sample_x[:rows]] * lanes),
        torch.stack([sample_y[:rows]] * lanes),
        torch.stack([weights] * lanes),
    )
    trained = tuple(p.requires_grad for p in layout.parameters)
    transposed = tuple(False for _ in trained)
    try:
        while True:
            parameters = _stacked(layout, [start], lanes, transposed)
            for parameter, is_trained in zip(parameters, trained, strict=True):
                parameter.requires_grad_(is_trained)
            program, (*gradients, _) = record(
                _step_of(layout, lanes, penalty), [*parameters, *everywhere]
            )
            found = iter(gradients)
            seen = tuple(is_trained and not next(found).is_contiguous() for is_trained in trained)
            if seen == transposed or any(transposed):
                break
            transposed = seen
    except Exception as error:  # a user's model, or an operation without a rule for lanes
        first_line = str(error).strip().split("\n")[0]
        _refuse(f"torch.func.vmap over it fails ({type(error).__name__}: {first_line})")
    step = StepProgram(lanes, rows, program, trained, transposed)
    try:
        _try_out(layout, step, start, sample_x, sample_y, weights, penalty)
    finally:
        layout.load(start)
    return step


def _losses(
    model: nn.Module, call: Callable[[], Tensor], y: Tensor, weights: Tensor,
    penalty: Penalty | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(what is minimized, the cross-entropy alone) of one lane's batch."""
    if penalty is None:
        output, more = call(), None
    else:
        output, activations = with_activations(model, call)
        more = (penalty(activations) * weights[:, 0]).sum()
    loss = -(log_softmax(output, 1).gather(1, y) * weights).sum()
    return (loss if more is None else loss + more), loss


def _step_of(
    layout: Layout, lanes: int, penalty: Penalty | None
) -> Callable[[Sequence[Tensor]], list[Tensor]]:
    """The step as it is recorded; inputs and outputs as in :meth:`StepProgram.gradients`."""
    names, model = layout.names, layout.model
    ones = torch.ones(lanes, device=layout.device)

    def loss(
        parameters: list[Tensor], x: Tensor, y: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        named = dict(zip(names, parameters, strict=True))
        return _losses(model, lambda: functional_call(model, named, (x,)), y, weights, penalty)

    def step(inputs: Sequence[Tensor]) -> list[Tensor]:
        *parameters, x, y, weights = inputs
        trained = [p for p in parameters if p.requires_grad]
        totals, losses = vmap(loss)(parameters, x, y, weights)
        # Lanes share nothing, so the gradient of their sum is the gradient of each.
        gradients = torch.autograd.grad(totals, trained, ones, materialize_grads=True)
        gradients = tuple(g if g.mT.is_contiguous() else g.contiguous() for g in gradients)
        if len({gradient.data_ptr() for gradient in gradients}) < len(gradients):
            # One gradient for several parameters: each is to be changed in place.
            gradients = tuple(gradient.clone() for gradient in gradients)
        return [*gradients, losses]

    return step


def _try_out(
    layout: Layout, step: StepProgram, start: Tensor, x: Tensor, y: Tensor, weights: Tensor,
    penalty: Penalty | None,
) -> None:  # fmt: skip
    """Refuse the model unless a lane gives what the model gives alone, and the same bits in every
    place, beside any neighbour, and with anything in the rows that have no weight.

    ``x`` and ``y`` hold one sample more than a batch.
    """
    lanes, rows = step.lanes, step.rows
    drawn = random_streams.generator(0, "lanes").normal(0.0, 0.01, layout.size)
    model = start + torch.from_numpy(drawn).to(start)
    parameters = step.parameters(layout, [model])
    everywhere = step.gradients(
        parameters, *(torch.stack([t] * lanes) for t in (x[:rows], y[:rows], weights))
    )
    place = lanes // 2
    bad = float("nan")
    for parameter in parameters:
        kept = parameter[place].clone()
        parameter.fill_(bad)[place] = kept
    neighbours_x = torch.full_like(x[1:], bad) if x.is_floating_point() else x[1:]
    batches_x, batches_y = torch.stack([neighbours_x] * lanes), torch.stack([y[1:]] * lanes)
    batches_x[place], batches_y[place] = x[:rows], y[:rows]
    if rows > 1:
        batches_x[place, -1] = x[-1]
    alone = step.gradients(parameters, batches_x, batches_y, torch.stack([weights] * lanes))
    pairs = zip([*everywhere[0], everywhere[1]], [*alone[0], alone[1]], strict=True)
    for in_all, in_one in pairs:
        if not all(torch.equal(in_all[0], other) for other in (*in_all[1:], in_one[place])):
            _refuse("what it computes for a client depends on the clients beside it")
    expected = _alone(layout, model, x[:rows], y[:rows], weights, penalty)
    largest = max(float(gradient.abs().max()) for gradient in expected)
    for right, in_lanes in zip(expected, everywhere[0], strict=True):
        if float((in_lanes[0] - right).abs().max()) > TOLERANCE * largest:
            _refuse("in lanes its gradient is another than alone")


def _alone(
    layout: Layout, model: Tensor, x: Tensor, y: Tensor, weights: Tensor, penalty: Penalty | None
) -> list[Tensor]:
    """The gradients of one batch, as a training without lanes computes them."""
    layout.load(model)
    total, _ = _losses(layout.model, lambda: layout.model(layout.inputs(x)), y, weights, penalty)
    return list(torch.autograd.grad(total, layout.trained, materialize_grads=True))


def _refuse(reason: str) -> NoReturn:
    raise ScenarioError(
        f"execution.executor: batched cannot train this task.model: {reason}; use executor: "
        "inline or processes"
    )
