"""Laws that hold whatever the scenario says: nothing that was dispatched, sent or spent is lost.

Each law compares two counts that come about in different ways: the server's dispatches against
the outcomes of records, the network's own meter against the bytes in records, an integral over
time of the number of clients at work against the times in records.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from emulator.errors import InternalError
from emulator.simulation.network import Network
from emulator.simulation.participation import Outcome, Participation


class Ledger:
    """Totals over the participations that have ended."""

    def __init__(self) -> None:
        self.dispatched = 0
        self.outcomes: Counter[Outcome] = Counter()
        self.received_bytes = 0.0
        self.lost_bytes = 0.0
        self.useful_s = 0.0
        self.wasted_s = 0.0
        self._elapsed_s = 0.0
        self._at_work = 0
        self._at_work_integral_s = 0.0
        self._since_s = 0.0

    def begun(self, now_s: float) -> None:
        """A client starts to work."""
        self._at_work_integral_s += self._at_work * (now_s - self._since_s)
        self._since_s = now_s
        self._at_work += 1

    def freed(self, p: Participation, now_s: float) -> None:
        """A client stops working."""
        self._at_work_integral_s += self._at_work * (now_s - self._since_s)
        self._since_s = now_s
        self._at_work -= 1
        self._elapsed_s += now_s - p.begun_s

    def lent(self, seconds: float) -> None:
        """A client whose task was over has handed its model on, for so long."""
        self._elapsed_s += seconds
        self._at_work_integral_s += seconds

    def closed(self, p: Participation) -> None:
        """The outcome of a participation is final."""
        outcome, down, up, terms = p.outcome, p.bytes_down, p.bytes_up, p.terms
        assert outcome is not None
        self.outcomes[outcome] += 1
        if p.source is not None:  # what came from another client, the server's meter has not seen
            self._count(up, terms.up_bytes)
        elif up == terms.up_bytes and down == terms.down_bytes:
            self.received_bytes += down + up
        else:
            self._count(down, terms.down_bytes)
            self._count(up, terms.up_bytes)
        if outcome is Outcome.REPORTED:
            self.useful_s += p.busy_s
        else:
            self.wasted_s += p.busy_s

    def _count(self, moved: float, size: int) -> None:
        if moved == size:
            self.received_bytes += moved
        else:
            self.lost_bytes += moved

    def check(
        self,
        now_s: float,
        network: Network,
        open_records: Iterable[Participation],
        *,
        pauses: bool,
    ) -> None:
        """Raise :class:`InternalError` when a law is broken.

        ``open_records`` are those without a final outcome, brought up to date; ``pauses`` says
        that a client at work may be offline, and is then not busy.
        """
        still = list(open_records)
        ended = sum(self.outcomes.values())
        if self.dispatched != ended + len(still):
            raise InternalError(
                f"t={now_s}: dispatched {self.dispatched} is not {ended} outcomes "
                f"+ {len(still)} in flight"
            )
        if network.shared:
            sent = sum(network.delivered_bytes(direction) for direction in ("down", "up"))
            known = self.received_bytes + self.lost_bytes
            known += sum(p.bytes_up + (p.bytes_down if p.source is None else 0.0) for p in still)
            rounding = 1.0 + 2.0 * network.rounding_bytes()
            if not math.isclose(sent, known, rel_tol=1e-9, abs_tol=rounding):
                raise InternalError(
                    f"t={now_s}: the network moved {sent} bytes, the records know of {known}"
                )
        self._at_work_integral_s += self._at_work * (now_s - self._since_s)
        self._since_s = now_s
        running_s = sum(
            now_s - p.begun_s for p in still if not math.isnan(p.begun_s) and math.isnan(p.ended_s)
        )
        elapsed_s = self._elapsed_s + running_s
        if not math.isclose(elapsed_s, self._at_work_integral_s, rel_tol=1e-7, abs_tol=1e-3):
            raise InternalError(
                f"t={now_s}: clients were at work for {self._at_work_integral_s} s, the records "
                f"know of {elapsed_s} s"
            )
        waiting_s = sum(p.busy_s for p in still if not math.isnan(p.ended_s))
        busy_s = self.useful_s + self.wasted_s + waiting_s + running_s
        lost_s = elapsed_s - busy_s
        tolerance_s = 1e-7 * elapsed_s + 1e-3
        if lost_s < -tolerance_s or (lost_s > tolerance_s and not pauses):
            raise InternalError(
                f"t={now_s}: {self.useful_s} useful and {self.wasted_s} wasted seconds, with "
                f"{waiting_s} and {running_s} not decided yet, are not the {elapsed_s} s at work"
            )
