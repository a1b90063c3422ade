"""The global model's test metric over simulated time: what every study of accuracy begins with.

With cohorts it is that over all clients' test samples, each by the model of the cohort that serves
the client; ``members/accuracy`` is that of the clients that their cohort knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.errors import AnalysisError
from analysis.metric_names import split_and_name
from analysis.run_reader import Run


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """The evaluations of the global model on one split, in simulated order.

    ``time_s`` and ``value`` are float arrays of shape (evaluations,); ``value[i]`` holds from
    ``time_s[i]`` until the next evaluation. A value can be NaN (a model that diverged).
    """

    metric: str
    time_s: NDArray[np.float64]
    value: NDArray[np.float64]


def curve(run: Run, metric: str = "accuracy") -> Curve:
    """The global model's ``metric`` over simulated time; no points before an evaluation. It is that
    of the test split, or of another one that is named: ``members/accuracy``.

    Raises ``AnalysisError`` when the run measured other metrics but not this one, or when the
    file's simulated time runs backwards (two runs in one file).
    """
    table = run.metrics
    split, name = split_and_name(metric)
    is_global = (table["cohort"] == "") & (table["entity"] == "global")
    chosen = is_global & (table["split"] == split) & (table["metric"] == name)
    if is_global.any() and not chosen.any():
        known = ", ".join(_measured(table["split"][is_global], table["metric"][is_global]))
        raise AnalysisError(
            f"{run.directory / 'metrics.csv'}: no {split} {name!r} of the global model; "
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


def _measured(splits: Sequence[str], names: Sequence[str]) -> list[str]:
    """The metrics that there are, as they can be asked for."""
    pairs = sorted(set(zip(splits, names, strict=True)), key=lambda pair: (pair[0] != "test", pair))
    return [name if split == "test" else f"{split}/{name}" for split, name in pairs]
