"""What a method asks of a model, found out before anything is trained."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from emulator.learning.methods import fedma
from emulator.learning.operations import one_thread, torch_stream
from emulator.learning.training import running_norms, with_activations
from emulator.scenario.schema import Federation, FedMa, FedMax

Sample = tuple[tuple[int, ...], int, bool]
"""The shape of one sample, the number of classes, and whether it is text."""


def check_methods(
    model: nn.Module, layers: Sequence[str], sample: Sample, federation: Federation
) -> None:
    """Raise :class:`ScenarioError` for a model with whose ``layers``, in forward order, an
    objective or a server optimizer cannot work. The model stays as it is."""
    if not isinstance(federation.server_optimizer, FedMa) and not isinstance(
        federation.objective, FedMax
    ):
        return
    with one_thread(), torch_stream(0, "probe"):
        x = _samples(model, sample)
        if isinstance(federation.server_optimizer, FedMa):
            fedma.check(model, layers, x)
        if isinstance(federation.objective, FedMax):
            # As in training: there a layer behind the head may do what it leaves undone else.
            ghost = copy.deepcopy(model).train()
            for norm in running_norms(ghost):
                norm.eval()
            with_activations(ghost, partial(ghost, x))


def _samples(model: nn.Module, sample: Sample) -> Tensor:
    """Two samples at random."""
    shape, classes, is_text = sample
    if is_text:
        return torch.randint(classes, (2, *shape))
    return torch.randn((2, *shape), dtype=next(model.parameters()).dtype)
