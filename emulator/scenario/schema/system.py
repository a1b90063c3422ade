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
)
from emulator.scenario.units import NonNegativeSeconds, PositiveRate, PositiveSeconds

Assignment = Literal["fedscale", "random"]


class FedScaleDevices(Section):
    """FedScale's formula, 3·B·S·(ms per sample)/1000, on a capacity trace."""

    kind: Literal["fedscale"]
    path: InputPath
    assign: Assignment = "fedscale"
    noise: Factor = NO_NOISE


class PhoneDevices(Section):
    """FedScale's formula on devices drawn from the published quantiles."""

    kind: Literal["phones"]
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
    noise: Factor = NO_NOISE


class ScriptedDevices(Section):
    """The training of one task takes what is written: one time, one a client, or a
    distribution from which each client draws once."""

    kind: Literal["scripted"]
    training: PositiveSeconds | list[PositiveSeconds] | Duration
    noise: Factor = NO_NOISE


AtEnd = Literal["wrap", "hold", "end"]


class Always(Section):
    kind: Literal["always"]


class FedScaleAvailability(Section):
    """FedScale's client_behave_trace, or a table of sessions (``period`` is its length, where
    it has no column for it)."""

    kind: Literal["fedscale"]
    path: InputPath
    period: PositiveSeconds | None = None
    assign: Literal["fedscale", "random", "stratified", "worst"] = "fedscale"
    at_end: AtEnd


class PhoneAvailability(Section):
    """Sessions drawn from the published quantiles, day and night included."""

    kind: Literal["phones"]
    days: Count = 7
    duty: Annotated[float, Field(gt=0, lt=1)] | None = None
    at_end: AtEnd = "wrap"


class RenewalAvailability(Section):
    """Independent on and off times, one client like the other."""

    kind: Literal["renewal"]
    on: Duration
    off: Duration
    horizon: PositiveSeconds
    at_end: AtEnd


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
    def _one_edge_a_pair(self) -> TopologyNetwork:
        seen: dict[frozenset[str], int] = {}
        wrong = []
        for number, edge in enumerate(self.edges):
            first = seen.setdefault(frozenset(edge.between), number)
            if first != number:
                wrong.append(
                    f"system.network.edges.{number}: joins {edge.between[0]} and "
                    f"{edge.between[1]}, as edge {first} does; say one edge a pair"
                )
        if wrong:
            raise ValueError("\n".join(wrong))
        return self


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
