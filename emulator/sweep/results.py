"""What became of the runs of a sweep, read from their directories; its two files and its table."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from analysis.crossing import time_to_accuracy
from analysis.curves import curve
from analysis.errors import AnalysisError
from analysis.human_units import duration_text, percent_text, target_text
from analysis.output_file import write_file
from analysis.result_rows import host_s
from analysis.run_reader import Run, finite_number, read_run
from analysis.summary import DEFAULT_TARGETS
from emulator.scenario import Scenario, scenario_sha256
from emulator.sweep.agenda import Agenda, Status
from emulator.sweep.plan import PlannedRun
from emulator.sweep.study import Study

Row = dict[str, Any]

_TRIED: frozenset[Status] = frozenset({"failed", "stopped"})
_OF_THE_MACHINE = ("learning plane", "torch", "numpy", "scipy", "scikit-learn", "machine", "device")


def targets_of(runs: Iterable[PlannedRun]) -> tuple[float, ...]:
    """The accuracies whose times are told: 70, 80 and 85 %, and those at which scenarios stop."""
    stops = {run.scenario.stop.target.value for run in runs if run.scenario.stop.target is not None}
    return tuple(sorted({*DEFAULT_TARGETS, *stops}))


def is_finished(directory: Path, scenario: Scenario, *, timing_only: bool) -> bool:
    """Whether the directory holds this very run, done; what it holds is only read."""
    try:
        manifest = json.loads((directory / "manifest.json").read_text())
        done = manifest["status"] == "done" and manifest["timing_only"] == timing_only
        # ``auto`` is written there as what it came to.
        executor = manifest["fingerprint"]["executor"].partition(",")[0]
        same_hash = manifest["scenario_sha256"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    if not done:
        return False
    if scenario.execution.executor == "auto":
        execution = scenario.execution.model_copy(update={"executor": executor})
        scenario = scenario.model_copy(update={"execution": execution})
    return bool(scenario_sha256(scenario) == same_hash)


def tried_before(out: Path, runs: Sequence[PlannedRun]) -> dict[str, tuple[Status, str]]:
    """Status and reason, by directory, of those that an earlier sweep has seen fail as they are."""
    try:
        noted = {entry["directory"]: entry for entry in json.loads(
            (out / "sweep.json").read_text())["runs"]}  # fmt: skip
        return {
            run.directory: (entry["status"], entry["reason"])
            for run in runs
            if (entry := noted.get(run.directory)) is not None
            and entry["status"] in _TRIED
            and entry["scenario"] == _digest(run)
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def measured(directory: Path, targets: Sequence[float]) -> Row:
    """The figures of a run so far; None where it has not written them."""
    try:
        run = read_run(directory)
        points = curve(run)
        times = [time_to_accuracy(run, target).reached_s for target in targets]
    except AnalysisError:
        return {}
    manifest = run.manifest
    return {
        "accuracy": float(points.value[-1]) if points.value.size else None,
        "sim_time_s": finite_number(manifest.get("sim_time_s")),
        **{_time_to(target): time_s for target, time_s in zip(targets, times, strict=True)},
        "versions": manifest.get("versions"),
        "trainings_run": _trainings(run),
        "host_s": host_s(run) if "host" in manifest else None,
        "events_sha256": manifest.get("events_sha256"),
    }


def _trainings(run: Run) -> int:
    """Of all processes that have worked on the run."""
    parts = [*run.manifest.get("earlier", []), run.manifest]
    return sum((part.get("trainings") or {}).get("run", 0) for part in parts)


def _time_to(target: float) -> str:
    return f"time_to_{100 * target:.4g}_s"


def write_results(
    out: Path, study: Study, agenda: Agenda, reasons: Mapping[str, str],
    memos: Mapping[str, str | None], figures: Mapping[str, Row], targets: Sequence[float], *,
    over: bool, interrupted: bool = False,
) -> None:  # fmt: skip
    """``sweep.json`` and ``sweep.csv``; a reader never sees half of one.

    ``reasons``, ``memos`` and ``figures`` by directory. ``over``: the sweep has come to its end.
    """
    all_done = agenda.count({"done"}) == len(agenda.runs)
    status = "done" if all_done else "failed" if over else "running"
    found = {
        "schema": 1,
        "status": "interrupted" if interrupted else status,
        "fedclock": installed_version("fedclock"),
        "scenarios": [str(source.path) for source in study.sources],
        "seeds": list(study.seeds),
        "vary": {axis.key: [value for value, _ in axis.values] for axis in study.axes},
        "timing_only": study.timing_only,
        "runs": [
            {
                "directory": run.directory,
                "scenario_name": run.scenario_name,
                "seed": run.seed,
                "vary": dict(run.values),
                "scenario": _digest(run),
                "status": agenda.status[run.directory],
                "reason": reasons.get(run.directory, ""),
                "memo": memos.get(run.directory),
                **figures.get(run.directory, {}),
            }
            for run in agenda.runs
        ],
    }
    write_file(out / "sweep.json", (json.dumps(found, indent=2) + "\n").encode())
    columns = (
        "accuracy", "sim_time_s", *map(_time_to, targets), "versions", "events_sha256",
        "trainings_run", "host_s",
    )  # fmt: skip
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    keys = [axis.key for axis in study.axes]
    table.writerow(("scenario", "seed", *keys, "directory", "status", *columns))
    for run in agenda.runs:
        figure = figures.get(run.directory, {})
        table.writerow(
            (run.scenario_name, run.seed, *(_cell(run.values[key]) for key in keys), run.directory,
             agenda.status[run.directory], *(figure.get(column) for column in columns))
        )  # fmt: skip
    write_file(out / "sweep.csv", text.getvalue().encode())


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _digest(run: PlannedRun) -> str:
    return hashlib.blake2b(run.scenario.model_dump_json().encode(), digest_size=16).hexdigest()


def sweep_table(
    study: Study, agenda: Agenda, figures: Mapping[str, Row], targets: Sequence[float]
) -> Table:
    """A line a run. Targets that no run has reached have no column."""
    reached = [t for t in targets if any(row.get(_time_to(t)) for row in figures.values())]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("scenario", overflow="fold")
    table.add_column("seed", justify="right", no_wrap=True)
    for axis in study.axes:
        table.add_column(Text(axis.key.rpartition(".")[2]), overflow="fold")
    for heading in ("status", "accuracy", "simulated"):
        table.add_column(heading, no_wrap=True)
    for target in reached:
        table.add_column(f"to {target_text(target)}", no_wrap=True)
    table.add_column("host", no_wrap=True)
    for run in agenda.runs:
        row = figures.get(run.directory, {})
        accuracy = row.get("accuracy")
        cells = [run.scenario_name, str(run.seed), *map(_cell, run.values.values())]
        cells.append(agenda.status[run.directory])
        cells.append("" if accuracy is None else percent_text(accuracy, digits=2))
        times = ["sim_time_s", *map(_time_to, reached), "host_s"]
        cells += [_duration(row.get(column)) for column in times]
        table.add_row(*map(Text, cells))
    return table


def _duration(duration_s: float | None) -> str:
    return "" if duration_s is None else duration_text(duration_s)


def notes_of(out: Path, runs: Sequence[PlannedRun]) -> list[str]:
    """What a user should know of finished runs: once each, and for how many more it is true."""
    told: dict[str, list[str]] = {}
    softwares: dict[str, str] = {}
    for run in runs:
        try:
            manifest = json.loads((out / run.directory / "manifest.json").read_text())
            for note in manifest["notes"]:
                told.setdefault(note, []).append(run.directory)
            software = {key: manifest["fingerprint"].get(key) for key in _OF_THE_MACHINE}
        except (OSError, ValueError, KeyError):
            continue
        softwares.setdefault(json.dumps(software), run.directory)
    notes = [
        f"{where[0]}{f' and {len(where) - 1} more' if len(where) > 1 else ''}: {note}"
        for note, where in told.items()
    ]
    if len(softwares) > 1:
        notes.append(
            f"{' and '.join(softwares.values())} were made by other software or machines than each "
            "other, so bits may differ beside what was varied; see fingerprint in manifest.json"
        )
    return notes
