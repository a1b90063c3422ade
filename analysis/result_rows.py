"""What studies write: a row a run, as CSV."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from analysis.run_reader import Run


def host_s(run: Run) -> float:
    """Host seconds of all processes that have worked on the run, to a tenth."""
    hosts = [*(part.get("host") or {} for part in run.manifest.get("earlier", [])),
             run.manifest["host"]]  # fmt: skip
    return round(float(sum(host.get("total_s", 0.0) for host in hosts)), 1)


def rounded(value: float | None) -> float | None:
    """Four significant digits."""
    return None if value is None else float(f"{value:.4g}")


def write_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """All rows at once; the columns are those of the first."""
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
