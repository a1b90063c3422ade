"""Max-min fair sharing of one link, event by event, in virtual time.

**Rates.** A link of capacity C carries flows with caps c_i (their access links). Max-min
fairness (progressive filling: Bertsekas & Gallager, Data Networks, 1992, §6.5.2) raises all
rates together until each flow meets its cap or the link is full::

    r_i = min(c_i, λ),   Σ_i min(c_i, λ) = C,   λ = ∞ if Σ_i c_i ≤ C

λ is the *water level*. Let K be the sum of the caps at or below it and m the number of flows
above it: λ = (C - K) / m.

**Virtual time.** Flows of one cap are served equally, so a *cap class* needs one number, the
service s(t) in bytes that each of its flows received since the class was last empty. A flow that
joins with b bytes left is done when s reaches its *mark* F = s(join) + b, whatever happens
meanwhile. A class is anchored at a point where s was s0, and moves along one of two coordinates::

    capped  (c ≤ λ):  s = s0 + c · (t - t0)      head done at    t = t0 + (F - s0) / c
    sharing (c > λ):  s = s0 + (V - V0)          head done when  V = V0 + (F - s0)

with the common virtual time dV/dt = λ. A change of λ therefore touches no flow and no class, and
a class that crosses the level is anchored anew, once. A join, a leave or a completion costs
O(log n) for n flows, plus O(log n) for each class that crosses the level.
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Protocol


class Sharing(Protocol):
    """Flows in one direction that compete for capacity; a flow is named by its client.

    ``due`` is the next completion, ``(time_s, client)``, with ``time_s`` infinite for none. The
    times passed in never decrease.
    """

    @property
    def due(self) -> tuple[float, int]: ...

    @property
    def meter(self) -> Meter: ...

    def join(self, now_s: float, client: int, cap_Bps: float, size_bytes: float) -> None: ...

    def leave(self, now_s: float, client: int) -> float:
        """Take a flow out before its end; returns the bytes it still lacks."""

    def complete(self, now_s: float) -> list[int]:
        """Take out the flows that are done at ``now_s``; their clients, ascending."""

    def remaining_bytes(self, now_s: float, client: int) -> float: ...


class Meter:
    """The integral over time of a rate that is constant between changes, in bytes."""

    __slots__ = ("_bytes", "_rate_Bps", "_since_s", "rounding_bytes")

    def __init__(self) -> None:
        self._bytes = self._rate_Bps = self._since_s = 0.0
        self.rounding_bytes = 0.0
        """By how much the instants' own rounding may have moved the integral so far."""

    def set_rate(self, now_s: float, rate_Bps: float) -> None:
        """From ``now_s`` on the rate is ``rate_Bps``."""
        self._bytes += self._rate_Bps * (now_s - self._since_s)
        self.rounding_bytes += self._rate_Bps * math.ulp(now_s)
        self._since_s = now_s
        self._rate_Bps = rate_Bps

    def carried_bytes(self, now_s: float) -> float:
        """What passed until ``now_s``."""
        return self._bytes + self._rate_Bps * (now_s - self._since_s)


class _CapClass:
    """The flows of one cap: their anchor, their marks, and the entry of their head."""

    __slots__ = ("anchor", "cap_Bps", "flows", "head", "marks", "service", "sharing")

    def __init__(self, cap_Bps: float, sharing: bool) -> None:
        self.cap_Bps = cap_Bps
        self.sharing = sharing
        self.flows = 0
        self.service = 0.0  # s0, at
        self.anchor = 0.0  # t0 (capped) or V0 (sharing)
        self.marks: list[_Mark] = []  # heap
        self.head: _Head | None = None

    def served(self, coordinate: float) -> float:
        """s at time t (capped) or at virtual time V (sharing)."""
        speed = 1.0 if self.sharing else self.cap_Bps
        return self.service + speed * (coordinate - self.anchor)

    def reaches(self, mark_bytes: float) -> float:
        """The inverse of :meth:`served`."""
        speed = 1.0 if self.sharing else self.cap_Bps
        return self.anchor + (mark_bytes - self.service) / speed


_Mark = tuple[float, int, int, _CapClass]  # F, client, number, its class
_Head = tuple[float, int, int, _CapClass]  # t or V of the first mark, client, number, class


class FairLink:
    """One link shared max-min fairly by flows with caps; a :class:`Sharing`.

    Heap entries are dropped lazily: a mark counts while ``_flows`` holds one of its number, a head
    while its class does. Rounding never delays anybody: the flow that ``due`` names is done at
    exactly that instant, and virtual time is then put on its mark.
    """

    def __init__(self, capacity_Bps: float) -> None:
        self.due = (math.inf, -1)
        self.meter = Meter()
        self._capacity_Bps = capacity_Bps
        self._now_s = 0.0
        self._virtual_bytes = 0.0  # V, per sharing flow
        self._level_Bps = math.inf  # λ
        self._capped_Bps = 0.0  # K
        self._capped_flows = 0
        self._sharing_flows = 0  # m
        self._flows: dict[int, _Mark] = {}
        self._classes: dict[float, _CapClass] = {}
        self._numbers = count()
        # The classes on each side of the level: the highest capped one and the lowest sharing
        # one on top. Emptied classes stay, for reuse, until they come to the top.
        self._below: list[tuple[float, _CapClass]] = []
        self._above: list[tuple[float, _CapClass]] = []
        self._heads_in_time: list[_Head] = []
        self._heads_in_virtual_time: list[_Head] = []

    def join(self, now_s: float, client: int, cap_Bps: float, size_bytes: float) -> None:
        """A flow of ``client`` (which has none here) begins with ``size_bytes`` to go."""
        self._advance(now_s)
        cap_class = self._classes.get(cap_Bps)
        if cap_class is None:
            cap_class = _CapClass(cap_Bps, cap_Bps > self._level_Bps)
            self._classes[cap_Bps] = cap_class
            self._file(cap_class)
        if not cap_class.flows:
            cap_class.service, cap_class.anchor = 0.0, self._coordinate(cap_class)
        mark_bytes = cap_class.served(self._coordinate(cap_class)) + size_bytes
        mark = (mark_bytes, client, next(self._numbers), cap_class)
        self._flows[client] = mark
        if len(cap_class.marks) > 64 + 2 * cap_class.flows:
            cap_class.marks = [m for m in cap_class.marks if self._counts(m)]
            heapify(cap_class.marks)
        heappush(cap_class.marks, mark)
        cap_class.flows += 1
        self._weigh(cap_class, +1)
        if cap_class.marks[0][2] == mark[2]:
            self._post_head(cap_class)
        self._settle()

    def leave(self, now_s: float, client: int) -> float:
        """Take a flow out before its end; returns the bytes it still lacks."""
        self._advance(now_s)
        remaining_bytes = self.remaining_bytes(now_s, client)
        self._remove(client)
        self._settle()
        return remaining_bytes

    def complete(self, now_s: float) -> list[int]:
        """Take out the flows that are done at ``now_s``; their clients, ascending."""
        done: list[int] = []
        while self.due[0] <= now_s:
            # Level and anchors stay as they are until all have left, so that equal marks stay
            # equal. Those left may be faster now by enough to be done at this instant too.
            reached_bytes = 0.0
            while (head := self._top(self._heads_in_virtual_time)) and self._time_of(head) <= now_s:
                reached_bytes = head[0]
                done.append(head[1])
                self._remove(head[1])
            while (head := self._top(self._heads_in_time)) and head[0] <= now_s:
                done.append(head[1])
                self._remove(head[1])
            self._advance(now_s)
            self._virtual_bytes = max(self._virtual_bytes, reached_bytes)
            self._settle()
        return sorted(done)

    def remaining_bytes(self, now_s: float, client: int) -> float:
        """What the flow of ``client`` lacks at ``now_s``, not before the last change."""
        mark_bytes, _, _, cap_class = self._flows[client]
        coordinate = now_s
        if cap_class.sharing:
            coordinate = self._virtual_bytes + self._level_Bps * (now_s - self._now_s)
        return max(0.0, mark_bytes - cap_class.served(coordinate))

    def _coordinate(self, cap_class: _CapClass) -> float:
        return self._virtual_bytes if cap_class.sharing else self._now_s

    def _time_of(self, head: _Head) -> float:
        """When virtual time reaches a sharing class's head: t + (V_head - V) / λ."""
        ahead_s = (head[0] - self._virtual_bytes) / self._level_Bps
        return self._now_s + ahead_s if ahead_s > 0.0 else self._now_s

    def _advance(self, now_s: float) -> None:
        if self._sharing_flows:
            self._virtual_bytes += self._level_Bps * (now_s - self._now_s)
        self._now_s = now_s

    def _weigh(self, cap_class: _CapClass, flows: int) -> None:
        """Add ``flows`` flows of a class to its side of the level."""
        if cap_class.sharing:
            self._sharing_flows += flows
        else:
            self._capped_flows += flows
            self._capped_Bps += flows * cap_class.cap_Bps

    def _remove(self, client: int) -> None:
        cap_class = self._flows.pop(client)[3]
        cap_class.flows -= 1
        self._weigh(cap_class, -1)
        if not cap_class.flows:
            cap_class.marks.clear()
            cap_class.head = None
        elif cap_class.head is not None and cap_class.head[1] == client:
            self._post_head(cap_class)

    def _counts(self, mark: _Mark) -> bool:
        present = self._flows.get(mark[1])
        return present is not None and present[2] == mark[2]

    def _post_head(self, cap_class: _CapClass) -> None:
        """Publish when the first of the class will be done, in the class's coordinate."""
        marks = cap_class.marks
        while not self._counts(marks[0]):
            heappop(marks)
        mark_bytes, client, _, _ = marks[0]
        head = (cap_class.reaches(mark_bytes), client, next(self._numbers), cap_class)
        cap_class.head = head
        heads = self._heads_in_virtual_time if cap_class.sharing else self._heads_in_time
        if len(heads) > 64 + 2 * len(self._classes):
            heads[:] = [entry for entry in heads if _is_published(entry)]
            heapify(heads)
        heappush(heads, head)

    @staticmethod
    def _top(heads: list[_Head]) -> _Head | None:
        while heads:
            head = heads[0]
            if _is_published(head):
                return head
            heappop(heads)
        return None

    def _file(self, cap_class: _CapClass) -> None:
        if cap_class.sharing:
            heappush(self._above, (cap_class.cap_Bps, cap_class))
        else:
            heappush(self._below, (-cap_class.cap_Bps, cap_class))

    def _pass(self, side: list[tuple[float, _CapClass]]) -> None:
        """Take the top class to the other side of the level, anchored anew; drop it if empty."""
        cap_class = heappop(side)[1]
        if not cap_class.flows:
            del self._classes[cap_class.cap_Bps]
            return
        self._weigh(cap_class, -cap_class.flows)
        cap_class.service = cap_class.served(self._coordinate(cap_class))
        cap_class.sharing = not cap_class.sharing
        cap_class.anchor = self._coordinate(cap_class)
        self._weigh(cap_class, cap_class.flows)
        self._file(cap_class)
        self._post_head(cap_class)
        self._find_level()

    def _find_level(self) -> None:
        if self._sharing_flows:
            self._level_Bps = (self._capacity_Bps - self._capped_Bps) / self._sharing_flows
        elif self._capped_Bps <= self._capacity_Bps:
            self._level_Bps = math.inf
        else:
            self._level_Bps = 0.0  # too many are capped: the highest class will cross

    def _settle(self) -> None:
        """After a change: move the level, and the classes that it passes; then look ahead.

        A class that crosses pulls λ towards its cap, never past it, so each loop ends.
        """
        if not self._capped_flows:
            self._capped_Bps = 0.0  # sheds what rounding left
        if not self._sharing_flows:
            self._virtual_bytes = 0.0  # V grows only while somebody shares
            self._heads_in_virtual_time.clear()
        self._find_level()
        below, above = self._below, self._above
        while below and (-below[0][0] > self._level_Bps or not below[0][1].flows):
            self._pass(below)
        while above and (above[0][0] <= self._level_Bps or not above[0][1].flows):
            self._pass(above)
        self.meter.set_rate(
            self._now_s, self._capacity_Bps if self._sharing_flows else self._capped_Bps
        )
        self.due = (math.inf, -1)
        if (head := self._top(self._heads_in_time)) is not None:
            self.due = (max(self._now_s, head[0]), head[1])
        if (head := self._top(self._heads_in_virtual_time)) is not None:
            self.due = min(self.due, (self._time_of(head), head[1]))


def _is_published(head: _Head) -> bool:
    present = head[3].head
    return present is not None and present[2] == head[2]
