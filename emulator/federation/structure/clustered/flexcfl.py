"""FlexCFL (Duan et al., TPDS 2021): groups are made before the first round, of the first clients to
come, and whoever comes later joins one.

Some clients train from the initial model, and a group begins with the mean of what its clients have
made of it. A newcomer's first task holds two trainings: the same from the initial model, by which
the server knows its group, then that of the group's model, each with its download and its upload
(in one message each way: a latency is paid once).
(Migration, for clients whose data change, has nothing to do here.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from emulator.federation.payload.full import Full
from emulator.federation.structure.clustered import ROOT, Ask, Models, Partition, Pass
from emulator.federation.structure.clustered.assigned import Assigned
from emulator.learning_interface import Learner
from emulator.random_streams import purpose_key, uniform
from emulator.scenario import schema
from emulator.simulation.participation import Participation

COLD_START = "cold_start"
"""The recipe of the training by which a client's group is known."""


class FlexCfl(Assigned):
    """See the module, and :class:`emulator.federation.structure.clustered.Clustering`.

    ``plan`` is that of a task, ``cold`` of a training from the initial model, ``both`` of a
    newcomer's first task.
    """

    def __init__(
        self, section: schema.FlexCfl, clients: int, eligible: Sequence[int], learner: Learner,
        plan: Full, cold: Full, both: Full, seed: int,
    ) -> None:  # fmt: skip
        super().__init__(clients, eligible, learner, plan)
        self._section = section
        self._cold = cold
        self._both = both
        self._seed = seed
        self._initial = learner.initial()
        self._references: Any = None
        self._newcomer_key = purpose_key(seed, "cohort of a newcomer")
        self._children: list[str] = []

    def due(self, version: int, models: Models) -> Pass | None:
        """Once, before the first round."""
        if self._references is not None:
            return None
        section, n = self._section, len(self.eligible)
        wanted = min(n, section.clients or 20 * section.clusters)
        return Pass(
            ROOT, self.eligible, self._train_cold, self._cold, COLD_START, section.deadline, wanted
        )

    def _train_cold(self, client: int, visit: tuple[int, ...]) -> Any:
        # A stream of its own: the training of the group's model has the visit's.
        return self.learner.train(self._initial, None, client, (*visit, 1), None, COLD_START)[0]

    def passed(self, updates: Mapping[int, Any], models: Models) -> Partition:
        """The groups of those who have come; nobody else is in any (unless there is none at all:
        then the first model stays, and is everybody's)."""
        section = self._section
        options = {"kind": "flexcfl", "k": section.clusters, "measure": section.measure}
        groups, self._references = self.learner.group(list(updates.values()), options, self._seed)
        by_client = dict(zip(updates, groups, strict=True))
        found = self.cut(ROOT, by_client, models, merged=True, updates=updates)
        self._children = list(found.children)
        if any(number is not None for number in groups):
            self.of = [cohort if by_client.get(client) is not None else None
                       for client, cohort in enumerate(self.of)]  # fmt: skip
        return found

    def merged(self, version: int, models: Models, updates: Mapping[str, Sequence[Any]]) -> Models:
        """Each a little nearer to the others, with inter-group aggregation."""
        rate = self._section.inter_group
        if not rate or len(models.states) < 2:
            return models
        nearer = self.learner.inter_group(list(models.states.values()), rate)
        return Models(dict(zip(models.states, nearer, strict=True)))

    def ask(self, client: int, visit: tuple[int, ...], models: Models) -> Ask:
        """To train the model of its group; of a newcomer, what tells its group first."""
        if self.of[client] is not None:
            return super().ask(client, visit, models)
        return Ask(self._both, self._train_cold(client, visit), None)

    def settle(self, taken: Sequence[Participation], models: Models) -> list[str]:
        """As they were asked; newcomers join the nearest group. One whose first training is not
        finite is a newcomer again, and its update is that."""
        new = [p for p in taken if p.cohort is None]
        found = self.learner.nearest(self._references, [p.update for p in new]) if new else []
        for p, number in zip(new, found, strict=True):
            if number is None:
                p.cohort = self._children[0]
                continue
            p.cohort = self.of[p.client] = self._children[number]
            p.update, _ = self.learner.train(models.states[p.cohort], None, p.client, p.visit)
        return [str(p.cohort) for p in taken]

    def homes(self, models: Models) -> list[str]:
        """The groups; a client that has none would be served by any."""
        names = list(models.states)
        return [
            names[int(len(names) * uniform(self._newcomer_key, client, 0))] if cohort is None
            else cohort
            for client, cohort in enumerate(self.of)
        ]  # fmt: skip
