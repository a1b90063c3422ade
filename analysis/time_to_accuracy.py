"""Time-to-accuracy: when, in simulated time, the global model reached a target and held it.

The definition follows DAWNBench (Coleman et al., 2018, arXiv 1806.01427), made precise: accuracy
is a step function of the evaluations on held-out data, nothing is interpolated, and a run that
never gets there is censored, never given a number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.errors import AnalysisError
from analysis.run_reader import Run

LOWER_IS_BETTER = frozenset({"loss"})


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """The evaluations of the global model on the test split, in simulated order.

    ``time_s`` and ``value`` are float arrays of shape (evaluations,); ``value[i]`` holds from
    ``time_s[i]`` until the next evaluation. A value can be NaN (a model that diverged).
    """

    metric: str
    time_s: NDArray[np.float64]
    value: NDArray[np.float64]


def curve(run: Run, metric: str = "accuracy") -> Curve:
    """The global model's test ``metric`` over simulated time; no points before an evaluation.

    Raises ``AnalysisError`` when the run measured other metrics but not this one, or when the
    file's simulated time runs backwards (two runs in one file).
    """
    table = run.metrics
    is_global = (table["cohort"] == "") & (table["entity"] == "global") & (table["split"] == "test")
    chosen = is_global & (table["metric"] == metric)
    if is_global.any() and not chosen.any():
        known = ", ".join(np.unique(table["metric"][is_global]).tolist())
        raise AnalysisError(
            f"{run.directory / 'metrics.csv'}: no test {metric!r} of the global model; "
            f"measured were: {known}"
        )
    time_s, value = table["sim_time_s"][chosen], table["value"][chosen]
    backwards = np.flatnonzero(~(np.diff(time_s) >= 0))
    if backwards.size:
        at = backwards[0]
        raise AnalysisError(
            f"{run.directory / 'metrics.csv'}: simulated time goes from {time_s[at]} s to "
            f"{time_s[at + 1]} s between two evaluations; it must not run backwards"
        )
    return Curve(metric, time_s, value)


def time_to_target(
    run: Run, target: float, metric: str = "accuracy", sustain: int = 1
) -> float | None:
    """Simulated seconds at the first of ``sustain`` evaluations in a row that meet ``target``.

    An evaluation meets it with value >= target (<= for a loss); NaN never does. None when the run
    is censored: the target was not met, or too few evaluations followed to see that it held.
    Raises ``AnalysisError`` for a target that is not finite, an accuracy outside 0 to 1, or
    ``sustain`` below 1.
    """
    if not math.isfinite(target):
        raise AnalysisError(f"target is {target}; a finite number is needed")
    if metric == "accuracy" and not 0 <= target <= 1:
        raise AnalysisError(
            f"target is {target}; an accuracy is a share between 0 and 1, so 80 % is 0.8"
        )
    if sustain < 1:
        raise AnalysisError(f"sustain is {sustain}; at least 1 evaluation must meet the target")
    points = curve(run, metric)
    meets = points.value <= target if metric in LOWER_IS_BETTER else points.value >= target
    if meets.size < sustain:
        return None
    held = np.lib.stride_tricks.sliding_window_view(meets, sustain).all(axis=1)
    return float(points.time_s[held.argmax()]) if held.any() else None
