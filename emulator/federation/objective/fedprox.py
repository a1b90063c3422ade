"""FedProx (Li et al., MLSys 2020): a proximal term; nothing more travels, no pass is added."""

from __future__ import annotations

from emulator.federation.cost import Cost
from emulator.federation.objective import Options
from emulator.scenario.schema import FedProx


def fedprox(section: FedProx) -> tuple[Options, Cost]:
    """Options for the learning plane, and the cost."""
    return {"kind": "fedprox", "mu": section.mu}, Cost()
