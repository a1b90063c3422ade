"""The whole scenario, and the rules that need more than one section."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from emulator.scenario.schema.base import Count, Section
from emulator.scenario.schema.federation import (
    AllSelection,
    Buffered,
    Federation,
    Local,
    RandomSelection,
    Synchronous,
)
from emulator.scenario.schema.system import (
    Always,
    Links,
    NoNetwork,
    ScriptedAvailability,
    ScriptedDevices,
    System,
    TopologyNetwork,
)
from emulator.scenario.schema.task import Task
from emulator.scenario.units import NonNegativeSeconds, PositiveSeconds


class Target(Section):
    """Stop once the metric has been at ``value`` or better for ``sustain`` evaluations."""

    metric: Literal["accuracy"] = "accuracy"
    value: Annotated[float, Field(gt=0, le=1)]
    sustain: Count = 1


class Stop(Section):
    """Whichever comes first; ``sim_time`` always bounds the run."""

    sim_time: PositiveSeconds
    versions: Count | None = None
    target: Target | None = None


class EveryVersions(Section):
    versions: Count


class EveryTime(Section):
    sim_time: PositiveSeconds


def _every_kind(value: Any) -> str:
    keys = value if isinstance(value, dict) else type(value).model_fields
    return "sim_time" if "sim_time" in keys else "versions"


class Evaluation(Section):
    """The global model on the test set: every so many versions, or so much simulated time."""

    every: Annotated[
        Annotated[EveryVersions, Tag("versions")] | Annotated[EveryTime, Tag("sim_time")],
        Discriminator(_every_kind),
    ]


class Memo(Section):
    """``keep: versions`` stores every version's model, for what-if runs to start from.

    ``checkpoint_every`` is host time.
    """

    keep: Literal["live", "versions"] = "live"
    checkpoint_every: NonNegativeSeconds = 30.0


class Execution(Section):
    """Where training runs. ``auto``: processes for models of ``1,000,000`` or more
    multiply-accumulates a sample (forward) on the CPU, inline for smaller ones and on a GPU."""

    executor: Literal["auto", "inline", "processes"] = "auto"
    device: Literal["cpu", "cuda"] = "cpu"


class Scenario(Section):
    """A whole experiment."""

    schema_version: Annotated[Literal[1], Field(alias="schema")]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    stop: Stop
    task: Task
    system: System
    local: Local
    federation: Federation
    evaluation: Evaluation
    memo: Memo = Memo()
    execution: Execution = Execution()

    @model_validator(mode="after")
    def _sense(self) -> Scenario:
        refuse_nonsense(self)
        return self


def refuse_nonsense(scenario: Scenario) -> None:
    """Combinations that make no sense, each refused with its reason.

    Raises ValueError with one text a finding.
    """
    pacing, system, task = scenario.federation.pacing, scenario.system, scenario.task
    selection = scenario.federation.selection
    n = task.clients
    wrong: list[str] = []
    if system.drop_notice == "timeout" and system.drop_timeout is None:
        wrong.append("system.drop_notice: timeout needs system.drop_timeout, a number of seconds")
    if system.drop_notice != "timeout" and system.drop_timeout is not None:
        wrong.append("system.drop_timeout goes with system.drop_notice: timeout only")
    if system.drop_notice == "at_deadline" and (
        not isinstance(pacing, Synchronous) or pacing.deadline == "none"
    ):
        wrong.append(
            "system.drop_notice: at_deadline needs synchronous pacing with a deadline: without "
            "one the server would wait for a lost client for ever"
        )
    if isinstance(pacing, Synchronous):
        if pacing.participants > n:
            wrong.append(
                f"federation.pacing.participants is {pacing.participants}, more than {n} clients"
            )
        elif pacing.asked > n and pacing.too_few != "proceed":
            wrong.append(
                "federation.pacing.over_commitment: "
                f"floor({pacing.participants} × {pacing.over_commitment}) = {pacing.asked} clients "
                f"are asked each round, more than the {n} there are; lower over_commitment or say "
                "too_few: proceed"
            )
        if isinstance(selection, AllSelection) and pacing.over_commitment != 1.0:
            wrong.append(
                "federation.selection: 'all' asks everyone: over_commitment has nothing to add"
            )
    if isinstance(pacing, Buffered):
        if isinstance(selection, AllSelection) and pacing.in_flight != n:
            wrong.append(
                f"federation.selection: 'all' keeps all {n} clients at work: in_flight must be "
                f"{n}, not {pacing.in_flight}"
            )
        queueing = isinstance(selection, RandomSelection) and selection.busy == "queue"
        if pacing.in_flight > n and not queueing:
            wrong.append(
                f"federation.pacing.in_flight is {pacing.in_flight}, more than the {n} clients"
            )
    if isinstance(selection, RandomSelection) and selection.busy == "queue":
        if not isinstance(pacing, Buffered):
            wrong.append(
                "federation.selection.busy: queue needs buffered pacing: a round asks a client once"
            )
        if system.on_offline == "drop" and not isinstance(system.availability, Always):
            wrong.append(
                "federation.selection.busy: queue with on_offline: drop would lose tasks that "
                "never started; say on_offline: pause or continue"
            )
    if (
        isinstance(selection, RandomSelection)
        and selection.busy == "queue"
        and scenario.federation.objective.kind == "scaffold"
    ):
        wrong.append(
            "federation.selection.busy: queue with objective 'scaffold': a task that waits on its "
            "device would start from a control variate that is out of date; say busy: exclude"
        )
    for place, values in _lists_by_client(scenario):
        if len(values) != n:
            wrong.append(f"{place} lists {len(values)} clients, the task has {n}")
    if _wants_device_bandwidth(system.network) and isinstance(system.devices, ScriptedDevices):
        wrong.append(
            "system.network.client: 'devices' takes the bandwidth of a device trace, and scripted "
            "devices have none"
        )
    if wrong:
        raise ValueError("\n".join(wrong))


def _lists_by_client(scenario: Scenario) -> list[tuple[str, list[Any]]]:
    system = scenario.system
    found: list[tuple[str, list[Any]]] = []
    if isinstance(system.devices, ScriptedDevices) and isinstance(system.devices.training, list):
        found.append(("system.devices.training", system.devices.training))
    if isinstance(system.availability, ScriptedAvailability):
        found.append(("system.availability.sessions", system.availability.sessions))
    if not isinstance(system.network, NoNetwork):
        for key in ("down", "up"):
            value = getattr(system.network.client, key)
            if isinstance(value, list):
                found.append((f"system.network.client.{key}", value))
    return found


def _wants_device_bandwidth(network: NoNetwork | Links | TopologyNetwork) -> bool:
    if isinstance(network, NoNetwork):
        return False
    return "devices" in (network.client.down, network.client.up)
