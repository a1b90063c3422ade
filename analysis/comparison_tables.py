"""A comparison to read: on the terminal, as Markdown, and as CSV with the numbers of each run."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterator

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from analysis.comparison import COSTS, Comparison, Mean, Row, SpeedUp
from analysis.human_units import duration_text, percent_text
from analysis.metric_names import is_accuracy, metric_text, value_text
from analysis.statistics import Interval

HEADS = {
    "time": "simulated time", "versions": "versions", "bytes": "bytes sent",
    "device_time": "device time",
}  # fmt: skip
FINAL_HEADS = {
    "final": "final {metric}", "worst_tenth": "worst tenth\nof clients",
    "best_tenth": "best tenth\nof clients", "stragglers": "slowest tenth\nof clients",
}  # fmt: skip

CSV_COLUMNS = (
    "scenario", "baseline", "metric", "target", "sustain", "quantity", "seed", "value", "bound",
    "seeds", "reached", "ratio", "ratio_bound", "ratio_low", "ratio_high", "difference",
    "difference_low", "difference_high", "interval",
)  # fmt: skip
_UNITS = {"time": "time_s", "device_time": "device_time_s"}


def target_line(found: Comparison) -> str:
    """The target, where it comes from, how long it must hold, seeds, and how often it was looked.

    For example ``Target: test accuracy 80 % (given), held for 3 evaluations. 5 seeds. …``
    """
    seeds = sorted({len(row.group.runs) for row in found.rows})
    known_s = [cadence_s for cadence_s in found.cadence_s if math.isfinite(cadence_s)]
    every = "once a run"
    if known_s:
        low, high = duration_text(min(known_s)), duration_text(max(known_s))
        every = f"every {low}" if low == high else f"every {low} to {high}"
    times = "1 evaluation" if found.sustain == 1 else f"{found.sustain} evaluations in a row"
    count = "to".join(f" {n} " for n in dict.fromkeys((seeds[0], seeds[-1]))).strip()
    target = f"{metric_text(found.metric)} {value_text(found.target, found.metric)}"
    return (
        f"Target: {target} ({found.origin}), "
        f"met in {times}. {count} seed{'s' * (seeds[-1] > 1)} a scenario; evaluated {every} of "
        f"simulated time (median by run). Baseline: {found.rows[0].group.label}."
    )


def method_line(found: Comparison) -> str:
    """How the numbers below the medians came about."""
    intervals: list[Interval | None] = []
    for row in found.rows:
        intervals += [speed_up.interval for speed_up in row.speed_ups.values()]
        intervals += [mean.interval for mean in row.means.values()]
    methods = {interval.method for interval in intervals if interval is not None}
    with_method = f" with 95 % intervals ({', '.join(sorted(methods))})" if methods else ""
    return (
        "What is needed to reach the target: Kaplan-Meier medians; speed-ups, which are what the "
        f"baseline needs over that, as geometric means of pairs by seed{with_method}; > and < are "
        "bounds where a run missed the target, and – where pairs give none. At the end: means, and "
        "differences by seed."
    )


def comparison_table(found: Comparison) -> RenderableType:
    """For the terminal; fits 80 columns. Names are shown as they are spelled."""
    needs = _rich("needed to reach the target")
    needs.add_column("reached", justify="right")
    for cost in COSTS:
        needs.add_column(HEADS[cost], justify="right")
    for row in found.rows:
        cells = ["\n".join(_need(row, cost)) for cost in COSTS]
        needs.add_row(*map(Text, (row.group.label, _reached(row), *cells)))
    parts: list[RenderableType] = [Text(target_line(found)), needs]
    names = _finals(found)
    ends = _rich("at the end of the runs")
    for name in names:
        ends.add_column(FINAL_HEADS[name].format(metric=found.metric), justify="right")
    for row in found.rows:
        cells = ["\n".join(_end(row.means.get(name), name, found.metric)) for name in names]
        ends.add_row(*map(Text, (row.group.label, *cells)))
    if names:
        parts.append(ends)
    parts.append(Text(method_line(found), style="dim"))
    parts += [Text(f"note: {note}".replace("note: warning", "warning")) for note in found.notes]
    return Lines(*parts)


def comparison_markdown(found: Comparison) -> str:
    """Two tables of GitHub's Markdown with the target above and the notes below them."""
    needs, ends = comparison_cells(found)
    parts = [_plain(target_line(found)), _markdown(needs)]
    parts += [_markdown(ends)] if ends else []
    parts.append(_plain(method_line(found)))
    if found.notes:
        parts.append("\n".join(f"- {_plain(note)}" for note in found.notes))
    return "\n\n".join(parts) + "\n"


def comparison_cells(found: Comparison) -> tuple[list[list[str]], list[list[str]]]:
    """What is needed to reach the target, and what is there at the end (may be empty), as rows of
    texts, the first of which is the head. A text may have several lines."""
    names = _finals(found)
    needs = [["scenario", "reached", *(HEADS[cost] for cost in COSTS)]]
    ends = [["scenario", *(FINAL_HEADS[n].format(metric=found.metric) for n in names)]]
    for row in found.rows:
        needs.append([row.group.label, _reached(row), *("\n".join(_need(row, c)) for c in COSTS)])
        means = ["\n".join(_end(row.means.get(name), name, found.metric)) for name in names]
        ends.append([row.group.label, *means])
    return needs, ends if names else []


def comparison_csv(found: Comparison) -> str:
    """A row a scenario and quantity with ``seed`` ``all``, then one for each run.

    Times are in seconds. ``value`` is a median or mean, of a run its own; with ``bound`` ``>`` it
    is only known to be greater. ``ratio`` is the baseline's need over this one, with its bounds;
    ``difference`` that to the baseline at the end.
    """
    stream = io.StringIO()
    writer = csv.DictWriter(stream, CSV_COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(_csv_rows(found))
    return stream.getvalue()


# --- cells ---------------------------------------------------------------------------------------


def speed_up_text(speed_up: SpeedUp) -> str:
    """``2.3x``; ``>2.3x`` or ``<2.3x`` where it is only known to be above or below; or a dash."""
    if speed_up.low == speed_up.high:
        return _times(speed_up.low)
    if speed_up.low > 0:
        return f">{_times(speed_up.low)}"
    return f"<{_times(speed_up.high)}" if math.isfinite(speed_up.high) else "–"


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}x" if ratio >= 999.5 else f"{ratio:.3g}x"


def need_text(row: Row, cost: str) -> str:
    """The median of what its runs needed; ``> `` where it is only known to be greater."""
    median = row.medians[cost]
    return ("> " if median.is_bound else "") + COSTS[cost].text(median.value)


def _need(row: Row, cost: str) -> list[str]:
    lines = [need_text(row, cost)]
    if row.speed_ups:
        speed_up = row.speed_ups[cost]
        lines.append(speed_up_text(speed_up))
        lines += _interval(speed_up.interval, lambda value: f"{value:.3g}")
    return lines


def _end(mean: Mean | None, name: str, metric: str) -> list[str]:
    if mean is None:
        return ["–"]
    share = name != "final" or is_accuracy(metric)

    def text(difference: float) -> str:
        return f"{100 * difference:+.1f}" if share else f"{difference:+.3g}"

    lines = [percent_text(mean.value) if share else f"{mean.value:.4g}"]
    if mean.difference is not None:
        lines.append(f"{text(mean.difference)}{' points' * share}")
        lines += _interval(mean.interval, text)
    return lines


def _interval(interval: Interval | None, text: Callable[[float], str]) -> list[str]:
    if interval is None:
        return []
    return [f"[{text(interval.low)}, {text(interval.high)}]".replace("inf", "∞")]


def _reached(row: Row) -> str:
    return f"{row.reached} of {len(row.group.runs)}"


def _finals(found: Comparison) -> list[str]:
    return [name for name in FINAL_HEADS if any(name in row.means for row in found.rows)]


def _rich(title: str) -> RichTable:
    table = RichTable(title=title, title_style="bold", title_justify="left", show_lines=True)
    table.add_column("scenario", style="cyan", overflow="fold")
    return table


# --- Markdown and CSV ----------------------------------------------------------------------------


def _markdown(rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(_plain(cell) for cell in row) + " |" for row in rows]
    lines.insert(1, "|---" + "|---:" * (len(rows[0]) - 1) + "|")
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Text that Markdown shows as it is spelled."""
    return re.sub(r"([\\`*_<>\[\]|~])", r"\\\1", " ".join(text.split()))


def _csv_rows(found: Comparison) -> Iterator[dict[str, object]]:
    for place, row in enumerate(found.rows):
        about = {
            "scenario": row.group.label, "baseline": int(place == 0), "metric": found.metric,
            "target": repr(found.target), "sustain": found.sustain, "seeds": len(row.group.runs),
        }  # fmt: skip
        for cost in COSTS:
            name = _UNITS.get(cost, cost)
            median, speed_up = row.medians[cost], row.speed_ups.get(cost)
            yield about | {
                "quantity": name, "seed": "all", "value": repr(median.value),
                "bound": ">" * median.is_bound, "reached": row.reached,
            } | (_csv_ratio(speed_up) if speed_up is not None else {})  # fmt: skip
            for seed, needed in row.needed[cost].items():
                ratio = speed_up.ratios.get(seed) if speed_up is not None else None
                yield about | {
                    "quantity": name, "seed": seed, "value": repr(needed.amount),
                    "bound": "" if needed.reached else ">", "reached": int(needed.reached),
                } | (_csv_bounds(*ratio) if ratio is not None else {})  # fmt: skip
        for name, mean in row.means.items():
            values: dict[str, object] = {"quantity": name, "seed": "all", "value": repr(mean.value)}
            values["seeds"] = mean.seeds
            if mean.difference is not None:
                values["difference"] = repr(mean.difference)
            yield about | values | _csv_interval(mean.interval, "difference")


def _csv_ratio(speed_up: SpeedUp) -> dict[str, object]:
    return _csv_bounds(speed_up.low, speed_up.high) | _csv_interval(speed_up.interval, "ratio")


def _csv_bounds(low: float, high: float) -> dict[str, object]:
    if low == high:
        return {"ratio": repr(low)}
    if low > 0:
        return {"ratio": repr(low), "ratio_bound": ">"}
    return {"ratio": repr(high), "ratio_bound": "<"} if math.isfinite(high) else {}


def _csv_interval(interval: Interval | None, name: str) -> dict[str, object]:
    if interval is None:
        return {}
    return {
        f"{name}_low": repr(interval.low), f"{name}_high": repr(interval.high),
        "interval": interval.method,
    }  # fmt: skip
