"""Asynchronous aggregation: FedAsync (Xie, Koyejo, Gupta 2019, arXiv 1903.03934), on models.

Every upload makes a version at its instant, w ← (1 − α_t) w + α_t w_k with α_t = α · s(τ), and its
slot is filled at once. Who is asked when is buffered pacing's affair, with a buffer of one; only
the server's step is another (``emulator/learning/methods/fedasync.py``). FedAsync's clients
minimize F_k(w) + (ρ/2)·‖w − w_t‖², which is the objective FedProx with μ = ρ (0.005).
"""

from __future__ import annotations

from typing import Any

from emulator.federation.pacing.buffered import BufferedPacing
from emulator.federation.server import Server
from emulator.scenario.schema import Asynchronous, Buffered, FedSeqInter


def fedasync(section: Asynchronous | FedSeqInter) -> dict[str, Any]:
    """The server's step, for the learning plane."""
    return {"kind": "fedasync", "mixing": section.mixing}


class AsynchronousPacing(BufferedPacing):
    """See the module."""

    def __init__(self, server: Server, section: Asynchronous, *, everyone: bool) -> None:
        one_by_one = Buffered(
            kind="buffered",
            in_flight=section.in_flight,
            buffer=1,
            staleness=section.staleness,
            max_staleness=section.max_staleness,
        )
        super().__init__(server, one_by_one, everyone=everyone)

    @property
    def waits_for(self) -> str:
        """What the server needs to go on."""
        return f"an upload, {self._outstanding} of {self._section.in_flight} clients in flight"
