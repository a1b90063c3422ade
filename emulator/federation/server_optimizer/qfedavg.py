"""q-FedAvg (Li et al., ICLR 2020): clients with a larger loss count more.

h_k grows with the square of an update, so that after many local steps the server's are short.

Each client also computes the loss of the received model on all of its samples, one forward pass
more, and sends it, 4 bytes more. L is 1/η of the clients' SGD.
"""

from __future__ import annotations

from emulator.federation.cost import Cost
from emulator.federation.server_optimizer import Options
from emulator.scenario.schema import Local, QFedAvg


def qfedavg(section: QFedAvg, local: Local) -> tuple[Options, Cost]:
    """Options for the learning plane, and the cost."""
    options = {"kind": "qfedavg", "q": section.q, "lipschitz": 1.0 / local.optimizer.lr}
    return options, Cost(values_up=1, forward_passes=1)
