"""What a transfer between a client and the server takes, with and without shared links.

A transfer first pays the client's one-way latency, during which it loads no link, and is then
served at a rate that its access link and the shared links allow. Where links are not shared the
duration is a formula and costs no event; where they are, a transfer is a :class:`Flow`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from emulator.errors import InternalError, ScenarioError
from emulator.simulation.clock import Call, Clock, Rank
from emulator.simulation.fair_sharing import FairLink, Sharing

Direction: TypeAlias = Literal["down", "up"]  # server to client, client to server

_COMPLETION_RANK: Mapping[Direction, Rank] = {"down": Rank.TRANSFER, "up": Rank.UPLOAD}


class PeerLinks(Protocol):
    """What a model takes from one client to another: their own links, and nobody else's."""

    def peer_s(self, sender: int, receiver: int, size_bytes: float) -> float: ...

    def peer_moved_bytes(
        self, sender: int, receiver: int, size_bytes: float, active_s: float
    ) -> float: ...


class UnsharedNetwork(PeerLinks, Protocol):
    """A network in which no transfer slows another down."""

    shared: Literal[False]

    def durations_s(
        self, client: int, down_bytes: float, up_bytes: float
    ) -> tuple[float, float]: ...

    def moved_bytes(
        self, client: int, direction: Direction, size_bytes: float, active_s: float
    ) -> float: ...


class NoNetwork:
    """``kind: none``: transfers take no time."""

    shared: Literal[False] = False

    def durations_s(self, client: int, down_bytes: float, up_bytes: float) -> tuple[float, float]:
        """0 s each way for everybody."""
        return 0.0, 0.0

    def moved_bytes(
        self, client: int, direction: Direction, size_bytes: float, active_s: float
    ) -> float:
        """All, at once."""
        return size_bytes

    def peer_s(self, sender: int, receiver: int, size_bytes: float) -> float:
        """0 s between any two."""
        return 0.0

    def peer_moved_bytes(
        self, sender: int, receiver: int, size_bytes: float, active_s: float
    ) -> float:
        """All, at once."""
        return size_bytes


class AccessLinks:
    """Each client's own link to the network, which nobody shares.

    ``down_Bps``, ``up_Bps`` and ``latency_s`` (one way) are float64 of shape ``[clients]``.
    Raises :class:`ScenarioError` unless rates are positive and latencies not negative, all
    finite.
    """

    __slots__ = ("_down_Bps", "_latencies_s", "_up_Bps", "down_Bps", "latency_s", "up_Bps")

    shared: Literal[False] = False

    def __init__(self, down_Bps: ArrayLike, up_Bps: ArrayLike, latency_s: ArrayLike) -> None:
        self.down_Bps = _per_client("down rate", down_Bps, "B/s", positive=True)
        self.up_Bps = _per_client("up rate", up_Bps, "B/s", positive=True)
        self.latency_s = _per_client("latency", latency_s, "s", positive=False)
        sizes = (len(self.down_Bps), len(self.up_Bps), len(self.latency_s))
        if len(set(sizes)) > 1:
            raise ScenarioError(
                f"network: down rates, up rates and latencies are given for {sizes[0]}, {sizes[1]} "
                f"and {sizes[2]} clients; give each of them for every client"
            )
        # One element is read several times faster through a memoryview than from the array.
        self._down_Bps: Sequence[float] = memoryview(cast(Any, self.down_Bps))
        self._up_Bps: Sequence[float] = memoryview(cast(Any, self.up_Bps))
        self._latencies_s: Sequence[float] = memoryview(cast(Any, self.latency_s))

    def latency_of_s(self, client: int) -> float:
        """The client's one-way latency."""
        return self._latencies_s[client]

    def rate_Bps(self, client: int, direction: Direction) -> float:
        """What the client's link carries in this direction."""
        return self._down_Bps[client] if direction == "down" else self._up_Bps[client]

    def durations_s(self, client: int, down_bytes: float, up_bytes: float) -> tuple[float, float]:
        """latency + size / rate, down and up."""
        latency_s = self._latencies_s[client]
        return (
            latency_s + down_bytes / self._down_Bps[client],
            latency_s + up_bytes / self._up_Bps[client],
        )

    def moved_bytes(
        self, client: int, direction: Direction, size_bytes: float, active_s: float
    ) -> float:
        """What a transfer has moved after ``active_s`` seconds, its latency among them."""
        served_s = max(0.0, active_s - self._latencies_s[client])
        return min(size_bytes, served_s * self.rate_Bps(client, direction))

    def peer_s(self, sender: int, receiver: int, size_bytes: float) -> float:
        """Both latencies + size / min(the sender's rate up, the receiver's down): the server's
        link is no part of the way."""
        return self._peer_latency_s(sender, receiver) + size_bytes / self._peer_Bps(
            sender, receiver
        )

    def peer_moved_bytes(
        self, sender: int, receiver: int, size_bytes: float, active_s: float
    ) -> float:
        """What has moved between two clients after ``active_s`` seconds, latencies among them."""
        served_s = max(0.0, active_s - self._peer_latency_s(sender, receiver))
        return min(size_bytes, served_s * self._peer_Bps(sender, receiver))

    def _peer_latency_s(self, sender: int, receiver: int) -> float:
        return self._latencies_s[sender] + self._latencies_s[receiver]

    def _peer_Bps(self, sender: int, receiver: int) -> float:
        return min(self._up_Bps[sender], self._down_Bps[receiver])


def _per_client(name: str, values: ArrayLike, unit: str, *, positive: bool) -> NDArray[np.float64]:
    array = np.array(values, dtype=np.float64)
    if array.ndim != 1:
        raise ScenarioError(
            f"network: the {name} has shape {array.shape}; give one number for each client"
        )
    bad = ~np.isfinite(array) | ((array <= 0) if positive else (array < 0))
    if bad.any():
        client = int(bad.argmax())
        raise ScenarioError(
            f"network: {name} of client {client} is {array[client]} {unit}; "
            f"it must be finite and {'above 0' if positive else 'at least 0'}"
        )
    array.flags.writeable = False
    return array


class _Phase(Enum):
    LATENCY = "waiting for its latency"
    SERVED = "being served"
    PAUSED = "paused"
    ARRIVED = "complete"  # its bytes are there, its ``done`` is next
    ENDED = "over"


class Flow:
    """One transfer of a client over shared links; made by :meth:`SharedNetwork.start`."""

    __slots__ = (
        "_clock",
        "_latency_left_s",
        "_left_bytes",
        "_phase",
        "_sharing",
        "_timer",
        "_timer_s",
        "client",
        "direction",
        "done",
        "size_bytes",
    )

    def __init__(
        self,
        clock: Clock,
        sharing: Sharing,
        client: int,
        direction: Direction,
        size_bytes: float,
        latency_s: float,
        done: Callable[[], None],
    ) -> None:
        self.client = client
        self.direction: Direction = direction
        self.size_bytes = size_bytes
        self.done = done
        self._clock = clock
        self._sharing = sharing
        self._phase = _Phase.PAUSED
        self._latency_left_s = latency_s
        self._left_bytes = size_bytes  # while it is not being served
        self._timer: Call | None = None  # of its latency
        self._timer_s = math.inf

    @property
    def delivered_bytes(self) -> float:
        """What has arrived by now: ``size_bytes`` exactly once it is done."""
        if self._phase is _Phase.SERVED:
            return self.size_bytes - self._sharing.remaining_bytes(self._clock.now, self.client)
        return self.size_bytes - self._left_bytes


class _Alarm:
    """The one pending timer of a direction, at its next completion or before.

    When that moves later the timer stays, and looks again when it fires; only when it moves
    earlier is the timer replaced. So re-rating costs the schedule next to nothing.
    """

    __slots__ = ("_clock", "_rank", "_ring", "_sharing", "_time_s", "_timer")

    def __init__(
        self, clock: Clock, rank: Rank, sharing: Sharing, ring: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._rank = rank
        self._sharing = sharing
        self._ring = ring
        self._timer: Call | None = None
        self._time_s = math.inf

    def update(self) -> None:
        """Follow a change of the next completion."""
        due_s, client = self._sharing.due
        if self._time_s <= due_s < math.inf:
            return
        if self._timer is not None:
            self._clock.cancel(self._timer)
            self._timer, self._time_s = None, math.inf
        if due_s < math.inf:
            self._timer = self._clock.at(due_s, self._rank, client, self._fire)
            self._time_s = due_s

    def _fire(self) -> None:
        self._timer, self._time_s = None, math.inf
        self._ring()


class SharedNetwork:
    """Flows that share links; what shares them is ``sharing``, one for each direction.

    ``coupled`` says that a change in one direction may move completions in the other. A client
    has at most one flow at a time. A completion comes at ``Rank.TRANSFER`` (down) or
    ``Rank.UPLOAD`` (up); flows that complete at one instant do so in client order.
    """

    shared: Literal[True] = True

    def __init__(
        self,
        clock: Clock,
        access: AccessLinks,
        sharing: Mapping[Direction, Sharing],
        *,
        coupled: bool,
    ) -> None:
        self._clock = clock
        self.access = access
        self._sharing = sharing
        self._flows: dict[int, Flow] = {}
        alarms = {
            "down": _Alarm(clock, Rank.TRANSFER, sharing["down"], lambda: self._complete("down")),
            "up": _Alarm(clock, Rank.UPLOAD, sharing["up"], lambda: self._complete("up")),
        }
        both = tuple(alarms.values())
        self._alarms = {key: both if coupled else (alarm,) for key, alarm in alarms.items()}
        self._completing = False

    def start(
        self,
        client: int,
        direction: Direction,
        size_bytes: float,
        done: Callable[[], None],
        begins_s: float | None = None,
    ) -> Flow:
        """Begin a transfer, now or at ``begins_s``; ``done()`` is called at the instant at which
        it is complete."""
        if client in self._flows:
            raise InternalError(
                f"client {client} starts a transfer {direction} at t={self._clock.now!r} while "
                f"its transfer {self._flows[client].direction} is under way; it may have one"
            )
        if not 0 <= size_bytes < math.inf:
            raise InternalError(
                f"transfer {direction} of client {client} has {size_bytes!r} bytes; "
                "a finite number of at least 0 is needed"
            )
        latency_s = self._latency_s(client, direction)
        sharing = self._sharing[direction]
        flow = Flow(self._clock, sharing, client, direction, size_bytes, latency_s, done)
        self._flows[client] = flow
        self._proceed(flow, self._clock.now if begins_s is None else begins_s)
        return flow

    def pause(self, flow: Flow) -> None:
        """Stop the flow, or what is left of its latency, until :meth:`resume`."""
        self._halt(flow)
        flow._phase = _Phase.PAUSED

    def resume(self, flow: Flow) -> None:
        """Go on with a paused flow; latency that it had paid is not paid again."""
        if flow._phase is not _Phase.PAUSED:
            raise _wrong_phase("resumed", flow)
        self._proceed(flow, self._clock.now)

    def abandon(self, flow: Flow) -> None:
        """End the flow where it is, without a call of ``done``."""
        if flow._phase is not _Phase.PAUSED:
            self._halt(flow)
        self._end(flow)

    def delivered_bytes(self, direction: Direction) -> float:
        """What this direction has carried by now: the integral of its rate over time."""
        return self._sharing[direction].meter.carried_bytes(self._clock.now)

    def rounding_bytes(self) -> float:
        """By how much :meth:`delivered_bytes` of both directions may be off: instants are floats,
        and a fast link moves bytes within the spacing of two of them."""
        return sum(sharing.meter.rounding_bytes for sharing in self._sharing.values())

    def _latency_s(self, client: int, direction: Direction) -> float:
        return self.access.latency_of_s(client)

    def _proceed(self, flow: Flow, begins_s: float) -> None:
        if flow._latency_left_s > 0 or begins_s > self._clock.now:
            flow._phase = _Phase.LATENCY
            flow._timer_s = begins_s + flow._latency_left_s
            rank = _COMPLETION_RANK[flow.direction]
            flow._timer = self._clock.at(
                flow._timer_s, rank, flow.client, partial(self._enter, flow)
            )
        else:
            self._enter(flow)

    def _enter(self, flow: Flow) -> None:
        """From latency to service."""
        flow._timer = None
        flow._latency_left_s = 0.0
        flow._phase = _Phase.SERVED
        cap_Bps = self.access.rate_Bps(flow.client, flow.direction)
        flow._sharing.join(self._clock.now, flow.client, cap_Bps, flow._left_bytes)
        self._update_alarms(flow.direction)

    def _halt(self, flow: Flow) -> None:
        """Take the flow out of its latency or its service."""
        now_s = self._clock.now
        if flow._phase is _Phase.LATENCY and flow._timer is not None:
            self._clock.cancel(flow._timer)
            flow._timer = None
            flow._latency_left_s = flow._timer_s - now_s
        elif flow._phase is _Phase.SERVED:
            flow._left_bytes = flow._sharing.leave(now_s, flow.client)
            self._update_alarms(flow.direction)
        elif flow._phase is not _Phase.ARRIVED:
            raise _wrong_phase("stopped", flow)

    def _complete(self, direction: Direction) -> None:
        """Hand over every flow that is done now, in client order.

        A ``done`` may start, pause or abandon flows, also one of those that are still to come in
        this very batch. The alarms follow once, at the end: a flow that starts where another one
        ended is the common case, and mostly moves the next completion later.
        """
        batch = [
            self._flows[client] for client in self._sharing[direction].complete(self._clock.now)
        ]
        for flow in batch:
            flow._phase = _Phase.ARRIVED
            flow._left_bytes = 0.0
        self._completing = True
        self._clock.batching = len(batch) > 1
        for flow in batch:
            if flow._phase is _Phase.ARRIVED:
                self._end(flow)
                flow.done()
        self._completing = self._clock.batching = False
        for alarms in self._alarms.values():
            for alarm in alarms:
                alarm.update()

    def _update_alarms(self, direction: Direction) -> None:
        if not self._completing:
            for alarm in self._alarms[direction]:
                alarm.update()

    def _end(self, flow: Flow) -> None:
        flow._phase = _Phase.ENDED
        del self._flows[flow.client]


def _wrong_phase(what: str, flow: Flow) -> InternalError:
    return InternalError(
        f"transfer {flow.direction} of client {flow.client} cannot be {what}: "
        f"it is {flow._phase.value}"
    )


class SharedServerLink(SharedNetwork):
    """Clients behind their access links, and the server's link, shared by all, each way.

    Raises :class:`ScenarioError` unless the server's rates are positive and finite.
    """

    def __init__(
        self,
        clock: Clock,
        access: AccessLinks,
        server_down_Bps: float,
        server_up_Bps: float,
    ) -> None:
        for name, rate_Bps in (("down", server_down_Bps), ("up", server_up_Bps)):
            if not 0 < rate_Bps < math.inf:
                raise ScenarioError(
                    f"network: server {name} rate is {rate_Bps} B/s; it must be finite and above 0"
                )
        links: dict[Direction, Sharing] = {
            "down": FairLink(server_down_Bps),
            "up": FairLink(server_up_Bps),
        }
        super().__init__(clock, access, links, coupled=False)


Network: TypeAlias = UnsharedNetwork | SharedNetwork
