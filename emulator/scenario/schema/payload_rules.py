"""What does not go with Divide-and-Conquer, or with FedMA's sub-rounds, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emulator.scenario.schema.federation import (
    Asynchronous,
    Buffered,
    FedDyn,
    FedMa,
    FedSeqInter,
    QFedAvg,
    RandomSelection,
    Scaffold,
    Synchronous,
)
from emulator.scenario.schema.payload import DivideAndConquer, DynamicSplit
from emulator.scenario.schema.structure import Star, Superclients
from emulator.scenario.schema.system import Always
from emulator.scenario.schema.task import (
    CharLstm,
    Conv1d,
    DeclaredData,
    DeclaredModel,
    Logistic,
    ResNet8,
)

if TYPE_CHECKING:
    from emulator.scenario.schema.root import Scenario


def not_with_divide_and_conquer(scenario: Scenario) -> list[str]:
    """One text a finding."""
    federation, task = scenario.federation, scenario.task
    payload, selection = federation.payload, federation.selection
    if not isinstance(payload, DivideAndConquer):
        return []
    wrong = []
    if isinstance(task.model, DeclaredModel):
        wrong.append(
            "federation.payload: 'divide_and_conquer' divides a model by its layers, and model "
            "'declared' has none; take another model"
        )
    if isinstance(federation.objective, Scaffold | FedDyn):
        wrong.append(
            f"federation.objective: '{federation.objective.kind}' with payload "
            "'divide_and_conquer': what its clients keep stands for the gradient of the whole "
            "model, and only a part of it is trained; say plain, fedprox or fedmax"
        )
    if isinstance(federation.pacing, FedSeqInter):
        wrong.append(
            "federation.pacing: 'fedseqinter' with payload 'divide_and_conquer': each walker has "
            "parts of its own, of which no version tells who holds them; say synchronous or "
            "buffered"
        )
    if isinstance(selection, RandomSelection) and selection.busy == "queue":
        wrong.append(
            "federation.selection.busy: queue with payload 'divide_and_conquer': what a client "
            "lacks is known when its task begins, and not when it joins a queue; say busy: exclude"
        )
    if isinstance(federation.server_optimizer, QFedAvg):
        wrong.extend(_one_rate(scenario, payload))
    pacing = federation.pacing
    if (
        isinstance(pacing, Buffered)
        and pacing.refill == "at_aggregation"
        and len(set(payload.schedule)) > 1
        and pacing.in_flight < 2 * pacing.buffer - 1
    ):
        wrong.append(
            "federation.pacing.refill: at_aggregation with payload 'divide_and_conquer': a version "
            f"takes {pacing.buffer} updates of one part, and the {pacing.in_flight} in flight may "
            "come to fewer of each; say refill: at_once, or in_flight: "
            f"{2 * pacing.buffer - 1} or more"
        )
    prepass = payload.prepass
    if prepass is not None and isinstance(federation.structure, Star):
        asked = prepass.participants
        if asked is not None and asked > task.clients:
            wrong.append(
                f"federation.payload.prepass.participants is {asked}, more than {task.clients} "
                "clients"
            )
    if prepass is not None and prepass.counts and isinstance(pacing, Asynchronous):
        wrong.append(
            "federation.payload.prepass.counts with pacing 'asynchronous': its step takes one "
            "model at a time, and a pre-pass is a round; say counts: false, or pacing: buffered"
        )
    if (
        prepass is not None
        and prepass.deadline == "none"
        and (scenario.system.drop_notice == "at_deadline")
    ):
        wrong.append(
            "federation.payload.prepass.deadline: none with system.drop_notice: at_deadline: the "
            "pre-pass would wait for a lost client for ever; give it a deadline"
        )
    dynamic = isinstance(payload.split, DynamicSplit) and payload.split.by == "divergence"
    alone = isinstance(pacing, Asynchronous) or (isinstance(pacing, Buffered) and pacing.buffer < 2)
    if dynamic and alone:
        wrong.append(
            "federation.payload.split.by: divergence compares the updates of a version, and pacing "
            f"'{pacing.kind}' makes versions of one; say by: accuracy, or a larger buffer"
        )
    if dynamic and isinstance(pacing, Buffered) and prepass is not None and prepass.on == "weights":
        wrong.append(
            "federation.payload.prepass.on: weights with a dynamic split and buffered pacing: the "
            "updates of a version begin at different weights; say on: updates"
        )
    # One member that is online is enough of a superclient.
    waits = prepass is not None and prepass.participants is None and prepass.too_few == "wait"
    if (
        waits
        and isinstance(federation.structure, Star)
        and not isinstance(scenario.system.availability, Always)
    ):
        wrong.append(
            "federation.payload.prepass.too_few: wait would wait for an instant at which all "
            f"{task.clients} clients are online; say participants: a smaller number, or too_few: "
            "proceed"
        )
    if payload.by_value and payload.stand_in is None and isinstance(task.dataset, DeclaredData):
        wrong.append(
            f"federation.payload.split: '{payload.split.kind}' goes by what clients have learned, "
            "and dataset 'declared' has nothing to learn from; say stand_in: 3, a number of "
            "layers, or split: {kind: fixed, layer: 3}"
        )
    return wrong


def not_with_fedma(scenario: Scenario) -> list[str]:
    """One text a finding: all clients are in all of its sub-rounds, and each keeps its own layers
    from one to the next."""
    federation, task, system = scenario.federation, scenario.task, scenario.system
    if not isinstance(federation.server_optimizer, FedMa):
        return []
    pacing, where = federation.pacing, "federation.server_optimizer: 'fedma'"
    wrong = []
    everyone = (
        isinstance(pacing, Synchronous)
        and pacing.wanted(task.clients) == pacing.asked(task.clients) == task.clients
        and pacing.deadline == "none"
    )
    if not everyone:
        wrong.append(
            f"{where} matches all clients in each of its sub-rounds; say pacing: {{kind: "
            f"synchronous, participants: {task.clients}, deadline: none}}, without over_commitment"
        )
    if isinstance(pacing, Synchronous) and pacing.too_few == "proceed":
        wrong.append(
            f"{where} needs every client in each of its sub-rounds; pacing.too_few: proceed begins "
            "without some; say wait or fail"
        )
    if not isinstance(system.availability, Always) and system.on_offline == "drop":
        wrong.append(
            f"{where} needs every client in each of its sub-rounds, and system.on_offline: drop "
            "loses some; say pause or continue, or availability: {kind: always}"
        )
    if system.task_failure:
        wrong.append(
            f"{where} needs every client in each of its sub-rounds, and system.task_failure loses "
            "some; leave it out"
        )
    if scenario.local.short_clients == "skip":
        wrong.append(f"{where} matches all clients; say local.short_clients: train or pad")
    if isinstance(federation.objective, Scaffold | FedDyn):
        wrong.append(
            f"federation.objective: '{federation.objective.kind}' corrects steps towards the mean "
            "of all models unit by unit, and with server_optimizer 'fedma' units change places; "
            "say plain, fedprox or fedmax"
        )
    if isinstance(federation.structure, Superclients):
        wrong.append(
            f"{where} with structure '{federation.structure.kind}': a chain has one model, whose "
            "units nobody else's need be matched with; say structure: {kind: star}"
        )
    if isinstance(federation.payload, DivideAndConquer):
        wrong.append(
            f"{where} with payload 'divide_and_conquer': its sub-rounds say themselves which "
            "layers are trained and travel; say payload: {kind: full}"
        )
    if isinstance(task.model, Logistic):
        wrong.append(
            f"{where} matches hidden units, and model 'logistic' has none; say mlp, or "
            "server_optimizer: {kind: average}"
        )
    if isinstance(task.model, DeclaredModel | ResNet8 | CharLstm | Conv1d):
        wrong.append(
            f"{where} matches the units of convolutions and linear layers that each feed the next, "
            f"which model '{task.model.kind}' is not made of; say mlp, lenet5, mcmahan_cnn, "
            "fedseq_lenet or vgg9"
        )
    return wrong


def _one_rate(scenario: Scenario, payload: DivideAndConquer) -> list[str]:
    """q-FedAvg divides an update by the rate that has made it, which is one for all."""
    usual, prepass = scenario.local.optimizer.lr, payload.prepass
    rates = {"feature_learning": payload.feature_learning.lr, "fine_tuning": payload.fine_tuning.lr}
    if prepass is not None and prepass.lr is not None:
        rates["prepass"] = prepass.lr
    return [
        f"federation.payload.{name}.lr is {rate}, and server_optimizer 'qfedavg' takes updates for "
        f"gradients by local.optimizer.lr, which is {usual}; say the same rate in both"
        for name, rate in rates.items()
        if rate != usual
    ]
