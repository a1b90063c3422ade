"""Reading finished, running or killed runs: time-to-accuracy, comparisons, plots. Files only.

The names of ``__all__`` are the library; each is loaded when it is first asked for, as a command
that draws nothing should not wait for matplotlib. README.md has an example.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.accuracy_plots import (
        plot_accuracy_against_bytes,
        plot_accuracy_against_device_time,
        plot_accuracy_against_versions,
        plot_time_to_accuracy,
    )
    from analysis.client_plots import plot_clients_over_day, plot_fairness, plot_participation
    from analysis.client_timeline import plot_client_timeline, plot_presence
    from analysis.comparison import Comparison, compare
    from analysis.comparison_plots import plot_speed_ups
    from analysis.comparison_tables import comparison_csv, comparison_markdown, comparison_table
    from analysis.crossing import Crossing, time_to_accuracy
    from analysis.curves import Curve, curve
    from analysis.errors import AnalysisError
    from analysis.parquet import export_parquet
    from analysis.participation_plots import (
        plot_round_durations,
        plot_staleness,
        plot_wasted_work,
    )
    from analysis.perfetto import export_perfetto
    from analysis.plots import save_figure
    from analysis.report import write_report
    from analysis.run_reader import Run, read_run
    from analysis.runs import Group, differences, group_runs, load_runs
    from analysis.summary import Summary, summarize

_MODULES = {
    "accuracy_plots": (
        "plot_accuracy_against_bytes", "plot_accuracy_against_device_time",
        "plot_accuracy_against_versions", "plot_time_to_accuracy",
    ),
    "client_plots": ("plot_clients_over_day", "plot_fairness", "plot_participation"),
    "client_timeline": ("plot_client_timeline", "plot_presence"),
    "comparison": ("Comparison", "compare"),
    "comparison_plots": ("plot_speed_ups",),
    "comparison_tables": ("comparison_csv", "comparison_markdown", "comparison_table"),
    "crossing": ("Crossing", "time_to_accuracy"),
    "curves": ("Curve", "curve"),
    "errors": ("AnalysisError",),
    "parquet": ("export_parquet",),
    "participation_plots": ("plot_round_durations", "plot_staleness", "plot_wasted_work"),
    "perfetto": ("export_perfetto",),
    "plots": ("save_figure",),
    "report": ("write_report",),
    "run_reader": ("Run", "read_run"),
    "runs": ("Group", "differences", "group_runs", "load_runs"),
    "summary": ("Summary", "summarize"),
}  # fmt: skip
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AnalysisError",
    "Comparison",
    "Crossing",
    "Curve",
    "Group",
    "Run",
    "Summary",
    "compare",
    "comparison_csv",
    "comparison_markdown",
    "comparison_table",
    "curve",
    "differences",
    "export_parquet",
    "export_perfetto",
    "group_runs",
    "load_runs",
    "plot_accuracy_against_bytes",
    "plot_accuracy_against_device_time",
    "plot_accuracy_against_versions",
    "plot_client_timeline",
    "plot_clients_over_day",
    "plot_fairness",
    "plot_participation",
    "plot_presence",
    "plot_round_durations",
    "plot_speed_ups",
    "plot_staleness",
    "plot_time_to_accuracy",
    "plot_wasted_work",
    "read_run",
    "save_figure",
    "summarize",
    "time_to_accuracy",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'analysis' has no attribute {name!r}")
    value = getattr(import_module(f"analysis.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
