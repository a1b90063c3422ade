"""FedMAX (Chen, Bhardwaj, Marculescu, ECML PKDD 2020): activations of maximum entropy; nothing more
travels, no pass is added, and what the term itself computes counts as nothing."""

from __future__ import annotations

from emulator.federation.cost import Cost
from emulator.federation.objective import Options
from emulator.scenario.schema import FedMax


def fedmax(section: FedMax) -> tuple[Options, Cost]:
    """Options for the learning plane, and the cost."""
    return {"kind": "fedmax", "beta": section.beta, "direction": section.direction}, Cost()
