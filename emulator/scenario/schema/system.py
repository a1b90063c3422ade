"""``system``: devices, availability and the network."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from emulator.scenario.schema.base import (
    NO_NOISE,
    Count,
    Duration,
    Factor,
    InputPath,
    Kind,
    Probability,
    Rate,
    Section,
    mean_and_typical,
)
from emulator.scenario.units import NonNegativeSeconds, PositiveRate, PositiveSeconds

Assignment = Literal["fedscale", "random"]


class Independent(Section):
    """Who has which device says nothing of how many samples it holds."""

    kind: Literal["independent"]


class RankCorrelation(Section):
    """The same devices dealt out so that Spearman's correlation of a client's number of samples
    and the speed of its device is about ``rho``: below 0, who holds much data is slow. A Gaussian
    copula; the value that was reached is among the run's notes."""

    kind: Literal["rank"]
    rho: Annotated[float, Field(ge=-1, le=1)]


DataCorrelation = Annotated[Independent | RankCorrelation, Kind]
INDEPENDENT = Independent(kind="independent")


class FedScaleDevices(Section):
    """FedScale's formula, 3·B·S·(ms per sample)/1000, on a capacity trace."""

    kind: Literal["fedscale"]
    path: InputPath
    assign: Assignment = "fedscale"
    data_correlation: DataCorrelation = INDEPENDENT
    noise: Factor = NO_NOISE


class PhoneDevices(Section):
    """FedScale's formula on devices drawn from the published quantiles."""

    kind: Literal["phones"]
    data_correlation: DataCorrelation = INDEPENDENT
    noise: Factor = NO_NOISE


class MacsDevices(Section):
    """Model-aware: a device that needs ``x`` ms for one inference of ``reference_macs``
    multiply-accumulates runs at ``reference_macs / x`` of them a millisecond.

    Without a path the devices are drawn from the published quantiles.
    """

    kind: Literal["macs"]
    reference_macs: Count
    path: InputPath | None = None
    assign: Assignment = "fedscale"
    data_correlation: DataCorrelation = INDEPENDENT
    noise: Factor = NO_NOISE


class ScriptedDevices(Section):
    """The training of one task takes what is written: one time, one a client, or a
    distribution from which each client draws once. One that trains a part of the model, or in
    other epochs than ``local`` says, takes of it what its operations are of that task's."""

    kind: Literal["scripted"]
    training: PositiveSeconds | list[PositiveSeconds] | Duration
    noise: Factor = NO_NOISE


AtEnd = Literal["wrap", "hold", "end"]


class Always(Section):
    """Everyone is online for ever."""

    kind: Literal["always"]


class FedScaleAvailability(Section):
    """FedScale's client_behave_trace, or a table of sessions (``period`` is its length, where
    it has no column for it).

    ``cursor: fedscale`` is for comparing with what FedScale reports, and for nothing else: a
    selection asks FedScale's stateful cursor of every client, and a task is lost, at its last
    moment, when the cursor says at its end that the client is offline, which may be wrong, and
    only then. With ``stateless`` a client is online when its trace says so.
    """

    kind: Literal["fedscale"]
    path: InputPath
    period: PositiveSeconds | None = None
    assign: Literal["fedscale", "random", "stratified", "worst"] = "fedscale"
    at_end: AtEnd
    cursor: Literal["stateless", "fedscale"] = "stateless"


class PhoneAvailability(Section):
    """Sessions drawn from the published quantiles, day and night included."""

    kind: Literal["phones"]
    days: Annotated[int, Field(ge=1, le=3660)] = 7
    duty: Annotated[float, Field(ge=0.001, le=0.95)] | None = None
    at_end: AtEnd = "wrap"


MOST_SESSIONS = 200_000  # that a client may have: a step of the generator each


class RenewalAvailability(Section):
    """Independent on and off times, one client like the other."""

    kind: Literal["renewal"]
    on: Duration
    off: Duration
    horizon: PositiveSeconds
    at_end: AtEnd

    @property
    def sessions_drawn(self) -> float:
        """About how many a client, in the horizon and the 20 cycles that are drawn before it."""
        (on_mean_s, on_s), (off_mean_s, off_s) = map(mean_and_typical, (self.on, self.off))
        return (self.horizon + 20 * (on_mean_s + off_mean_s)) / (on_s + off_s)

    @model_validator(mode="after")
    def _can_be_drawn(self) -> RenewalAvailability:
        if not self.sessions_drawn <= MOST_SESSIONS:
            raise ValueError(
                f"some {self.sessions_drawn:.1e} sessions would be drawn for each client, within "
                f"the horizon and in the 20 mean cycles before it; at most {MOST_SESSIONS} can "
                "be: shorten the horizon, or take longer on and off times or a smaller sigma"
            )
        return self


class ScriptedAvailability(Section):
    """Sessions [start, end] of each client, as written."""

    kind: Literal["scripted"]
    sessions: list[
        list[Annotated[tuple[NonNegativeSeconds, NonNegativeSeconds], Field(strict=False)]]
    ]
    period: PositiveSeconds
    at_end: AtEnd

    @model_validator(mode="after")
    def _sessions_make_sense(self) -> ScriptedAvailability:
        """Each session has a length, comes after the one before, and ends within the period."""
        wrong = []
        for client, sessions in enumerate(self.sessions):
            before_s = -1.0
            for number, (start_s, end_s) in enumerate(sessions):
                at = f"system.availability.sessions.{client}.{number}"
                where = f"{at}: [{start_s}, {end_s}] of client {client}"
                if not start_s < end_s:
                    wrong.append(f"{where} ends before its start, or at it")
                elif not start_s > before_s:
                    wrong.append(
                        f"{where} starts before the one before it has ended, at {before_s} s; sort "
                        "the sessions and merge those that overlap or touch"
                    )
                elif end_s > self.period:
                    wrong.append(f"{where} ends beyond the trace length, period: {self.period} s")
                before_s = max(before_s, end_s)
        if wrong:
            raise ValueError("\n".join(wrong))
        return self


FromDevices = Literal["devices"]


class ClientLinks(Section):
    """A client's own link; ``devices`` takes the bandwidth of its device trace."""

    down: PositiveRate | list[PositiveRate] | Rate | FromDevices
    up: PositiveRate | list[PositiveRate] | Rate | FromDevices
    latency: NonNegativeSeconds


class ServerLinks(Section):
    """The server's link, shared max-min fairly by all transfers of a direction."""

    down: PositiveRate
    up: PositiveRate


class NoNetwork(Section):
    kind: Literal["none"]


class Links(Section):
    """Client links, and a shared server link where ``server`` is given."""

    kind: Literal["links"] = "links"
    client: ClientLinks
    server: ServerLinks | None = None


class Edge(Section):
    """A link between two nodes; each direction has the rate for itself."""

    between: tuple[str, str] = Field(strict=False)
    rate: PositiveRate
    latency: NonNegativeSeconds


class TopologyNetwork(Section):
    """Shared links of any topology; clients are spread over ``attach`` in turn."""

    kind: Literal["topology"]
    client: ClientLinks
    server: str
    edges: list[Edge] = Field(min_length=1)
    attach: list[str] = Field(min_length=1)

    @model_validator(mode="after")
    def _all_connected(self) -> TopologyNetwork:
        """One edge a pair of nodes, and a way from every client to the server."""
        seen: dict[frozenset[str], int] = {}
        wrong = []
        for number, edge in enumerate(self.edges):
            here, (one, other) = f"system.network.edges.{number}", edge.between
            first = seen.setdefault(frozenset(edge.between), number)
            if one == other:
                wrong.append(f"{here}: joins {one} to itself; name two nodes")
            elif first != number:
                wrong.append(
                    f"{here}: joins {one} and {other}, as edge {first} does; say one edge a pair"
                )
        nodes = ", ".join(sorted(frozenset().union(*seen)))
        reached = self._reached()
        if not reached:
            wrong.append(
                f"system.network.server: node '{self.server}' is on no edge; nodes are {nodes}"
            )
        for number, node in enumerate(self.attach):
            if reached and node not in reached:
                wrong.append(
                    f"system.network.attach.{number}: node '{node}' has no path of edges to the "
                    f"server, '{self.server}'; nodes are {nodes}"
                )
        if wrong:
            raise ValueError("\n".join(wrong))
        return self

    def _reached(self) -> set[str]:
        """The nodes that a path of edges joins to the server; none if it is on no edge."""
        beside: dict[str, set[str]] = {}
        for edge in self.edges:
            for one, other in (edge.between, edge.between[::-1]):
                beside.setdefault(one, set()).add(other)
        reached, waiting = set[str](), [self.server] if self.server in beside else []
        while waiting:
            node = waiting.pop()
            if node not in reached:
                reached.add(node)
                waiting.extend(beside[node])
        return reached


def _network_kind(value: Any) -> str:
    kind = value.get("kind", "links") if isinstance(value, dict) else getattr(value, "kind", "")
    return str(kind)


Network = Annotated[
    Annotated[NoNetwork, Tag("none")]
    | Annotated[Links, Tag("links")]
    | Annotated[TopologyNetwork, Tag("topology")],
    Discriminator(_network_kind),
]


class System(Section):
    devices: Annotated[FedScaleDevices | PhoneDevices | MacsDevices | ScriptedDevices, Kind]
    availability: Annotated[
        Always
        | FedScaleAvailability
        | PhoneAvailability
        | RenewalAvailability
        | ScriptedAvailability,
        Kind,
    ]
    network: Network
    on_offline: Literal["drop", "pause", "continue"] = "drop"
    drop_notice: Literal["at_once", "timeout", "at_deadline"] = "at_once"
    drop_timeout: PositiveSeconds | None = None
    task_failure: Probability = 0.0
