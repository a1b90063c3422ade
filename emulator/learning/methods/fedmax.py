"""FedMAX (Chen, Bhardwaj, Marculescu, ECML PKDD 2020): activations of maximum entropy.

A client minimizes CE + β · KL(U ‖ softmax(a)), with a [d] what the last linear layer is given and U
uniform over its d units, as the authors' code does (their printed β is divided by d there, by a
mean over elements, which makes 1000 / 512 = 1.95 of it). "Maximum entropy" to the letter would be
KL(softmax(a) ‖ U) = ln d − H(softmax(a)).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from emulator.learning.methods import Penalty


def fedmax(beta: float, direction: str) -> Penalty:
    """β · KL of each sample's activations [n, d]; ``direction`` is ``from_uniform``, KL(U ‖ p), or
    ``to_uniform``, KL(p ‖ U)."""

    def penalty(activations: Tensor) -> Tensor:
        logs = torch.log_softmax(activations, 1)
        ln_d = math.log(activations.shape[1])
        if direction == "from_uniform":
            return beta * (-logs.mean(1) - ln_d)
        return beta * ((logs.exp() * logs).sum(1) + ln_d)

    return penalty
