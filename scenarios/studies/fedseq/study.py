"""FedSeq and FedSeqInter beside FedAvg: in rounds, on the clock, and what makes good superclients.

    python scenarios/studies/fedseq/study.py [--out runs/fedseq] [--only groupings …]

Fashion-MNIST, 100 clients of 100 images, LeNet-5; the files of scenarios/fedseq/ with --set. Parts,
each of which writes ``PART.csv`` beside this file, one row a run:

- ``centralized``: all images at one client, 15 epochs: what 100 % is.
- ``library``: every file of scenarios/fedseq/ as it is, on one class a client and on Dirichlet(0.2)
  and (0.5).
- ``groupings``: 30 rounds of FedSeq for each approximator, grouping and metric.
- ``passes``: E_S ring passes, at the same number of passes over the data.
- ``pretraining``: what pre-training costs 500 phones that come and go, on the clock alone.

Runs that are finished are not run again, and one that was interrupted goes on; runs that train the
same share it through ``--memo``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from analysis.curves import curve
from analysis.result_rows import host_s, rounded, write_rows
from analysis.run_reader import Run, read_run
from analysis.summary import summarize
from emulator.progress import ProgressLine
from emulator.run import Options, run
from emulator.scenario import load_scenario

HERE = Path(__file__).resolve().parent
SCENARIOS = HERE.parents[1] / "fedseq"
SEEDS = (1, 2, 3)
COMPUTE_ONLY = ("system.network={kind: none}", "stop.sim_time=1000 d")
PRETRAINED = "federation.structure.pretraining={epochs: 10, absent: free}"
"""As the paper counts: superclients are there when the first round begins."""
PARTITIONS = {
    "0": "{kind: shards}",
    "0.2": "{kind: dirichlet, alpha: 0.2, min_samples: 10}",
    "0.5": "{kind: dirichlet, alpha: 0.5, min_samples: 10}",
}
Row = dict[str, object]
Floats = NDArray[np.float64]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="FedSeq's studies.")
    parser.add_argument("--out", type=Path, default=Path("runs/fedseq"))
    parser.add_argument("--results", type=Path, default=HERE)
    parser.add_argument("--only", nargs="+", default=tuple(PARTS), choices=tuple(PARTS))
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="a.b=c")
    options = parser.parse_args(arguments)
    for part in options.only:
        rows: list[Row] = []
        for row in PARTS[part](options.out / part, options.overrides):
            rows.append(row)
            write_rows(options.results / f"{part}.csv", rows)


def done(
    out: Path, scenario: str, overrides: Sequence[str], memo: Path | None = None, *,
    timing_only: bool = False,
) -> Run:  # fmt: skip
    """A run of scenarios/fedseq/``scenario``.yaml, finished now or before."""
    loaded, source = load_scenario(SCENARIOS / f"{scenario}.yaml", overrides)
    with ProgressLine(loaded, quiet=False) as progress:
        run(loaded, source, Options(out, memo, timing_only, workers=1), progress)
    return read_run(out)


def centralized(out: Path, overrides: Sequence[str]) -> Iterator[Row]:
    for seed in SEEDS:
        found = done(
            out / str(seed), "fedavg",
            [f"seed={seed}", "task.clients=1", "task.partition={kind: iid}",
             "federation.pacing={kind: synchronous, participants: 1, deadline: none}",
             *COMPUTE_ONLY, "stop.versions=15", "evaluation.every={versions: 1}", *overrides],
        )  # fmt: skip
        yield {"seed": seed, "accuracy": rounded(max(curve(found).value)), "host_s": host_s(found)}


def library(out: Path, overrides: Sequence[str]) -> Iterator[Row]:
    for alpha, partition in PARTITIONS.items():
        pretrained: Path | None = None
        for path in sorted(SCENARIOS.glob("*.yaml")):
            if "cifar" in path.stem:
                continue
            found = done(
                out / f"{path.stem}-{alpha}", path.stem,
                [f"task.partition={partition}", *overrides],
                pretrained if path.stem.startswith("fedseq") else None,
            )  # fmt: skip
            if path.stem.startswith("fedseq"):
                pretrained = pretrained or out / f"{path.stem}-{alpha}"
            summary = summarize(found, (0.6, 0.7))
            to_60_s, to_70_s = summary.time_to_target_s.values()
            yield {
                "scenario": path.stem, "alpha": alpha, "sim_s": round(summary.simulated_s, 1),
                "versions": summary.versions, "accuracy": rounded(summary.final_accuracy),
                "best": rounded(summary.best_accuracy),
                "sim_s_to_60": None if to_60_s is None else round(to_60_s, 1),
                "sim_s_to_70": None if to_70_s is None else round(to_70_s, 1),
                "bytes_down": summary.bytes_down, "bytes_up": summary.bytes_up,
                "wasted_share": rounded(summary.wasted_share), "host_s": host_s(found),
            }  # fmt: skip


def groupings(out: Path, overrides: Sequence[str]) -> Iterator[Row]:
    def greedy(metric: str) -> str:
        return f"{{kind: greedy, metric: {metric}, min_samples: 800, max_clients: 11}}"

    kmeans = "{kind: kmeans, min_samples: 800, max_clients: 11}"
    conf = "{kind: conf}"
    criteria = [("random", "", "", "")]
    criteria += [("kmeans", "conf", "", conf)]
    criteria += [
        ("greedy", "conf", metric, conf) for metric in ("kl", "gini", "cosine", "euclidean")
    ]
    for layers in (1, 2, 3):
        clf = f"{{kind: clf, layers: {layers}}}"
        criteria += [("kmeans", f"clf{layers}", "", clf)]
        criteria += [("greedy", f"clf{layers}", m, clf) for m in ("cosine", "euclidean")]
    memos: dict[str, Path] = {}
    for grouping, approximator, metric, section in criteria:
        structure = ["federation.structure.grouping=" + (greedy(metric) if metric else kmeans)]
        if section:
            structure += [f"federation.structure.approximator={section}", PRETRAINED]
        else:
            structure = [
                "federation.structure.grouping={kind: random, min_samples: 800, max_clients: 11}",
                "federation.structure.approximator=null", "federation.structure.pretraining=null",
            ]  # fmt: skip
        here = out / f"{grouping}-{approximator}-{metric}"
        found = done(
            here, "fedseq",
            [*structure, *COMPUTE_ONLY, "stop.versions=30", "evaluation.every={versions: 2}",
             *overrides],
            memos.get(approximator),
        )  # fmt: skip
        memos.setdefault(approximator, here)
        groups = found.superclients
        assert groups is not None
        values = curve(found).value
        yield {
            "grouping": grouping, "approximator": approximator, "metric": metric,
            "superclients": len(groups["clients"]),
            "balance_ratio": rounded(float(groups["balance_ratio"].mean())),
            "covered_classes": rounded(float(groups["covered_classes"].mean())),
            "intra_distance": rounded(float(groups["intra_distance"].mean())),
            "inter_distance": rounded(float(groups["inter_distance"].mean())),
            "accuracy_mean_of_last_5": rounded(float(np.mean(values[-5:]))),
            "best": rounded(float(max(values))), "host_s": host_s(found),
        }  # fmt: skip


def passes(out: Path, overrides: Sequence[str]) -> Iterator[Row]:
    for ring_passes in (1, 2, 4):
        found = done(
            out / str(ring_passes), "fedseq",
            [f"federation.structure.passes={ring_passes}", PRETRAINED, *COMPUTE_ONLY,
             f"stop.versions={80 // ring_passes}", "evaluation.every={versions: 1}", *overrides],
        )  # fmt: skip
        values = curve(found).value
        server = found.versions["bytes_up"].sum() + found.versions["bytes_down"].sum()
        yield {
            "passes": ring_passes, "rounds": 80 // ring_passes,
            "accuracy_mean_of_last_5": rounded(float(np.mean(values[-5:]))),
            "best": rounded(float(max(values))), "server_bytes": int(server),
            "host_s": host_s(found),
        }  # fmt: skip


def pretraining(out: Path, overrides: Sequence[str]) -> Iterator[Row]:
    """The clock only: what superclients come of it does not matter here."""
    phones = [
        "task.clients=500", "task.dataset={kind: fashion_mnist, train_samples: 50000}",
        "system.availability={kind: phones, duty: 0.25}", "federation.structure.stand_in=random",
        "stop={sim_time: 30 d, versions: 1}", "evaluation.every={versions: 1}",
        "system.drop_notice=at_once",
        "federation.structure.grouping={kind: kmeans, min_samples: 800}",
    ]  # fmt: skip
    waits = {"wait_all": "{absent: wait_all}", "12 h": "{absent: deadline, deadline: 12 h}"}
    for approximator in ("clf", "conf"):
        for on_offline in ("drop", "pause"):
            for until, section in waits.items():
                found = done(
                    out / f"{approximator}-{on_offline}-{until.replace(' ', '')}", "fedseq",
                    [f"federation.structure.approximator={{kind: {approximator}}}",
                     f"federation.structure.pretraining={section}",
                     f"system.on_offline={on_offline}", *phones, *overrides],
                    timing_only=True,
                )  # fmt: skip
                yield {
                    "approximator": approximator, "on_offline": on_offline, "until": until,
                    **cost_of_pretraining(found),
                }  # fmt: skip


def cost_of_pretraining(found: Run) -> Row:
    """Of the whole phase; ``sim_h`` is empty where it never ended, for want of some phones."""
    updates, clients = found.updates, found.clients
    mine = updates["phase"] == "pretraining"
    reported = mine & (updates["outcome"] == "reported")
    arrived_s = np.sort(updates["uploaded_s"][reported])
    begun = found.chains["dispatched_s"]
    return {
        "reported": int(reported.sum()), "not_reported": int((mine & ~reported).sum()),
        "half_after_h": rounded(float(np.median(arrived_s)) / 3600),
        "nine_tenths_after_h": hours_until(arrived_s, 0.9 * len(clients["client"])),
        "sim_h": rounded(float(begun.min()) / 3600) if begun.size else None,
        "device_h": rounded(float(clients["busy_s"].sum()) / 3600),
        "bytes_down": int(updates["bytes_down"][mine].sum()),
        "bytes_up": int(updates["bytes_up"][mine].sum()), "host_s": host_s(found),
    }  # fmt: skip


def hours_until(arrived_s: Floats, clients: float) -> float | None:
    """When so many clients have reported."""
    return rounded(arrived_s[int(clients) - 1] / 3600) if len(arrived_s) >= clients else None


PARTS = {
    "centralized": centralized,
    "library": library,
    "groupings": groupings,
    "passes": passes,
    "pretraining": pretraining,
}


if __name__ == "__main__":
    main()
