"""What a client remembers of the cohorts that it has served, and how it chooses the next.

Auxo (Liu et al., SoCC 2023), §4.3 and §5. The records are the client's own: a feedback adds its
reward to the cohort's (or moves its average), and predicts those of cohorts that the client has
never trained in (``ExploreReward``), R_m' ← R_m' + R_m / (d(m, m') + 1), with d the hops from m up
to the lowest common ancestor. After a bad experience a far cohort is so tried before a near one: a
search that halves the tree each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from emulator.federation.structure.cohorts.tree import child, hops_up, is_within


@dataclass(frozen=True, slots=True)
class Exploration:
    """ε-greedy: at its n-th check-in with a choice a client tries another cohort than its best with
    probability max(floor, epsilon · decay^n)."""

    epsilon: float
    decay: float
    floor: float

    def rate(self, choices: int) -> float:
        """The probability after so many ``choices``."""
        return max(self.floor, self.epsilon * self.decay**choices)


@dataclass(slots=True)
class Record:
    """Of one cohort: its ``reward``, made of so many ``given`` ones, or predicted ones while there
    are none; how often the client has ``trained`` in it, and by how many more feedbacks it was on
    side 1 of it than on side 0."""

    reward: float = 0.0
    trained: int = 0
    leaning: int = 0
    given: int = 0

    def add(self, reward: float, averaging: float | None) -> None:
        """Another reward: R ← R + r; or, averaging, R ← R + a (r − R) with a = ``averaging``, or
        one part in so many rewards while those are few."""
        self.given += 1
        if averaging is None:
            self.reward += reward
        else:
            self.reward += max(averaging, 1.0 / self.given) * (reward - self.reward)

    @property
    def side(self) -> int | None:
        """The side of the cohort that the client is on; None while that is open."""
        return None if self.leaning == 0 else int(self.leaning > 0)

    @property
    def known(self) -> bool:
        """Whether the cohort knows the client as one of its own."""
        return self.trained > 0 and self.reward > 0


@dataclass(frozen=True, slots=True)
class Request:
    """What a client says when it checks in: the ``cohort`` it would serve (None: any), its ``side``
    of it, whether it counts itself as ``known`` there, and whether it ``explores``."""

    cohort: str | None = None
    side: int | None = None
    known: bool = False
    explores: bool = False


class Affinity:
    """The records of one client, by cohort."""

    __slots__ = ("choices", "records")

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.choices = 0

    def best(self, which: float) -> str | None:
        """The cohort with the highest reward, ``which`` from (0, 1) among equals; None without
        records."""
        if not self.records:
            return None
        highest = max(record.reward for record in self.records.values())
        equals = [c for c in sorted(self.records) if self.records[c].reward == highest]
        return equals[int(which * len(equals))]

    def knows(self, leaf: str) -> bool:
        """Whether the client counts itself as one of the cohort ``leaf``'s, or of the one that it
        knew before that split."""
        above = [cohort for cohort in self.records if is_within(leaf, cohort)]
        return bool(above) and self.records[max(above, key=len)].known

    def request(self, exploration: Exploration, draw: float, which: float) -> Request:
        """The affinity request of a check-in; ``draw`` and ``which`` from (0, 1) say whether and
        where it explores."""
        records = self.records
        chosen = self.best(which)
        if chosen is None:
            return Request()
        explores = False
        if len(records) > 1:
            explores = draw < exploration.rate(self.choices)
            self.choices += 1
            if explores:
                chosen = self._to_explore(chosen, which)
        record = records[chosen]
        return Request(chosen, record.side, record.known, explores)

    def _to_explore(self, best: str, which: float) -> str:
        """Of the cohorts that the client has never trained in the one with the highest predicted
        reward; any other than the best, once it knows them all."""
        unseen = [c for c in sorted(self.records) if c != best and self.records[c].trained == 0]
        others = unseen or [c for c in sorted(self.records) if c != best]
        if unseen:
            highest = max(self.records[c].reward for c in unseen)
            others = [c for c in unseen if self.records[c].reward == highest]
        return others[int(which * len(others))]

    def feedback(
        self, cohort: str, reward: float, side: int | None, leaves: Sequence[str], *,
        predict: Literal["unexplored", "all", "none"] = "unexplored", resets: bool = False,
        averaging: float | None = None,
    ) -> None:  # fmt: skip
        """The client has trained in ``cohort`` and hears its reward, its side and which ``leaves``
        there are.

        ``predict``: whose rewards ExploreReward touches. ``resets`` as in the authors' code: a
        negative reward makes the client a stranger again, on no side.
        """
        self._learn_of(leaves)
        record = self.records[cohort]
        if record.trained == 0:
            record.given = 0 if averaging is not None else record.given  # no longer a prediction
        record.trained += 1
        if len(leaves) == 1:
            record.reward = 1.0  # everyone belongs to the only cohort
            record.given = record.trained
        else:
            record.add(reward, averaging)
        if side is not None:
            record.leaning += 1 if side else -1
        if resets and reward < 0:
            record.leaning = record.trained = 0
        for other, of_other in self.records.items():
            touched = predict == "all" or (predict == "unexplored" and of_other.trained == 0)
            if touched and other != cohort:
                of_other.add(reward / (hops_up(cohort, other) + 1), averaging)

    def _learn_of(self, leaves: Sequence[str]) -> None:
        """Records of the present ``leaves``: what has split hands its record on, the side that the
        client is on with one more reward and the trainings, the other without either. Of what has
        split twice, all leaves on that side have one more reward, and none the trainings: for
        which of them they were is not known."""
        known = self.records
        self.records = {}
        for leaf in leaves:
            found = known.get(leaf)
            if found is None:
                found = Record()
                above = [cohort for cohort in known if is_within(leaf, cohort)]
                if above:
                    ancestor = max(above, key=len)
                    came_from = known[ancestor]
                    found.reward = came_from.reward
                    side = came_from.side
                    if side is not None and is_within(leaf, f"{ancestor}.{side}"):
                        found.reward += 1.0
                        found.given = came_from.given
                        if leaf == child(ancestor, side):
                            found.trained = came_from.trained
            self.records[leaf] = found
