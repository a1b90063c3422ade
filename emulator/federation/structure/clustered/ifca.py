"""IFCA (Ghosh et al., NeurIPS 2020): each participant is sent all models, and trains the one that
fits its samples best.

A task takes k downloads, k forward passes over the client's samples and, beside the model, 4 bytes
up that say which it was. All models are there from the start, each of other random weights.
"""

from __future__ import annotations

from collections.abc import Sequence

from emulator.federation.payload.full import Full
from emulator.federation.structure.clustered import Ask, Models
from emulator.learning_interface import Learner
from emulator.scenario import schema
from emulator.simulation.participation import Participation

ASKED_AT_ONCE = 50
"""Clients whose choices are one operation, when all are to be known."""


class Ifca:
    """See the module, and :class:`emulator.federation.structure.clustered.Clustering`."""

    def __init__(self, section: schema.Ifca, clients: int, learner: Learner, plan: Full) -> None:
        self._k = section.clusters
        self._clients = clients
        self._learner = learner
        self._plan = plan

    def begin(self) -> Models:
        """k models."""
        return Models({f"c{j}": self._learner.initial(j) for j in range(self._k)})

    def ask(self, client: int, visit: tuple[int, ...], models: Models) -> Ask:
        """To choose, and to train what it chooses."""
        chosen = self._learner.choose(list(models.states.values()), [client])
        return Ask(self._plan, chosen, None)

    def settle(self, taken: Sequence[Participation], models: Models) -> list[str]:
        """What each has chosen; it has trained that."""
        names, cohorts = list(models.states), []
        for p, (j,) in zip(taken, self._learner.choices([p.update for p in taken]), strict=True):
            p.update, _ = self._learner.train(models.states[names[j]], None, p.client, p.visit)
            cohorts.append(names[j])
        return cohorts

    def homes(self, models: Models) -> list[str]:
        """What each would choose."""
        names, states = list(models.states), list(models.states.values())
        shards = [range(first, min(self._clients, first + ASKED_AT_ONCE))
                  for first in range(0, self._clients, ASKED_AT_ONCE)]  # fmt: skip
        found = self._learner.choices([self._learner.choose(states, shard) for shard in shards])
        return [names[j] for shard in found for j in shard]
