"""What does not go with faults on purpose, or with local differential privacy, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emulator.scenario.schema.clustered import FlexCfl, Ifca
from emulator.scenario.schema.cohorts import Cohorts
from emulator.scenario.schema.faults import ExponentialFailures
from emulator.scenario.schema.federation import FedDyn, Federation, FedMa, QFedAvg, Scaffold
from emulator.scenario.schema.structure import Superclients

if TYPE_CHECKING:
    from emulator.scenario.schema.root import Scenario

MOST_FAILURES = 1_000_000


def not_with_faults(scenario: Scenario) -> list[str]:
    """One text a finding."""
    federation = scenario.federation
    return [*_of_cohorts(federation), *_too_many(scenario), *_not_private(federation)]


def _of_cohorts(federation: Federation) -> list[str]:
    """What only cohorts can have."""
    faults, structure, where = federation.faults, federation.structure, "federation.faults"
    flips = faults.label_flips
    lies = flips is not None and flips.claims == "wrong"
    if isinstance(structure, Cohorts):
        if faults.lost_records is not None and structure.clustering.variant == "code":
            return [
                f"{where}.lost_records: 'at_check_in' with variant 'code' of clustering "
                f"'{structure.clustering.kind}': there the server keeps the records, and clients "
                "have none to lose; say variant: paper"
            ]
        return []
    only = f"with structure '{structure.kind}'"
    wrong = []
    if lies:
        wrong.append(
            f"{where}.label_flips.claims: 'wrong' {only}: only in cohorts do clients say on which "
            "side they are; say claims: honest"
        )
    if faults.lost_records is not None:
        wrong.append(
            f"{where}.lost_records: 'at_check_in' {only}: only clients of cohorts keep records; "
            "leave it out, or say structure: {kind: cohorts, …}"
        )
    for name, failures in (
        ("cohort_failures", faults.cohort_failures),
        ("coordinator_failures", faults.coordinator_failures),
    ):
        if failures is not None:
            wrong.append(
                f"{where}.{name}: '{failures.kind}' {only}: there is one server and no "
                "coordinator; leave it out, or say structure: {kind: cohorts, …}"
            )
    return wrong


def _too_many(scenario: Scenario) -> list[str]:
    faults, wrong = scenario.federation.faults, []
    for name, failures in (
        ("cohort_failures", faults.cohort_failures),
        ("coordinator_failures", faults.coordinator_failures),
    ):
        if isinstance(failures, ExponentialFailures):
            n = scenario.stop.sim_time / (failures.mean + failures.restart)
            if n > MOST_FAILURES:
                wrong.append(
                    f"federation.faults.{name}.mean: every {failures.mean} s makes some {n:.1e} "
                    f"failures until stop.sim_time, {scenario.stop.sim_time} s, and at most "
                    f"{MOST_FAILURES} are allowed; take a longer mean"
                )
    return wrong


def _not_private(federation: Federation) -> list[str]:
    """What would send more than the update that is clipped and noised."""
    if federation.faults.local_dp is None:
        return []
    wrong, dp = [], "federation.faults.local_dp: 'gaussian'"
    structure, objective = federation.structure, federation.objective
    if isinstance(objective, Scaffold):
        wrong.append(
            f"{dp} with objective 'scaffold': its control variates are a second message about the "
            "same data, of no bounded size; say plain, fedprox, feddyn or fedmax"
        )
    if isinstance(federation.server_optimizer, QFedAvg):
        wrong.append(
            f"{dp} with server_optimizer 'qfedavg': it takes the client's loss beside the update, "
            "and a loss has no bound to clip it to; say average, fedavgm, fedadagrad, fedadam or "
            "fedyogi"
        )
    if isinstance(federation.server_optimizer, FedMa):
        wrong.append(
            f"{dp} with server_optimizer 'fedma': its clients send whole layers and how many "
            "samples of each class they hold; say average, fedavgm, fedadagrad, fedadam or fedyogi"
        )
    if federation.batch_norm == "average":
        wrong.append(
            f"{dp} with batch_norm 'average': the running statistics would travel as they are; say "
            "batch_norm: local or freeze"
        )
    if isinstance(structure, Ifca):
        wrong.append(
            f"{dp} with structure 'ifca': its clients tell the server which model fits their data "
            "best, and that is no update which could be noised; say cfl, fl_hc, flexcfl or cohorts"
        )
    if isinstance(structure, FlexCfl) and federation.faults.local_dp.reports is not None:
        wrong.append(
            f"{dp} with reports in structure 'flexcfl': the first task of a newcomer sends two "
            "updates, and is counted as one report; say sigma"
        )
    if isinstance(structure, Cohorts) and structure.superclients is not None:
        wrong.append(
            f"{dp} with superclients in structure 'cohorts': the server sees what each member has "
            "made of the model, and only what leaves the superclient is noised; leave superclients "
            "out"
        )
    if isinstance(structure, Superclients):
        if structure.hop == "relay":
            wrong.append(
                f"{dp} with hop 'relay' of structure 'superclients': the server would see what "
                "each member has made of the model, and only what leaves the superclient is "
                "noised; say hop: p2p"
            )
        if structure.pretraining is not None:
            wrong.append(
                f"{dp} with grouping '{structure.grouping.kind}' by pre-training: what clients "
                "send of it is no update that could be clipped; say grouping: {kind: random, …}, "
                "without pretraining"
            )
        if isinstance(objective, FedDyn):
            wrong.append(
                f"{dp} with objective 'feddyn' in structure 'superclients': the server's h must "
                "stay the mean of what the members keep, and they do not see what is noised; say "
                "plain, fedprox or fedmax"
            )
    return wrong
