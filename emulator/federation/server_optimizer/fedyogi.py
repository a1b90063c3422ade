"""FedYogi (Reddi et al., ICLR 2021). ``v0`` is tau² unless given, as in the paper; FedScale's
code starts at tau."""

from __future__ import annotations

from emulator.federation.cost import Cost
from emulator.federation.server_optimizer import Options
from emulator.scenario.schema import FedYogi, Local


def fedyogi(section: FedYogi, local: Local) -> tuple[Options, Cost]:
    """Options for the learning plane, and the cost."""
    options = section.model_dump()
    if options["v0"] is None:
        options["v0"] = section.tau**2
    return options, Cost()
