"""What does not go with superclients, or with FedSeqInter's walkers, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emulator.scenario.schema.cohorts import Cohorts
from emulator.scenario.schema.federation import (
    AllSelection,
    Asynchronous,
    Average,
    FedDyn,
    Federation,
    FedSeqInter,
    QFedAvg,
    RandomSelection,
    Scaffold,
)
from emulator.scenario.schema.structure import Conf, RandomGrouping, Superclients
from emulator.scenario.schema.system import TopologyNetwork
from emulator.scenario.schema.task import DeclaredData

if TYPE_CHECKING:
    from emulator.scenario.schema.root import Scenario


def not_with_superclients(scenario: Scenario) -> list[str]:
    """One text a finding."""
    federation = scenario.federation
    structure, pacing = federation.structure, federation.pacing
    if not isinstance(structure, Superclients):
        return _superclients_only(scenario)
    wrong = methods_without_chains(federation)
    if isinstance(pacing, FedSeqInter):
        wrong.extend(_not_with_walkers(federation))
    wrong.extend(no_notice_at_deadlines(scenario))
    if structure.hop == "p2p" and isinstance(scenario.system.network, TopologyNetwork):
        wrong.append(
            "federation.structure.hop: p2p with network 'topology': the way from client to client "
            "is by their own links only; say hop: relay, or clients' links without a topology"
        )
    declared = isinstance(scenario.task.dataset, DeclaredData)
    grouped = not isinstance(structure.grouping, RandomGrouping)
    if grouped and declared and structure.stand_in is None:
        wrong.append(
            f"federation.structure.grouping: '{structure.grouping.kind}' goes by what clients have "
            "learned, and dataset 'declared' has nothing to learn from; say stand_in: random, or "
            "grouping: {kind: random}"
        )
    if isinstance(structure.approximator, Conf) and not (declared or scenario.task.exemplars):
        wrong.append(
            "federation.structure.approximator: 'conf' needs exemplars, held out of the test set "
            "for every method that is compared; say task.exemplars: 10 (of each class)"
        )
    return wrong


def _superclients_only(scenario: Scenario) -> list[str]:
    """What nothing but superclients can have."""
    federation, wrong = scenario.federation, list[str]()
    # Cohorts refuse it with a reason of their own.
    walks = isinstance(federation.pacing, FedSeqInter)
    if walks and not isinstance(federation.structure, Cohorts):
        wrong.append(
            "federation.pacing: 'fedseqinter' sends models from superclient to superclient; say "
            "structure: {kind: superclients, …}"
        )
    if isinstance(federation.objective, FedDyn) and federation.objective.normaliser != "clients":
        wrong.append(
            "federation.objective.normaliser: 'superclients' goes with structure 'superclients'"
        )
    return wrong


def no_notice_at_deadlines(scenario: Scenario) -> list[str]:
    """A chain waits for each of its members."""
    if scenario.system.drop_notice != "at_deadline":
        return []
    return [
        "system.drop_notice: at_deadline with structure 'superclients': a chain goes on only "
        "once the server knows that a member is lost; say at_once or timeout"
    ]


def methods_without_chains(federation: Federation) -> list[str]:
    """What does not go with clients that train one after the other."""
    wrong = []
    if isinstance(federation.objective, Scaffold):
        wrong.append(
            "federation.objective: 'scaffold' with structure 'superclients': its control variates "
            "correct a training that begins at the server's model, and a member's begins at what "
            "the one before has made of it; say plain, fedprox or feddyn"
        )
    if isinstance(federation.server_optimizer, QFedAvg):
        wrong.append(
            "federation.server_optimizer: 'qfedavg' with structure 'superclients': it weighs a "
            "client by its loss at the server's model, which only the first member ever sees; say "
            "average, fedavgm, fedadagrad, fedadam or fedyogi"
        )
    if federation.batch_norm == "local":
        wrong.append(
            "federation.batch_norm: 'local' with structure 'superclients': the running statistics "
            "of a model that goes from client to client go with it; say average or freeze"
        )
    if isinstance(federation.pacing, Asynchronous):
        wrong.append(
            "federation.pacing: 'asynchronous' with structure 'superclients'; say {kind: buffered, "
            "buffer: 1}, or fedseqinter with mode: merge, which mixes whole models"
        )
    if isinstance(federation.selection, RandomSelection) and federation.selection.busy == "queue":
        wrong.append(
            "federation.selection.busy: queue with structure 'superclients': a superclient has one "
            "chain at a time; say busy: exclude"
        )
    if federation.selection.rest:
        wrong.append(
            "federation.selection.rest with structure 'superclients', where superclients are "
            "selected and a chain waits for its next client; leave rest out"
        )
    return wrong


def _not_with_walkers(federation: Federation) -> list[str]:
    pacing, wrong = federation.pacing, list[str]()
    assert isinstance(pacing, FedSeqInter)
    if isinstance(federation.selection, AllSelection):
        wrong.append(
            "federation.selection: 'all' with pacing 'fedseqinter': a walker goes to one "
            "superclient at a time; say random"
        )
    if pacing.mode != "merge":
        return wrong
    if federation.server_optimizer != Average(kind="average"):
        wrong.append(
            f"federation.server_optimizer: '{federation.server_optimizer.kind}' has no place in "
            "mode: merge, whose step is w ← (1 − mixing·s(τ)) w + mixing·s(τ) w_i; set mixing and "
            "leave server_optimizer out, or take another mode"
        )
    if isinstance(federation.objective, FedDyn):
        wrong.append(
            "federation.objective: 'feddyn' has a server step of its own, and mode: merge another; "
            "say plain or fedprox, or another mode"
        )
    return wrong
