"""``stand_in: planted``: without learning, what the planted clusters of the participants tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from emulator.federation.structure.cohorts.tree import ROOT, child


class PlantedStandIn:
    """Each cohort is for some of the clusters, its sides for one half of them each. A client of one
    of them has a reward of half of R0, any other one of minus that."""

    def __init__(self, planted: Sequence[int], scale: float) -> None:
        self._planted = planted
        self._scale = scale
        self._clusters = {ROOT: list(range(1 + max(planted)))}

    def split(self, cohort: str) -> None:
        """Each child is for one side."""
        clusters = self._clusters[cohort]
        half = (len(clusters) + 1) // 2
        self._clusters[child(cohort, 0)] = clusters[:half]
        self._clusters[child(cohort, 1)] = clusters[half:]

    def found(self, cohort: str, clients: Sequence[int], known: Sequence[bool]) -> dict[str, Any]:
        """In the form of the learning plane's answer."""
        clusters = self._clusters[cohort]
        half = (len(clusters) + 1) // 2
        places = [clusters.index(c) if (c := self._planted[client]) in clusters else -1
                  for client in clients]  # fmt: skip
        return {
            "rewards": [self._scale * (0.5 if place >= 0 else -0.5) for place in places],
            "sides": [-1 if place < 0 else int(place >= half) for place in places],
            "spread": 1.0,
            "spread_of_sides": 0.5 if len(clusters) > 1 else 1.0,
        }
