"""What FedSeq's rounds last, beside FedAvg's: the law of maxima and sums, on the clock alone.

    python scenarios/studies/fedseq_clock/study.py [--out runs/fedseq_clock] [--only redrawn fixed]

``redrawn``: every task's time is drawn anew, lognormal with median 1 s and log-sd sigma. A is the
mean duration of a round that waits for 100 clients, S that of one that waits for 12 chains of 8, F
the mean hop of FedSeqInter's 12 walkers, from begin to end of a chain, so that parking is not in
it. S/A and F/A are ratios of means. Expected: A by quadrature, F = 8 exp(sigma²/2) exactly, S by
drawing a million rounds.

``fixed``: a client's time is drawn once for a population. A ratio may then be taken of the means
over populations, or for each population and then averaged; the second is larger, since a small
denominator weighs more. Both are written, with the middle 95 % of populations.

Writes ``redrawn.csv`` and ``fixed.csv`` beside this file. Finished cells are kept under ``--out``
and not run again; what a run has recorded is deleted once it is counted.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import integrate
from scipy.stats import norm

from analysis.run_reader import read_run
from emulator.run import Options, run
from emulator.scenario import load_scenario

HERE = Path(__file__).resolve().parent
SCENARIOS = HERE.parents[1] / "fedseq" / "clock"
SIGMAS = (0.0, 0.3, 0.6, 1.0, 1.5)
ROUNDS = {0.0: 10, 0.3: 2_000, 0.6: 5_000, 1.0: 20_000, 1.5: 24_000}
"""How many rounds of each method; a walker makes as many hops."""
CLIENTS, CHAIN, CHAINS, WALKERS, SUPERCLIENTS = 100, 8, 12, 12, 62
POPULATIONS, ROUNDS_OF_EACH = 100, 40

Row = dict[str, object]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="FedSeq's law on the clock.")
    parser.add_argument("--out", type=Path, default=Path("runs/fedseq_clock"))
    parser.add_argument("--results", type=Path, default=HERE)
    parser.add_argument(
        "--only", nargs="+", default=("redrawn", "fixed"), choices=("redrawn", "fixed")
    )
    parser.add_argument("--scale", type=float, default=1.0, help="so many times the rounds")
    options = parser.parse_args(arguments)
    for part in options.only:
        rows = redrawn if part == "redrawn" else fixed
        write(options.results / f"{part}.csv", rows(options.out / part, options.scale))


def redrawn(out: Path, scale: float) -> list[Row]:
    """One row a sigma."""
    rows: list[Row] = []
    for sigma in SIGMAS:
        rounds = max(2, round(ROUNDS[sigma] * scale))
        hops = max(1, round(rounds / SUPERCLIENTS))
        a, s, f = (
            measured(out / f"{name}-{sigma}", name, redraws(sigma), stop)
            for name, stop in (("fedavg", rounds), ("fedseq", rounds), ("fedseqinter", hops))
        )
        expected_a, expected_s = expected_maxima(sigma)
        expected_f = CHAIN * math.exp(sigma**2 / 2)
        rows.append(
            {
                "sigma": sigma, "rounds": rounds, "hops": f["n"],
                "A_s": a["mean_s"], "S_s": s["mean_s"], "F_s": f["mean_s"],
                "S/A": s["mean_s"] / a["mean_s"], "S/A_expected": expected_s / expected_a,
                "F/A": f["mean_s"] / a["mean_s"], "F/A_expected": expected_f / expected_a,
                "host_s": a["host_s"] + s["host_s"] + f["host_s"],
            }
        )  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def fixed(out: Path, scale: float) -> list[Row]:
    """One row a sigma; of populations, seed by seed."""
    rows: list[Row] = []
    populations = max(2, round(POPULATIONS * scale))
    for sigma in SIGMAS[1:]:
        found = {
            name: [
                measured(out / f"{name}-{sigma}-{seed}", name, [*once(sigma), f"seed={seed}"],
                         ROUNDS_OF_EACH if name != "fedseqinter" else 1)
                for seed in range(populations)
            ]
            for name in ("fedavg", "fedseq", "fedseqinter")
        }  # fmt: skip
        a, s, f = (np.array([cell["mean_s"] for cell in cells]) for cells in found.values())
        row: Row = {"sigma": sigma, "populations": populations, "rounds_each": ROUNDS_OF_EACH}
        for name, mean_s in (("S/A", s), ("F/A", f)):
            ratios = mean_s / a
            low, high = np.quantile(ratios, (0.025, 0.975))
            row |= {
                f"{name}_ratio_of_means": mean_s.mean() / a.mean(),
                f"{name}_mean_of_ratios": ratios.mean(),
                f"{name}_low": low, f"{name}_high": high,
            }  # fmt: skip
        row["host_s"] = sum(cell["host_s"] for cells in found.values() for cell in cells)
        rows.append(row)
        print(row, flush=True)
    return rows


def redraws(sigma: float) -> list[str]:
    if sigma == 0:
        return ["system.devices.noise={dist: constant, value: 1.0}"]
    return [f"system.devices.noise.sigma={sigma}"]


def once(sigma: float) -> list[str]:
    return [
        f"system.devices.training={{dist: lognormal, median: 1 s, sigma: {sigma}}}",
        "system.devices.noise={dist: constant, value: 1.0}",
    ]


def measured(out: Path, name: str, overrides: Sequence[str], versions: int) -> dict[str, float]:
    """The mean duration of a round, or of a hop, in simulated seconds."""
    kept = out.with_suffix(f"{out.suffix}.json")
    if kept.exists():
        found: dict[str, float] = json.loads(kept.read_text())
        return found
    started = time.perf_counter()
    scenario, source = load_scenario(
        SCENARIOS / f"{name}.yaml", [*overrides, f"stop.versions={versions}"]
    )
    run(scenario, source, Options(out, timing_only=True, restart=True), lambda server, value: None)
    if name == "fedseqinter":
        chains = read_run(out).chains
        durations = chains["uploaded_s"] - chains["dispatched_s"]
        durations = durations[~np.isnan(durations)]
    else:
        durations = read_run(out).versions["round_duration_s"]
    cell = {
        "mean_s": float(durations.mean()), "n": int(durations.size),
        "host_s": time.perf_counter() - started,
    }  # fmt: skip
    kept.write_text(json.dumps(cell))
    shutil.rmtree(out)
    return cell


def expected_maxima(sigma: float, draws: int = 1_000_000) -> tuple[float, float]:
    """(E[max of 100], E[max of 12 sums of 8]) of lognormal times with median 1."""
    if sigma == 0:
        return 1.0, float(CHAIN)

    def tail(t: float) -> float:
        return 1.0 - float(norm.cdf(math.log(t) / sigma)) ** CLIENTS if t > 0 else 1.0

    split = math.exp(3 * sigma)
    a = integrate.quad(tail, 0, split, limit=200)[0] + integrate.quad(tail, split, np.inf)[0]
    rng = np.random.default_rng(0)
    total, left = 0.0, draws
    while left > 0:
        n = min(left, 10_000)
        total += rng.lognormal(0.0, sigma, (n, CHAINS, CHAIN)).sum(2).max(1).sum()
        left -= n
    return float(a), float(total) / draws


def write(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        for row in rows:
            table.writerow({k: f"{v:.5g}" if isinstance(v, float) else v for k, v in row.items()})


if __name__ == "__main__":
    main()
