"""From a validated scenario to the objects of the simulation plane. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ScenarioError
from emulator.federation.cost import Cost
from emulator.federation.faults import local_dp
from emulator.federation.objective.feddyn import feddyn
from emulator.federation.objective.feddyn import server_step as feddyn_server_step
from emulator.federation.objective.fedmax import fedmax
from emulator.federation.objective.fedprox import fedprox
from emulator.federation.objective.plain import plain
from emulator.federation.objective.scaffold import scaffold
from emulator.federation.pacing.asynchronous import AsynchronousPacing, fedasync
from emulator.federation.pacing.buffered import BufferedPacing
from emulator.federation.pacing.fedseqinter import FedSeqInterPacing
from emulator.federation.pacing.synchronous import SynchronousPacing
from emulator.federation.selection.everyone import AllSelector
from emulator.federation.selection.random import RandomSelector
from emulator.federation.server_optimizer.average import average
from emulator.federation.server_optimizer.fedadagrad import fedadagrad
from emulator.federation.server_optimizer.fedadam import fedadam
from emulator.federation.server_optimizer.fedavgm import fedavgm
from emulator.federation.server_optimizer.fedma import fedma
from emulator.federation.server_optimizer.fedyogi import fedyogi
from emulator.federation.server_optimizer.qfedavg import qfedavg
from emulator.federation.structure.grouping import Limits, most_superclients
from emulator.random_streams import purpose_key, uniforms
from emulator.scenario import schema
from emulator.scenario.schema import Scenario
from emulator.simulation.clock import Clock
from emulator.simulation.devices import (
    Devices,
    FedScaleSpeed,
    MacsSpeed,
    ScriptedSpeed,
    Speed,
)
from emulator.simulation.distributions import mean, ppf, ppf_many
from emulator.simulation.network import AccessLinks, Network, NoNetwork, SharedServerLink
from emulator.simulation.population import Availability
from traces import (
    AlwaysOnline,
    CursorAvailability,
    DeviceTable,
    RepairReport,
    Sessions,
    assign_rows,
    couple_ranks,
    duty_cycle,
    phone_devices,
    phone_sessions,
    rank_correlation,
    read_devices,
    read_sessions,
    renewal_sessions,
)
from traces import Availability as TraceAvailability

Floats = NDArray[np.float64]

OBJECTIVES: dict[str, Callable[[Any], tuple[dict[str, Any], Cost]]] = {
    "plain": plain,
    "fedprox": fedprox,
    "scaffold": scaffold,
    "feddyn": feddyn,
    "fedmax": fedmax,
}
SERVER_OPTIMIZERS: dict[str, Callable[[Any, schema.Local], tuple[dict[str, Any], Cost]]] = {
    "average": average,
    "fedavgm": fedavgm,
    "fedadagrad": fedadagrad,
    "fedadam": fedadam,
    "fedyogi": fedyogi,
    "qfedavg": qfedavg,
    "fedma": fedma,
}
PACINGS: dict[str, Callable[..., Any]] = {
    "synchronous": SynchronousPacing,
    "buffered": BufferedPacing,
    "asynchronous": AsynchronousPacing,
    "fedseqinter": FedSeqInterPacing,
}
SELECTORS: dict[str, Callable[[int, str | None], Any]] = {
    "random": RandomSelector,
    "all": lambda root_seed, cohort: AllSelector(),
}


class Draws:
    """One uniform number a client for a named stream: ``draws(purpose, n)`` [clients]."""

    def __init__(self, root_seed: int, clients: int) -> None:
        self._root_seed = root_seed
        self._clients = np.arange(clients, dtype=np.int64)

    def __call__(self, purpose: str, n: int) -> Floats:
        return uniforms(purpose_key(self._root_seed, purpose), self._clients, n)

    def distributed(self, purpose: str, distribution: Any) -> Floats:
        """One draw a client from a distribution of the scenario."""
        with np.errstate(over="ignore"):
            drawn = ppf_many(distribution)(self(purpose, 0))
        if not np.isfinite(drawn).all():
            client = int(np.argmin(np.isfinite(drawn)))
            raise ScenarioError(
                f"the {purpose} of client {client} is not finite, drawn from {distribution}; use a "
                "smaller sigma"
            )
        return drawn


@dataclasses.dataclass(frozen=True, slots=True)
class World:
    """What a scenario says of the clients, without any state: built once for a run.

    ``eligible`` [clients] says who may ever be asked; ``notes`` what a user should know.
    """

    draws: Draws
    table: DeviceTable | None
    devices: Devices
    availability: Availability
    eligible: NDArray[np.bool_]
    notes: list[str]


def build_world(scenario: Scenario, samples: NDArray[np.int64]) -> World:
    """Read and check everything that a simulation needs; ``samples`` [clients]."""
    draws, notes = Draws(scenario.seed, scenario.task.clients), list[str]()
    table = device_table(scenario, draws, samples, notes)
    world = World(
        draws,
        table,
        build_devices(scenario, table, draws),
        build_availability(scenario, draws, notes),
        _eligible(scenario, samples),
        notes,
    )
    _check_superclients(scenario, samples[world.eligible].tolist())
    pacing = scenario.federation.pacing
    may_pause = scenario.system.on_offline == "pause" and not isinstance(
        scenario.system.availability, schema.Always
    )
    if may_pause and isinstance(pacing, schema.Synchronous) and not pacing.always_ends:
        notes.append(
            "federation.pacing.deadline: none, so a round waits for clients that are away for as "
            "long as that takes"
        )
    if (
        isinstance(pacing, schema.Synchronous)
        and isinstance(pacing.deadline, schema.QuantileDeadline)
        and pacing.stragglers == "cancel"
        and pacing.deadline.at_least is None
    ):
        notes.append(
            "federation.pacing.deadline: the quantile is one of complete uploads, and with "
            "stragglers: cancel none takes longer than its deadline did; at_least, times above 1 "
            "or stragglers: finish keep the deadline from becoming ever shorter"
        )
    private = scenario.federation.faults.local_dp
    if private is not None and (found := local_dp.note(private)):
        notes.append(found)
    build_network(scenario, Clock(), table, draws)
    return world


def _eligible(scenario: Scenario, samples: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Who may be asked, by ``local.short_clients``."""
    policy, size = scenario.local.short_clients, scenario.local.batch_size
    if policy == "skip":
        eligible: NDArray[np.bool_] = samples >= size
        if not eligible.any():
            raise ScenarioError(
                f"local.short_clients: skip leaves no client: none has {size} samples, a whole "
                "batch; use a smaller batch_size, or train or pad"
            )
        return eligible
    if policy == "pad" and not samples.all():
        empty = int(np.flatnonzero(samples == 0)[0])
        raise ScenarioError(
            f"local.short_clients: pad cannot pad client {empty}, which holds no sample; use "
            "train or skip, or a partition with min_samples of 1 or more"
        )
    return np.ones(len(samples), dtype=np.bool_)


def _check_superclients(scenario: Scenario, held: list[int]) -> None:
    """Raise :class:`ScenarioError` where clients that hold so many samples cannot make as many
    superclients as are asked for. How many they do make is known once they are formed, which may
    take their pre-training."""
    federation, structure = scenario.federation, scenario.federation.structure
    if not isinstance(structure, schema.Superclients):
        return
    grouping, pacing, payload = structure.grouping, federation.pacing, federation.payload
    most = most_superclients(held, Limits(grouping.min_samples, grouping.max_clients))
    wanted = [("federation.structure.grouping", 1)]
    if isinstance(pacing, schema.Buffered | schema.Asynchronous):
        wanted.append(("federation.pacing.in_flight", pacing.in_flight))
    if isinstance(pacing, schema.FedSeqInter) and pacing.walkers is not None:
        wanted.append(("federation.pacing.walkers", pacing.walkers))
    if isinstance(pacing, schema.Synchronous) and pacing.too_few != "proceed":
        # A fraction is one of however many there will be.
        asked = pacing.asked(most) if pacing.participants is not None else 1
        wanted.append(("federation.pacing.participants", asked))
    if isinstance(payload, schema.DivideAndConquer) and payload.prepass is not None:
        least = 2 if payload.by_value else 1
        wanted.append(("federation.payload.prepass", payload.prepass.participants or least))
    for where, number in wanted:
        if number > most:
            raise ScenarioError(
                f"{where} asks for {number} superclient{'s' * (number > 1)}, and {len(held)} "
                f"clients with {sum(held)} samples make at most {most} superclients by "
                f"federation.structure.grouping (min_samples: {grouping.min_samples}, max_clients: "
                f"{grouping.max_clients}); ask "
                "for fewer, or use a smaller min_samples"
            )


def device_table(
    scenario: Scenario, draws: Draws, samples: NDArray[np.int64], notes: list[str]
) -> DeviceTable | None:
    """Speed and bandwidth of each client's device; None for scripted devices.

    How far speeds go with ``samples`` [clients] is added to ``notes`` where the scenario wants
    them to.
    """
    section = scenario.system.devices
    if isinstance(section, schema.ScriptedDevices):
        return None
    if isinstance(section, schema.PhoneDevices) or section.path is None:
        table = drawn_devices(draws)
    else:
        table = read_devices(section.path)
        rows = assign_rows(section.assign, draws("device assignment", 0), len(table))
        table = table.take(rows)
    correlation = section.data_correlation
    if isinstance(correlation, schema.Independent):
        return table
    speed = -table.computation_ms_per_sample  # of which only the order counts
    if samples.min() == samples.max():
        raise ScenarioError(
            f"system.devices.data_correlation: all clients hold {samples[0]} samples, and speeds "
            "cannot go with a number that is the same for all; use kind: independent, or another "
            "partition"
        )
    rows = couple_ranks(
        samples.astype(np.float64), speed, correlation.rho, draws("device data correlation", 0)
    )
    achieved = rank_correlation(samples.astype(np.float64), speed[rows])
    reached = "undefined: all devices are equally fast" if achieved is None else f"{achieved:.4f}"
    notes.append(
        "system.devices.data_correlation: the rank correlation of samples and device speed is "
        f"{reached} (rho: {correlation.rho})"
    )
    return table.take(rows)


def drawn_devices(draws: Draws) -> DeviceTable:
    """The built-in phones, one a client."""
    return phone_devices(draws("device speed", 0), draws("device bandwidth", 0))


def build_devices(scenario: Scenario, table: DeviceTable | None, draws: Draws) -> Devices:
    """Training times of all clients."""
    section, clients = scenario.system.devices, scenario.task.clients
    speed: Speed
    if isinstance(section, schema.ScriptedDevices):
        training = section.training
        if isinstance(training, list):
            speed = ScriptedSpeed(training)
        elif isinstance(training, float | int):
            speed = ScriptedSpeed([float(training)] * clients)
        else:
            speed = ScriptedSpeed(draws.distributed("device speed", training).tolist())
    else:
        assert table is not None
        speed = (
            MacsSpeed(table.computation_ms_per_sample, section.reference_macs)
            if isinstance(section, schema.MacsDevices)
            else FedScaleSpeed(table.computation_ms_per_sample)
        )
    silent = isinstance(section.noise, schema.Constant) and section.noise.value == 1.0
    return Devices(speed, None if silent else ppf(section.noise), scenario.seed)


def build_availability(scenario: Scenario, draws: Draws, notes: list[str]) -> Availability:
    """When each client is online; what had to be mended in a trace is added to ``notes``."""
    section, clients = scenario.system.availability, scenario.task.clients
    everyone = np.arange(clients, dtype=np.int64)
    match section:
        case schema.Always():
            return AlwaysOnline(clients)
        case schema.FedScaleAvailability():
            trace = read_sessions(section.path, section.period)
            sessions = trace.sessions
            if trace.report.changed:
                notes.append(f"{section.path.name}: mended {_mended(trace.report)}")
            rows = assign_rows(
                section.assign,
                draws("availability assignment", 0),
                len(sessions),
                duty_cycle(sessions),
            )
            availability = TraceAvailability(sessions, rows, section.at_end)
            if section.cursor == "fedscale":
                return CursorAvailability(availability, trace.unmended)
            return availability
        case schema.PhoneAvailability() | schema.RenewalAvailability():
            sessions = drawn_sessions(section, clients, draws)
        case schema.ScriptedAvailability():
            sessions = Sessions.from_rows(section.sessions, section.period)
    return TraceAvailability(sessions, everyone, section.at_end)


def drawn_sessions(
    section: schema.PhoneAvailability | schema.RenewalAvailability, clients: int, draws: Draws
) -> Sessions:
    """The sessions that a generator makes, one row a client."""
    if isinstance(section, schema.PhoneAvailability):
        return phone_sessions(clients, section.days, draws, section.duty)
    return renewal_sessions(
        clients,
        section.horizon,
        draws,
        ppf_many(section.on),
        ppf_many(section.off),
        on_mean_s=mean(section.on),
        off_mean_s=mean(section.off),
    )


def fresh_availability(world: World) -> Availability:
    """The availability of one simulation: FedScale's cursors have a state, and start anew."""
    availability = world.availability
    return availability.rewound() if isinstance(availability, CursorAvailability) else availability


def stateless(availability: Availability) -> Availability:
    """What the trace says, which asking does not change."""
    return availability.truth if isinstance(availability, CursorAvailability) else availability


def _mended(report: RepairReport) -> str:
    counts = dataclasses.asdict(report)
    return ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in counts.items() if count)


def build_network(
    scenario: Scenario, clock: Clock, table: DeviceTable | None, draws: Draws
) -> Network:
    """What carries the transfers."""
    section, clients = scenario.system.network, scenario.task.clients
    if isinstance(section, schema.NoNetwork):
        return NoNetwork()

    def rates(direction: str) -> Floats:
        value = getattr(section.client, direction)
        if value == "devices":
            assert table is not None
            return table.communication_kbps * 125.0  # 1 kbit/s is 125 B/s
        if isinstance(value, float | int):
            return np.full(clients, float(value))
        if isinstance(value, list):
            return np.array(value, dtype=np.float64)
        return draws.distributed(f"link {direction}", value)

    access = AccessLinks(
        rates("down"), rates("up"), np.full(clients, float(section.client.latency))
    )
    if isinstance(section, schema.Links):
        if section.server is None:
            return access
        return SharedServerLink(clock, access, section.server.down, section.server.up)
    # Loaded where it is used: networkx takes a quarter of a second.
    import networkx

    from emulator.simulation.topology import Topology

    graph = networkx.Graph()
    for edge in section.edges:
        graph.add_edge(*edge.between, rate_Bps=edge.rate, latency_s=edge.latency)
    for node in (section.server, *section.attach):
        if node not in graph:
            raise ScenarioError(
                f"system.network: node '{node}' is on no edge; nodes are {sorted(graph.nodes)}"
            )
    attachments = [section.attach[client % len(section.attach)] for client in range(clients)]
    return Topology(clock, access, graph, section.server, attachments)


def build_method(scenario: Scenario) -> tuple[dict[str, Any], dict[str, Any], Cost]:
    """(what clients minimize, the server's step, both as options for the learning plane; what the
    two cost a client)."""
    federation = scenario.federation
    objective, cost = OBJECTIVES[federation.objective.kind](federation.objective)
    if isinstance(federation.objective, schema.FedDyn):
        return objective, feddyn_server_step(federation.objective), cost
    pacing = federation.pacing
    if isinstance(pacing, schema.Asynchronous) or (
        isinstance(pacing, schema.FedSeqInter) and pacing.mode == "merge"
    ):
        return objective, fedasync(pacing), cost
    optimizer = federation.server_optimizer
    step, more = SERVER_OPTIMIZERS[optimizer.kind](optimizer, scenario.local)
    return objective, step, cost + more
