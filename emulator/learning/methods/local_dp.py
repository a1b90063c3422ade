"""Local differential privacy of an update: the Gaussian mechanism (Dwork, Roth 2014, appendix A).

    Δ ← Δ · min(1, clip / ‖Δ‖₂) + N(0, (σ · clip)² I)

What the server or anybody else makes of the result is post-processing, and costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Privacy:
    """The largest norm of an update, ``clip``, and the noise multiplier ``sigma``: the noise's
    standard deviation is sigma · clip."""

    clip: float
    sigma: float


def local_dp(
    delta: Tensor, privacy: Privacy, rng: np.random.Generator, where: Tensor | None = None
) -> Tensor:
    """The update [P] as it may leave its client, noised at the positions ``where`` (all unless said
    otherwise; elsewhere it must be 0). One that is not finite stays as it is: nobody takes it."""
    norm = float(torch.linalg.vector_norm(delta.double()))
    if not math.isfinite(norm):
        return delta
    found = delta * min(1.0, privacy.clip / norm) if norm > 0 else delta.clone()
    if privacy.sigma == 0:
        return found
    n = len(delta) if where is None else len(where)
    noise = torch.from_numpy(rng.normal(0.0, privacy.sigma * privacy.clip, n)).to(found)
    if where is None:
        return found + noise
    return found.index_add(0, where.to(found.device), noise)
