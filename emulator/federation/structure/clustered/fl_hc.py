"""FL+HC (Briggs et al., IJCNN 2020): some rounds with one model, then all clients train once from
it, and those whose updates are near go on with a model of their own, which begins as that one.

The pass takes as long as it takes until every client has shown up and trained, or its deadline; who
has not come by then goes with the largest cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from emulator.federation.payload.full import Full
from emulator.federation.structure.clustered import ROOT, Models, Partition, Pass
from emulator.federation.structure.clustered.assigned import Assigned
from emulator.learning_interface import Learner
from emulator.scenario import schema


class FlHc(Assigned):
    """See the module, and :class:`emulator.federation.structure.clustered.Clustering`."""

    def __init__(
        self, section: schema.FlHc, clients: int, eligible: Sequence[int], learner: Learner,
        plan: Full, seed: int,
    ) -> None:  # fmt: skip
        super().__init__(clients, eligible, learner, plan)
        self._section = section
        self._seed = seed
        self._done = False

    def due(self, version: int, models: Models) -> Pass | None:
        """Once, after so many rounds."""
        if self._done or version < self._section.after_rounds:
            return None
        self._done = True
        train = partial(first_of, self.learner, models.states[ROOT])
        return Pass(ROOT, self.eligible, train, self.plan, "clustering", self._section.deadline)

    def passed(self, updates: Mapping[int, Any], models: Models) -> Partition:
        """Clusters of the updates."""
        section = self._section
        options = {"kind": "fl_hc", "metric": section.metric, "linkage": section.linkage,
                   "clusters": section.clusters, "threshold": section.threshold}  # fmt: skip
        groups, _ = self.learner.group(list(updates.values()), options, self._seed)
        by_client = dict(zip(updates, groups, strict=True))
        return self.cut(ROOT, by_client, models, merged=False, updates=updates)


def first_of(learner: Learner, model: Any, client: int, visit: tuple[int, ...]) -> Any:
    """The update of a client that trains ``model``."""
    return learner.train(model, None, client, visit)[0]
