"""The models: a kind, an input shape and a number of classes in, a plain ``nn.Module`` out.

Every built-in model is an ``nn.Sequential`` of named layers whose last one is the classifier,
so ``model[:-1]`` gives the activations before it. None has hooks or in-place
operations and only ``resnet8`` has buffers (batch normalization), so
``torch.func.functional_call`` works on all of them, and ``vmap`` on all but that one and the
recurrent one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from emulator.errors import ScenarioError
from emulator.learning.models.char_lstm import char_lstm
from emulator.learning.models.conv1d import conv1d
from emulator.learning.models.custom import custom, resolve_callable
from emulator.learning.models.fedseq_lenet import fedseq_lenet
from emulator.learning.models.lenet5 import lenet5
from emulator.learning.models.logistic import logistic
from emulator.learning.models.mcmahan_cnn import mcmahan_cnn
from emulator.learning.models.mlp import mlp
from emulator.learning.models.resnet8 import resnet8
from emulator.learning.models.vgg9 import vgg9
from emulator.learning.registry import call_registered

__all__ = ["MODELS", "build_model", "parameter_count", "resolve_callable"]

MODELS: dict[str, Callable[..., nn.Module]] = {
    "logistic": logistic,
    "mlp": mlp,
    "lenet5": lenet5,
    "mcmahan_cnn": mcmahan_cnn,
    "fedseq_lenet": fedseq_lenet,
    "conv1d": conv1d,
    "char_lstm": char_lstm,
    "resnet8": resnet8,
    "vgg9": vgg9,
    "custom": custom,
}


def build_model(kind: str, input_shape: tuple[int, ...], classes: int, **options: Any) -> nn.Module:
    """The model of this kind for samples of ``input_shape``, giving logits ``[batch, classes]``.

    The weights are drawn by the layers' own default initialization from torch's generator: the
    caller seeds it around this call. Raises ScenarioError for an unknown kind or option, and
    for a shape that the model cannot take.
    """
    if not input_shape or any(side < 1 for side in input_shape):
        raise ScenarioError(
            f"task.model: input shape {input_shape} is not allowed; every side must be 1 or more"
        )
    if classes < 2:
        raise ScenarioError(f"task.model: {classes} classes; a classifier needs at least 2")
    return call_registered("task.model", MODELS, kind, options, tuple(input_shape), classes)


def parameter_count(model: nn.Module) -> int:
    """The number of parameters, frozen ones included; a shared tensor counts once."""
    return sum(parameter.numel() for parameter in model.parameters())
