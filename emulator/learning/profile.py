"""What a model weighs and what a step on it costs: the sizes and operations that timing needs.

Sizes are those of the parameters, and apart from them of the running statistics of batch
normalization with their step counts, which travel or not. Work is counted in multiply-accumulates
(MACs) of one sample by the formulas of torch's FLOP counter, for matrix products, convolutions and
attention, two FLOPs a MAC; activations, pooling and normalization count as nothing.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from emulator.errors import ScenarioError
from emulator.learning.operations import torch_stream


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """One module that owns tensors: its parameters, their bytes, and those of its statistics."""

    name: str
    parameters: int
    size_bytes: int
    statistics_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Profile:
    """The layers in forward order, the bytes of all parameters, the MACs of one sample, and the
    bytes of all running statistics.

    ``backward_macs`` covers the gradients of the weights that are trained, and those of the
    activations from the last layer down to the first trained one.
    """

    layers: tuple[LayerProfile, ...]
    size_bytes: int
    forward_macs: int
    backward_macs: int
    statistics_bytes: int = 0


def profile_model(
    model: nn.Module, input_shape: tuple[int, ...], classes: int, *, is_text: bool = False
) -> Profile:
    """The profile of a model for samples of ``input_shape``; the model stays as it is.

    Samples are of the model's own type or, where ``is_text``, positions in a vocabulary.

    The work is counted on a copy in evaluation mode, so it draws nothing. Raises ScenarioError when
    the model does not give logits ``[1, classes]`` for one sample, trains nothing, or when no
    operation was counted.
    """
    order, forward_macs, backward_macs = _count(model, input_shape, classes, is_text)
    layers = _layers(model, order)
    return Profile(
        layers=layers,
        size_bytes=sum(layer.size_bytes for layer in layers),
        forward_macs=forward_macs,
        backward_macs=backward_macs,
        statistics_bytes=sum(layer.statistics_bytes for layer in layers),
    )


def backward_macs_of(
    model: nn.Module,
    input_shape: tuple[int, ...],
    classes: int,
    layers: Collection[str],
    *,
    is_text: bool = False,
) -> int:
    """``backward_macs`` of a training in which only ``layers`` are trained, by their names: the
    gradients of their weights, and those of the activations down to the first of them."""
    return _count(model, input_shape, classes, is_text, layers)[2]


def _count(
    model: nn.Module,
    input_shape: tuple[int, ...],
    classes: int,
    is_text: bool,
    layers: Collection[str] | None = None,
) -> tuple[list[str], int, int]:
    """The names of the modules as the forward pass calls them, forward MACs, backward MACs."""
    where = f"task.model: {type(model).__name__} cannot be profiled"
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ScenarioError(f"{where}: it has no parameter to train; give it one")
    ghost = copy.deepcopy(model).to("cpu").eval()
    for path, parameter in ghost.named_parameters():
        if layers is not None and path.rpartition(".")[0] not in layers:
            parameter.requires_grad_(False)
    order: list[str] = []
    for name, module in ghost.named_modules():
        # The hook has three arguments; the default binds this module's name, not the last one.
        module.register_forward_pre_hook(lambda _module, _args, name=name: order.append(name))
    dtype = torch.int64 if is_text else next(ghost.parameters()).dtype
    try:
        with _step_by_step(), torch_stream(0, "profile"), _FlopCounter() as counter:
            logits = ghost(torch.zeros((1, *input_shape), dtype=dtype))
            forward_flops = counter.flops
            if logits.shape == (1, classes) and logits.requires_grad:
                loss = cross_entropy(logits, torch.zeros(1, dtype=torch.int64))
                torch.autograd.backward(loss)
    except Exception as error:  # a user's model can fail in any way
        raise ScenarioError(
            f"{where}: it fails on one sample of shape {tuple(input_shape)}, all zeros "
            f"({type(error).__name__}: {error})"
        ) from error
    if logits.shape != (1, classes):
        raise ScenarioError(
            f"{where}: it gives {tuple(logits.shape)} for one sample of shape "
            f"{tuple(input_shape)}; it must give logits of shape (1, {classes})"
        )
    if forward_flops == 0:
        raise ScenarioError(
            f"{where}: none of its operations is one that can be counted (matrix products, "
            "convolutions, attention), so its training would take no time"
        )
    return order, forward_flops // 2, (counter.flops - forward_flops) // 2


@contextmanager
def _step_by_step() -> Iterator[None]:
    """Without oneDNN recurrent layers run step by step, and each step's products are seen."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TF32 acceleration")  # asked for by nobody
        with torch.backends.mkldnn.flags(enabled=False):
            yield


class _FlopCounter(TorchDispatchMode):
    """The FLOPs of all operations in its context, by torch's formulas.

    torch's own counter loads its compiler at first use: two seconds of every run's start.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # skipping it would be what loads it

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        result = func(*args, **keywords)
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **keywords, out_val=result)
        return result


def _layers(model: nn.Module, order: list[str]) -> tuple[LayerProfile, ...]:
    """The modules with tensors of their own: as called, then those never called as modules."""
    tensors: dict[str, list[torch.Tensor]] = {name: [] for name in order}
    seen: set[int] = set()
    for path, tensor in model.state_dict(keep_vars=True).items():
        # A shared tensor counts once.
        if isinstance(tensor, torch.Tensor) and id(tensor) not in seen:
            seen.add(id(tensor))
            tensors.setdefault(path.rpartition(".")[0], []).append(tensor)
    return tuple(_layer(name, owned) for name, owned in tensors.items() if owned)


def _layer(name: str, owned: list[torch.Tensor]) -> LayerProfile:
    parameters = [t for t in owned if isinstance(t, nn.Parameter)]
    size_bytes = sum(t.numel() * t.element_size() for t in parameters)
    all_bytes = sum(t.numel() * t.element_size() for t in owned)
    return LayerProfile(
        name, sum(t.numel() for t in parameters), size_bytes, all_bytes - size_bytes
    )
