"""CFL (Sattler et al. 2020): a cluster whose model rests while its clients still pull apart is cut
in two, by the updates of all its members.

The method asks all clients every round. Here rounds ask whom they find, as those of any method, and
tell by their updates whether a cluster is at rest; a cut then waits for one update of each of its
members, who come when they come, or until its deadline (who has not come goes with the larger
part). Each part begins with the mean of its own members' updates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from emulator.federation.payload.full import Full
from emulator.federation.structure.clustered import Models, Partition, Pass
from emulator.federation.structure.clustered.assigned import Assigned
from emulator.federation.structure.clustered.fl_hc import first_of
from emulator.learning_interface import Learner
from emulator.scenario import schema

LEAST = 3
"""Members of a cluster that can be cut."""


class Cfl(Assigned):
    """See the module, and :class:`emulator.federation.structure.clustered.Clustering`."""

    def __init__(
        self, section: schema.Cfl, clients: int, eligible: Sequence[int], learner: Learner,
        plan: Full, seed: int,
    ) -> None:  # fmt: skip
        super().__init__(clients, eligible, learner, plan)
        self._section = section
        self._seed = seed
        self._largest = 0.0
        self._at_rest: list[str] = []
        self._cut: str | None = None

    def merged(self, version: int, models: Models, updates: Mapping[str, Sequence[Any]]) -> Models:
        """As they are; whose clusters are at rest while their clients are not is kept in mind."""
        section, thresholds = self._section, self._section.thresholds
        most_clusters = section.max_clusters
        if (most_clusters is not None and len(models.states) >= most_clusters) or (
            version < section.min_rounds and isinstance(thresholds, schema.AbsoluteNorms)
        ):
            return models  # nobody asks how long these updates are
        for cohort, sent in updates.items():
            found = self.learner.norms(sent)
            mean, longest = found["mean"], found["largest"]
            if mean is None:
                continue
            self._largest = max(self._largest, mean)
            if isinstance(thresholds, schema.RelativeNorms):
                least = thresholds.mean * self._largest
                most = thresholds.ratio * least
            else:
                least, most = thresholds.mean, thresholds.largest
            rests = mean < least and longest > most
            if rests and version >= section.min_rounds and cohort not in self._at_rest:
                self._at_rest.append(cohort)
        return models

    def due(self, version: int, models: Models) -> Pass | None:
        """Of the members of a cluster that is at rest."""
        section = self._section
        while self._at_rest:
            cohort = self._at_rest.pop(0)
            members = self.members(cohort)
            if cohort not in models.states or len(members) < LEAST:
                continue
            if section.max_clusters is not None and len(models.states) >= section.max_clusters:
                continue
            self._cut = cohort
            train = partial(first_of, self.learner, models.states[cohort])
            return Pass(cohort, members, train, self.plan, "clustering", section.deadline)
        return None

    def passed(self, updates: Mapping[int, Any], models: Models) -> Partition:
        """Two parts."""
        assert self._cut is not None
        options = {"kind": "cfl", "linkage": self._section.linkage}
        groups, _ = self.learner.group(list(updates.values()), options, self._seed)
        by_client = dict(zip(updates, groups, strict=True))
        return self.cut(self._cut, by_client, models, merged=True, updates=updates)
