"""Accuracy and participation bias against system heterogeneity (Auxo's figure 2b).

    python scenarios/studies/system_heterogeneity/study.py [--out runs/system_heterogeneity]

Runs ``scenarios/auxo/system_heterogeneity.yaml`` with device speeds of more and more spread: a
client's time is lognormal with median 40 s and log-sd sigma, drawn once, times a noise of log-sd
0.3 for each task. Rounds last 60 s, and as many clients are asked as make 20 of them (10 of the
small population) ready by then in the mean, so that duration and number of successful participants
are the same for every sigma. Who is slow reports seldom or never. Seeds have the same clients, data
and order of speeds at every sigma, so that what changes is read off clients that are the same.

Writes ``results.csv`` (one row a sigma and seed) and ``bias.png`` beside this file, or where
``--results`` says. Runs that are finished are not run again, one that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator, PercentFormatter
from numpy.typing import NDArray
from scipy.stats import norm

from analysis.client_plots import lorenz
from analysis.curves import curve
from analysis.plots import PALETTE, style_axes
from analysis.run_reader import Run, finite_number, read_run
from emulator.assembly import Draws
from emulator.progress import ProgressLine
from emulator.run import Options, run
from emulator.scenario import load_scenario

HERE = Path(__file__).resolve().parent
SCENARIO = HERE.parents[1] / "auxo" / "system_heterogeneity.yaml"
SIGMAS = (0.0, 0.5, 1.0, 1.5, 2.0)
MEDIAN_S, NOISE, DEADLINE_S = 40.0, 0.3, 60.0
POPULATIONS = {
    200: [],
    50: ["task.clients=50", "task.dataset.train_samples=3000", "task.partition.alpha=0.05"],
}
"""By the number of clients, which have 60 samples each; 10 % or 20 % take part in a version."""
PARTICIPANTS = {200: 20, 50: 10}
LAST = 5
"""The accuracy is the mean of so many evaluations, ten versions from one to the next."""

Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Accuracy and bias against device spread.")
    parser.add_argument("--out", type=Path, default=Path("runs/system_heterogeneity"))
    parser.add_argument("--results", type=Path, default=HERE, help="folder of table and figure")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="a.b=c")
    options = parser.parse_args(arguments)
    rows = []
    for clients, sigma, seed in product(POPULATIONS, SIGMAS, options.seeds):
        overrides = [*POPULATIONS[clients], *spread(sigma, clients), *options.overrides]
        scenario, source = load_scenario(SCENARIO, overrides, seed)
        out = options.out / f"{clients}-sigma{sigma}-seed{seed}"
        with ProgressLine(scenario, quiet=True) as progress:
            run(scenario, source, Options(out), progress)
        speed = Draws(seed, scenario.task.clients)("device speed", 0)
        row = {"clients": clients, "sigma": sigma, "seed": seed, "asked": asked(sigma, clients)}
        rows.append(row | measured(read_run(out), speed))
        print(rows[-1], flush=True)
    write(options.results / "results.csv", rows)
    figure(rows).savefig(options.results / "bias.png", dpi=160)


def asked(sigma: float, clients: int) -> int:
    """So many that the mean number of those who are ready in time is that of PARTICIPANTS."""
    in_time = norm.cdf(math.log(DEADLINE_S / MEDIAN_S) / math.hypot(sigma, NOISE))
    return round(PARTICIPANTS[clients] / float(in_time))


def spread(sigma: float, clients: int) -> list[str]:
    training = f"{{dist: lognormal, median: {MEDIAN_S}, sigma: {sigma}}}"
    if sigma == 0:
        training = str(MEDIAN_S)
    return [f"system.devices.training={training}",
            f"federation.pacing.participants={asked(sigma, clients)}"]  # fmt: skip


def measured(done: Run, speed: NDArray[np.float64]) -> Row:
    """What one run has come to; ``speed`` [clients] puts the clients in order, the fastest first.

    ``gini`` of how often each client has reported: 0 where all have alike, near 1 where few have.
    """
    reported = done.clients["reported"]
    order = np.argsort(speed, kind="stable")
    own = done.clients["accuracy"]
    quarter = len(order) // 4
    return {
        "round_s": round(float(done.versions["round_duration_s"].mean()), 2),
        "participants": round(float(done.versions["updates"].mean()), 2),
        "accuracy": round(float(curve(done).value[-LAST:].mean()), 4),
        "client_accuracy_mean": round(float(np.nanmean(own)), 4),
        "gini": round(lorenz(reported)[1], 4),
        "never_reported": round(float((reported == 0).mean()), 4),
        "accuracy_fastest_quarter": round(float(np.nanmean(own[order[:quarter]])), 4),
        "accuracy_slowest_quarter": round(float(np.nanmean(own[order[-quarter:]])), 4),
        "host_s": round(finite_number(done.manifest["host"]["total_s"]) or 0.0, 1),
    }


def write(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


PANELS = {
    "accuracy_change": {
        "accuracy": "test set", "accuracy_fastest_quarter": "fastest quarter, own samples",
        "accuracy_slowest_quarter": "slowest quarter, own samples",
    },
    "participation": {"gini": "Gini of reports", "never_reported": "share that never reported"},
}  # fmt: skip


def figure(rows: Sequence[Row]) -> Figure:
    """What the spread of devices changes against devices that are alike, and how unequal
    participation is: a point a seed, a line through the means."""
    drawn = Figure(figsize=(8.4, 5.6), layout="constrained")
    grid = drawn.subplots(len(POPULATIONS), 2, sharex=True, sharey="col")
    alike = {(row["clients"], row["seed"]): row for row in rows if row["sigma"] == 0}
    for across, clients in zip(grid, POPULATIONS, strict=True):
        own = [row for row in rows if row["clients"] == clients]
        for axes, (title, lines) in zip(across, PANELS.items(), strict=True):
            less = title == "accuracy_change"
            for color, (column, label) in zip(PALETTE, lines.items(), strict=False):
                points = [(row["sigma"], row[column] - less * alike[clients, row["seed"]][column])
                          for row in own]  # fmt: skip
                axes.plot(*zip(*points, strict=True), "o", color=color, markersize=3, alpha=0.5)
                means = [np.mean([y for x, y in points if x == sigma]) for sigma in SIGMAS]
                axes.plot(SIGMAS, means, color=color, linewidth=1.4, label=label)
            axes.set_title(
                f"{clients} clients: " + ("accuracy less that at 0" if less else "participation"),
                fontsize=10,
            )
            axes.yaxis.set_major_locator(MultipleLocator(0.04 if less else 0.1))
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
            style_axes(axes)
    for axes in grid[-1]:
        axes.set_xlabel("log-sd of the devices' times")
    for axes in grid[0]:
        axes.legend(frameon=False, fontsize=8)
    return drawn


if __name__ == "__main__":
    main()
