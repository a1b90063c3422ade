"""Each paper's headline on the clock: what its sweep has found, as a table and a figure.

    fedclock sweep scenarios/studies/fedseq/spread.yaml --out runs/spread
    python scenarios/studies/headlines.py spread --runs runs/spread

- ``spread``: FedSeq's "up to 7 times faster", where devices differ more and more.
- ``optimizers``: Auxo's 1.2 to 2.2 times, over four optimizers.
- ``bandwidth``: Divide-and-Conquer's half of the bytes, where links are slower and slower.
- ``together``: all three and their combinations, on the same phones.

Writes ``NAME.csv`` and ``NAME.png`` beside the sweep file, and prints the table as Markdown. Runs
are paired by seed; speed-ups are geometric means with 95 % intervals, and bounds where a run misses
the target (see ``fedclock compare``).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from analysis.comparison import COSTS, Comparison, compare
from analysis.comparison import Row as Compared
from analysis.comparison_tables import need_text, speed_up_text
from analysis.metric_names import metric_text, value_text
from analysis.plots import PALETTE, TARGET_GRAY, save_figure, style_axes
from analysis.result_rows import host_s, rounded, write_rows
from analysis.runs import load_runs
from analysis.statistics import Interval

HERE = Path(__file__).resolve().parent
UPLINKS = ("100 Mbps", "20 Mbps", "5 Mbps", "1 Mbps", "250 kbps")
Cell = float | int | str | None


@dataclass(frozen=True, slots=True)
class Headline:
    """``baseline`` and ``methods`` are folders of the sweep, with the setting in place of ``{}``;
    each is compared with the baseline of its own setting. ``settings``: as in the folder's name,
    and what they are called."""

    folder: str
    about: str
    baseline: str
    methods: dict[str, str]
    settings: dict[str, str]
    target: float | str
    metric: str = "accuracy"


HEADLINES = {
    "spread": Headline(
        "fedseq", "log-sd of the devices' times", "fedavg-sigma-{}",
        {"FedSeq": "fedseq-sigma-{}", "FedSeqInter": "fedseqinter-sigma-{}"},
        {sigma: sigma for sigma in ("0.0", "0.6", "1.0", "1.5")}, 0.61,
    ),
    "optimizers": Headline(
        "auxo", "optimizer", "{}", {"Auxo": "{}-auxo"},
        {"fedyogi": "FedYogi", "fedavg": "FedAvg", "fedprox": "FedProx", "qfedavg": "q-FedAvg"},
        "auto:min_best", "members/accuracy",
    ),
    "bandwidth": Headline(
        "divide_and_conquer", "uplink", "fedavg-up-{}",
        {"Divide-and-Conquer": "divide-and-conquer-up-{}"},
        {up.replace(" ", "-"): up for up in UPLINKS},
        0.70,
    ),
    "together": Headline(
        "together", "", "fedavg",
        {"Auxo": "auxo", "FedSeq": "fedseq", "Divide-and-Conquer": "dc",
         "Auxo + FedSeq": "auxo-fedseq", "Auxo + D&C": "auxo-dc", "FedSeq + D&C": "fedseq-dc",
         "all three": "all"},
        {"": ""}, 0.75, "members/accuracy",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    """A method at a setting; the baseline has no ``method``."""

    setting: str
    method: str | None
    found: Comparison
    row: Compared


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="The headlines' tables and figures.")
    parser.add_argument("name", choices=tuple(HEADLINES))
    parser.add_argument("--runs", type=Path, required=True, help="the sweep's folder")
    parser.add_argument("--results", type=Path, help="folder of table and figure")
    options = parser.parse_args(arguments)
    headline = HEADLINES[options.name]
    results = options.results or HERE / headline.folder
    found = lines(headline, options.runs)
    write_rows(results / f"{options.name}.csv", [csv_row(line) for line in found])
    save_figure(figure(headline, found), results / f"{options.name}.png")
    print(markdown(headline, found))
    for note in dict.fromkeys(note for line in found for note in line.found.notes):
        print(f"note: {note}")
    spent_s = sum(host_s(run) for line in found for run in line.row.group.runs)
    print(f"{spent_s / 60:.0f} min of host time")


def lines(headline: Headline, runs: Path) -> list[Line]:
    """The baseline and each method, setting by setting."""
    there = []
    for setting, text in headline.settings.items():
        baseline = runs / headline.baseline.format(setting)
        folders = [baseline, *(runs / name.format(setting) for name in headline.methods.values())]
        loaded = load_runs(folders)  # the baseline's first
        for run in loaded:
            if not run.ended:
                raise SystemExit(f"{run.directory} is not finished; the same sweep goes on with it")
        found = compare(loaded, loaded[0], headline.target, headline.metric)
        for method, row in zip((None, *headline.methods), found.rows, strict=True):
            there.append(Line(text, method, found, row))
    return there


def csv_row(line: Line) -> dict[str, Cell]:
    """Medians (``_least``: it is only known to be greater), speed-ups and their intervals."""
    row, final = line.row, line.row.means["final"]
    cells: dict[str, Cell] = {
        "setting": line.setting, "method": line.method or "baseline",
        "seeds": len(row.group.runs), "target": rounded(line.found.target), "reached": row.reached,
    }  # fmt: skip
    for cost in COSTS:
        median, speed_up = row.medians[cost], row.speed_ups.get(cost)
        cells[cost] = rounded(median.value)
        cells[f"{cost}_least"] = int(median.is_bound)
        cells[f"{cost}_speed_up"] = "" if speed_up is None else speed_up_text(speed_up)
        interval = None if speed_up is None else speed_up.interval
        cells |= ends(f"{cost}_speed_up", interval)
    cells["final"], cells["final_difference"] = rounded(final.value), rounded(final.difference)
    cells |= ends("final_difference", final.interval)
    cells["host_s"] = round(sum(host_s(run) for run in row.group.runs), 1)
    return cells


def ends(name: str, interval: Interval | None) -> dict[str, Cell]:
    if interval is None:
        return {f"{name}_low": None, f"{name}_high": None}
    return {f"{name}_low": rounded(interval.low), f"{name}_high": rounded(interval.high)}


# --- to read ----------------------------------------------------------------------------------


def markdown(headline: Headline, found: Sequence[Line]) -> str:
    about = [headline.about] if headline.about else []
    heads = [*about, "method", "reached", "time", "sooner", "bytes", "fewer bytes",
             "device time, less", "at the end"]  # fmt: skip
    text = [heads, ["---"] * len(heads)]
    for line in found:
        row, final = line.row, line.row.means["final"]
        end = f"{final.value:.1%}"
        if final.difference is not None:
            end += f" ({100 * final.difference:+.1f}{within(final.interval, 100)})"
        text.append([
            *([line.setting] if about else []), line.method or line.row.group.label,
            f"{row.reached} of {len(row.group.runs)}", need_text(row, "time"), sooner(row, "time"),
            need_text(row, "bytes"), sooner(row, "bytes"), sooner(row, "device_time"), end,
        ])  # fmt: skip
    return "\n".join(f"| {' | '.join(cells)} |" for cells in text)


def sooner(row: Compared, cost: str) -> str:
    if cost not in row.speed_ups:
        return ""
    speed_up = row.speed_ups[cost]
    return speed_up_text(speed_up) + within(speed_up.interval)


def within(interval: Interval | None, unit: float = 1.0) -> str:
    if interval is None:
        return ""
    return f" [{unit * interval.low:.3g}, {unit * interval.high:.3g}]".replace("inf", "∞")


# --- to look at -------------------------------------------------------------------------------


def figure(headline: Headline, found: Sequence[Line]) -> Figure:
    """Time, bytes and accuracy against the baseline of the same setting: mean, interval, seeds."""
    shown = [line for line in found if line.method is not None]
    drawn = Figure(figsize=(10.0, 1.7 + 0.32 * len(shown)), layout="constrained")
    time, size, end = drawn.subplots(1, 3, sharey=True)
    for axes, cost, title in ((time, "time", "times sooner"), (size, "bytes", "times fewer bytes")):
        known = [1.0]
        for place, line in enumerate(shown):
            known += draw_speed_up(axes, line, cost, place, color(headline, line))
        axes.axvline(1.0, color=TARGET_GRAY, linewidth=0.9, zorder=1)
        axes.set_xscale("log")
        low, high = min(known) / 1.5, max(known) * 1.5  # intervals may reach beyond
        axes.set_xlim(low, high)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 60 * low else (1,)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_title(title, fontsize=9)
    for place, line in enumerate(shown):
        draw_difference(end, line, place, color(headline, line))
    end.axvline(0.0, color=TARGET_GRAY, linewidth=0.9, zorder=1)
    end.set_title("points more at the end", fontsize=9)
    which = "as high as both reach"
    if not isinstance(headline.target, str):
        which = value_text(headline.target, headline.metric)
    drawn.suptitle(f"Against the baseline, to {metric_text(headline.metric)} {which}", fontsize=10)
    several = len(headline.methods) > 1
    labels = [", ".join(filter(None, (line.setting, str(line.method) if several else "")))
              for line in shown]  # fmt: skip
    time.set_yticks(range(len(shown)), labels, fontsize=8)
    time.set_ylim(len(shown) - 0.5, -0.5)
    if headline.about:
        time.set_ylabel(headline.about, fontsize=9)
    for axes in (time, size, end):
        style_axes(axes)
        axes.tick_params(labelsize=8)
    return drawn


def color(headline: Headline, line: Line) -> str:
    return PALETTE[list(headline.methods).index(line.method or "") % len(PALETTE)]


def draw_speed_up(axes: Axes, line: Line, cost: str, place: int, color: str) -> list[float]:
    """The mean and the seeds, which are returned; bounds are arrows, and hollow."""
    speed_up = line.row.speed_ups[cost]
    exact = speed_up.low == speed_up.high
    end = speed_up.low if speed_up.low > 0 else speed_up.high
    if end in (0.0, float("inf")):
        axes.annotate("–", (1.0, place), ha="center", va="center", color=TARGET_GRAY)
        return []
    if speed_up.interval is not None:
        low = speed_up.interval.low or end
        high = speed_up.interval.high if speed_up.interval.high < float("inf") else end
        axes.plot([low, high], [place, place], color=color, linewidth=1.4)
    marker = "o" if exact else ">" if speed_up.low > 0 else "<"
    axes.plot([end], [place], marker, color=color, markersize=6.5,
              markerfacecolor=color if exact else "white", zorder=4)  # fmt: skip
    ratios = [low if low > 0 else high for low, high in speed_up.ratios.values()]
    seeds = [ratio for ratio in ratios if 0 < ratio < float("inf")]
    axes.plot(seeds, [place] * len(seeds), "|", color=color, markersize=7, alpha=0.6)
    return [end, *seeds]


def draw_difference(axes: Axes, line: Line, place: int, color: str) -> None:
    final = line.row.means["final"]
    if final.difference is None:
        return
    if final.interval is not None:
        axes.plot([100 * final.interval.low, 100 * final.interval.high], [place, place],
                  color=color, linewidth=1.4)  # fmt: skip
    axes.plot([100 * final.difference], [place], "o", color=color, markersize=6.5, zorder=4)


if __name__ == "__main__":
    main()
