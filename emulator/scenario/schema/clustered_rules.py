"""What does not go with the baselines of clustered federated learning, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emulator.scenario.schema.clustered import Cfl, Clustered, FlexCfl, Ifca
from emulator.scenario.schema.federation import (
    FedDyn,
    FedMa,
    Scaffold,
    Synchronous,
)
from emulator.scenario.schema.payload import FullPayload
from emulator.scenario.schema.task import DeclaredData, Natural

if TYPE_CHECKING:
    from emulator.scenario.schema.root import Scenario


def not_with_clustered(scenario: Scenario) -> list[str]:
    """One text a finding."""
    federation, task = scenario.federation, scenario.task
    structure, wrong = federation.structure, list[str]()
    if not isinstance(structure, Clustered):
        return []
    kind = structure.kind
    if not isinstance(federation.pacing, Synchronous):
        wrong.append(
            f"federation.pacing: '{federation.pacing.kind}' with structure '{kind}': its clusters "
            "have rounds, one for all; say synchronous"
        )
    if isinstance(federation.objective, Scaffold | FedDyn):
        wrong.append(
            f"federation.objective: '{federation.objective.kind}' with structure '{kind}': what "
            "its clients keep belongs to one model, and there are several; say plain, fedprox or "
            "fedmax"
        )
    if isinstance(federation.server_optimizer, FedMa):
        wrong.append(
            f"federation.server_optimizer: 'fedma' with structure '{kind}': its rounds take all "
            "clients, each with the units of its own model; say average, fedavgm, fedadagrad, "
            "fedadam, fedyogi or qfedavg"
        )
    if federation.batch_norm == "local":
        wrong.append(
            f"federation.batch_norm: 'local' with structure '{kind}': a client's own statistics "
            "belong to one model, and there are several; say average or freeze"
        )
    if not isinstance(federation.payload, FullPayload):
        wrong.append(
            f"federation.payload: '{federation.payload.kind}' with structure '{kind}': it sends "
            "whole models, by which clients are told apart; say full"
        )
    if isinstance(task.dataset, DeclaredData):
        wrong.append(
            f"federation.structure: '{kind}' goes by what clients have learned, and dataset "
            "'declared' has nothing to learn from; take another data set"
        )
    elif task.client_test is None and not isinstance(task.partition, Natural):
        wrong.append(
            f"federation.structure: '{kind}' is measured on its clients' own samples; say "
            "task.client_test: 0.2, or take natural data with partition natural"
        )
    if isinstance(structure, Ifca) and task.pretrained is not None:
        wrong.append(
            "federation.structure: 'ifca' begins with models that differ, and task.pretrained "
            "makes them alike; leave task.pretrained out"
        )
    if not isinstance(structure, Ifca):
        if structure.deadline is None and scenario.system.drop_notice == "at_deadline":
            wrong.append(
                f"federation.structure.deadline: none for '{kind}' with system.drop_notice: "
                "at_deadline: its pass over clients would wait for a lost one for ever; say "
                "deadline: 24 h"
            )
        name = "max_clusters" if isinstance(structure, Cfl) else "clusters"
        clusters = structure.max_clusters if isinstance(structure, Cfl) else structure.clusters
        if clusters is not None and clusters > task.clients:
            wrong.append(
                f"federation.structure.{name} is {clusters}, more than the {task.clients} clients "
                f"of which clusters are made; say 2 to {task.clients}"
            )
    if isinstance(structure, FlexCfl):
        first = structure.clients
        if first is not None and not structure.clusters <= first <= task.clients:
            wrong.append(
                f"federation.structure.clients is {first}; of {task.clients} clients as many must "
                f"make {structure.clusters} groups: say {structure.clusters} to {task.clients}"
            )
    return wrong
