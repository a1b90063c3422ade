"""Run directories written by hand, for what is said of many runs."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from analysis.run_reader import TABLE_COLUMNS, Run, read_run

Points = Sequence[tuple[float, float]]


def update(
    client: int, dispatched_s: float, lasted_s: float, *, down: int = 100, up: int = 50,
    outcome: str = "reported", staleness: int | str = 0, samples: int = 10, wasted_s: float = 0.0,
) -> tuple[Any, ...]:  # fmt: skip
    """A participation: a tenth of it download, eight tenths training, the rest upload.

    Where it is lost, it is so in its training.
    """
    at = [dispatched_s + share * lasted_s for share in (0.1, 0.9, 1.0)]
    times: list[Any] = at if outcome == "reported" else [at[0], "", ""]
    return (
        client, "", 0, dispatched_s, *times, outcome, staleness, samples, down,
        up if outcome == "reported" else 0, wasted_s,
    )  # fmt: skip


def write_run(
    directory: Path, accuracy: Points = (), *, name: str = "fedavg", seed: int | None = 1,
    end_s: float = 1000.0, updates: Iterable[Sequence[Any]] = (), metric: str = "accuracy",
    clients: dict[int, float] | None = None, settings: dict[str, Any] | None = None,
    members: Points = (),
    **manifest: Any,
) -> Path:  # fmt: skip
    """``members`` are points of ``members/accuracy``; ``clients`` are those that were evaluated at
    the end, with their accuracy."""
    directory.mkdir(parents=True, exist_ok=True)
    said = {"status": "done", "name": name, "seed": seed, "stop_reason": "sim_time",
            "sim_time_s": end_s} | manifest  # fmt: skip
    (directory / "manifest.json").write_text(json.dumps(said))
    (directory / "resolved.yaml").write_text(
        yaml.safe_dump({"name": name, "seed": seed} | (settings or {}))
    )
    of_clients = clients or {}
    tables: dict[str, Iterable[Sequence[Any]]] = {
        "versions.csv": [(t, i, "", 1, 0.0, 0, 10.0, 0, 0) for i, (t, _) in enumerate(accuracy)],
        "updates.csv": updates,
        "metrics.csv": [
            *((t, i, "", "global", "test", metric, v, 9) for i, (t, v) in enumerate(accuracy)),
            *((t, 0, "", "global", "members", "accuracy", v, 9) for t, v in members),
            *((end_s, 1, "", f"client/{c}", "client", "accuracy", v, 9)
              for c, v in of_clients.items()),
        ],
        "clients.csv": [(c, 1, 1, v, 1.0, 1.0, 1) for c, v in of_clients.items()],
    }  # fmt: skip
    for file, rows in tables.items():
        with (directory / file).open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(TABLE_COLUMNS[file])
            writer.writerows(rows)
    return directory


def run_with(directory: Path, accuracy: Points = (), **more: Any) -> Run:
    return read_run(write_run(directory, accuracy, **more))


def reaching(directory: Path, at_s: float | None, **more: Any) -> Run:
    """A run that is at 80 % from an instant on to its end at 1000 s; with None it never is."""
    before = [(10.0, 0.1)]
    after = [] if at_s is None else [(at_s + i, 0.8) for i in range(3)]
    return run_with(directory, [*before, *after], **more)
