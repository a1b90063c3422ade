"""Turns what happens into lines of the event log and rows of the tables.

Events that come by the million are formatted by hand: ``json`` would cost more than the event
itself. Numbers are written with the shortest digits that give them back.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import MutableSequence, Sequence
from typing import TYPE_CHECKING, Any

from emulator.recording.run_directory import RunDirectory
from emulator.recording.tables import COHORTS, LAYERS, SIMILARITY, SUPERCLIENTS
from emulator.simulation.participation import Outcome, Participation

if TYPE_CHECKING:
    from emulator.federation.structure import Contribution
    from emulator.federation.structure.chain import Chain
    from emulator.federation.structure.grouping import Quality

_BUFFERED_LINES = 20_000


class ByClient:
    """What each client did; one number a client in every sequence."""

    def __init__(self, clients: int) -> None:
        self.participations: MutableSequence[int] = array("q", bytes(8 * clients))
        self.reported: MutableSequence[int] = array("q", bytes(8 * clients))
        self.busy_s: MutableSequence[float] = array("d", bytes(8 * clients))
        self.size_bytes: MutableSequence[int] = array("q", bytes(8 * clients))
        self.accuracy: dict[int, float] = {}


class Recorder:
    """Writes to the open tables of a run directory."""

    def __init__(self, directory: RunDirectory, clients: int) -> None:
        self._directory = directory
        self._event_lines = directory.events.buffer
        self._update_rows = directory.updates.buffer
        self._version_rows = directory.versions.buffer
        self._metric_rows = directory.metrics.buffer
        self._chains = directory.chains is not None
        self._chain_rows = directory.chains.buffer if directory.chains else []
        self._parts = directory.parts
        self._affinity_rows = directory.affinity.buffer if directory.affinity else []
        self._clustering_rows = directory.clustering.buffer if directory.clustering else []
        self._similarity_rows: list[tuple[Any, ...]] = []
        self.bytes_down = 0
        self.bytes_up = 0
        self._version_bytes = (0, 0)
        self.by_client = ByClient(clients)
        self.aggregated = 0
        self._now_s, self._now_text = 0.0, "0.0"

    def event(self, t_s: float, event: str, entity: str, **fields: Any) -> None:
        """Any event that is not frequent."""
        record = {"t": t_s, "type": event, "entity": entity, **fields}
        self._event_lines.append(json.dumps(record, separators=(",", ":")))

    def _text(self, t_s: float) -> str:
        """The instant in digits; several things happen at one."""
        if t_s is not self._now_s:
            self._now_s, self._now_text = t_s, repr(t_s)
        return self._now_text

    def dispatch(self, p: Participation, update_id: str) -> None:
        """A task begins, or joins the queue of its client."""
        self._event_lines.append(
            f'{{"t":{self._text(p.dispatched_s)},"type":"dispatch","entity":"client/{p.client}",'
            f'"task":{p.task},"version":{p.version},"update":"{update_id}"'
            f"{_of_cohort(p)}{_of_chain(p)}}}"
        )

    def upload(self, p: Participation) -> None:
        """An upload is complete; or the training of a member that hands the model on itself."""
        what = "upload" if p.uploads else "trained"
        self._event_lines.append(
            f'{{"t":{self._text(p.ended_s)},"type":"{what}","entity":"client/{p.client}",'
            f'"task":{p.task}}}'
        )

    def end(self, t_s: float, p: Participation) -> None:
        """A participation ends in something else than a report."""
        self._event_lines.append(
            f'{{"t":{self._text(t_s)},"type":"end","entity":"client/{p.client}","task":{p.task},'
            f'"outcome":"{p.outcome}"}}'
        )

    def update(self, p: Participation) -> None:
        """A participation's final record."""
        client, outcome, busy_s = p.client, p.outcome, p.busy_s
        by_client, wasted_s = self.by_client, busy_s
        if outcome is Outcome.REPORTED:
            down, up = p.terms.down_bytes, p.terms.up_bytes
            by_client.reported[client] += 1
            wasted_s = 0.0
        else:
            down, up = round(p.bytes_down), round(p.bytes_up)
            if outcome is Outcome.IN_FLIGHT:
                wasted_s = 0.0
        self.bytes_up += up
        more: tuple[Any, ...] = ()
        if self._chains:
            more = (p.phase, p.chain, p.ring_pass, p.source)
        if self._parts:
            more += _by_part(p, down, up)
        if self._chains:
            # What goes from client to client is theirs, and not the server's.
            up += sum(p.lent_pieces) if p.lent_pieces else round(p.lent_bytes)
        if p.source is None:
            self.bytes_down += down
        by_client.participations[client] += 1
        by_client.busy_s[client] += busy_s
        by_client.size_bytes[client] += down + up
        self._update_rows.append(
            (
                client, p.cohort, p.version, p.dispatched_s, p.downloaded_s, p.trained_s,
                p.uploaded_s, outcome, p.staleness, p.samples, down, up, wasted_s, *more,
            )
        )  # fmt: skip
        if len(self._event_lines) > _BUFFERED_LINES:
            self._directory.flush()

    def version(
        self,
        t_s: float,
        version: int,
        updates: Sequence[Contribution],
        since_s: float,
        state_id: str,
        entity: str = "server",
        cohort: str | None = None,
    ) -> None:
        """A new version, made of ``updates``; bytes are those recorded since the one before."""
        trainings = sum(_trainings(chain) for chain in updates) if self._chains else len(updates)
        self.aggregated += trainings
        staleness = [p.staleness or 0 for p in updates]
        mean = math.fsum(staleness) / len(staleness)
        down, up = self.bytes_down, self.bytes_up
        self._version_rows.append(
            (
                t_s, version, cohort, len(updates), mean, max(staleness), t_s - since_s,
                down - self._version_bytes[0], up - self._version_bytes[1],
            )
        )  # fmt: skip
        self._version_bytes = (down, up)
        tasks = ",".join([str(p.task) for p in updates])
        self._event_lines.append(
            f'{{"t":{self._text(t_s)},"type":"aggregate","entity":"{entity}","version":{version},'
            f'"{"chains" if self._chains else "tasks"}":[{tasks}],"state":"{state_id}"}}'
        )

    def chain(self, chain: Chain) -> None:
        """The final record of a superclient's chain."""
        self._chain_rows.append(
            (
                chain.task, chain.walker, chain.client, chain.version, chain.dispatched_s,
                chain.uploaded_s, chain.outcome, chain.staleness, chain.samples, _trainings(chain),
                chain.left_out,
            )
        )  # fmt: skip

    def superclients(self, found: Sequence[Quality]) -> None:
        """Who was put together, and how well each superclient stands for all data."""
        self._directory.write_table(
            "superclients.csv",
            SUPERCLIENTS,
            [
                (
                    number, len(q.members), q.samples, q.balance, q.covered, q.intra, q.inter,
                    " ".join(map(str, q.members)),
                )
                for number, q in enumerate(found)
            ],
        )  # fmt: skip

    def similarity(self, epoch: int, clients: Sequence[int], cosines: Any) -> None:
        """The cosine of every two clients' pre-trained models [clients, clients] after an epoch."""
        for i, client in enumerate(clients):
            for j in range(i + 1, len(clients)):
                self._similarity_rows.append((epoch, client, clients[j], cosines[i][j]))
        self._directory.write_table("similarity.csv", SIMILARITY, self._similarity_rows)

    def layers(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """The layers of the model by part, once for each time that it has been split."""
        self._directory.write_table("layers.csv", LAYERS, rows)

    def message(self, client: int, down: int = 0, up: int = 0) -> None:
        """A small message between the server and a client, beside its tasks."""
        self.bytes_down += down
        self.bytes_up += up
        self.by_client.size_bytes[client] += down + up

    def affinities(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """What the participants of a cohort's version are told."""
        self._affinity_rows.extend(rows)

    def clustering(self, row: tuple[Any, ...]) -> None:
        """What a cohort's version has told of the cohort."""
        self._clustering_rows.append(row)

    def cohorts(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """All cohorts that ever were."""
        self._directory.write_table("cohorts.csv", COHORTS, rows)

    def metric(
        self, t_s: float, version: int, entity: str, split: str, metric: str, value: float, n: int,
        cohort: str | None = None,
    ) -> None:  # fmt: skip
        """A value of a model on ``n`` samples of a split."""
        self._metric_rows.append(
            (t_s, version, cohort, entity, split, metric, _finite_or_word(value), n)
        )

    def client_metrics(
        self, t_s: float, version: int, client: int, accuracy: float, loss: float, n: int,
        cohort: str | None = None,
    ) -> None:  # fmt: skip
        """The model that a client would be given, on the samples that it is tested on."""
        self.by_client.accuracy[client] = accuracy
        for metric, value in (("accuracy", accuracy), ("loss", loss)):
            self.metric(t_s, version, f"client/{client}", "client", metric, value, n, cohort)


def _finite_or_word(value: float) -> float | str:
    """A loss may be infinite or no number at all; JSON knows neither."""
    return value if math.isfinite(value) else repr(value)


def _of_cohort(p: Participation) -> str:
    return "" if p.cohort is None else f',"cohort":"{p.cohort}"'


def _of_chain(p: Participation) -> str:
    """Where a task of a chain stands in it, and who its model comes from; what it trains, where
    that is a part."""
    phase = "" if p.phase == "training" else f',"phase":"{p.phase}"'
    if p.plan is not None and p.plan.part is not None:
        phase += f',"part":"{p.plan.part.name}"'
    if p.chain is None:
        return phase
    source = "server" if p.source is None else f"client/{p.source}"
    return f',"chain":{p.chain},"ring_pass":{p.ring_pass},"source":"{source}"{phase}'


def _by_part(p: Participation, down: int, up: int) -> tuple[Any, ...]:
    """Its ``PART_COLUMNS``, from what has come ``down`` and gone ``up`` to the server."""
    terms, part = p.terms, p.plan.part if p.plan is not None else None
    came = terms.down.moved(down) if terms.down is not None else [0] * 5
    went = terms.up.moved(up) if terms.up is not None else [0] * 5
    if p.lent_pieces:
        went = [mine + lent for mine, lent in zip(went, p.lent_pieces, strict=True)]
    return (
        None if part is None else part.name, p.cross_staleness, came[0] + went[0],
        came[1] + went[1], *came[2:], *went[2:],
    )  # fmt: skip


def _trainings(chain: Contribution) -> int:
    """How often a member has trained; handing the model on to the server is another task."""
    return sum(p.phase == "training" for p in chain.records)
