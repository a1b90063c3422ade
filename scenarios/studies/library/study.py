"""What every scenario of the library comes to, in one table.

    python scenarios/studies/library/study.py [--out runs/library] [--only pacing methods natural]

Runs the scenarios one after the other and writes ``results.csv`` beside this file, or where
``--results`` says: one row a scenario. Runs that are finished are not run again, one that was
interrupted goes on.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from analysis.run_reader import Run, read_run
from analysis.summary import summarize
from emulator.progress import ProgressLine
from emulator.run import Options, run
from emulator.scenario import load_scenario

HERE = Path(__file__).resolve().parent
LIBRARY = HERE.parents[1]
GROUPS = ("pacing", "methods", "natural")
TARGETS = (0.70, 0.75, 0.80)

Row = dict[str, object]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Run the library of scenarios.")
    parser.add_argument("--out", type=Path, default=Path("runs/library"))
    parser.add_argument("--results", type=Path, default=HERE / "results.csv")
    parser.add_argument("--only", nargs="+", default=GROUPS, choices=GROUPS)
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="a.b=c")
    options = parser.parse_args(arguments)
    rows = []
    for group in options.only:
        for path in sorted((LIBRARY / group).glob("*.yaml")):
            scenario, source = load_scenario(path, options.overrides)
            out = options.out / scenario.name
            with ProgressLine(scenario, quiet=False) as progress:
                run(scenario, source, Options(out), progress)
            rows.append({"scenario": f"{group}/{path.stem}", **measured(read_run(out))})
            write(options.results, rows)


def measured(done: Run) -> Row:
    """The columns of one run; times are simulated seconds, empty where a target was not reached."""
    summary = summarize(done, TARGETS)
    return {
        "sim_time_s": round(summary.simulated_s, 1),
        "versions": summary.versions,
        "participations": sum(summary.outcomes.values()),
        "not_reported_share": rounded(summary.not_reported_share),
        "final_accuracy": rounded(summary.final_accuracy),
        "best_accuracy": rounded(summary.best_accuracy),
        "worst_tenth_accuracy": rounded(worst_tenth(done)),
        **{
            f"to_{target}_s": None if time_s is None else round(time_s, 1)
            for target, time_s in summary.time_to_target_s.items()
        },
        "bytes_down": summary.bytes_down,
        "bytes_up": summary.bytes_up,
        "wasted_s": round(summary.wasted_device_s, 1),
        "wasted_share": rounded(summary.wasted_share),
        "host_s": None if summary.host_s is None else round(summary.host_s, 1),
    }


def worst_tenth(done: Run) -> float | None:
    """Mean accuracy of the tenth of the clients (rounded up) on which the last model is worst."""
    accuracy = np.sort(done.clients["accuracy"][~np.isnan(done.clients["accuracy"])])
    return float(accuracy[: math.ceil(accuracy.size / 10)].mean()) if accuracy.size else None


def rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


def write(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
