"""What the last model is worth to each client once it has made it its own: FTFA, fine-tuning a
federated average (Cheng, Chadha and Duchi, "Fine-tuning is Fine in Federated Learning", 2021).

When the run is over every client that has test samples trains the model that it would be given, the
server's or its cohort's, on its own training samples, and is tested. Nobody waits for that: it
takes no simulated time, no bytes and no device time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emulator.federation.tasks import Tasks
from emulator.learning_interface import Learner

SPLIT = "personalized"


@dataclass(frozen=True, slots=True)
class Served:
    """A model, the cohort that it is of (None: there is one model), and the clients that are given
    it (None: all)."""

    cohort: str | None
    version: int
    model: Any
    clients: Sequence[int] | None = None


def fairness(accuracies: Iterable[float]) -> dict[str, float]:
    """Mean and variance of the clients' accuracies, and the means of the worst and of the best
    tenth of them; nothing of nobody."""
    values = np.sort(np.fromiter(accuracies, dtype=np.float64))
    if not len(values):
        return {}
    tenth = max(1, len(values) // 10)
    return {
        "accuracy_mean": float(values.mean()), "accuracy_variance": float(values.var()),
        "accuracy_worst_tenth": float(values[:tenth].mean()),
        "accuracy_best_tenth": float(values[-tenth:].mean()),
    }  # fmt: skip


def personalize(
    tasks: Tasks, learner: Learner, version: int, served: Sequence[Served], entity: str
) -> None:
    """Fine-tune these models, and write what comes of it to ``metrics.csv``: accuracy and loss of
    each client and over all samples, and the clients' :func:`fairness`."""
    now, recorder = tasks.clock.now, tasks.recorder
    recorder.event(now, "personalize", entity, version=version, models=[s.model.id for s in served])
    rows = []
    for each in served:
        found = learner.personalize(each.model, tasks.states, each.clients)
        for client, accuracy, loss, n in found:
            for metric, value in (("accuracy", accuracy), ("loss", loss)):
                recorder.metric(
                    now, each.version, f"client/{client}", SPLIT, metric, value, n, each.cohort
                )
            rows.append((accuracy, loss, n))
    samples = sum(n for _, _, n in rows)
    if not samples:
        return
    accuracy = sum(value * n for value, _, n in rows) / samples
    loss = sum(value * n for _, value, n in rows) / samples
    for metric, value in (("accuracy", accuracy), ("loss", loss)):
        recorder.metric(now, version, "global", SPLIT, metric, value, samples)
    for metric, value in fairness(value for value, _, _ in rows).items():
        recorder.metric(now, version, "global", SPLIT, metric, value, len(rows))
