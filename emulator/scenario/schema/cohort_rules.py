"""What does not go with cohorts, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emulator.scenario.schema.cohorts import Cohorts
from emulator.scenario.schema.federation import (
    Asynchronous,
    Buffered,
    FedDyn,
    FedMa,
    FedSeqInter,
    RandomSelection,
    Scaffold,
    Synchronous,
)
from emulator.scenario.schema.payload import DivideAndConquer, DynamicSplit
from emulator.scenario.schema.structure import RoundSuperclients
from emulator.scenario.schema.superclient_rules import (
    methods_without_chains,
    no_notice_at_deadlines,
)
from emulator.scenario.schema.task import DeclaredData, Natural

if TYPE_CHECKING:
    from emulator.scenario.schema.root import Scenario


def not_with_cohorts(scenario: Scenario) -> list[str]:
    """One text a finding."""
    federation, task = scenario.federation, scenario.task
    structure, pacing = federation.structure, federation.pacing
    if not isinstance(structure, Cohorts):
        return []
    wrong = _methods(scenario)
    if isinstance(pacing, FedSeqInter):
        wrong.append(
            "federation.pacing: 'fedseqinter' with structure 'cohorts': its models walk on for "
            "many chains before they are merged, and cohorts are found from what each client has "
            "done since the last version; say synchronous, with structure.superclients for chains"
        )
    if isinstance(pacing, Asynchronous):
        wrong.append(
            f"federation.pacing: '{pacing.kind}' with structure 'cohorts': cohorts are found from "
            "the updates of one version, which must be several; say synchronous or buffered"
        )
    if structure.superclients is not None:
        wrong.extend(_with_chains(scenario, structure.superclients))
    if isinstance(pacing, Synchronous | Buffered):
        wrong.extend(_shares(structure, pacing, task.clients))
    if isinstance(pacing, Synchronous) and pacing.too_few != "wait" and structure.window == 0:
        wrong.append(
            f"federation.pacing.too_few: '{pacing.too_few}' with structure 'cohorts': clients "
            "check in after the round before has ended, and the next would not see them; say "
            "structure.window: 10 s, or too_few: wait"
        )
    selection = federation.selection
    if isinstance(selection, RandomSelection) and selection.busy == "queue":
        wrong.append(
            "federation.selection.busy: queue with structure 'cohorts': a client serves one cohort "
            "at a time; say busy: exclude"
        )
    if selection.rest:
        wrong.append(
            "federation.selection.rest with structure 'cohorts', whose clients check in by "
            "themselves; say how much later in structure.retry"
        )
    declared = isinstance(task.dataset, DeclaredData)
    if not declared and task.client_test is None and not isinstance(task.partition, Natural):
        wrong.append(
            "federation.structure: 'cohorts' are measured on their clients' own samples; say "
            "task.client_test: 0.2, or take natural data with partition natural"
        )
    if structure.stand_in is not None and task.planted is None:
        wrong.append(
            "federation.structure.stand_in: 'planted' takes the clusters of task.planted, and "
            "there are none; say for instance task.planted: {kind: label_permutation, clusters: 4}"
        )
    if declared and structure.stand_in is None and structure.clustering.max_cohorts > 1:
        wrong.append(
            "federation.structure: 'cohorts' are found from what clients have learned, and dataset "
            "'declared' has nothing to learn from; say stand_in: planted, with task.planted"
        )
    return wrong


def _shares(structure: Cohorts, pacing: Synchronous | Buffered, clients: int) -> list[str]:
    """The budget must be enough for all cohorts that there can be."""
    auxo, wrong = structure.clustering, []
    if isinstance(pacing, Synchronous):
        name, of_a_version = "participants", pacing.wanted(clients)
        least = of_a_version // auxo.max_cohorts
        of_one = f"{of_a_version} // {auxo.max_cohorts} = {least}"
        if structure.superclients is not None:
            least = structure.superclients.chains(max(1, least))
            of_one = f"{least} chain{'s' * (least > 1)}, which are its"
        if pacing.min_updates > max(1, least):
            wrong.append(
                f"federation.pacing.min_updates is {pacing.min_updates}, and each of "
                f"{auxo.max_cohorts} cohorts waits for {of_one} updates: its rounds would all fail"
            )
    else:
        name, of_a_version = "buffer", pacing.buffer
        if pacing.in_flight < auxo.max_cohorts:
            wrong.append(
                f"federation.pacing.in_flight is {pacing.in_flight}, fewer than one for each of "
                f"{auxo.max_cohorts} cohorts (federation.structure.clustering.max_cohorts)"
            )
    if of_a_version < auxo.min_participants and auxo.max_cohorts > 1:
        wrong.append(
            f"federation.structure.clustering.min_participants is {auxo.min_participants}, more "
            f"than the {of_a_version} of a version (federation.pacing.{name}): no version would "
            "ever tell of its clients"
        )
    return wrong


def _methods(scenario: Scenario) -> list[str]:
    federation, wrong = scenario.federation, []
    if isinstance(federation.objective, Scaffold | FedDyn):
        wrong.append(
            f"federation.objective: '{federation.objective.kind}' with structure 'cohorts': what "
            "its clients keep belongs to one model, and they go from cohort to cohort; say plain, "
            "fedprox or fedmax"
        )
    if isinstance(federation.server_optimizer, FedMa):
        wrong.append(
            "federation.server_optimizer: 'fedma' with structure 'cohorts': its rounds take all "
            "clients, each with the units of its own model; say average, fedavgm, fedadagrad, "
            "fedadam, fedyogi or qfedavg"
        )
    payload = federation.payload
    if isinstance(payload, DivideAndConquer) and isinstance(payload.split, DynamicSplit):
        wrong.append(
            "federation.payload.split: 'dynamic' with structure 'cohorts': each cohort would split "
            "its model elsewhere; say fixed, balanced_bytes, largest_jump or threshold"
        )
    return wrong


def _with_chains(scenario: Scenario, section: RoundSuperclients) -> list[str]:
    """Superclients inside cohorts."""
    federation, where = scenario.federation, "federation.structure.superclients"
    pacing, payload = federation.pacing, federation.payload
    wrong = methods_without_chains(federation) + no_notice_at_deadlines(scenario)
    if isinstance(pacing, Buffered):
        wrong.append(
            f"{where}: superclients are formed of those who have checked in when a round begins, "
            "and pacing 'buffered' has no rounds; say synchronous, or leave them out"
        )
    if isinstance(payload, DivideAndConquer) and payload.alternate == "client_phase":
        wrong.append(
            f"federation.payload.alternate: client_phase with {where}: superclients are formed "
            "anew each round, and none would ever come to its second phase; say global_phase"
        )
    if isinstance(payload, DivideAndConquer) and payload.by_value and payload.prepass is not None:
        asked = payload.prepass.participants or scenario.task.clients
        if section.chains(asked) < 2:
            wrong.append(
                f"federation.payload.prepass asks {asked} clients, which {where}.size, "
                f"{section.size}, makes one chain of, and the divergence compares two; ask more "
                "clients, or say a smaller size"
            )
    return wrong
