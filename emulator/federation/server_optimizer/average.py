"""Averaging (McMahan et al. 2017; with discounts FedBuff, Nguyen et al. 2022)."""

from __future__ import annotations

from emulator.federation.cost import Cost
from emulator.federation.server_optimizer import Options
from emulator.scenario.schema import Average, Local


def average(section: Average, local: Local) -> tuple[Options, Cost]:
    """Options for the learning plane, and the cost."""
    return {"kind": "average", "lr": section.lr}, Cost()
