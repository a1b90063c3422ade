"""The client's own loss, as in FedAvg (McMahan et al., AISTATS 2017)."""

from __future__ import annotations

from emulator.federation.cost import Cost
from emulator.federation.objective import Options
from emulator.scenario.schema import Plain


def plain(section: Plain) -> tuple[Options, Cost]:
    """Options for the learning plane, and the cost."""
    return {"kind": "plain"}, Cost()
