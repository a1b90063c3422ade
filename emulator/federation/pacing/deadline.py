"""How long a round may last: always the same, by a schedule, or by how long past tasks took.

A quantile looks at the last uploads that were complete when the round begins, whatever became of
them: with ``stragglers: finish`` also those that came too late. Who was told to stop has no
duration; with ``stragglers: cancel`` the quantile is one of the tasks that met their deadlines, so
``times`` (above 1) and ``at_least`` keep it from closing in on the fastest clients.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from emulator.scenario import schema


class Deadline(Protocol):
    """Durations in simulated seconds."""

    varies: bool

    def of_round(self, number: int) -> float | None:
        """Seconds that the ``number``-th round, from 0, may last; None: as long as it takes."""

    def upload_took(self, duration_s: float) -> None:
        """The server has got an upload, so long after its dispatch."""


def deadline(section: schema.Synchronous) -> Deadline:
    """What ``federation.pacing.deadline`` says."""
    match section.deadline:
        case schema.ScheduledDeadline() as scheduled:
            return Scheduled(scheduled)
        case schema.QuantileDeadline() as quantile:
            return Quantile(quantile)
        case constant:
            return Constant(constant)


def _seconds(said: float | str) -> float | None:
    return None if isinstance(said, str) else said


class Constant:
    """The same for every round."""

    varies = False

    def __init__(self, said: float | str) -> None:
        self._duration_s = _seconds(said)

    def of_round(self, number: int) -> float | None:
        return self._duration_s

    def upload_took(self, duration_s: float) -> None:
        pass


class Scheduled:
    """That of the last step that has begun."""

    varies = True

    def __init__(self, section: schema.ScheduledDeadline) -> None:
        self._steps = section.steps

    def of_round(self, number: int) -> float | None:
        begun = [step for step in self._steps if step.from_round <= number]
        return _seconds(begun[-1].deadline)

    def upload_took(self, duration_s: float) -> None:
        pass


class Quantile:
    """An order statistic of the last uploads' durations; no interpolation, no rounding."""

    varies = True

    def __init__(self, section: schema.QuantileDeadline) -> None:
        self._section = section
        self._durations_s: deque[float] = deque(maxlen=section.of_last)

    def of_round(self, number: int) -> float | None:
        section = self._section
        if len(self._durations_s) < section.of_last:
            return _seconds(section.initial)
        duration_s = section.times * sorted(self._durations_s)[section.rank - 1]
        if section.at_least is not None:
            duration_s = max(duration_s, section.at_least)
        if section.at_most is not None:
            duration_s = min(duration_s, section.at_most)
        return duration_s

    def upload_took(self, duration_s: float) -> None:
        self._durations_s.append(duration_s)
