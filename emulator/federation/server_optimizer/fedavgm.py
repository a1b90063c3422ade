"""FedAvgM (Hsu, Qi, Brown 2019): server momentum."""

from __future__ import annotations

from emulator.federation.cost import Cost
from emulator.federation.server_optimizer import Options
from emulator.scenario.schema import FedAvgM, Local


def fedavgm(section: FedAvgM, local: Local) -> tuple[Options, Cost]:
    """Options for the learning plane, and the cost."""
    return section.model_dump(), Cost()
