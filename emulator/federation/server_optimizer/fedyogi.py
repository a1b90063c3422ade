"""FedYogi (Reddi et al., ICLR 2021). ``v0`` is tau² unless given, as in the paper; FedScale's
code starts at tau."""

from __future__ import annotations

from typing import Any

from emulator.scenario.schema import FedYogi


def fedyogi(section: FedYogi) -> dict[str, Any]:
    """Options for the learning plane."""
    options = section.model_dump()
    if options["v0"] is None:
        options["v0"] = section.tau**2
    return options
