"""Multinomial logistic regression: one linear layer on the flattened sample."""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn


def logistic(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A linear layer from all the values of a sample to the logits."""
    return nn.Sequential(
        OrderedDict(flatten=nn.Flatten(), fc=nn.Linear(math.prod(input_shape), classes))
    )
