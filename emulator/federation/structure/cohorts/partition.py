"""When a cohort splits in two: Auxo's criteria (§4.4 of the paper, of which only the reasons are
known), each a condition of its own, so that a log can say which of them does not hold yet.

More cohorts are more alike within, and share the same resources and fewer data each: a split pays
where heterogeneity falls at least in proportion to the resources.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a partition needs.

    maturity: ``min_rounds`` versions of the model, and a mean training loss that falls by no more
    than ``settled`` times its fall in the model's first ``window`` versions (None: no loss is
    known, and none asked for); knowledge: sides of
    ``known_share``·N·0.9^(M − 1) clients each, of which one is at most ``most_uneven`` times the
    other (the first split is free of that), and ``window`` versions that tell of heterogeneity;
    agreement: that share of the participants who say a side are found on it, over these versions
    (two sides of what is really one are found anew each time);
    feasibility: ``min_participants`` for a child's round, and as many of its clients online as it
    asks; gain: heterogeneity times the resources that are left, below ``gain``. ``at``: versions at
    which a cohort splits whatever these say.
    """

    min_rounds: int
    settled: float | None
    window: int
    known_share: float
    most_uneven: float
    agreement: float
    min_participants: int
    gain: float
    max_cohorts: int
    at: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Quality:
    """What one version's participants tell of a cohort: mean squared distance of their updates from
    the mean of all (``spread``) and of their side (``spread_of_sides``), None where too few have
    said on which side they are; their mean training ``loss``; how many of them said a side
    (``claims``), and how many of these were found on it (``agreed``)."""

    spread: float | None
    spread_of_sides: float | None
    loss: float | None
    claims: int = 0
    agreed: int = 0

    @property
    def agreement(self) -> float | None:
        """The share of claims that agreed; None without any."""
        return self.agreed / self.claims if self.claims else None


def agreeing(claimed: Sequence[int], found: Sequence[int]) -> tuple[int, int]:
    """How many participants that were found on a side had said one, and how many of them that
    very one; a negative side is none."""
    both = [(one, other) for one, other in zip(claimed, found, strict=True) if min(one, other) >= 0]
    return len(both), sum(one == other for one, other in both)


class Progress:
    """What a cohort has learned of itself, version by version; its model, and so its rounds and
    losses, go back to its ``parent``'s."""

    def __init__(self, window: int, parent: Progress | None = None) -> None:
        self.rounds: int = 0 if parent is None else parent.rounds
        self.sides: dict[int, int] = {}
        """The clients whose side is known."""
        self._telling: deque[tuple[float, float, int, int]] = deque(maxlen=window)
        """Of the last versions that tell of heterogeneity both spreads, claims, and how many
        agreed."""
        self._losses: list[float] = [] if parent is None else list(parent._losses)
        self._window = window

    def add(self, quality: Quality) -> None:
        """Another version has been made."""
        self.rounds += 1
        if quality.spread is not None and quality.spread_of_sides is not None:
            self._telling.append(
                (quality.spread, quality.spread_of_sides, quality.claims, quality.agreed)
            )
        if quality.loss is not None and np.isfinite(quality.loss):
            self._losses.append(quality.loss)

    def side_sizes(self) -> tuple[int, int]:
        """Clients whose side is known to be 0, and 1."""
        ones = sum(self.sides.values())
        return len(self.sides) - ones, ones

    def spread_ratio(self) -> float | None:
        """J² of the sides over J² of the cohort, over the last ``window`` versions that tell; None
        while there are fewer."""
        if len(self._telling) < self._window:
            return None
        whole, of_sides, _, _ = map(sum, zip(*self._telling, strict=True))
        return float(of_sides / whole) if whole > 0 else None

    def agreement(self) -> float | None:
        """The share of the participants who said a side that were found on it, over the same
        versions; None while there are fewer, or nobody did."""
        claims = sum(version[2] for version in self._telling)
        if len(self._telling) < self._window or not claims:
            return None
        return sum(version[3] for version in self._telling) / claims

    def slope_ratio(self) -> float | None:
        """How fast the loss falls now, of how fast it fell at first; None where that is not known
        yet. Slopes are those of straight lines through ``window`` losses."""
        if len(self._losses) < 2 * self._window:
            return None
        first = _fall(self._losses[: self._window])
        if first <= 1e-9 * max(map(abs, self._losses)):
            return 0.0  # it never fell: there is nothing to wait for
        return max(0.0, _fall(self._losses[-self._window :])) / first


def _fall(losses: Sequence[float]) -> float:
    return -float(np.polyfit(np.arange(len(losses)), losses, 1)[0])


def missing(
    conditions: Conditions, progress: Progress, *, cohorts: int, clients: int,
    asked_by_child: int, participants: tuple[int, int], online: float, learns: bool,
) -> list[str]:  # fmt: skip
    """The conditions that do not hold, by name; empty: the cohort is to split now.

    While the heterogeneity is not known (part of ``knowledge``), neither gain nor agreement is
    asked for.

    ``cohorts``: M; ``clients``: N; a child's round asks ``asked_by_child``; ``participants`` of a
    round of the cohort now, and of a child then; ``online``: how many of the cohort's clients are
    online now. Without learning (``learns``) there is no loss to go by.
    """
    found = []
    sizes = progress.side_sizes()
    if cohorts >= conditions.max_cohorts:
        found.append("max_cohorts")
    if conditions.at is not None:
        if progress.rounds not in conditions.at:
            found.append("at")
        if min(sizes) == 0:
            found.append("knowledge")
        return found
    slope = progress.slope_ratio()
    limit = conditions.settled
    settled = not learns or limit is None or (slope is not None and slope <= limit)
    if progress.rounds < conditions.min_rounds or not settled:
        found.append("maturity")
    wanted = conditions.known_share * clients * 0.9 ** (cohorts - 1)
    uneven = cohorts > 1 and max(sizes) > conditions.most_uneven * min(sizes)
    ratio = progress.spread_ratio()
    if min(sizes) < max(1.0, wanted) or uneven or ratio is None:
        found.append("knowledge")
    agreement = progress.agreement()
    if agreement is not None and agreement < conditions.agreement:
        found.append("agreement")
    now, then = participants
    share = min(sizes) / max(1, sum(sizes))
    if then < conditions.min_participants or share * online < asked_by_child:
        found.append("feasibility")
    # A child has half of the clients and of their data, whatever the share of the budget is.
    if ratio is not None and ratio * max(2.0, now / max(1, then)) > conditions.gain:
        found.append("gain")
    return found
