"""How much sooner, with fewer bytes, with less work does a scenario reach a target than another?

Runs are grouped by scenario and paired by seed: methods that are compared on one seed see the same
data, initial weights, devices and sessions. A speed-up is the ratio of what the baseline needs to
what the scenario needs; ratios are averaged as logarithms. A run that misses the target is
right-censored: it needs more than it has spent. A pair with one of these gives a bound instead of a
ratio, and so does the mean that it is in. No run is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.client_accuracy import best_tenth, straggler_accuracy, worst_tenth
from analysis.crossing import (
    Crossing,
    best_sustained,
    refuse_sustain,
    refuse_target,
    time_to_accuracy,
)
from analysis.curves import curve
from analysis.errors import AnalysisError
from analysis.metric_names import lower_is_better
from analysis.run_reader import Run
from analysis.runs import Group, group_runs
from analysis.spending import BYTES, DEVICE_TIME, TIME, VERSIONS, Spent
from analysis.statistics import Interval, Median, censored_median, mean_interval

COSTS: dict[str, Spent] = {
    "time": TIME,
    "versions": VERSIONS,
    "bytes": BYTES,
    "device_time": DEVICE_TIME,
}
"""What it can take to reach a target, by the name that it has in tables."""

FEWEST_SEEDS = 3
AUTO_TARGET = "auto:min_best"


@dataclass(frozen=True, slots=True)
class Needed:
    """What one run needed to reach the target; where not ``reached``, more than ``amount``."""

    reached: bool
    amount: float


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """What the baseline needs, as a multiple of what the scenario needs: a geometric mean.

    ``low`` and ``high`` are the same where all pairs reached the target; else the mean is between
    them: ``high`` is infinite where it is only known to be above ``low``, ``low`` is 0 where it is
    only known to be below ``high``. ``interval`` holds the mean with a confidence of 95 %; None for
    fewer than two pairs, or where nothing is known. ``ratios`` are those of the pairs, by seed.
    """

    low: float
    high: float
    interval: Interval | None
    ratios: dict[int, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over the seeds that have the value, how many these are, and what the pairs differ by.

    ``difference`` is that to the baseline, None for the baseline and without a pair.
    """

    value: float
    seeds: int
    difference: float | None
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class Row:
    """One scenario of a comparison.

    ``needed`` has by cost what each run needed, by seed; ``medians`` and ``speed_ups`` are by cost
    too, the latter empty for the baseline. ``finals`` has by the names in ``FINALS`` what each run
    came to, by seed, where it has the value; ``means`` are by these names, without those that no
    run has.
    """

    group: Group
    needed: dict[str, dict[int, Needed]]
    medians: dict[str, Median]
    speed_ups: dict[str, SpeedUp]
    finals: dict[str, dict[int, float]]
    means: dict[str, Mean]

    @property
    def reached(self) -> int:
        """How many of its runs reached the target."""
        return sum(needed.reached for needed in self.needed["time"].values())


@dataclass(frozen=True, slots=True)
class Comparison:
    """What ``compare`` has found; the baseline is the first of ``rows``.

    ``origin`` says where the target comes from, ``cadence_s`` by run the median simulated seconds
    between two evaluations, ``notes`` what a reader must know beside.
    """

    target: float
    origin: str
    metric: str
    sustain: int
    rows: tuple[Row, ...]
    cadence_s: tuple[float, ...]
    notes: tuple[str, ...]


def compare(
    runs: Sequence[Run], baseline: Run | str | Path, target: float | str,
    metric: str = "accuracy", sustain: int = 3,
) -> Comparison:  # fmt: skip
    """Compare the scenarios of ``runs`` with that of ``baseline``, one of them or its directory.

    ``target`` is a value of the ``metric`` (see :func:`analysis.curve`), or ``"auto:min_best"``:
    the hardest value that every run reaches, so that of the weakest. It is reached at the first of
    ``sustain`` evaluations in a row that meet it. Raises ``AnalysisError`` where the baseline is
    none of the runs, there is no other scenario, a run has no evaluation, a seed or its seed twice,
    or the target is none.
    """
    refuse_sustain(sustain)
    groups = _baseline_first(group_runs(list(runs)), baseline)
    every = [run for group in groups for run in group.runs]
    for run in every:
        if run.seed is None:
            raise AnalysisError(f"{run.directory / 'manifest.json'}: has no seed to pair runs by")
        if not curve(run, metric).time_s.size:
            raise AnalysisError(
                f"{run.directory}: has no evaluation of the global model to compare"
                + (" (it was run with --timing-only)" if run.manifest.get("timing_only") else "")
            )
    value, origin = _target(every, target, metric, sustain)
    first, *others = groups
    base = _row(first, None, value, metric, sustain)
    rows = (base, *(_row(group, base, value, metric, sustain) for group in others))
    cadence_s = tuple(_cadence_s(run, metric) for run in every)
    return Comparison(
        value, origin, metric, sustain, rows, cadence_s, tuple(_notes(rows, value, metric, sustain))
    )


def _baseline_first(groups: list[Group], baseline: Run | str | Path) -> list[Group]:
    directory = baseline.directory if isinstance(baseline, Run) else Path(baseline)
    place = directory.resolve()
    for group in groups:
        if any(run.directory.resolve() == place for run in group.runs):
            return [group, *(other for other in groups if other is not group)]
    known = ", ".join(str(run.directory) for group in groups for run in group.runs)
    raise AnalysisError(
        f"{directory}: the baseline is none of the runs to compare; these are: {known or 'none'}"
    )


def _target(
    runs: Sequence[Run], target: float | str, metric: str, sustain: int
) -> tuple[float, str]:
    """The target, and where it comes from."""
    if target != AUTO_TARGET:
        try:
            value = float(target)
        except ValueError:
            raise AnalysisError(
                f"target is {target!r}; a number such as 0.8, or {AUTO_TARGET}, is needed"
            ) from None
        refuse_target(value, metric)
        return value, "given"
    best = [best_sustained(curve(run, metric), sustain) for run in runs]
    for run, reached in zip(runs, best, strict=True):
        if reached is None:
            raise AnalysisError(
                f"{run.directory}: has no {sustain} finite evaluations in a row, so that no target "
                f"is reached by all runs; {AUTO_TARGET} needs one"
            )
    known = [value for value in best if value is not None]
    value = max(known) if lower_is_better(metric) else min(known)
    weakest = runs[known.index(value)]
    what = "least best value" if not lower_is_better(metric) else "greatest best value"
    held = f" held for {sustain} evaluations" if sustain > 1 else ""
    return value, f"{AUTO_TARGET}, the {what}{held} of all runs, that of {weakest.directory}"


def _row(group: Group, base: Row | None, target: float, metric: str, sustain: int) -> Row:
    needed: dict[str, dict[int, Needed]] = {cost: {} for cost in COSTS}
    for run in group.runs:
        crossing = time_to_accuracy(run, target, metric, sustain)
        for cost, spent in COSTS.items():
            needed[cost][_seed(run)] = _needed(run, crossing, spent)
    medians = {
        cost: censored_median([n.amount for n in by.values()], [n.reached for n in by.values()])
        for cost, by in needed.items()
    }
    speed_ups = {}
    if base is not None:
        speed_ups = {cost: speed_up(base.needed[cost], needed[cost]) for cost in COSTS}
    finals = {
        name: {_seed(run): v for run in group.runs if (v := value(run, metric)) is not None}
        for name, value in FINALS.items()
    }
    means = {
        name: _mean(known, {} if base is None else base.finals[name])
        for name, known in finals.items()
        if known
    }
    return Row(group, needed, medians, speed_ups, finals, means)


def _needed(run: Run, crossing: Crossing, spent: Spent) -> Needed:
    return Needed(crossing.reached, float(spent.by(run, np.array([crossing.time_s]))[0]))


def speed_up(base: dict[int, Needed], other: dict[int, Needed]) -> SpeedUp:
    """The speed-up of ``other`` over ``base``, by the seeds that both have; see the module."""
    ratios = {}
    for seed in sorted(base.keys() & other.keys()):
        before, now = base[seed], other[seed]
        low, high = 0.0, math.inf
        # Who needs nothing at all was there before anything began: there is no ratio.
        if before.amount > 0 and now.amount > 0:
            ratio = before.amount / now.amount
            low = ratio if now.reached else 0.0
            high = ratio if before.reached else math.inf
        ratios[seed] = (low, high)
    if not ratios:
        return SpeedUp(0.0, math.inf, None, ratios)
    lows = [math.log(low) if low > 0 else -math.inf for low, _ in ratios.values()]
    highs = [math.log(high) for _, high in ratios.values()]
    low, high = (math.exp(math.fsum(logs) / len(logs)) for logs in (lows, highs))
    return SpeedUp(low, high, _speed_up_interval(lows, highs), ratios)


def _speed_up_interval(lows: Sequence[float], highs: Sequence[float]) -> Interval | None:
    """Of the geometric mean: an end at which a pair is not bounded is open."""
    below, above = (
        mean_interval(logs) if all(math.isfinite(log) for log in logs) else None
        for logs in (lows, highs)
    )
    known = below or above
    if known is None:
        return None
    return Interval(
        math.exp(below.low) if below else 0.0,
        math.exp(above.high) if above else math.inf,
        known.method,
    )


def _final(run: Run, metric: str) -> float | None:
    value = float(curve(run, metric).value[-1])
    return value if math.isfinite(value) else None


FINALS: dict[str, Callable[[Run, str], float | None]] = {
    "final": _final,
    "worst_tenth": lambda run, metric: worst_tenth(run),
    "best_tenth": lambda run, metric: best_tenth(run),
    "stragglers": lambda run, metric: straggler_accuracy(run),
}
"""What is compared at the end of the runs: the test metric, and accuracies of clients."""


def _mean(known: dict[int, float], base: dict[int, float]) -> Mean:
    """Of the values by seed; ``base``: those of the baseline."""
    differences = [known[seed] - before for seed, before in base.items() if seed in known]
    return Mean(
        math.fsum(known.values()) / len(known),
        len(known),
        math.fsum(differences) / len(differences) if differences else None,
        mean_interval(differences),
    )


def _seed(run: Run) -> int:
    assert run.seed is not None  # compare() has looked
    return run.seed


def _cadence_s(run: Run, metric: str) -> float:
    times_s = curve(run, metric).time_s
    return float(np.median(np.diff(times_s))) if times_s.size > 1 else math.nan


def _notes(rows: Sequence[Row], target: float, metric: str, sustain: int) -> list[str]:
    notes = []
    base = rows[0].group
    for row in rows:
        group = row.group
        if len(group.runs) < FEWEST_SEEDS:
            seeds = "1 seed" if len(group.runs) == 1 else f"{len(group.runs)} seeds"
            notes.append(
                f"warning: {group.label} has {seeds}; differences between fewer than "
                f"{FEWEST_SEEDS} seeds say little"
            )
        alone = sorted(set(map(_seed, group.runs)) ^ set(map(_seed, base.runs)))
        if alone:
            notes.append(
                f"{group.label}: seed{'s' * (len(alone) > 1)} {', '.join(map(str, alone))} "
                "not in both this scenario and the baseline; in medians, not in speed-ups"
            )
        for run in group.runs:
            if not run.ended:
                notes.append(
                    f"{run.directory}: not finished ({run.manifest.get('status')}); compared as "
                    "far as it is"
                )
            elif run.manifest.get("stop_reason") == "target" and not _held(
                run, target, metric, sustain
            ):
                notes.append(
                    f"{run.directory}: stopped at its own target before {metric} could hold for "
                    f"{sustain} evaluations here; counted as missed"
                )
    if len(rows) == 1:
        notes.append("there is no other scenario than the baseline: nothing is compared")
    return notes


def _held(run: Run, target: float, metric: str, sustain: int) -> bool:
    """True also where the last evaluation is below the target: then it is not the stop's doing."""
    last = curve(run, metric).value[-1]
    meets = last <= target if lower_is_better(metric) else last >= target
    return not meets or time_to_accuracy(run, target, metric, sustain).reached
