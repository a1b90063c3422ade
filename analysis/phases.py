"""When each participation was downloading, training, uploading and waiting, from ``updates.csv``
and the event log.

The table has the instants that were reached; where a task was cut short, and what it waited for,
the log says. The phases of a task follow one upon the other from its dispatch to its end, so that
their durations add up to those of the table. A phase goes on while its client is offline where the
scenario says ``on_offline: pause``: it is the time that it took, not the time that was worked.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.errors import AnalysisError
from analysis.event_log import read_events
from analysis.run_reader import Run

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

KINDS = ("queued", "download", "train", "hold", "upload", "wait")
"""``queued``: the device does an earlier task. ``hold``: a member of a chain has trained, and the
next one does not take the model yet. ``wait``: the server has the update, no version has it yet."""

SERVER, ITSELF = -1, -2

_NO_OUTCOME_YET = frozenset({"reported", "in_flight"})


@dataclass(frozen=True, slots=True, eq=False)
class Tasks:
    """The participations of a run that have a row in ``updates.csv``, by number; arrays [tasks].

    ``row`` is the place in the table. Times are simulated seconds: ``begun_s`` when the client
    turned to the task, ``ended_s`` when it was free again, ``sends_s`` when it began to upload (NaN
    where it never did), ``sent_s`` when that was over, ``taken_s`` the instant of the version that
    took it, NaN where none did and for what went on in a chain. ``source`` is the position of the
    task that the model came from, or ``SERVER``, or ``ITSELF`` where the client had it already.
    """

    number: Ints
    row: Ints
    client: Ints
    source: Ints
    dispatched_s: Floats
    begun_s: Floats
    downloaded_s: Floats
    trained_s: Floats
    sends_s: Floats
    sent_s: Floats
    ended_s: Floats
    taken_s: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Phases:
    """Spans of time longer than none, by task and instant; arrays [phases].

    ``task`` is a position in ``Tasks``, ``kind`` one in ``KINDS``.
    """

    task: Ints
    kind: Ints
    start_s: Floats
    end_s: Floats


@dataclass(slots=True)
class _Logged:
    """What the log says of tasks: instants by task, and when versions took what."""

    dispatched: dict[int, tuple[int, float]] = field(default_factory=dict)  # client, instant
    ended_s: dict[int, float] = field(default_factory=dict)
    outcome: dict[int, str] = field(default_factory=dict)
    taken_s: dict[int, float] = field(default_factory=dict)
    chain: dict[int, int] = field(default_factory=dict)
    source: dict[int, int] = field(default_factory=dict)  # a client
    chain_uploaded_s: dict[int, float] = field(default_factory=dict)
    chain_taken_s: dict[int, float] = field(default_factory=dict)

    def add(self, event: dict[str, Any]) -> None:
        t, kind = float(event["t"]), event["type"]
        if kind == "dispatch":
            task = int(event["task"])
            self.dispatched[task] = _number(event["entity"]), t
            if "chain" in event:
                self.chain[task] = int(event["chain"])
                if event["source"] != "server":
                    self.source[task] = _number(event["source"])
        elif kind in ("upload", "trained", "end"):
            self.ended_s.setdefault(int(event["task"]), t)
            if kind == "end":
                self.outcome[int(event["task"])] = event["outcome"]
        elif kind == "aggregate":
            self.taken_s.update(dict.fromkeys(event.get("tasks", ()), t))
            self.chain_taken_s.update(dict.fromkeys(event.get("chains", ()), t))
        elif kind == "chain_end" and event["how"] == "uploaded":
            self.chain_uploaded_s[int(event["chain"])] = t


def _number(entity: str) -> int:
    """17 for ``client/17``."""
    return int(entity.partition("/")[2])


def read_tasks(run: Run) -> Tasks:
    """Each participation with its instants, from the table and the log.

    Raises ``AnalysisError`` where one of them is damaged, or the log does not have a row's task.
    """
    path, logged = run.directory / "events.jsonl", _Logged()
    for event in read_events(path):
        try:
            logged.add(event)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise AnalysisError(f"{path}: a damaged event, {event} ({error!r})") from error
    number = _numbers(run, logged)
    row = np.argsort(number, kind="stable")
    number = number[row]
    updates = {name: column[row] for name, column in run.updates.items()}
    numbers = number.tolist()
    client = updates["client"].astype(np.int64)
    ended_s = np.array([logged.ended_s.get(n, run.simulated_s) for n in numbers], dtype=np.float64)
    begun_s = _begun_s(client.tolist(), updates["dispatched_s"].tolist(), ended_s.tolist())
    source, sends_s = _hand_overs(logged, numbers, client.tolist(), begun_s, updates)
    trained_s, uploaded_s = updates["trained_s"], updates["uploaded_s"]
    # Who uploads to the server does so at once, and is not free before.
    own = ~np.isnan(trained_s) & (ended_s > trained_s)
    return Tasks(
        number=number,
        row=row,
        client=client,
        source=source,
        dispatched_s=updates["dispatched_s"],
        begun_s=begun_s,
        downloaded_s=updates["downloaded_s"],
        trained_s=trained_s,
        sends_s=np.where(own, trained_s, sends_s),
        sent_s=np.where(own & np.isnan(uploaded_s), ended_s, uploaded_s),
        ended_s=ended_s,
        taken_s=_taken_s(logged, numbers, updates),
    )


def _numbers(run: Run, logged: _Logged) -> Ints:
    """The number of each row's task.

    Tasks of one client that were dispatched at one instant are told apart by their outcome, and
    then by how far they came: the device does one after the other.
    """
    tasks: dict[tuple[int, float, str], list[int]] = defaultdict(list)
    for task, (client, dispatched_s) in sorted(logged.dispatched.items(), reverse=True):
        tasks[client, dispatched_s, logged.outcome.get(task, "")].append(task)
    updates = run.updates
    steps = np.array([updates[step] for step in ("downloaded_s", "trained_s", "uploaded_s")])
    reached_s = np.nan_to_num(steps, nan=-np.inf).max(axis=0, initial=-np.inf)
    reached_s[reached_s == -np.inf] = np.inf
    found = np.empty(len(reached_s), dtype=np.int64)
    for row in np.argsort(reached_s, kind="stable").tolist():
        client, dispatched_s = int(updates["client"][row]), float(updates["dispatched_s"][row])
        outcome = str(updates["outcome"][row])
        waiting = tasks[client, dispatched_s, "" if outcome in _NO_OUTCOME_YET else outcome]
        if not waiting:
            raise AnalysisError(
                f"{run.directory / 'updates.csv'}, line {row + 2}: client {client}, dispatched at "
                f"{dispatched_s} s, outcome {outcome!r}: events.jsonl has no such task"
            )
        found[row] = waiting.pop()
    return found


def _begun_s(clients: list[int], dispatched_s: list[float], ended_s: list[float]) -> Floats:
    """When each task was begun: at once, or when the device had done the one before."""
    free_s: dict[int, float] = {}
    begun = np.empty(len(clients))
    for i, client in enumerate(clients):
        begun[i] = max(dispatched_s[i], free_s.get(client, -math.inf))
        free_s[client] = max(ended_s[i], begun[i])
    return begun


def _hand_overs(
    logged: _Logged, numbers: list[int], clients: list[int], begun_s: Floats,
    updates: dict[str, NDArray[Any]],
) -> tuple[Ints, Floats]:  # fmt: skip
    """From client to client: the position of the task that each one's model came from, and when
    the task that it was handed on from began to send."""
    source, sends_s = np.full(len(numbers), SERVER, dtype=np.int64), np.full(len(numbers), np.nan)
    newest: dict[tuple[int, int], int] = {}  # the newest task of a client in a chain
    for at, task in enumerate(numbers):
        if task not in logged.chain:
            continue
        chain, giver = logged.chain[task], logged.source.get(task)
        if giver == clients[at]:
            source[at] = ITSELF
        elif giver is not None:
            source[at] = sender = newest.get((chain, giver), ITSELF)
            if sender >= 0 and updates["uploaded_s"][sender] == updates["downloaded_s"][at]:
                sends_s[sender] = begun_s[at]
        if not math.isnan(updates["trained_s"][at]):
            newest[chain, clients[at]] = at
    return source, sends_s


def _taken_s(logged: _Logged, numbers: list[int], updates: dict[str, NDArray[Any]]) -> Floats:
    """When a version took what each task brought to the server."""
    taken = np.full(len(numbers), np.nan)
    came = (updates["outcome"] == "reported") & ~np.isnan(updates["uploaded_s"])
    for at in np.flatnonzero(came).tolist():
        task = numbers[at]
        chain = logged.chain.get(task)
        if chain is None:
            taken[at] = logged.taken_s.get(task, np.nan)
        elif logged.chain_uploaded_s.get(chain) == updates["uploaded_s"][at]:
            taken[at] = logged.chain_taken_s.get(chain, np.nan)
    return taken


def phases_of(tasks: Tasks, chosen: Ints | None = None) -> Phases:
    """The phases of all tasks, or of those at positions ``chosen``."""
    at = np.arange(len(tasks.number)) if chosen is None else chosen
    ended_s = tasks.ended_s[at]

    def reached(instants_s: Floats) -> Floats:
        """A step that was never reached lasts until the task is over."""
        return np.where(np.isnan(instants_s[at]), ended_s, instants_s[at])

    downloaded_s, trained_s = reached(tasks.downloaded_s), reached(tasks.trained_s)
    sends_s, sent_s = tasks.sends_s[at], tasks.sent_s[at]
    spans = (
        (tasks.dispatched_s[at], tasks.begun_s[at]),
        (tasks.begun_s[at], downloaded_s),
        (downloaded_s, trained_s),
        (trained_s, sends_s),
        (sends_s, sent_s),
        (sent_s, tasks.taken_s[at]),
    )
    start_s = np.concatenate([start for start, _ in spans])
    end_s = np.concatenate([end for _, end in spans])
    task, kind = np.tile(at, len(KINDS)), np.repeat(np.arange(len(KINDS)), len(at))
    shown = np.flatnonzero(end_s > start_s)
    order = shown[np.lexsort((kind[shown], task[shown]))]
    return Phases(task[order], kind[order], start_s[order], end_s[order])
