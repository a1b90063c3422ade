"""From a validated scenario to the objects of the simulation plane. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ScenarioError
from emulator.federation.objective import Cost
from emulator.federation.objective.fedprox import fedprox
from emulator.federation.objective.plain import plain
from emulator.federation.objective.scaffold import scaffold
from emulator.federation.pacing.buffered import BufferedPacing
from emulator.federation.pacing.synchronous import SynchronousPacing
from emulator.federation.selection.everyone import AllSelector
from emulator.federation.selection.random import RandomSelector
from emulator.federation.server_optimizer.average import average
from emulator.federation.server_optimizer.fedyogi import fedyogi
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
    Work,
)
from emulator.simulation.distributions import mean, ppf, ppf_many
from emulator.simulation.network import AccessLinks, Network, NoNetwork, SharedServerLink
from emulator.simulation.population import Availability
from traces import (
    AlwaysOnline,
    DeviceTable,
    RepairReport,
    Sessions,
    assign_rows,
    duty_cycle,
    phone_devices,
    phone_sessions,
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
}
SERVER_OPTIMIZERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "average": average,
    "fedyogi": fedyogi,
}
PACINGS = {"synchronous": SynchronousPacing, "buffered": BufferedPacing}
SELECTORS: dict[str, Callable[[int], Any]] = {
    "random": RandomSelector,
    "all": lambda root_seed: AllSelector(),
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
    table = device_table(scenario, draws)
    world = World(
        draws,
        table,
        build_devices(scenario, table, draws),
        build_availability(scenario, draws, notes),
        _eligible(scenario, samples),
        notes,
    )
    pacing = scenario.federation.pacing
    may_vanish = not isinstance(scenario.system.availability, schema.Always)
    if may_vanish and isinstance(pacing, schema.Synchronous) and pacing.deadline == "none":
        notes.append(
            "federation.pacing.deadline: none, so a round waits for clients that are away for as "
            "long as that takes"
        )
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


def device_table(scenario: Scenario, draws: Draws) -> DeviceTable | None:
    """Speed and bandwidth of each client's device; None for scripted devices."""
    section = scenario.system.devices
    if isinstance(section, schema.ScriptedDevices):
        return None
    if isinstance(section, schema.PhoneDevices) or section.path is None:
        return phone_devices(draws("device speed", 0), draws("device bandwidth", 0))
    table = read_devices(section.path)
    rows = assign_rows(section.assign, draws("device assignment", 0), len(table))
    return DeviceTable(table.computation_ms_per_sample[rows], table.communication_kbps[rows])


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
            return TraceAvailability(sessions, rows, section.at_end)
        case schema.PhoneAvailability():
            sessions = phone_sessions(clients, section.days, draws, section.duty)
        case schema.RenewalAvailability():
            sessions = renewal_sessions(
                clients,
                section.horizon,
                draws,
                ppf_many(section.on),
                ppf_many(section.off),
                on_mean_s=mean(section.on),
                off_mean_s=mean(section.off),
            )
        case schema.ScriptedAvailability():
            sessions = Sessions.from_rows(section.sessions, section.period)
    return TraceAvailability(sessions, everyone, section.at_end)


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


def build_work(
    scenario: Scenario, samples: NDArray[np.int64], macs_per_sample: int, cost: Cost
) -> Callable[[int], Work]:
    """What one task of a client computes."""
    local = scenario.local
    held: list[int] = samples.tolist()
    size = local.batch_size

    def work(n: int) -> Work:
        if n == 0:
            trained = 0
        elif local.steps is not None:
            trained = local.steps * size
        else:
            assert local.epochs is not None
            per_epoch = max(n, size) if local.short_clients == "pad" else n
            trained = local.epochs * per_epoch
        return Work(trained, cost.extra_passes * n, macs_per_sample)

    known = {n: work(n) for n in set(held)}
    return lambda client: known[held[client]]
