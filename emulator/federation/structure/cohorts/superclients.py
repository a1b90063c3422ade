"""FedSeq inside a cohort: the clients of a round train in chains, formed anew for each round.

Who is in a chain is in no other cohort's pool, whether its turn has come or not, and is free once
the chain's outcome is final. Hops go by the server: what each member has made of the model that it
was sent is what the coordinator learns of that member.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from emulator.federation.payload import Payload
from emulator.federation.selection import Candidates
from emulator.federation.structure.chain import Chain
from emulator.federation.structure.cohorts.pool import Pool
from emulator.federation.structure.cohorts.tree import place
from emulator.federation.structure.superclients import Superclients
from emulator.federation.tasks import Tasks
from emulator.learning_interface import Learner
from emulator.random_streams import generator
from emulator.scenario import schema
from emulator.simulation.participation import Terms


class Desk(Protocol):
    """Where clients check in, but for those who are ``engaged`` in a chain."""

    engaged: set[int]

    def check_in_again(self, client: int) -> None:
        """Later, once the client has rested."""


class RoundSuperclients(Superclients):
    """See the module. Superclients are numbered as chains are, by ``numbers`` over all cohorts."""

    def __init__(
        self, section: schema.RoundSuperclients, root_seed: int, tasks: Tasks, learner: Learner,
        payload: Payload, numbers: Iterator[int], cohort: str, pool: Pool, desk: Desk,
    ) -> None:  # fmt: skip
        super().__init__(section, root_seed, tasks, learner, payload, numbers, cohort)
        self._section = section
        self._pool = pool
        self._desk = desk
        self._cohort = cohort
        self._place = place(cohort)
        self._dealing = generator(root_seed, "superclients of a round", *self._place)
        self._members: dict[int, list[int]] = {}
        self.on_free = lambda: None  # nobody waits for a superclient: it has one chain

    @property
    def candidates(self) -> Candidates:
        """Clients, of which superclients are made once they are chosen."""
        return self._pool

    def members(self, superclient: int) -> list[int]:
        """The clients of a superclient whose chain is not over."""
        return self._members[superclient]

    def form(self, chosen: Sequence[int], wanted: int) -> tuple[list[int], int]:
        """The superclients, by number, of the clients that a round has chosen; and how many of
        their chains it waits for, to have ``wanted`` clients."""
        dealt = self._dealing.permutation(sorted(chosen))
        found = []
        for group in np.array_split(dealt, self._section.chains(len(chosen))):
            number = next(self._numbers)
            self._members[number] = group.tolist()
            found.append(number)
            self._desk.engaged.update(group.tolist())
            for client in group.tolist():
                self._pool.leave(client)
        self._tasks.recorder.event(
            self._tasks.clock.now, "superclients", f"cohort/{self._cohort}",
            groups={number: self._members[number] for number in found},
        )  # fmt: skip
        return found, self._section.chains(wanted)

    def dispatch(self, superclient: int, version: int, server: Any, terms: Terms) -> Chain:
        """Its chain, from the cohort's model."""
        # Cohorts count versions alike, and no two trainings of a client share a stream.
        visit = (version, 0, *self._place)
        return self.begin(superclient, version, server, terms, visit)

    def _number(self, superclient: int) -> int:
        return superclient

    def _over(self, chain: Chain) -> None:
        super()._over(chain)
        if chain.outcome is not None:  # it was given up or cancelled
            self._release(chain)

    def close(self, chain: Chain) -> None:
        """The outcome is final: its members are free."""
        super().close(chain)
        self._release(chain)

    def _release(self, chain: Chain) -> None:
        for client in self._members.pop(chain.client):
            self._desk.engaged.remove(client)
            self._desk.check_in_again(client)
