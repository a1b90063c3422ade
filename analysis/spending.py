"""What a run has spent until an instant: simulated time, versions, bytes, device time.

All of it comes from the run's own tables, by two rules:

- a transfer counts with the bytes that moved, at the instant at which it was complete; one that
  was cut off, at the end of its participation. What is still on its way counts nothing yet;
- a device is at work from the start of a participation until its end, and each second of that
  counts when it has passed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.errors import AnalysisError
from analysis.human_units import byte_unit, bytes_text, count_text, duration_text, time_unit
from analysis.run_reader import Run

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Spent:
    """One way to count what a run has cost.

    ``by`` gives how much of it a run has spent at instants [n] in simulated seconds, ``unit`` the
    unit for an axis up to an amount, and how much that is; ``text`` writes an amount out.
    """

    by: Callable[[Run, Floats], Floats]
    unit: Callable[[float], tuple[str, float]]
    text: Callable[[float], str]
    axis: str
    title: str


def versions_made(run: Run, at_s: Floats) -> Floats:
    """Versions of all models that were made up to instants [n], the instants included.

    Raises ``AnalysisError`` where the simulated time of ``versions.csv`` runs backwards.
    """
    times_s = run.versions["sim_time_s"]
    backwards = np.flatnonzero(~(np.diff(times_s) >= 0))
    if backwards.size:
        at = backwards[0]
        raise AnalysisError(
            f"{run.directory / 'versions.csv'}, line {at + 3}: simulated time goes from "
            f"{times_s[at]} s to {times_s[at + 1]} s; it must not run backwards"
        )
    return np.searchsorted(times_s, at_s, side="right").astype(np.float64)


def bytes_sent(run: Run, at_s: Floats) -> Floats:
    """Bytes that server and clients have sent up to instants [n]; each transfer counts once.

    With superclients also those from client to client; with cohorts also requests and feedback, by
    the sizes in the run's settings. See the module for when a transfer counts.
    """
    table = run.updates
    _, ends_s = work_spans_s(run)
    # What comes from another client counts where that client sends it.
    down = table["bytes_down"]
    if "source" in table:
        down = np.where(np.isnan(table["source"]), down, 0.0)
    arrivals = [
        (np.where(np.isnan(table["downloaded_s"]), ends_s, table["downloaded_s"]), down),
        (np.where(np.isnan(table["uploaded_s"]), ends_s, table["uploaded_s"]), table["bytes_up"]),
    ]
    total = sum((_summed(when_s, amount, at_s) for when_s, amount in arrivals), np.zeros(at_s.size))
    return total + _message_bytes(run, at_s)


def device_time_s(run: Run, at_s: Floats) -> Floats:
    """Seconds that devices were at work up to instants [n], useful or not.

    A pause (``on_offline: pause``) counts for a participation that was reported.
    """
    starts_s, ends_s = work_spans_s(run)
    lengths_s = ends_s - starts_s
    # Of those over by then their length; of those under way the time since they started.
    over = _summed(ends_s, lengths_s, at_s)
    begun, since = (
        _summed(starts_s, np.ones(starts_s.size), at_s),
        _summed(starts_s, starts_s, at_s),
    )
    begun -= _summed(ends_s, np.ones(ends_s.size), at_s)
    since -= _summed(ends_s, starts_s, at_s)
    return np.maximum(over + begun * at_s - since, 0.0)


def work_spans_s(run: Run) -> tuple[Floats, Floats]:
    """Start and end [rows of ``updates.csv`` each] of each participation's work, in seconds.

    A client that is asked for two tasks starts the second when the first is over. A participation
    ends with its upload (in a chain: when its model has been handed on); one that brought nothing
    after its wasted seconds; one in flight at the end of the run with it.
    """
    table = run.updates
    dispatched_s, uploaded_s, outcome = table["dispatched_s"], table["uploaded_s"], table["outcome"]
    lost = (outcome != "reported") & (outcome != "in_flight")
    last_known_s = np.where(np.isnan(uploaded_s), table["trained_s"], uploaded_s)
    # A member of a chain has done its part once it has trained, whatever the chain came to.
    known = ~np.isnan(uploaded_s) | ((outcome == "reported") | ("chain" in table)) & ~lost
    known &= ~np.isnan(last_known_s)
    open_end_s = np.where(outcome == "in_flight", run.simulated_s, np.nan)
    starts_s = dispatched_s.copy()
    ends_s = np.empty_like(starts_s)

    def end(rows: NDArray[np.int64]) -> None:
        wasted_s = starts_s[rows] + np.nan_to_num(table["wasted_s"][rows])
        ends_s[rows] = np.where(
            known[rows], last_known_s[rows], np.where(lost[rows], wasted_s, open_end_s[rows])
        )
        ends_s[rows] = np.fmax(np.nan_to_num(ends_s[rows], nan=0.0), starts_s[rows])

    order = np.lexsort((np.arange(len(starts_s)), dispatched_s, table["client"]))
    end(order)
    # Few clients are ever asked for a task before the one before is over.
    same = table["client"][order][1:] == table["client"][order][:-1]
    if (same & (starts_s[order][1:] < ends_s[order][:-1])).any():
        for before, row, follows in zip(order[:-1], order[1:], same, strict=True):
            if follows and starts_s[row] < ends_s[before]:
                starts_s[row] = ends_s[before]
                end(np.array([row]))
    return starts_s, ends_s


def _summed(when_s: Floats, amount: Floats, at_s: Floats) -> Floats:
    """The sum of what came up to each of the instants [n]."""
    order = np.argsort(when_s, kind="stable")
    so_far = np.concatenate([[0.0], np.cumsum(np.nan_to_num(amount[order]))])
    return np.asarray(so_far[np.searchsorted(when_s[order], at_s, side="right")], dtype=np.float64)


def _message_bytes(run: Run, at_s: Floats) -> Floats:
    """Requests and feedback of cohorts: as many as the log has, by their size."""
    if run.affinity is None:
        return np.zeros(at_s.size)
    structure = "federation.structure."
    total = np.zeros(at_s.size)
    for key, when_s in (
        ("request_bytes", run.check_ins["sim_time_s"]),
        ("feedback_bytes", run.affinity["sim_time_s"]),
    ):
        size = run.settings.get(structure + key)
        if not isinstance(size, int | float):
            raise AnalysisError(
                f"{run.directory / 'resolved.yaml'}: {structure + key} is {size!r}; the size of "
                "these messages is needed to count them"
            )
        total += _summed(when_s, np.full(when_s.size, float(size)), at_s)
    return total


TIME = Spent(lambda run, at_s: at_s, time_unit, duration_text, "simulated time", "Time to accuracy")
VERSIONS = Spent(
    versions_made, lambda most: ("", 1.0), count_text, "versions", "Versions to accuracy"
)
BYTES = Spent(
    bytes_sent, byte_unit, bytes_text, "bytes sent by server and clients", "Bytes to accuracy"
)
DEVICE_TIME = Spent(
    device_time_s, time_unit, duration_text, "device time", "Device time to accuracy"
)
