"""What a run came to, on one screen: time, accuracy, bytes, waste, outcomes, host cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table as RichTable
from rich.text import Text

from analysis.crossing import time_to_accuracy
from analysis.curves import curve
from analysis.human_units import bytes_text, duration_text, percent_text, target_text
from analysis.run_reader import Run, finite_number

DEFAULT_TARGETS = (0.70, 0.80, 0.85)

# The order in which outcomes are shown; one that is not listed here comes after these.
OUTCOME_ORDER = (
    "reported",
    "late",
    "dropped_download",
    "dropped_training",
    "dropped_upload",
    "server_failed",
    "cancelled",
    "discarded",
    "in_flight",
)

ABSENT = "not recorded"


@dataclass(frozen=True, slots=True)
class Summary:
    """Exact numbers of one run, all from its files; None where the run has not written them.

    ``simulated_s`` is the manifest's for a run that ended, else the last instant in the tables.
    ``personalized``: of the models that clients have fine-tuned once the run was over, the
    accuracy over all samples and what else there is of it, by metric; empty where none were.
    ``versions`` are those of all ``cohorts`` that made some, of which there are none in most runs.
    Bytes and wasted device-seconds are sums over participations. ``wasted_share`` is out of all
    busy device-seconds; ``not_reported_share`` is out of the participations that are over, so
    without those in flight. ``time_to_target_s`` holds None for a target that was not reached.
    """

    name: str
    status: str | None
    stop_reason: str | None
    simulated_s: float
    versions: int
    cohorts: int
    evaluations: int
    final_accuracy: float | None
    best_accuracy: float | None
    personalized: Mapping[str, float]
    time_to_target_s: Mapping[float, float | None]
    bytes_down: int
    bytes_up: int
    wasted_device_s: float
    busy_device_s: float | None
    wasted_share: float | None
    outcomes: Mapping[str, int]
    not_reported_share: float | None
    trainings_run: int | None
    trainings_aggregated: int | None
    trainings_reused: int | None
    host_s: float | None


def summarize(run: Run, targets: Sequence[float] = DEFAULT_TARGETS) -> Summary:
    """Sum up one run, also one that still runs or was killed; ``targets`` are accuracies in 0..1.

    Raises ``AnalysisError`` where a table is damaged, or a target is no share.
    """
    accuracy = curve(run).value
    outcomes = _count_outcomes(run)
    over = sum(outcomes.values()) - outcomes.get("in_flight", 0)
    wasted_device_s = float(np.nansum(run.updates["wasted_s"]))
    # Clients' busy time is written when the run ends; before that there is nothing to divide by.
    busy_device_s = float(np.nansum(run.clients["busy_s"])) if run.clients["busy_s"].size else None
    return Summary(
        name=run.name,
        status=_text(run.manifest.get("status")),
        stop_reason=_text(run.manifest.get("stop_reason")),
        simulated_s=run.simulated_s,
        versions=len(run.versions["version"]),
        cohorts=len(set(run.versions["cohort"].tolist()) - {""}),
        evaluations=accuracy.size,
        final_accuracy=float(accuracy[-1]) if accuracy.size else None,
        best_accuracy=None if np.isnan(accuracy).all() else float(np.nanmax(accuracy)),
        personalized=_personalized(run),
        time_to_target_s={target: time_to_accuracy(run, target).reached_s for target in targets},
        bytes_down=int(np.nansum(run.updates["bytes_down"])),
        bytes_up=int(np.nansum(run.updates["bytes_up"])),
        wasted_device_s=wasted_device_s,
        busy_device_s=busy_device_s,
        wasted_share=wasted_device_s / busy_device_s if busy_device_s else None,
        outcomes=outcomes,
        not_reported_share=1 - outcomes.get("reported", 0) / over if over else None,
        trainings_run=_count(run, "run"),
        trainings_aggregated=_count(run, "aggregated"),
        trainings_reused=_count(run, "reused"),
        host_s=finite_number(_section(run, "host").get("total_s")),
    )


def summary_table(summary: Summary) -> RichTable:
    """The summary as a two-column table that fits 80 columns; a name is shown as it is spelled."""
    table = RichTable(title=Text(summary.name), show_header=False, min_width=48, title_style="bold")
    table.add_column(style="cyan", overflow="fold", ratio=2)
    table.add_column(overflow="fold", ratio=3)

    def section(*rows: tuple[str, str]) -> None:
        # Text, not str: a name such as "[bold]" must not act as markup.
        for label, value in rows:
            table.add_row(Text(label), Text(value))
        table.add_section()

    section(
        ("status", _status_text(summary)),
        ("simulated time", duration_text(summary.simulated_s)),
        ("versions", _versions_text(summary)),
    )
    section(
        ("evaluations", f"{summary.evaluations:,}"),
        ("final test accuracy", _accuracy_text(summary.final_accuracy)),
        ("best test accuracy", _accuracy_text(summary.best_accuracy)),
        *_personalized_rows(summary.personalized),
        *(
            (f"time to {target_text(target)}", _reached_text(reached_s))
            for target, reached_s in summary.time_to_target_s.items()
        ),
    )
    over = sum(summary.outcomes.values()) - summary.outcomes.get("in_flight", 0)
    section(
        ("participations", f"{sum(summary.outcomes.values()):,}"),
        *((f"  {outcome}", f"{count:,}") for outcome, count in summary.outcomes.items()),
        ("not reported", _share_text(summary.not_reported_share, f"of {over:,} that are over")),
    )
    busy = None if summary.busy_device_s is None else duration_text(summary.busy_device_s)
    section(
        ("bytes down", bytes_text(summary.bytes_down)),
        ("bytes up", bytes_text(summary.bytes_up)),
        ("device time, busy", busy or ABSENT),
        ("device time, wasted", duration_text(summary.wasted_device_s)),
        ("wasted share", _share_text(summary.wasted_share, "of busy device time")),
    )
    section(
        ("trainings run", _count_text(summary.trainings_run)),
        ("trainings aggregated", _count_text(summary.trainings_aggregated)),
        ("trainings reused", _count_text(summary.trainings_reused)),
        ("host time", ABSENT if summary.host_s is None else duration_text(summary.host_s)),
    )
    return table


def _count_outcomes(run: Run) -> dict[str, int]:
    names, counts = np.unique(run.updates["outcome"], return_counts=True)
    found = dict(zip(names.tolist(), counts.tolist(), strict=True))
    ordered = [name for name in OUTCOME_ORDER if name in found]
    return {name: found[name] for name in ordered + sorted(found.keys() - set(ordered))}


def _personalized(run: Run) -> dict[str, float]:
    table = run.metrics
    rows = (table["split"] == "personalized") & (table["entity"] == "global")
    return dict(zip(table["metric"][rows].tolist(), table["value"][rows].tolist(), strict=True))


def _personalized_rows(found: Mapping[str, float]) -> list[tuple[str, str]]:
    """Nobody has waited for it, so that it has no time."""
    if "accuracy_mean" not in found:
        return []
    tenths = [percent_text(found[f"accuracy_{which}_tenth"], digits=1) for which in
              ("worst", "best")]  # fmt: skip
    return [
        ("personalized accuracy", percent_text(found["accuracy"], digits=2)),
        ("  of a client", f"{percent_text(found['accuracy_mean'], digits=2)} "
                          f"(worst tenth {tenths[0]}, best {tenths[1]})"),
    ]  # fmt: skip


def _section(run: Run, key: str) -> dict[str, Any]:
    section = run.manifest.get(key)
    return section if isinstance(section, dict) else {}


def _count(run: Run, key: str) -> int | None:
    value = finite_number(_section(run, "trainings").get(key))
    return None if value is None else int(value)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _status_text(summary: Summary) -> str:
    status = summary.status or ABSENT
    return f"{status} ({summary.stop_reason})" if summary.stop_reason else status


def _versions_text(summary: Summary) -> str:
    of_cohorts = f" of {summary.cohorts:,} cohorts" if summary.cohorts > 1 else ""
    return f"{summary.versions:,}{of_cohorts}"


def _accuracy_text(accuracy: float | None) -> str:
    if accuracy is None:
        return "none"
    return "not finite" if math.isnan(accuracy) else percent_text(accuracy, digits=2)


def _reached_text(reached_s: float | None) -> str:
    return "not reached" if reached_s is None else duration_text(reached_s)


def _share_text(share: float | None, of_what: str) -> str:
    return ABSENT if share is None else f"{percent_text(share)} {of_what}"


def _count_text(count: int | None) -> str:
    return ABSENT if count is None else f"{count:,}"
