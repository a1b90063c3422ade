"""SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1).

Client: y ← y − η (g(y) − c_k + c); option I: c_k⁺ = ∇F_k(w_t); option II:
c_k⁺ = c_k − c + (w_t − y) / (η · steps). Server: c ← c + (1/N) Σ_{k∈S} (c_k⁺ − c_k), N all clients.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from emulator.learning.methods import GradientTerm


def scaffold(correction: Sequence[Tensor]) -> GradientTerm:
    """g ← g + (c − c_k), with ``correction`` = c − c_k in the parameters' shapes."""

    def term(
        gradients: Sequence[Tensor], parameters: Sequence[Tensor], anchor: Sequence[Tensor]
    ) -> None:
        with torch.no_grad():
            torch._foreach_add_(list(gradients), list(correction))

    return term


def control_option_2(
    server_control: Tensor, client_control: Tensor, delta: Tensor, lr: float, steps: int
) -> Tensor:
    """c_k⁺ [P] of option II from delta = y − w_t; without a step, c_k stays."""
    if steps == 0:
        return client_control.clone()
    return client_control - server_control - delta / (lr * steps)


def server_control(control: Tensor, changes: Sequence[Tensor], clients: int) -> Tensor:
    """c⁺ [P] from the participants' c_k⁺ − c_k; ``clients`` is N, the whole population."""
    control = control.clone()
    for change in changes:
        control.add_(change, alpha=1.0 / clients)
    return control
