"""What does not go with Divide-and-Conquer, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emulator.scenario.schema.federation import (
    Buffered,
    FedDyn,
    FedSeqInter,
    RandomSelection,
    Scaffold,
)
from emulator.scenario.schema.payload import DivideAndConquer
from emulator.scenario.schema.structure import Star
from emulator.scenario.schema.task import DeclaredData, DeclaredModel

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
    pacing = federation.pacing
    if (
        isinstance(pacing, Buffered)
        and pacing.refill == "at_aggregation"
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
    if payload.by_value and payload.stand_in is None and isinstance(task.dataset, DeclaredData):
        wrong.append(
            f"federation.payload.split: '{payload.split.kind}' goes by what clients have learned, "
            "and dataset 'declared' has nothing to learn from; say stand_in: 3, a number of "
            "layers, or split: {kind: fixed, layer: 3}"
        )
    return wrong
