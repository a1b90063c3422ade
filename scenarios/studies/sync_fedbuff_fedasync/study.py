"""Time to accuracy on phones: synchronous rounds, FedBuff and FedAsync.

    python scenarios/studies/sync_fedbuff_fedasync/study.py [--out runs/sync_fedbuff_fedasync]

Runs three scenarios of ``scenarios/pacing`` with each seed, and writes ``results.csv`` (one row for
each seed, method and target) and ``accuracy.png`` beside this file, or where ``--results`` says.
Runs that are finished are not run again, one that was interrupted goes on. ``--set`` changes a key
in all of them.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from analysis.crossing import time_to_accuracy
from analysis.curves import curve
from analysis.human_units import target_text
from analysis.plots import PALETTE, TARGET_GRAY
from analysis.run_reader import Run, finite_number, read_run
from emulator.progress import ProgressLine
from emulator.run import Options, run
from emulator.scenario import load_scenario

HERE = Path(__file__).resolve().parent
PACING = HERE.parents[1] / "pacing"
METHODS = {"sync": "over_committed", "fedbuff": "fedbuff", "fedasync": "fedasync"}
LABELS = {
    "sync": "synchronous, 32 of 40",
    "fedbuff": "FedBuff, buffer of 10",
    "fedasync": "FedAsync",
}
SUSTAIN = 5
"""Evaluations in a row, one a simulated minute, that must meet a target."""

Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Compare three pacings on phones.")
    parser.add_argument("--out", type=Path, default=Path("runs/sync_fedbuff_fedasync"))
    parser.add_argument("--results", type=Path, default=HERE, help="folder of table and figure")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--targets", type=float, nargs="+", default=[0.75, 0.80])
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="a.b=c")
    options = parser.parse_args(arguments)
    runs: dict[tuple[str, int], Run] = {}
    for seed in options.seeds:
        for method, file in METHODS.items():
            scenario, source = load_scenario(PACING / f"{file}.yaml", options.overrides, seed)
            out = options.out / f"{method}-seed{seed}"
            with ProgressLine(scenario, quiet=False) as progress:
                run(scenario, source, Options(out), progress)
            runs[method, seed] = read_run(out)
    rows = [
        {"seed": seed, "method": method, **measured(done, target)}
        for (method, seed), done in runs.items()
        for target in options.targets
    ]
    write(options.results / "results.csv", rows)
    figure(runs, options.targets).savefig(options.results / "accuracy.png", dpi=160)


def measured(done: Run, target: float) -> Row:
    """What one run took until it had the target for good; where it never had, until its end.

    ``versions`` to ``wasted_s`` are those up to ``sim_time_s``: bytes of transfers that were
    complete by then or broken off, and device-seconds of participations that had come to nothing.
    What was still under way is in neither.
    """
    reached_s = time_to_accuracy(done, target, sustain=SUSTAIN).reached_s
    until_s = done.simulated_s if reached_s is None else reached_s
    updates = done.updates
    # Without a report: when it was over. Nobody waits in a queue, so the task began at dispatch.
    ended_s = updates["dispatched_s"] + updates["wasted_s"]
    broken_off = (updates["wasted_s"] > 0) & (ended_s <= until_s)
    down = (updates["downloaded_s"] <= until_s) | broken_off
    up = (updates["uploaded_s"] <= until_s) | broken_off
    return {
        "target": target,
        "reached": "no" if reached_s is None else "yes",
        "sim_time_s": round(until_s, 1),
        "versions": int((done.versions["sim_time_s"] <= until_s).sum()),
        "participations": int((updates["dispatched_s"] < until_s).sum()),
        "bytes_down": int(updates["bytes_down"][down].sum()),
        "bytes_up": int(updates["bytes_up"][up].sum()),
        "wasted_s": round(float(updates["wasted_s"][broken_off].sum()), 1),
        "host_s": round(finite_number(done.manifest["host"]["total_s"]) or 0.0, 1),
        "final_accuracy": round(float(curve(done).value[-1]), 4),
    }


def write(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def figure(runs: Mapping[tuple[str, int], Run], targets: Sequence[float]) -> Figure:
    """Accuracy over simulated time: mean and range over the seeds, measured at the same times."""
    drawn = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = drawn.add_subplot()
    for color, (method, label) in zip(PALETTE, LABELS.items(), strict=False):
        curves = [curve(done) for (which, _), done in runs.items() if which == method]
        shortest = min(len(points.time_s) for points in curves)
        minutes = curves[0].time_s[:shortest] / 60
        values = np.array([points.value[:shortest] for points in curves])
        mean = values.mean(axis=0)
        axes.step(minutes, mean, where="post", color=color, linewidth=1.2, label=label)
        axes.fill_between(
            minutes, values.min(axis=0), values.max(axis=0),
            step="post", color=color, alpha=0.25, linewidth=0,
        )  # fmt: skip
    for target in targets:
        axes.axhline(target, color=TARGET_GRAY, linestyle=(0, (5, 4)), linewidth=0.8, zorder=1)
        axes.text(
            1.01, target, target_text(target), transform=axes.get_yaxis_transform(),
            va="center_baseline", color=TARGET_GRAY, fontsize=9,
        )  # fmt: skip
    axes.set_xlabel("simulated time (min)")
    axes.set_ylabel("test accuracy")
    axes.set_xlim(0, minutes[-1])
    axes.set_ylim(max(0.0, min(targets) - 0.2), None)
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0, symbol=" %"))
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    seeds = len({seed for _, seed in runs})
    axes.set_title(f"Fashion-MNIST on 500 phones: mean and range of {seeds} seeds", loc="left")
    axes.legend(loc="lower right", frameon=False)
    return drawn


if __name__ == "__main__":
    main()
