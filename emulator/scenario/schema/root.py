"""The whole scenario, and the rules that need more than one section."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from emulator.scenario.schema.base import Count, Name, Positive, Section
from emulator.scenario.schema.clustered import Clustered
from emulator.scenario.schema.clustered_rules import not_with_clustered
from emulator.scenario.schema.cohort_rules import not_with_cohorts
from emulator.scenario.schema.fault_rules import not_with_faults
from emulator.scenario.schema.federation import (
    AllSelection,
    Asynchronous,
    Average,
    Buffered,
    ConstantStaleness,
    FedDyn,
    Federation,
    FedSeqInter,
    QFedAvg,
    RandomSelection,
    Scaffold,
    Synchronous,
)
from emulator.scenario.schema.local import Local
from emulator.scenario.schema.payload_rules import not_with_divide_and_conquer, not_with_fedma
from emulator.scenario.schema.structure import Epochs, Star
from emulator.scenario.schema.superclient_rules import not_with_superclients
from emulator.scenario.schema.system import (
    Always,
    FedScaleAvailability,
    Links,
    NoNetwork,
    PhoneAvailability,
    RenewalAvailability,
    ScriptedAvailability,
    ScriptedDevices,
    System,
    TopologyNetwork,
)
from emulator.scenario.schema.task import CustomModel, Natural, ResNet8, Task
from emulator.scenario.units import NonNegativeSeconds, PositiveSeconds

MOST_EVALUATIONS = 10_000_000
MOST_SESSIONS_IN_ALL = 1_000_000_000  # 16 GB


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


class EveryHops(Section):
    hops: Count


_MEASURES = ("versions", "sim_time", "hops")


def _every_kind(value: Any) -> str:
    keys = value if isinstance(value, dict) else type(value).model_fields
    return next((measure for measure in _MEASURES[1:] if measure in keys), "versions")


def _one_measure(value: Any) -> Any:
    if isinstance(value, EveryVersions | EveryTime | EveryHops):
        return value
    if not isinstance(value, dict):
        raise ValueError("must be a mapping such as {versions: 5} or {sim_time: 10 min}")
    if len(value.keys() & set(_MEASURES)) != 1:
        found = ", ".join(value) or "none"
        raise ValueError(f"say either versions, sim_time or hops, one of them; found {found}")
    return value


class Ftfa(Section):
    """Fine-tuning a federated average (Cheng et al. 2021): once the run is over each client trains
    the model that it would be given, the server's or its cohort's, for so many ``epochs`` on its
    own training samples, with ``local``'s batch size and optimizer, at the rate ``lr`` if that is
    given, and is tested on its own test samples. That takes no simulated time, bytes or device
    time."""

    kind: Literal["ftfa"]
    epochs: Epochs = 1
    lr: Positive | None = None


class Evaluation(Section):
    """The global model on the test set: every so many versions, or so much simulated time.

    With pacing fedseqinter also every so many ``hops`` of all walkers; between two averages what
    is measured is the one that would be taken now (``merge``: the server's model).

    ``clients``: the same model on each client's own test samples (``task.client_test``, or those
    of natural data), never, once at the end, or whenever the test set is. It adds no simulated
    time. Where clients keep their batch-normalization statistics, each is tested with its own.
    Cohorts, and the models of ifca, cfl, fl_hc and flexcfl, are always measured on each client's
    own samples, by the one that serves it: of all clients (``test``), and of those that their
    cohorts know (``members``).
    ``personalization``: what the last model is worth to each client that fine-tunes it
    (``personalized``).
    """

    every: Annotated[
        Annotated[EveryVersions, Tag("versions")]
        | Annotated[EveryTime, Tag("sim_time")]
        | Annotated[EveryHops, Tag("hops")],
        Discriminator(_every_kind),
        BeforeValidator(_one_measure),
    ]
    clients: Literal["never", "at_end", "always"] = "never"
    personalization: Ftfa | None = None


class Memo(Section):
    """``keep: versions`` stores every version's model, for what-if runs to start from.

    ``checkpoint_every`` is host time.
    """

    keep: Literal["live", "versions"] = "live"
    checkpoint_every: NonNegativeSeconds = 30.0


class Execution(Section):
    """Where training runs: one client after the other, in worker processes, or many clients in
    one program (``batched``). ``auto``: on the CPU processes for models of ``1,000,000`` or more
    multiply-accumulates a sample (forward); else batched for ``logistic`` and ``mlp`` (on a GPU
    for every built-in model without batch normalization or recurrence), and inline for all
    others."""

    executor: Literal["auto", "inline", "processes", "batched"] = "auto"
    device: Literal["cpu", "cuda"] = "cpu"


class Scenario(Section):
    """A whole experiment."""

    schema_version: Annotated[Literal[1], Field(alias="schema")]
    name: Name
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
    in_star = isinstance(scenario.federation.structure, Star | Clustered)
    n = task.clients
    wrong: list[str] = []
    if system.drop_notice == "timeout" and system.drop_timeout is None:
        wrong.append("system.drop_notice: timeout needs system.drop_timeout, a number of seconds")
    if system.drop_notice != "timeout" and system.drop_timeout is not None:
        wrong.append("system.drop_timeout goes with system.drop_notice: timeout only")
    if system.drop_notice == "at_deadline" and (
        not isinstance(pacing, Synchronous) or not pacing.always_ends
    ):
        wrong.append(
            "system.drop_notice: at_deadline needs synchronous pacing with a deadline in every "
            "round: without one the server would wait for a lost client for ever"
        )
    wrong.extend(_not_tested(scenario))
    if isinstance(pacing, Synchronous):
        wanted, asked = pacing.wanted(n), pacing.asked(n)
        if wanted > n:
            wrong.append(f"federation.pacing.participants is {wanted}, more than {n} clients")
        elif asked > n and pacing.too_few != "proceed" and in_star:
            wrong.append(
                "federation.pacing.over_commitment: "
                f"floor({wanted} × {pacing.over_commitment}) = {asked} clients "
                f"are asked each round, more than the {n} there are; lower over_commitment or say "
                "too_few: proceed"
            )
        if isinstance(selection, AllSelection) and pacing.over_commitment != 1.0:
            wrong.append(
                "federation.selection: 'all' asks everyone: over_commitment has nothing to add"
            )
    if isinstance(pacing, Buffered | Asynchronous):
        if isinstance(selection, AllSelection) and pacing.in_flight != n and in_star:
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
        if isinstance(pacing, Synchronous):
            wrong.append(
                "federation.selection.busy: queue needs buffered or asynchronous pacing: a round "
                "asks a client once"
            )
        if system.on_offline == "drop" and not isinstance(system.availability, Always):
            wrong.append(
                "federation.selection.busy: queue with on_offline: drop would lose tasks that "
                "never started; say on_offline: pause or continue"
            )
    keeps = _what_clients_keep(scenario.federation)
    if isinstance(selection, RandomSelection) and selection.busy == "queue" and keeps:
        wrong.append(
            f"federation.selection.busy: queue with {keeps}: a task that waits on its device "
            "would start from a state of its client that is out of date; say busy: exclude"
        )
    wrong.extend(_not_with_feddyn(scenario.federation))
    wrong.extend(not_with_superclients(scenario))
    wrong.extend(not_with_cohorts(scenario))
    wrong.extend(not_with_clustered(scenario))
    wrong.extend(not_with_divide_and_conquer(scenario))
    wrong.extend(not_with_fedma(scenario))
    wrong.extend(not_with_faults(scenario))
    if isinstance(scenario.federation.server_optimizer, QFedAvg) and isinstance(
        scenario.federation.objective, Scaffold
    ):
        wrong.append(
            "federation.server_optimizer: 'qfedavg' weighs each client's own gradient by its loss, "
            "and with objective 'scaffold' the updates are corrected towards the mean of all; say "
            "plain or fedprox"
        )
    # Of a custom model it is known once it is built.
    batch_norm = scenario.federation.batch_norm
    if batch_norm is None and isinstance(task.model, ResNet8):
        wrong.append(f"federation.batch_norm is missing: model 'resnet8' {BATCH_NORM_CHOICES}")
    if batch_norm is not None and not isinstance(task.model, ResNet8 | CustomModel):
        wrong.append(
            f"federation.batch_norm: '{batch_norm}' says what becomes of the running statistics of "
            f"batch normalization, and model '{task.model.kind}' keeps none; leave it out"
        )
    if isinstance(pacing, Asynchronous):
        wrong.extend(_not_with_fedasync(scenario.federation))
    if isinstance(system.availability, FedScaleAvailability):
        wrong.extend(_not_with_cursor(scenario, system.availability))
    every = scenario.evaluation.every
    if isinstance(every, EveryHops) and not isinstance(pacing, FedSeqInter):
        wrong.append(
            f"evaluation.every.hops goes with pacing 'fedseqinter', and this is '{pacing.kind}'; "
            "say versions or sim_time"
        )
    if isinstance(every, EveryTime) and scenario.stop.sim_time > MOST_EVALUATIONS * every.sim_time:
        wrong.append(
            f"evaluation.every.sim_time: every {every.sim_time} s makes more than "
            f"{MOST_EVALUATIONS} evaluations until stop.sim_time, {scenario.stop.sim_time} s; "
            "take a longer interval"
        )
    drawn = n * _sessions_drawn(system.availability)
    if drawn > MOST_SESSIONS_IN_ALL:
        wrong.append(
            f"system.availability: some {drawn:.1e} sessions would be drawn for {n} clients, and "
            f"memory for {MOST_SESSIONS_IN_ALL:.0e} is too much already; shorten the trace or take "
            "fewer clients"
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


BATCH_NORM_CHOICES = (
    "keeps the running statistics of batch normalization; say average (they travel with the model "
    "and are averaged), local (each client keeps its own) or freeze (those of the initial model "
    "are used, and stay)"
)


def _not_tested(scenario: Scenario) -> list[str]:
    """What clients are measured on needs samples of their own."""
    task, evaluation = scenario.task, scenario.evaluation
    if task.client_test is not None or isinstance(task.partition, Natural):
        return []
    wanted = []
    if evaluation.clients != "never":
        wanted.append(f"clients: '{evaluation.clients}'")
    if evaluation.personalization is not None:
        wanted.append(f"personalization: '{evaluation.personalization.kind}'")
    return [
        f"evaluation.{what} needs samples that each client is tested on; say task.client_test: "
        "0.2, or take natural data with partition natural"
        for what in wanted
    ]


def _what_clients_keep(federation: Federation) -> str | None:
    """What makes a client remember something from one of its tasks to the next."""
    if isinstance(federation.objective, Scaffold | FedDyn):
        return f"objective '{federation.objective.kind}'"
    return "batch_norm 'local'" if federation.batch_norm == "local" else None


def _not_with_feddyn(federation: Federation) -> list[str]:
    """FedDyn's server step is part of the method: w = mean of the models − h/α."""
    if not isinstance(federation.objective, FedDyn):
        return []
    wrong = []
    optimizer, pacing = federation.server_optimizer, federation.pacing
    if not isinstance(pacing, Asynchronous) and optimizer != Average(kind="average"):
        which = f"'{optimizer.kind}'"
        if isinstance(optimizer, Average):
            which += f" with lr {optimizer.lr}"
        wrong.append(
            f"federation.server_optimizer: {which} has no place beside objective 'feddyn', whose "
            "server step is its own (the mean of the models less h/alpha); leave server_optimizer "
            "out"
        )
    if not isinstance(pacing, Asynchronous) and pacing.weights != "uniform":
        wrong.append(
            "federation.pacing.weights: 'samples' with objective 'feddyn': its server step takes "
            "the plain mean of the models, and its h counts every client alike; say weights: "
            "uniform"
        )
    if isinstance(pacing, Buffered) and not isinstance(pacing.staleness, ConstantStaleness):
        wrong.append(
            f"federation.pacing.staleness: '{pacing.staleness.kind}' with objective 'feddyn': h "
            "must stay the mean of what the clients keep, and a client keeps all of an update "
            "that the server would discount; say staleness: {kind: constant}"
        )
    return wrong


def _not_with_fedasync(federation: Federation) -> list[str]:
    """FedAsync's server mixes whole models one at a time, and leaves no room for another step."""
    wrong = []
    optimizer, objective = federation.server_optimizer, federation.objective.kind
    if optimizer != Average(kind="average"):
        which = f"'{optimizer.kind}'"
        if isinstance(optimizer, Average):
            which += f" with lr {optimizer.lr}"
        wrong.append(
            f"federation.server_optimizer: {which} has no place in asynchronous pacing, whose "
            "server step is FedAsync's own, w ← (1 − mixing·s(τ)) w + mixing·s(τ) w_k; set mixing "
            "and leave server_optimizer out, or say pacing: buffered with buffer: 1"
        )
    if objective in ("scaffold", "feddyn"):
        wrong.append(
            f"federation.objective: '{objective}' has a server step of its own, on the updates of "
            "a version, and asynchronous pacing (FedAsync) mixes one whole model at a time; say "
            "plain or fedprox, or pacing: buffered"
        )
    return wrong


def _not_with_cursor(scenario: Scenario, availability: FedScaleAvailability) -> list[str]:
    """FedScale's cursor is asked in a round of FedScale's, and nowhere else."""
    if availability.cursor == "stateless":
        return []
    where, system = "system.availability.cursor: fedscale", scenario.system
    wrong = []
    if availability.at_end != "wrap":
        wrong.append(f"{where} takes times modulo the trace; at_end must be wrap")
    if system.on_offline != "drop":
        wrong.append(
            f"{where} says at the end of a task whether it is lost; on_offline must be drop"
        )
    shares = isinstance(system.network, Links) and system.network.server is not None
    if shares or isinstance(system.network, TopologyNetwork):
        wrong.append(
            f"{where} is asked at dispatch about the end of the task, which a shared link leaves "
            "open; leave system.network.server out, or use kind: none"
        )
    if not isinstance(scenario.federation.pacing, Synchronous):
        wrong.append(
            f"{where} goes with synchronous pacing: FedScale's asynchronous mode never tests "
            "whether a client is still there"
        )
    if scenario.federation.structure.kind != "star":
        wrong.append(f"{where} goes with structure: star; FedScale has no other")
    if scenario.federation.selection.rest:
        wrong.append(
            f"{where} moves each time that it is asked, and federation.selection.rest asks at the "
            "end of each task; leave rest out, or say cursor: stateless"
        )
    return wrong


def _sessions_drawn(availability: object) -> float:
    """About how many sessions of a client the generator of a scenario makes."""
    if isinstance(availability, RenewalAvailability):
        return availability.sessions_drawn
    # The median phone is online three times a day; phones of short cycles add to the mean.
    return 10.0 * availability.days if isinstance(availability, PhoneAvailability) else 0.0


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
