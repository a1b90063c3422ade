"""Clients that are put into clusters by their updates, and stay there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from emulator.federation.payload.full import Full
from emulator.federation.structure.clustered import ROOT, Ask, Models, Partition
from emulator.learning_interface import Learner
from emulator.simulation.participation import Participation


class Assigned:
    """All clients begin in one cluster; ``of`` [clients] is where each is now, None: nowhere yet.
    ``eligible`` are those who may ever be asked."""

    def __init__(self, clients: int, eligible: Sequence[int], learner: Learner, plan: Full) -> None:
        self.of: list[str | None] = [ROOT] * clients
        self.eligible = list(eligible)
        self.learner = learner
        self.plan = plan

    def begin(self) -> Models:
        """One model."""
        return Models({ROOT: self.learner.initial()})

    def ask(self, client: int, visit: tuple[int, ...], models: Models) -> Ask:
        """To train the model of its cluster."""
        cohort = self.of[client]
        assert cohort is not None
        update, _ = self.learner.train(models.states[cohort], None, client, visit)
        return Ask(self.plan, update, cohort)

    def settle(self, taken: Sequence[Participation], models: Models) -> list[str]:
        """As they were asked."""
        return [str(p.cohort) for p in taken]

    def merged(self, version: int, models: Models, updates: Mapping[str, Sequence[Any]]) -> Models:
        """As they are."""
        return models

    def homes(self, models: Models) -> list[str]:
        """The clusters."""
        return [str(cohort) for cohort in self.of]

    def members(self, cohort: str) -> list[int]:
        """Of the clients that may be asked, those that are in it."""
        return [client for client in self.eligible if self.of[client] == cohort]

    def cut(
        self, parent: str, groups: Mapping[int, int | None], models: Models, *, merged: bool,
        updates: Mapping[int, Any],
    ) -> Partition:  # fmt: skip
        """``parent`` becomes a cluster for each of the ``groups`` of its clients; those of whom no
        group is known go with the largest. ``merged``: each begins with the mean of its updates.

        With a single group ``parent`` goes on under its name.
        """
        sizes: dict[int, int] = {}
        for number in groups.values():
            if number is not None:
                sizes[number] = sizes.get(number, 0) + 1
        nonfinite = [client for client, number in groups.items() if number is None]
        largest = min(sizes, key=lambda number: (-sizes[number], number), default=0)
        names = {number: f"{parent}.{number}" for number in sorted(sizes)}
        if len(sizes) < 2:
            names = {largest: parent}
        children: dict[str, list[int]] = {name: [] for name in names.values()}
        for client, number in sorted(groups.items()):
            if number is not None:
                children[names[number]].append(client)
        for client, cohort in enumerate(self.of):
            if cohort == parent:
                number = groups.get(client)
                self.of[client] = names[largest if number is None else number]
        states = dict(models.states)
        before = states.pop(parent)
        for name, who in children.items():
            came = [updates[client] for client in who]
            states[name] = self.learner.mean(before, came) if merged and came else before
        ordered = dict(sorted(states.items()))
        return Partition(Models(ordered), parent, children, merged, nonfinite)
