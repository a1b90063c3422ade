"""Turns what happens into lines of the event log and rows of the tables.

Events that come by the million are formatted by hand: ``json`` and ``csv`` would cost more than
the event itself. Numbers are written as Python writes them, so that they round-trip.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from emulator.recording.appended_file import AppendedFile
from emulator.recording.run_directory import RunDirectory
from emulator.simulation.participations import Outcome, Participation

_BUFFERED_LINES = 20_000


def _cell(time_s: float) -> str:
    """A time, or nothing when it never came."""
    return "" if math.isnan(time_s) else repr(time_s)


class Recorder:
    """Writes to the open tables of a run directory."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._events: AppendedFile = directory.events
        self._versions, self._metrics = directory.versions, directory.metrics
        self._event_lines, self._update_lines = directory.events.buffer, directory.updates.buffer
        self.bytes_down = 0
        self.bytes_up = 0
        self._version_bytes = (0, 0)
        self.by_client: dict[int, list[float]] = {}
        self.aggregated = 0

    def event(self, t_s: float, event: str, entity: str, **fields: Any) -> None:
        """Any event that is not frequent."""
        record = {"t": t_s, "type": event, "entity": entity, **fields}
        self._events.line(json.dumps(record, separators=(",", ":")))

    def dispatch(self, p: Participation, update_id: str) -> None:
        """A task begins, or joins the queue of its client."""
        p.dispatched_text = text = repr(p.dispatched_s)
        self._event_lines.append(
            f'{{"t":{text},"type":"dispatch","entity":"client/{p.client}",'
            f'"task":{p.task},"version":{p.version},"update":"{update_id}"}}'
        )

    def upload(self, p: Participation) -> None:
        """An upload is complete."""
        p.ended_text = text = repr(p.ended_s)
        self._event_lines.append(
            f'{{"t":{text},"type":"upload","entity":"client/{p.client}","task":{p.task}}}'
        )

    def end(self, t_s: float, p: Participation) -> None:
        """A participation ends in something else than a report."""
        self._event_lines.append(
            f'{{"t":{t_s!r},"type":"end","entity":"client/{p.client}","task":{p.task},'
            f'"outcome":"{p.outcome}"}}'
        )

    def update(self, p: Participation) -> None:
        """A participation's final record."""
        busy_s, reported = p.busy_s, p.outcome is Outcome.REPORTED
        if reported:
            down, up = p.terms.down_bytes, p.terms.up_bytes
        else:
            down, up = round(p.bytes_down), round(p.bytes_up)
        self.bytes_down += down
        self.bytes_up += up
        tally = self.by_client.get(p.client)
        if tally is None:
            tally = self.by_client[p.client] = [0, 0, 0.0, 0]
        tally[0] += 1
        tally[2] += busy_s
        tally[3] += down + up
        if reported:
            tally[1] += 1
            self._update_lines.append(
                f"{p.client},,{p.version},{p.dispatched_text},{p.downloaded_s!r},{p.trained_s!r},"
                f"{p.ended_text},reported,{p.staleness},{p.samples},{down},{up},0.0"
            )
        else:
            wasted_s = 0.0 if p.outcome is Outcome.IN_FLIGHT else busy_s
            self._update_lines.append(
                f"{p.client},,{p.version},{p.dispatched_s!r},{_cell(p.downloaded_s)},"
                f"{_cell(p.trained_s)},{_cell(p.uploaded_s)},{p.outcome},"
                f"{'' if p.staleness is None else p.staleness},{p.samples},{down},{up},"
                f"{wasted_s!r}"
            )
        if len(self._event_lines) > _BUFFERED_LINES:
            self._directory.flush()

    def version(
        self,
        t_s: float,
        version: int,
        updates: Sequence[Participation],
        since_s: float,
        state_id: str,
    ) -> None:
        """A new version, made of ``updates``; bytes are those recorded since the one before."""
        self.aggregated += len(updates)
        staleness = [p.staleness or 0 for p in updates]
        mean = math.fsum(staleness) / len(staleness)
        down, up = self.bytes_down, self.bytes_up
        self._versions.line(
            f"{t_s!r},{version},,{len(updates)},{mean!r},{max(staleness)},{t_s - since_s!r},"
            f"{down - self._version_bytes[0]},{up - self._version_bytes[1]}"
        )
        self._version_bytes = (down, up)
        tasks = ",".join(str(p.task) for p in updates)
        self._events.line(
            f'{{"t":{t_s!r},"type":"aggregate","entity":"server","version":{version},'
            f'"tasks":[{tasks}],"state":"{state_id}"}}'
        )

    def metric(self, t_s: float, version: int, metric: str, value: float, n: int) -> None:
        """A value of the global model on the test set."""
        self._metrics.line(f"{t_s!r},{version},,global,test,{metric},{value!r},{n}")
