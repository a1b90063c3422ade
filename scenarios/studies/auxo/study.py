"""Auxo over FedYogi beside FedYogi alone: are the planted clusters found, and does it pay?

    python scenarios/studies/auxo/study.py [--out runs/auxo] [--only comparison …] [--seeds 1 2 3]

The files of scenarios/auxo/ with --set, on phones that come and go. Parts, each of which writes
``PART.csv`` beside this file, one row a run:

- ``comparison``: clusters by rotation, by label permutation and none at all; with and without Auxo.
- ``ablations``: Auxo that splits early or late, begins to cluster late, or ends with two or eight
  cohorts, on rotation.
- ``baselines``: IFCA, CFL, FL+HC and FlexCFL, as ``comparison``; and how long it took until clients
  were told apart, and what an update that counts has cost.
- ``failures``: both on rotation for 12 hours, with local differential privacy (a linear model),
  corrupted clients, lost records, and servers that fail.

Runs that are finished are not run again, and one that was interrupted goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.cohort_series import Points, metric
from analysis.result_rows import host_s, rounded, write_rows
from analysis.run_reader import Run, read_run
from analysis.spending import device_time_s, versions_made
from emulator.progress import ProgressLine
from emulator.run import Options, run
from emulator.scenario import load_scenario

HERE = Path(__file__).resolve().parent
SCENARIOS = HERE.parents[1] / "auxo"
SEEDS = (1, 2, 3)
METHODS = ("fedyogi", "fedyogi_auxo")

CLUSTERING = "federation.structure.clustering"
ABLATIONS = {
    "splits from version 10": [f"{CLUSTERING}.partition.min_rounds=10"],
    "splits from version 80": [f"{CLUSTERING}.partition.min_rounds=80"],
    "clusters from version 10": [f"{CLUSTERING}.start_round=10"],
    "clusters from version 40": [f"{CLUSTERING}.start_round=40"],
    "two cohorts at most": [f"{CLUSTERING}.max_cohorts=2"],
    "eight cohorts, made to": [f"{CLUSTERING}.partition={{at: [25, 35, 60]}}"],
}

BASELINES = ("fedyogi_ifca", "fedyogi_cfl", "fedyogi_fl_hc", "fedyogi_flexcfl")
FAULTS = "federation.faults"
LINEAR = "task.model={kind: logistic}"


def _private(sigma: float) -> list[str]:
    return [LINEAR, f"{FAULTS}.local_dp={{kind: gaussian, clip: 0.5, sigma: {sigma}}}"]


# What goes wrong, and whether it does to FedYogi alone as well.
FAILURES: dict[str, tuple[list[str], bool]] = {
    "none": ([], True),
    "none, linear model": ([LINEAR], True),
    **{f"privacy, sigma {sigma}": (_private(sigma), True) for sigma in (0.6, 0.77, 1.0)},
    **{
        f"corrupted clients, {share:.0%}": (
            [f"{FAULTS}.label_flips={{kind: random_class, share: {share}}}"], True
        )
        for share in (0.05, 0.1, 0.15)
    },
    **{
        f"lost records, {share:.0%}": (
            [f"{FAULTS}.lost_records={{kind: at_check_in, probability: {share}}}"], False
        )
        for share in (0.1, 0.2)
    },
    **{
        f"clients without records, {share:.0%}": (
            [f"{FAULTS}.lost_records={{kind: at_check_in, probability: 1, share: {share}}}"], False
        )
        for share in (0.1, 0.2)
    },
    "failing cohorts": (
        [f"{FAULTS}.cohort_failures={{kind: exponential, mean: 1 h, restart: 5 min}}"], False
    ),
    "failing coordinator": (
        [f"{FAULTS}.coordinator_failures={{kind: exponential, mean: 2 h, restart: 30 min}}"], False
    ),
}  # fmt: skip

Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Kind:
    """What tells the clients apart, the accuracy on members that is waited for, and whether a split
    can pay: Auxo that stays in one cohort is FedYogi, which need not be run again."""

    planted: str
    target: float
    pays: bool = True


KINDS = {
    "rotation": Kind("{kind: rotation, clusters: 4}", 0.75),
    "label_permutation": Kind("{kind: label_permutation, clusters: 4}", 0.5),
    "none": Kind("null", 0.75, pays=False),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Auxo's studies.")
    parser.add_argument("--out", type=Path, default=Path("runs/auxo"))
    parser.add_argument("--results", type=Path, default=HERE)
    parser.add_argument("--only", nargs="+", default=tuple(PARTS), choices=tuple(PARTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="a.b=c")
    options = parser.parse_args(arguments)
    for part in options.only:
        rows: list[Row] = []
        for row in PARTS[part](options.out / part, options.seeds, options.overrides):
            rows.append(row)
            write_rows(options.results / f"{part}.csv", rows)


def done(out: Path, scenario: str, overrides: Sequence[str]) -> Run:
    """A run of scenarios/auxo/``scenario``.yaml, finished now or before."""
    loaded, source = load_scenario(SCENARIOS / f"{scenario}.yaml", overrides)
    with ProgressLine(loaded, quiet=False) as progress:
        run(loaded, source, Options(out, workers=1), progress)
    return read_run(out)


def comparison(out: Path, seeds: Sequence[int], overrides: Sequence[str]) -> Iterator[Row]:
    """Beside the target of its kind, each run is measured by the level that FedYogi comes to with
    the same seed: its mean over the last five evaluations, which nobody has picked for being high.
    """
    lines = [(name, seed) for seed in seeds for name, kind in KINDS.items() if kind.pays]
    lines += [(name, seed) for name, kind in KINDS.items() if not kind.pays for seed in seeds]
    for name, seed in lines:
        kind, level = KINDS[name], None
        for method in METHODS if kind.pays else METHODS[-1:]:
            sets = [f"seed={seed}", f"task.planted={kind.planted}", *overrides]
            found = done(out / f"{name}-{seed}-{method}", method, sets)
            if level is None:
                level = float(on_members(found).value[-5:].mean())
            yield {
                "heterogeneity": name, "seed": seed, "method": method,
                **measured(found), **until(found, kind.target, "target"),
                **until(found, level, "level"), **cost(found), "host_s": host_s(found),
                "command": command(method, sets),
            }  # fmt: skip


def ablations(out: Path, seeds: Sequence[int], overrides: Sequence[str]) -> Iterator[Row]:
    for seed in seeds[:1]:
        for number, (name, chosen) in enumerate(ABLATIONS.items()):
            sets = [f"seed={seed}", *chosen, *overrides]
            found = done(out / f"{number}-{seed}", METHODS[-1], sets)
            yield on_rotation(found, {"auxo": name, "seed": seed}, METHODS[-1], sets)


def baselines(out: Path, seeds: Sequence[int], overrides: Sequence[str]) -> Iterator[Row]:
    for seed in seeds:
        for name, kind in KINDS.items():
            for method in BASELINES if kind.pays else ():
                sets = [f"seed={seed}", f"task.planted={kind.planted}", *overrides]
                found = done(out / f"{name}-{seed}-{method}", method, sets)
                yield {
                    "heterogeneity": name, "seed": seed, "method": method, **measured(found),
                    **until(found, kind.target, "target"), **cost(found),
                    "host_s": host_s(found), "command": command(method, sets),
                }  # fmt: skip


def failures(out: Path, seeds: Sequence[int], overrides: Sequence[str]) -> Iterator[Row]:
    for seed in seeds:
        for number, (name, (chosen, of_both)) in enumerate(FAILURES.items()):
            for method in METHODS if of_both else METHODS[-1:]:
                sets = [f"seed={seed}", "stop.sim_time=12 h", *chosen, *overrides]
                found = done(out / f"{number}-{seed}-{method}", method, sets)
                which: Row = {"fault": name, "method": method, "seed": seed}
                yield on_rotation(found, which, method, sets)


def cost(found: Run) -> Row:
    """When clients were told apart first (IFCA: from the start), and what all that was sent and
    computed comes to, for each update that a version has taken."""
    assert found.cohorts is not None
    born_h = found.cohorts["born_s"][found.cohorts["parent"] != ""] / 3600
    several = int((found.cohorts["parent"] == "").sum()) > 1
    delay_h = 0.0 if several else float(born_h.min()) if born_h.size else None
    taken = float(found.versions["updates"].sum())
    busy_s, size_bytes = found.clients["busy_s"].sum(), found.clients["bytes"].sum()
    return {
        "told_apart_h": None if delay_h is None else rounded(delay_h), "updates": int(taken),
        "device_s_per_update": rounded(float(busy_s) / taken),
        "bytes_per_update": round(float(size_bytes) / taken),
    }  # fmt: skip


def on_rotation(found: Run, which: Row, scenario: str, overrides: Sequence[str]) -> Row:
    return {
        **which, **measured(found), **until(found, KINDS["rotation"].target, "target"),
        "host_s": host_s(found), "command": command(scenario, overrides),
    }  # fmt: skip


def command(scenario: str, overrides: Sequence[str]) -> str:
    return " ".join([f"fedclock run scenarios/auxo/{scenario}.yaml",
                     *(f"--set '{override}'" for override in overrides)])  # fmt: skip


def on_members(found: Run) -> Points:
    """Accuracy on the clients that their cohort knows, over simulated time."""
    return metric(found, "global", "members", "accuracy")


def measured(found: Run) -> Row:
    """Where the run ends. ``ever_online_accuracy`` is of all clients that were online at all, by
    the model that serves them; the adjusted Rand index, of those that reported three times."""
    clients, leaves = found.clients, 1
    online = clients["online_s"] > 0
    if found.cohorts is not None:
        leaves = int(np.isnan(found.cohorts["split_s"]).sum())
    index = metric(found, "global", "members", "adjusted_rand_index")
    often = int((clients["reported"] >= 3).sum())
    fairness = {name: last(metric(found, "global", "client", f"accuracy_{name}"))
                for name in ("worst_tenth", "best_tenth", "variance")}  # fmt: skip
    return {
        "cohorts": leaves, "versions": int(found.versions["version"].size),
        "members_accuracy": last(on_members(found)),
        "accuracy": last(metric(found, "global", "test", "accuracy")),
        "ever_online_accuracy": rounded(float(np.nanmean(clients["accuracy"][online]))),
        **fairness, "adjusted_rand_index": last(index), "reported_3_times": often,
        "of_ever_online": rounded(often / float(online.sum())),
        "online_share": rounded(float(clients["online_s"].mean() / found.simulated_s)),
        "device_h": rounded(float(clients["busy_s"].sum()) / 3600),
        "bytes": int(clients["bytes"].sum()),
    }  # fmt: skip


def last(points: Points) -> float | None:
    return rounded(float(points.value[-1])) if points.value.size else None


def until(found: Run, target: float, name: str) -> Row:
    """What it took until the accuracy on members was ``target``; empty where it never was."""
    points = on_members(found)
    there = np.flatnonzero(points.value >= target)
    columns = {"": rounded(target), "_sim_h": None, "_versions": None, "_bytes": None,
               "_device_h": None}  # fmt: skip
    if there.size:
        reached_s = float(points.time_s[there[0]])
        versions, at_s = found.versions, np.array([reached_s])
        by_then = versions["sim_time_s"] <= reached_s
        columns |= {
            "_sim_h": rounded(reached_s / 3600),
            "_versions": int(versions_made(found, at_s)[0]),
            "_bytes": int((versions["bytes_down"] + versions["bytes_up"])[by_then].sum()),
            "_device_h": rounded(float(device_time_s(found, at_s)[0]) / 3600),
        }
    return {f"{name}{column}": value for column, value in columns.items()}


PARTS = {
    "comparison": comparison, "ablations": ablations,
    "baselines": baselines, "failures": failures,
}  # fmt: skip


if __name__ == "__main__":
    main()
