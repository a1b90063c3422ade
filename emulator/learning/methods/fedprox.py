"""FedProx (Li et al., MLSys 2020, eq. 2): F_k(w) + (μ/2)·‖w − w_t‖²."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from emulator.learning.methods import GradientTerm


def fedprox(mu: float) -> GradientTerm:
    """g ← g + μ (w − w_t)."""

    def term(
        gradients: Sequence[Tensor], parameters: Sequence[Tensor], anchor: Sequence[Tensor]
    ) -> None:
        with torch.no_grad():
            drift = torch._foreach_sub(list(parameters), list(anchor))
            torch._foreach_add_(list(gradients), drift, alpha=mu)

    return term
