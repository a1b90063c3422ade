"""Weights to begin with, of another run. Those of another precision are converted."""

from __future__ import annotations

import hashlib

from safetensors.torch import load_file
from torch import Tensor, nn

from emulator.errors import ScenarioError, nearest
from emulator.scenario.schema import Pretrained


def load_pretrained(model: nn.Module, section: Pretrained) -> str:
    """Overwrite the model's layers by those of the file; returns what tells these weights apart.

    Raises ScenarioError for a file that is damaged or of another model.
    """
    where, path = "task.pretrained", section.path
    try:
        found = load_file(str(path))
    except Exception as error:  # the library raises its own, and OSError
        raise ScenarioError(
            f"{where}.path: {path} cannot be read as safetensors: {error}"
        ) from None
    own = dict(model.state_dict())
    layers = [name.rpartition(".")[0] for name in own]
    for layer in section.layers or ():
        if layer not in layers:
            raise ScenarioError(
                f"{where}.layers: the model has no layer '{layer}'{nearest(layer, layers)}; it has "
                f"{', '.join(dict.fromkeys(layers))}"
            )
    taken = hashlib.blake2b(digest_size=16)
    for name, layer in zip(own, layers, strict=True):
        if section.layers is not None and layer not in section.layers:
            continue
        if name not in found or found[name].shape != own[name].shape:
            what = "is not there" if name not in found else f"has shape {tuple(found[name].shape)}"
            raise ScenarioError(
                f"{where}.path: {path}: '{name}' {what}, and task.model wants "
                f"{tuple(own[name].shape)}; take the file of a run with the same model"
            )
        if _sort(found[name]) != _sort(own[name]):
            raise ScenarioError(
                f"{where}.path: {path}: '{name}' holds {_sort(found[name])} "
                f"({_dtype(found[name])}), and task.model wants {_sort(own[name])} "
                f"({_dtype(own[name])}); take weights that are not quantized"
            )
        own[name].copy_(found[name])
        finite = own[name].isfinite()
        if not finite.all():
            bad = int(finite.logical_not().sum())
            raise ScenarioError(
                f"{where}.path: {path}: {bad} of the {finite.numel()} values of '{name}' are not "
                f"finite as {_dtype(own[name])}; take the file of a run that has not diverged"
            )
        taken.update(name.encode() + own[name].contiguous().numpy().tobytes())
    return f"pretrained={taken.hexdigest()}"


def _sort(tensor: Tensor) -> str:
    """What kind of numbers it holds."""
    if tensor.is_floating_point():
        return "fractions"
    return "complex numbers" if tensor.is_complex() else "whole numbers"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
