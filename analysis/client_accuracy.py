"""How well single clients are served at last: the worst, the best, the slow.

Each on its own test samples (``evaluation.clients``), by the model that it would be given.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from analysis.cohort_series import newest_by_client
from analysis.run_reader import Run

Floats = NDArray[np.float64]


def worst_tenth(run: Run) -> float | None:
    """The mean accuracy of the worst tenth of the evaluated clients, at least one; None without."""
    accuracy = _evaluated(run)[1]
    return tenths(accuracy)[0] if accuracy.size else None


def best_tenth(run: Run) -> float | None:
    """The mean accuracy of the best tenth of the evaluated clients, at least one; None without."""
    accuracy = _evaluated(run)[1]
    return tenths(accuracy)[1] if accuracy.size else None


def tenths(accuracy: Floats) -> tuple[float, float]:
    """The means of the worst and of the best tenth of clients [n], n > 0; at least one each."""
    ordered, tenth = np.sort(accuracy), _tenth(accuracy.size)
    return float(ordered[:tenth].mean()), float(ordered[-tenth:].mean())


def straggler_accuracy(run: Run) -> float | None:
    """The mean accuracy of the slowest tenth of the evaluated clients, at least one.

    How slow a client is, is the median of its simulated seconds of training for one of its samples,
    over the trainings that it completed, whether or not the server took them. A client that never
    completed one (of which the run does not tell how slow it is) is in no tenth. None where no
    evaluated client completed one. See "straggler clients" in arXiv 2403.09086.
    """
    clients, accuracy = _evaluated(run)
    known, seconds = seconds_per_sample(run)
    _, evaluated, timed = np.intersect1d(clients, known, return_indices=True)
    if not evaluated.size:
        return None
    # Of equally slow ones, those with the lower number.
    slowest = np.argsort(-seconds[timed], kind="stable")[: _tenth(evaluated.size)]
    return float(accuracy[evaluated][slowest].mean())


def seconds_per_sample(run: Run) -> tuple[NDArray[np.int64], Floats]:
    """Clients [n] that have completed a training, and their median seconds for a sample [n]."""
    table = run.updates
    lasted_s = table["trained_s"] - table["downloaded_s"]
    done = np.isfinite(lasted_s) & (table["samples"] > 0)
    if "phase" in table:
        done &= table["phase"] == "training"
    each = lasted_s[done] / table["samples"][done]
    clients, row = np.unique(table["client"][done].astype(np.int64), return_inverse=True)
    order = np.lexsort((each, row))
    counts = np.bincount(row, minlength=clients.size)
    first = np.cumsum(counts) - counts
    ordered = each[order]
    middle = (ordered[first + (counts - 1) // 2] + ordered[first + counts // 2]) / 2
    return clients, middle


def _evaluated(run: Run) -> tuple[NDArray[np.int64], Floats]:
    """The clients with a finite accuracy at last [n], by number, and these [n]."""
    newest = newest_by_client(run)
    finite = np.isfinite(newest.accuracy)
    return newest.clients[finite], newest.accuracy[finite]


def _tenth(count: int) -> int:
    return max(1, count // 10)
