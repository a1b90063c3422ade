"""FedMA (Wang et al., ICLR 2020): matched averaging, in the sub-rounds of
``emulator/federation/payload/layer_by_layer.py``."""

from __future__ import annotations

from emulator.federation.cost import Cost
from emulator.federation.server_optimizer import Options
from emulator.scenario.schema import FedMa, Local


def fedma(section: FedMa, local: Local) -> tuple[Options, Cost]:
    """Options for the learning plane, and the cost."""
    return section.model_dump(include={"kind", "sigma", "sigma0", "sweeps"}), Cost()
