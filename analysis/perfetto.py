"""A run as a trace that https://ui.perfetto.dev opens: Chrome's JSON ("Trace Event Format", Google,
2016; https://perfetto.dev/docs/getting-started/other-formats names what Perfetto reads of it).

A process is a server, which is a cohort's where there are several; a thread is a client, or the
server itself. An instant is the simulated one, rounded to a microsecond.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from analysis.event_log import read_events
from analysis.output_file import refuse_place, write_file
from analysis.phases import KINDS, SERVER, Floats, Ints, Phases, Tasks, phases_of, read_tasks
from analysis.run_reader import Run

MOST_CLIENTS = 200
MOST_EVENTS = 1_000_000  # a browser opens that; more has to go through Perfetto's own program
MOST_COUNTS = 20_000  # values of a counter
MOST_VERSIONS = 100_000
EVENTS_A_TASK = 8

NAMES = dict(zip(KINDS, ("queued", "download", "train", "hold model", "upload", "wait"),
                 strict=True))  # fmt: skip
_WORK = frozenset({"download", "train", "upload"})  # what stands still while a client is away

# Events of the log that are shown as instants on the track of their server, or of the first one.
_INSTANTS = {
    "round_failed": "round failed",
    "partition": "partition",
    "split": "split of the model",
    "superclients": "superclients formed",
    "nonfinite": "update not finite",
    "stop": "stop",
}

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Exported:
    """A trace file's size and what it leaves out."""

    events: int
    clients: int
    took_part: int
    notes: tuple[str, ...]


def export_perfetto(run: Run, path: Path) -> Exported:
    """Write the trace of one run. Raises ``AnalysisError`` for damaged files, or a bad path."""
    refuse_place(path)
    trace = _Trace(run, read_tasks(run))
    events = trace.events()
    facts = {
        "run": run.name,
        "seed": str(run.manifest.get("seed")),
        "events_sha256": str(run.manifest.get("events_sha256")),
        "time": "1 s in this file is 1 simulated second, from the begin of the run",
        "notes": "; ".join(trace.notes) or "all of the run is shown",
    }
    whole = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts}
    write_file(path, orjson.dumps(whole))
    return Exported(len(events), len(trace.clients), trace.took_part, tuple(trace.notes))


def micros(instant_s: float) -> int:
    """Simulated seconds in microseconds; durations are differences of these, so they add up."""
    return round(instant_s * 1e6)


class _Trace:
    """The events of one run; ``notes`` say what is left out."""

    def __init__(self, run: Run, tasks: Tasks) -> None:
        self._run = run
        self._tasks = tasks
        self.notes: list[str] = []
        everyone = np.unique(tasks.client)
        self.took_part = len(everyone)
        self.clients = self._sampled(everyone)
        self._chosen = np.flatnonzero(np.isin(tasks.client, self.clients))
        cohorts = {*run.updates["cohort"].tolist(), *run.versions["cohort"].tolist()} - {""}
        # Without cohorts the server is process 1; with them, that is their coordinator.
        self._servers = {"": 1} | {name: 2 + i for i, name in enumerate(sorted(cohorts))}
        self._end_s = run.simulated_s

    def _sampled(self, everyone: Ints) -> Ints:
        """Each n-th client, so that neither the clients nor the events are too many.

        They are also those whose sessions a run records.
        """
        every = max(1, math.ceil(len(everyone) / MOST_CLIENTS))
        while True:
            chosen = everyone[::every]
            events = EVENTS_A_TASK * int(np.isin(self._tasks.client, chosen).sum())
            if events <= MOST_EVENTS or len(chosen) == 1:
                break
            every *= 2
        if every > 1:
            self.notes.append(
                f"only {len(chosen):,} of the {len(everyone):,} clients that took part are shown"
            )
        return chosen

    def events(self) -> list[Event]:
        """Metadata first; then by process and thread, each in order of time, outer spans first."""
        tasks, phases = self._tasks, phases_of(self._tasks, self._chosen)
        cohort = self._run.updates["cohort"][tasks.row]
        pid = np.array([self._servers[name] for name in cohort.tolist()], dtype=np.int64)
        lanes, names = _lanes(tasks, phases, pid, self._chosen)
        found = [
            *self._phase_events(phases, pid, lanes),
            *self._drops(pid, lanes),
            *self._flows(phases, pid, lanes),
            *self._versions(),
            *self._server_instants(),
            *self._counters(),
        ]
        found.sort(key=lambda e: (e["pid"], e["tid"], e["ts"], -e.get("dur", 0)))
        return [*self._metadata(names), *found]

    # --- clients --------------------------------------------------------------------------------

    def _phase_events(self, phases: Phases, pid: Ints, lanes: Ints) -> list[Event]:
        """A span for each phase, with the row's facts, and in it those in which it stood still."""
        updates, tasks, found = self._run.updates, self._tasks, list[Event]()
        away = self._away() if self._run.settings.get("system.on_offline") == "pause" else {}
        for task, kind, start_s, end_s in zip(
            phases.task.tolist(), phases.kind.tolist(), phases.start_s.tolist(),
            phases.end_s.tolist(), strict=True,
        ):  # fmt: skip
            row, name = int(tasks.row[task]), KINDS[kind]
            where = {"pid": int(pid[task]), "tid": int(lanes[task])}
            args = {
                "task": int(tasks.number[task]),
                "version": int(updates["version"][row]),
                "outcome": str(updates["outcome"][row]),
                "start_s": start_s,
                "end_s": end_s,
            }
            found.append(_span(NAMES[name], "phase", start_s, end_s, where, args))
            if name not in _WORK:
                continue
            for from_s, to_s in away.get(int(tasks.client[task]), ()):
                if from_s < end_s and to_s > start_s:
                    cut = max(from_s, start_s), min(to_s, end_s)
                    found.append(_span("offline, paused", "pause", *cut, where, {}))
        return found

    def _away(self) -> dict[int, list[tuple[float, float]]]:
        """By client, the spans between its sessions, where they are known."""
        sessions = self._run.sessions
        if sessions is None:
            self.notes.append("pauses are not shown: the run has no sessions.csv")
            return {}
        found: dict[int, list[tuple[float, float]]] = {}
        for client in np.unique(sessions["client"]).tolist():
            its = sessions["client"] == client
            edges = [0.0, *np.stack([sessions["start_s"][its], sessions["end_s"][its]], 1).ravel(),
                     self._end_s]  # fmt: skip
            gaps = zip(edges[::2], edges[1::2], strict=True)
            found[int(client)] = [(float(a), float(b)) for a, b in gaps if b > a]
        unknown = len(set(self.clients.tolist()) - found.keys())
        if unknown:
            self.notes.append(
                f"pauses of {unknown:,} clients are not shown: sessions.csv does not have them"
            )
        return found

    def _drops(self, pid: Ints, lanes: Ints) -> list[Event]:
        """Instants at which a client was lost, told to stop, or came for nothing."""
        outcome, found = self._run.updates["outcome"][self._tasks.row], list[Event]()
        for task in self._chosen.tolist():
            what = str(outcome[task])
            if what not in ("reported", "in_flight"):
                where = {"pid": int(pid[task]), "tid": int(lanes[task])}
                words = what.replace("dropped_", "dropped in ")
                found.append(_instant(words, "drop", float(self._tasks.ended_s[task]), where, "t"))
        return found

    def _flows(self, phases: Phases, pid: Ints, lanes: Ints) -> list[Event]:
        """Arrows of models: from the server's track to a download, or from an upload to one."""
        tasks, found = self._tasks, list[Event]()
        shown = dict[tuple[int, str], float]()
        first = dict[int, float]()
        for task, kind, start_s in zip(
            phases.task.tolist(), phases.kind.tolist(), phases.start_s.tolist(), strict=True
        ):
            shown[task, KINDS[kind]] = start_s
            if KINDS[kind] in _WORK:
                first.setdefault(task, start_s)
        for task in self._chosen.tolist():
            came_s, source = first.get(task), int(tasks.source[task])
            if came_s is None:
                continue  # it was never begun
            if source == SERVER:
                sent_s = float(tasks.dispatched_s[task])
                cohort = str(self._run.updates["cohort"][tasks.row[task]])
                begin = {"pid": self._servers[self._alive(cohort, sent_s)], "tid": 0,
                         "ts": micros(sent_s)}  # fmt: skip
            elif (source, "upload") in shown:
                begin = {"pid": int(pid[source]), "tid": int(lanes[source]),
                         "ts": micros(shown[source, "upload"])}  # fmt: skip
            else:
                continue  # it had the model, the transfer broke off, or its sender is not shown
            name = "from the server" if source == SERVER else "from client to client"
            both = {"name": name, "cat": "model", "id": int(tasks.number[task])}
            end = {"pid": int(pid[task]), "tid": int(lanes[task]), "ts": micros(came_s)}
            found += [both | {"ph": "s"} | begin, both | {"ph": "f", "bp": "e"} | end]
        return found

    # --- servers --------------------------------------------------------------------------------

    def _versions(self) -> list[Event]:
        """Spans on a server's track, from one version to the next, and an instant at each."""
        table, found = self._run.versions, list[Event]()
        for name, pid in self._servers.items():
            rows = np.flatnonzero(table["cohort"] == name)
            if name == "" and len(self._servers) > 1 and not rows.size:
                continue
            every = max(1, math.ceil(len(rows) / MOST_VERSIONS))
            if every > 1:
                self.notes.append(f"only one in {every} versions is shown")
                rows = rows[every - 1 :: every]
            where, since_s = {"pid": pid, "tid": 0}, self._born_s(name)
            for row in rows.tolist():
                at_s, number = float(table["sim_time_s"][row]), int(table["version"][row])
                args = {
                    "updates": int(table["updates"][row]),
                    "round_duration_s": float(table["round_duration_s"][row]),
                    "staleness_mean": float(table["staleness_mean"][row]),
                }
                found.append(_span(f"version {number}", "version", since_s, at_s, where, args))
                found.append(_instant("aggregation", "version", at_s, where, "p"))
                since_s = at_s
            until_s = self._split_s(name)
            if until_s > since_s:
                found.append(_span("next version", "version", since_s, until_s, where, {}))
        return found

    def _born_s(self, cohort: str) -> float:
        return self._of_cohort(cohort, "born_s", 0.0)

    def _split_s(self, cohort: str) -> float:
        return self._of_cohort(cohort, "split_s", self._end_s)

    def _alive(self, cohort: str, at_s: float) -> str:
        """The cohort, or that of its ancestors which was there at an instant: a task that is under
        way when a cohort splits goes to a child."""
        while cohort and self._born_s(cohort) > at_s:
            cohort = cohort.rpartition(".")[0]
        return cohort

    def _of_cohort(self, cohort: str, column: str, otherwise: float) -> float:
        table = self._run.cohorts
        if table is None or cohort not in table["cohort"].tolist():
            return otherwise
        found = float(table[column][table["cohort"].tolist().index(cohort)])
        return otherwise if math.isnan(found) else found

    def _server_instants(self) -> list[Event]:
        """Deadlines that passed, and what else the log says of a server."""
        found, began_s = list[Event](), dict[str, tuple[float, float | None]]()
        fixed_s = self._run.settings.get("federation.pacing.deadline")
        for event in read_events(self._run.directory / "events.jsonl"):
            t, kind, entity = float(event["t"]), event["type"], event["entity"]
            where = {"pid": self._servers.get(entity.partition("/")[2], 1), "tid": 0}
            if kind == "round":
                lasts_s = event.get("deadline_s", fixed_s)
                began_s[entity] = t, lasts_s if isinstance(lasts_s, int | float) else None
            elif kind in ("aggregate", "round_failed"):
                # A round of one server may make versions of several cohorts' models.
                its = entity if entity in began_s else "server"
                start_s, lasts_s = began_s.pop(its, (0.0, None))
                if lasts_s is not None and t == start_s + lasts_s:
                    found.append(_instant("deadline", "round", t, where, "p"))
            if kind in _INSTANTS:
                found.append(_instant(_INSTANTS[kind], "server", t, where, "p"))
        return found

    def _counters(self) -> list[Event]:
        """Clients online, tasks in flight, and accuracy, over time."""
        first, online = 1, self._run.online
        found = list[Event]()
        if online is None:
            self.notes.append("clients online are not shown: the run has no online.csv")
        else:
            of = int(online["of"][0]) if online["of"].size else 0
            name = f"clients online, of {of:,}"
            found += _counts(name, "online", online["sim_time_s"], online["online"], first)
        instants_s, change = _in_flight(self._tasks, self._end_s)
        found += _counts("tasks in flight", "tasks", instants_s, change, first)
        for name, pid in self._servers.items():
            found += _counts("test accuracy", "accuracy", *_accuracy(self._run, name), pid)
        return found

    def _metadata(self, threads: dict[tuple[int, int], str]) -> list[Event]:
        """Names of the tracks, and their order."""
        found: list[Event] = []
        for name, pid in self._servers.items():
            alone = "coordinator" if len(self._servers) > 1 else "server and clients"
            words = f"cohort {name}" if name else alone
            found.append(_meta("process_name", pid, 0, name=f"{self._run.name}: {words}"))
            found.append(_meta("process_sort_index", pid, 0, sort_index=pid))
            found.append(_meta("thread_name", pid, 0, name="server" if name else alone.split()[0]))
            found.append(_meta("thread_sort_index", pid, 0, sort_index=0))
        for (pid, tid), name in threads.items():
            found.append(_meta("thread_name", pid, tid, name=name))
            found.append(_meta("thread_sort_index", pid, tid, sort_index=tid))
        return found


def _lanes(
    tasks: Tasks, phases: Phases, pid: Ints, chosen: Ints
) -> tuple[Ints, dict[tuple[int, int], str]]:
    """The thread of each task [tasks], and the name of each (process, thread).

    A client has a second thread where the spans of two tasks overlap: it may begin one while the
    server has not taken the one before, or while it hands a model on.
    """
    last_s = tasks.ended_s.copy()
    np.maximum.at(last_s, phases.task, phases.end_s)
    free_s: dict[tuple[int, int], list[float]] = {}
    lane = np.zeros(len(tasks.number), dtype=np.int64)
    for task in chosen.tolist():
        ends = free_s.setdefault((int(pid[task]), int(tasks.client[task])), [])
        fit = (i for i, end_s in enumerate(ends) if end_s <= tasks.dispatched_s[task])
        lane[task] = at = next(fit, len(ends))
        ends[at : at + 1] = [float(last_s[task])]
    first, names, tid = dict[tuple[int, int], int](), dict[tuple[int, int], str](), 1
    for process, client in sorted(free_s):
        first[process, client] = tid
        for i in range(len(free_s[process, client])):
            names[process, tid] = f"client {client}" + (f" ({i + 1})" if i else "")
            tid += 1
    for task in chosen.tolist():
        lane[task] += first[int(pid[task]), int(tasks.client[task])]
    return lane, names


def _in_flight(tasks: Tasks, end_s: float) -> tuple[Floats, Floats]:
    """Instants and how many tasks are in flight from each on."""
    over_s = tasks.ended_s[tasks.ended_s < end_s]
    instants_s = np.concatenate([tasks.dispatched_s, over_s])
    change = np.concatenate([np.ones(len(tasks.number)), -np.ones(len(over_s))])
    at_s, where = np.unique(instants_s, return_inverse=True)
    return at_s, np.cumsum(np.bincount(where, weights=change, minlength=len(at_s)))


def _accuracy(run: Run, cohort: str) -> tuple[Floats, Floats]:
    """Instants and test accuracies of a cohort's model, or, without a name, of all of them."""
    table, entity = run.metrics, f"cohort/{cohort}" if cohort else "global"
    chosen = (table["cohort"] == cohort) & (table["split"] == "test")
    chosen &= (table["metric"] == "accuracy") & (table["entity"] == entity)
    return table["sim_time_s"][chosen], table["value"][chosen]


def _counts(name: str, of: str, time_s: NDArray[Any], value: NDArray[Any], pid: int) -> list[Event]:
    """A counter's values; each n-th where there are too many, and none that is not finite."""
    every: Sequence[int] = range(0, len(time_s), max(1, math.ceil(len(time_s) / MOST_COUNTS)))
    return [
        {"name": name, "ph": "C", "cat": "counter", "ts": micros(time_s[i]), "pid": pid, "tid": 0,
         "args": {of: float(value[i])}}
        for i in every if math.isfinite(value[i])
    ]  # fmt: skip


def _span(
    name: str, category: str, start_s: float, end_s: float, where: Event, args: Event
) -> Event:
    start = micros(start_s)
    return {"name": name, "cat": category, "ph": "X", "ts": start, "dur": micros(end_s) - start,
            **where, "args": args}  # fmt: skip


def _instant(name: str, category: str, at_s: float, where: Event, scope: str) -> Event:
    return {"name": name, "cat": category, "ph": "i", "ts": micros(at_s), "s": scope, **where}


def _meta(what: str, pid: int, tid: int, **args: Any) -> Event:
    return {"name": what, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": args}
