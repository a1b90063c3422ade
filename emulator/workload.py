"""What tasks compute and what travels, of a validated scenario and its model."""

from __future__ import annotations

from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from emulator.federation.cost import Cost
from emulator.federation.payload import LOCAL_RATE, Payload, WorkOf
from emulator.federation.payload.divide_and_conquer import DivideAndConquer
from emulator.federation.payload.full import Full, Sizes
from emulator.federation.payload.holdings import Model
from emulator.federation.payload.layer_by_layer import LayerByLayer
from emulator.federation.structure.clustered.flexcfl import COLD_START
from emulator.learning.setting import Setting, cold_start_local, recipe
from emulator.learning.training import Recipe
from emulator.learning_interface import Learner
from emulator.recording.recorder import Recorder
from emulator.scenario import Scenario, schema
from emulator.simulation.clock import Clock
from emulator.simulation.devices import Work


class Macs(Protocol):
    """Multiply-accumulates of one sample in the whole model."""

    @property
    def forward_macs(self) -> int:
        """Of the forward pass."""

    @property
    def backward_macs(self) -> int:
        """Of the backward pass."""


def build_work(
    usual: schema.Local,
    local: schema.Local,
    samples: NDArray[np.int64],
    profile: Macs,
    cost: Cost,
    part_macs: int | None = None,
) -> WorkOf:
    """What one task of a client computes that trains as ``local`` says; ``usual`` is the scenario's
    own ``local``. Where a part of the model is trained, a sample's backward pass has ``part_macs``
    multiply-accumulates (0: nothing is trained)."""
    whole = profile.forward_macs + profile.backward_macs
    part = whole if part_macs is None else profile.forward_macs + part_macs
    macs = 0 if part_macs == 0 else part
    share = macs / whole if whole else 1.0

    def work(n: int) -> Work:
        trained = 0 if part_macs == 0 else trained_samples(local, n)
        as_usual = trained_samples(usual, n)
        # A client without samples has its scripted time all the same, and a part a share of that.
        of_local = trained * macs / (as_usual * whole) if as_usual and whole else share
        return Work(
            trained, cost.training_passes * n, macs, cost.forward_passes * n, profile.forward_macs,
            share, of_local, as_usual,
        )  # fmt: skip

    held: list[int] = samples.tolist()
    known = {n: work(n) for n in set(held)}
    return lambda client: known[held[client]]


def trained_samples(local: schema.Local, n: int) -> int:
    """How many samples a task trains on, each as often as it does, where the client holds ``n``."""
    if n == 0:
        return 0
    if local.steps is not None:
        return local.steps * local.batch_size
    assert local.epochs is not None
    return local.epochs * (max(n, local.batch_size) if local.short_clients == "pad" else n)


def phases(scenario: Scenario) -> dict[str, schema.Local]:
    """What ``local`` is for each part of a model, by the name of its recipe; empty where the whole
    model is trained each time."""
    federation, local = scenario.federation, scenario.local
    payload, optimizer = federation.payload, federation.server_optimizer
    if isinstance(payload, schema.DivideAndConquer):
        given = {
            "feature_learning": payload.feature_learning,
            "fine_tuning": payload.fine_tuning,
            "prepass": payload.prepass,
        }
        return {name: _local_of(local, phase) for name, phase in given.items() if phase}
    if isinstance(optimizer, schema.FedMa):
        last, phase = optimizer.last_layer, optimizer.retraining
        again = _local_of(local, phase) if phase else local
        if last is None:
            length = {"epochs": 3 * again.epochs} if again.epochs else {"steps": 3 * again.steps}  # type: ignore[operator]
            sgd = again.optimizer.model_copy(update={"lr": again.optimizer.lr / 10})
            of_last = again.model_copy(update={**length, "optimizer": sgd})
        else:
            of_last = _local_of(local, last)
        return {"first_layer": local, "retraining": again, "last_layer": of_last}
    return {}


def rates(scenario: Scenario) -> dict[str, str]:
    """The key of the scenario that sets the learning rate of each of :func:`phases`."""
    federation = scenario.federation
    payload, optimizer = federation.payload, federation.server_optimizer
    if isinstance(payload, schema.DivideAndConquer):
        of_prepass = payload.prepass is not None and payload.prepass.lr is not None
        return {
            "feature_learning": "federation.payload.feature_learning.lr",
            "fine_tuning": "federation.payload.fine_tuning.lr",
            "prepass": "federation.payload.prepass.lr" if of_prepass else LOCAL_RATE,
        }
    assert isinstance(optimizer, schema.FedMa)
    where = "federation.server_optimizer"
    again = LOCAL_RATE if optimizer.retraining is None else f"{where}.retraining.lr"
    last = again if optimizer.last_layer is None else f"{where}.last_layer.lr"
    return {"first_layer": LOCAL_RATE, "retraining": again, "last_layer": last}


def _local_of(
    local: schema.Local, phase: schema.Phase | schema.PrePass | schema.Ftfa
) -> schema.Local:
    """``local`` with the epochs and the rate of a phase."""
    optimizer = local.optimizer
    if phase.lr is not None:
        optimizer = optimizer.model_copy(update={"lr": phase.lr})
    return local.model_copy(update={"epochs": phase.epochs, "steps": None, "optimizer": optimizer})


def recipes(scenario: Scenario) -> dict[str, Recipe]:
    """Those of :func:`phases`, and of FlexCFL's cold start."""
    structure = scenario.federation.structure
    if isinstance(structure, schema.FlexCfl):
        return {COLD_START: recipe(cold_start_local(scenario.local, structure))}
    return {name: recipe(local) for name, local in phases(scenario).items()}


def fine_tuning(scenario: Scenario) -> Recipe | None:
    """How clients make the last model their own."""
    section = scenario.evaluation.personalization
    return None if section is None else recipe(_local_of(scenario.local, section))


def build_payload(
    scenario: Scenario, setting: Setting, sizes: Sizes, cost: Cost, clock: Clock,
    learner: Learner, recorder: Recorder,
) -> Payload:  # fmt: skip
    """What travels, and what is trained of it; ``sizes`` of the whole model's messages."""
    profile, samples, local = setting.profile, setting.samples, scenario.local
    federation, clients = scenario.federation, scenario.task.clients
    by_phase = phases(scenario)
    if not by_phase:
        return Full(sizes, build_work(local, local, samples, profile, cost))

    @cache
    def work_of(recipe: str, layers: tuple[str, ...]) -> WorkOf:
        macs = setting.backward_macs(layers)
        return build_work(local, by_phase[recipe], samples, profile, cost, macs)

    layers, travels = profile.layers, federation.batch_norm == "average"
    model = Model(
        tuple(layer.name for layer in layers),
        tuple(x.size_bytes + travels * x.statistics_bytes for x in layers),
        tuple(layer.parameters for layer in layers),
        work_of,
        rates(scenario),
    )
    section = federation.payload
    if isinstance(section, schema.DivideAndConquer):
        values_up = cost.values_up
        return DivideAndConquer(section, model, values_up, clock, learner, recorder, clients)
    return LayerByLayer(model, setting.units, section.header, clients)
