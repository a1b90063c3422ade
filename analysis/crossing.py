"""Time-to-accuracy: when, in simulated time, the global model reached a target and held it.

The definition follows DAWNBench (Coleman et al., 2018, arXiv 1806.01427), made precise: accuracy
is a step function of the evaluations on held-out data, nothing is interpolated, and a run that
never gets there is right-censored, never given a number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from analysis.curves import Curve, curve
from analysis.errors import AnalysisError
from analysis.metric_names import is_accuracy, lower_is_better
from analysis.run_reader import Run


@dataclass(frozen=True, slots=True)
class Crossing:
    """Whether and when a run reached a target, in simulated seconds.

    ``time_s`` is the instant of the crossing; where the run is censored (``reached`` is False), the
    latest instant of which it is known that the crossing is not before it.
    """

    reached: bool
    time_s: float

    @property
    def reached_s(self) -> float | None:
        """Simulated seconds to the target; None for a run that missed it."""
        return self.time_s if self.reached else None


def time_to_accuracy(
    run: Run, target: float, metric: str = "accuracy", sustain: int = 1
) -> Crossing:
    """The first of ``sustain`` evaluations in a row that meet ``target``.

    An evaluation meets it with value >= target (<= for a loss); NaN never does. A run is censored
    where the target was not met, or too few evaluations followed to see that it held: at the end
    of the run, or at the first of those last evaluations that do meet it.

    Raises ``AnalysisError`` for a target that is not finite, an accuracy outside 0 to 1,
    ``sustain`` below 1, or a metric that the run has not.
    """
    refuse_target(target, metric)
    refuse_sustain(sustain)
    points = curve(run, metric)
    meets = points.value <= target if lower_is_better(metric) else points.value >= target
    if meets.size >= sustain:
        held = np.lib.stride_tricks.sliding_window_view(meets, sustain).all(axis=1)
        if held.any():
            return Crossing(True, float(points.time_s[held.argmax()]))
    open_end = meets.size - np.argmin(meets[::-1]) if not meets.all() else 0
    if open_end < meets.size:  # the run ended while the target was met
        return Crossing(False, float(points.time_s[open_end]))
    return Crossing(False, run.simulated_s)


def best_sustained(points: Curve, sustain: int = 1) -> float | None:
    """The best value that was met ``sustain`` evaluations in a row; None where there is none.

    It is the hardest target that the run reaches.
    """
    refuse_sustain(sustain)
    if points.value.size < sustain:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(points.value, sustain)
    lower = lower_is_better(points.metric)
    worst = windows.max(axis=1) if lower else windows.min(axis=1)  # NaN where one is NaN
    worst = worst[~np.isnan(worst)]
    if not worst.size:
        return None
    return float(worst.min() if lower else worst.max())


def refuse_target(target: float, metric: str) -> None:
    """``AnalysisError`` for a target that is not finite, or no accuracy."""
    if not math.isfinite(target):
        raise AnalysisError(f"target is {target}; a finite number is needed")
    if is_accuracy(metric) and not 0 <= target <= 1:
        raise AnalysisError(
            f"target is {target}; an accuracy is a share between 0 and 1, so 80 % is 0.8"
        )


def refuse_sustain(sustain: int) -> None:
    """``AnalysisError`` for less than one evaluation."""
    if sustain < 1:
        raise AnalysisError(f"sustain is {sustain}; at least 1 evaluation must meet the target")
