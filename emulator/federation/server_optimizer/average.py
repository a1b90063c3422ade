"""Averaging (McMahan et al. 2017; with discounts FedBuff, Nguyen et al. 2022)."""

from __future__ import annotations

from typing import Any

from emulator.scenario.schema import Average


def average(section: Average) -> dict[str, Any]:
    """Options for the learning plane."""
    return {"kind": "average", "lr": section.lr}
