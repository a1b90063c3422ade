"""What a trace file says, on one or two screens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from analysis.human_units import duration_text, percent_text
from traces.findings import Finding
from traces.inspection import (
    PROBABILITIES,
    DeviceFigures,
    SessionFigures,
    Spread,
    device_figures,
    session_figures,
)
from traces.unchecked import CheckedDevices, CheckedSessions

BAR_WIDTH = 32

_REMEDIES = {
    "mend": "mended by --repair",
    "drop": "client left out by --repair drop",
    "renumber": "renumbered by --repair drop",
    "none": "harmless",
}


def trace_report(name: str, checked: CheckedSessions | CheckedDevices) -> RenderableType:
    """All tables for one file; ``name`` is shown as it is spelled."""
    parts: list[RenderableType] = []
    if isinstance(checked, CheckedDevices):
        devices = device_figures(checked)
        parts.append(
            _overview(name, "devices", checked, [] if devices is None else _facts(devices))
        )
        if devices is not None:
            parts.append(_device_quantiles(devices))
    else:
        figures = session_figures(checked)
        facts = [] if figures is None else _session_facts(figures)
        parts.append(_overview(name, "availability", checked, facts))
        if figures is not None:
            parts += [_session_quantiles(figures), _hours(figures)]
    parts.append(_findings(checked.findings))
    return Group(*parts)


def _overview(
    name: str,
    kind: str,
    checked: CheckedSessions | CheckedDevices,
    facts: Sequence[tuple[str, str]],
) -> RichTable:
    table = RichTable(title=Text(name), show_header=False, min_width=48, title_style="bold")
    table.add_column(style="cyan")
    table.add_column()
    left_out = checked.clients - len(checked.rows)
    what = "devices" if kind == "devices" else "clients"
    rows = [("trace of", kind), (f"{what} in the file", f"{checked.clients:,}")]
    if left_out:
        rows.append(("malformed, not counted below", f"{left_out:,}"))
    if not facts:
        rows.append((f"well-formed {what}", "none"))
    for label, value in (*rows, *facts):
        table.add_row(Text(label), Text(value))
    return table


def _facts(figures: DeviceFigures) -> list[tuple[str, str]]:
    return [
        ("equal to an earlier device", f"{figures.duplicates:,}"),
        ("Pearson's correlation", _correlation(figures.pearson)),
        ("Spearman's correlation", _correlation(figures.spearman)),
    ]


def _correlation(value: float | None) -> str:
    return "undefined, a column is constant" if value is None else f"{value:.4f}"


def _session_facts(figures: SessionFigures) -> list[tuple[str, str]]:
    low, high = figures.period_s.quantiles[0], figures.period_s.quantiles[-1]
    period = duration_text(low) if low == high else f"{duration_text(low)} to {duration_text(high)}"
    longest = "no session"
    if figures.longest_absence_s is not None:
        longest = f"{duration_text(figures.longest_absence_s)} (row {figures.longest_absence_row})"
    return [
        ("length of the trace", period),
        ("sessions, after mending", f"{figures.sessions:,}"),
        ("never online", f"{figures.never_online:,}"),
        ("online share of all time", percent_text(figures.online_share, 2)),
        ("longest absence, trace repeated", longest),
    ]


def _quantiles(
    title: str, columns: Sequence[tuple[str, Spread | None, Callable[[float], str]]]
) -> RichTable:
    table = RichTable(title=Text(title), title_style="bold")
    table.add_column(style="cyan")
    for label, _, _ in columns:
        table.add_column(Text(label), justify="right")

    def row(name: str, pick: Callable[[Spread], float]) -> None:
        cells = ("-" if spread is None else text(pick(spread)) for _, spread, text in columns)
        table.add_row(Text(name), *map(Text, cells))

    for i, p in enumerate(PROBABILITIES):
        name = {0.0: "min", 1.0: "max"}.get(p, f"{100 * p:g} %")
        row(name, lambda spread, i=i: spread.quantiles[i])  # type: ignore[misc]
    table.add_section()
    row("mean", lambda spread: spread.mean)
    return table


def _session_quantiles(figures: SessionFigures) -> RichTable:
    return _quantiles(
        "Quantiles",
        [
            ("session", figures.length_s, duration_text),
            ("gap", figures.gap_s, duration_text),
            ("sessions a client", figures.sessions_per_client, lambda value: f"{value:,.4g}"),
            ("duty cycle", figures.duty, lambda value: percent_text(value, 2)),
        ],
    )


def _device_quantiles(figures: DeviceFigures) -> RichTable:
    return _quantiles(
        "Quantiles",
        [
            ("ms a sample", figures.computation_ms_per_sample, lambda value: f"{value:,.6g}"),
            ("kbit/s", figures.communication_kbps, lambda value: f"{value:,.6g}"),
        ],
    )


def _hours(figures: SessionFigures) -> RichTable:
    table = RichTable(title=Text("Online by hour of the day"), title_style="bold")
    table.add_column("hour", style="cyan", justify="right")
    table.add_column("online", justify="right")
    table.add_column(Text(""), min_width=BAR_WIDTH)
    shares = figures.online_by_hour.tolist()
    most = max((share for share in shares if not math.isnan(share)), default=0.0)
    for hour, share in enumerate(shares):
        if not math.isnan(share):  # an hour that the trace covers
            bar = "█" * round(BAR_WIDTH * share / most) if most else ""
            table.add_row(str(hour), Text(percent_text(share)), Text(bar))
    return table


def _findings(findings: Sequence[Finding]) -> RenderableType:
    if not findings:
        return Text("Nothing is malformed.")
    table = RichTable(title=Text("Malformed"), title_style="bold", show_lines=True)
    table.add_column("kind", style="cyan")
    table.add_column("count", justify="right")
    table.add_column("clients", justify="right")
    table.add_column("first ones, and the remedy", overflow="fold")
    for finding in findings:
        told = [*finding.examples, f"({_REMEDIES[finding.remedy]})"]
        table.add_row(
            Text(finding.kind),
            f"{finding.count:,}",
            f"{finding.clients:,}",
            Text("\n".join(told)),
        )
    return table
