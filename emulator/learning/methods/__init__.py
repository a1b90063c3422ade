"""What each method computes on tensors; one file a method, named as in its paper.

The simulation's half of a method (its decisions, bytes, passes and state) has the same file name
in ``emulator/federation/``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

GradientTerm = Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]], None]
"""(gradients, parameters, anchor) -> None: adds the objective's term to the gradients in place;
``anchor`` is the model the client started from."""

Penalty = Callable[[Tensor], Tensor]
"""What the last linear layer is given [n, d] -> what is added to each sample's loss [n]."""
