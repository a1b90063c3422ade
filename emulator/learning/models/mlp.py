"""A multilayer perceptron on the flattened sample, with ReLU between the layers."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from emulator.errors import ScenarioError


def mlp(input_shape: tuple[int, ...], classes: int, *, hidden: Sequence[int] = (64,)) -> nn.Module:
    """Linear layers of the ``hidden`` widths, then the classifier.

    Raises ScenarioError unless ``hidden`` is a list of positive integers with one entry or more.
    """
    # Exactly int: YAML's true would pass as the width 1.
    if (
        not isinstance(hidden, (list, tuple))
        or not hidden
        or any(type(width) is not int or width < 1 for width in hidden)
    ):
        raise ScenarioError(
            f"task.model.hidden: {hidden!r} is not a list of widths; write hidden: [64] for one "
            "hidden layer of 64, or use kind: logistic for none"
        )
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    widths = [math.prod(input_shape), *hidden, classes]
    for i, (wide_in, wide_out) in enumerate(pairwise(widths), start=1):
        layers[f"fc{i}"] = nn.Linear(wide_in, wide_out)
        if i <= len(hidden):
            layers[f"relu{i}"] = nn.ReLU()
    return nn.Sequential(layers)
