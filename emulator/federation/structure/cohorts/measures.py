"""What the models of cohorts are worth to the clients that they serve."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from emulator.federation.personalization import Served, fairness
from emulator.federation.tasks import Tasks
from emulator.learning_interface import Learner
from emulator.recording.recorder import Recorder

SEEN_OFTEN = 3
"""A client that has reported as often counts for the adjusted Rand index."""


class Measures:
    """The newest value of each client, on its own test samples, by the model of its cohort."""

    def __init__(
        self, planted: NDArray[np.int64] | None, learner: Learner, recorder: Recorder, tasks: Tasks
    ) -> None:
        self._planted = planted
        self._learner = learner
        self._recorder = recorder
        self._tasks = tasks
        self._newest: dict[int, tuple[float, float, int]] = {}

    def measure(
        self, cohorts: Sequence[Served], homes: Sequence[str], known: Sequence[bool], version: int
    ) -> float | None:
        """Evaluate these cohorts on the clients that are at ``homes`` there [clients]; returns the
        accuracy over all clients' samples, each by the newest measured model that served it.

        Rows by cohort: split ``test`` (all that it serves) and ``members`` (those it knows). Over
        all: the same, and of the clients' accuracies mean, variance, worst and best tenth.
        """
        for cohort in cohorts:
            found = self._learner.evaluate_clients(cohort.model, self._tasks.states, cohort.clients)
            rows = {client: (accuracy, loss, n) for client, accuracy, loss, n in found}
            self._newest.update(rows)
            for client, (accuracy, loss, n) in rows.items():
                self._recorder.client_metrics(
                    self._tasks.clock.now, cohort.version, client, accuracy, loss, n, cohort.cohort
                )
            entity = f"cohort/{cohort.cohort}"
            members = [row for client, row in rows.items() if known[client]]
            self._write(cohort.version, entity, "test", list(rows.values()), cohort.cohort)
            self._write(cohort.version, entity, "members", members, cohort.cohort)
        everyone = list(self._newest.values())
        overall = self._write(version, "global", "test", everyone)
        members = [row for client, row in self._newest.items() if known[client]]
        self._write(version, "global", "members", members)
        self._fairness(version)
        self._agreement(version, homes)
        return overall

    def _write(
        self, version: int, entity: str, split: str, rows: Sequence[tuple[float, float, int]],
        cohort: str | None = None,
    ) -> float | None:  # fmt: skip
        """Accuracy and loss over all samples of these clients."""
        n = sum(row[2] for row in rows)
        if not n:
            return None
        accuracy = sum(row[0] * row[2] for row in rows) / n
        loss = sum(row[1] * row[2] for row in rows) / n
        now = self._tasks.clock.now
        for metric, value in (("accuracy", accuracy), ("loss", loss)):
            self._recorder.metric(now, version, entity, split, metric, value, n, cohort)
        return accuracy

    def _fairness(self, version: int) -> None:
        for metric, value in fairness(row[0] for row in self._newest.values()).items():
            self._metric(version, "client", metric, value, len(self._newest))

    def _agreement(self, version: int, homes: Sequence[str]) -> None:
        """The adjusted Rand index of cohorts and planted clusters, over the clients that have
        reported three times or more."""
        if self._planted is None:
            return
        # Loaded where it is used: scikit-learn takes a second.
        from sklearn.metrics import adjusted_rand_score

        reported = self._recorder.by_client.reported
        often = [client for client, n in enumerate(reported) if n >= SEEN_OFTEN]
        if len(often) > 1:
            value = adjusted_rand_score(self._planted[often], [homes[client] for client in often])
            self._metric(version, "members", "adjusted_rand_index", float(value), len(often))

    def _metric(self, version: int, split: str, metric: str, value: float, n: int) -> None:
        now = self._tasks.clock.now
        self._recorder.metric(now, version, "global", split, metric, value, n)
