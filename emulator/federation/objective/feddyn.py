"""FedDyn (Acar et al., ICLR 2021): a dynamic regularizer and the server step that goes with it.

Nothing more travels than with FedAvg and no pass is added; a client keeps one model-sized vector
from one of its tasks to the next.
"""

from __future__ import annotations

from emulator.federation.cost import Cost
from emulator.federation.objective import Options
from emulator.scenario.schema import FedDyn


def feddyn(section: FedDyn) -> tuple[Options, Cost]:
    """Options for the learning plane, and the cost."""
    options: Options = {"kind": "feddyn", "alpha": section.alpha}
    if section.legacy:
        options["legacy"] = True
    return options, Cost()


def server_step(section: FedDyn) -> Options:
    """The server's step, for the learning plane: FedDyn's own, in place of a server optimizer."""
    return {"kind": "feddyn", "alpha": section.alpha}
