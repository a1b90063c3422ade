"""FedSeq's superclients (Zaccone et al., ICPR 2022): groups of clients, each of which trains as a
chain. A superclient has one chain at a time, and may be asked when any of its members may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.federation.payload import Payload
from emulator.federation.selection import Candidates
from emulator.federation.structure.chain import Chain, Rules
from emulator.federation.structure.visits import Visits
from emulator.federation.tasks import Tasks
from emulator.learning_interface import Learner
from emulator.random_streams import bits, purpose_key
from emulator.scenario import schema
from emulator.simulation.participation import Outcome, Terms


class Superclients:
    """See the module; also the candidates of a selection. ``groups`` are there once they have
    been formed (see ``formation``); chains are numbered by ``numbers``."""

    contributor = "superclient"
    few = False
    groups: list[list[int]]

    def __init__(
        self, section: schema.Superclients | schema.RoundSuperclients, root_seed: int,
        tasks: Tasks, learner: Learner, payload: Payload, numbers: Iterator[int],
        cohort: str | None = None,
    ) -> None:  # fmt: skip
        self.at_work: dict[int, Chain] = {}
        self.on_free: Callable[[], None]
        """Hears that a superclient may be asked again."""
        self._tasks = tasks
        self._visits = Visits()
        self._numbers = numbers
        self._order_key = purpose_key(root_seed, "order of a chain")
        self._rules = Rules(
            tasks, learner, payload, section.hop == "relay", section.passes, section.absent,
            self._order, self._over, cohort,
        )  # fmt: skip

    @property
    def candidates(self) -> Candidates:
        """Those who may be asked: the superclients themselves."""
        return self

    # --- candidates -----------------------------------------------------------------------------

    @property
    def clients(self) -> int:
        """How many superclients there are."""
        return len(self.groups)

    def available(self, superclient: int) -> bool:
        """Whether the superclient may be asked now."""
        if superclient in self.at_work:
            return False
        return any(map(self._tasks.population.available, self.groups[superclient]))

    def all_available(self) -> NDArray[np.int64]:
        """All superclients that may be asked now, ascending."""
        found = [s for s in range(len(self.groups)) if self.available(s)]
        return np.array(found, dtype=np.int64)

    def at_next_check_in(self, action: Callable[[], None]) -> Any:
        """Call ``action`` when the next client comes."""
        return self._tasks.population.at_next_check_in(action)

    # --- chains ---------------------------------------------------------------------------------

    def members(self, superclient: int) -> list[int]:
        """The clients of a superclient."""
        return self.groups[superclient]

    def _order(self, superclient: int, visit: tuple[int, ...], ring_pass: int) -> list[int]:
        """The members in the order of a pass: by a random key a client, so that one more client
        leaves the order of the others as it is."""
        key = bits(bits(self._order_key, visit[0], visit[1]), ring_pass, 0)
        return sorted(self.members(superclient), key=lambda client: bits(key, client, 0))

    def dispatch(self, superclient: int, version: int, server: Any, terms: Terms) -> Chain:
        """A chain from the server's model."""
        visit = self._visits.visit(superclient, version)
        return self.begin(superclient, version, server, terms, visit)

    def begin(
        self, superclient: int, version: int, base: Any, terms: Terms, visit: tuple[int, ...],
        walker: int | None = None,
    ) -> Chain:  # fmt: skip
        """A chain from the model ``base``, for a walker or for the server."""
        number = self._number(superclient)
        chain = Chain(self._rules, number, superclient, version, base, visit, terms, walker)
        self.at_work[superclient] = chain
        chain.begin()
        return chain

    def _number(self, superclient: int) -> int:
        """That of the next chain."""
        return next(self._numbers)

    def _over(self, chain: Chain) -> None:
        del self.at_work[chain.client]
        if chain.outcome is not None:  # it was given up or cancelled
            self._unreported(chain)
        self.on_free()

    def accept(self, chain: Chain) -> None:
        """It counts: its members' own states advance."""
        chain.outcome = Outcome.REPORTED
        self._tasks.states.update(chain.states)

    def cancel(self, chain: Chain, outcome: Outcome) -> None:
        """Tell the member at work to stop."""
        chain.cancel(outcome)

    def close(self, chain: Chain) -> None:
        """The outcome is final."""
        if chain.outcome is not Outcome.REPORTED:
            self._unreported(chain)
        chain.close()

    def _unreported(self, chain: Chain) -> None:
        if chain.walker is None:
            self._visits.lost(chain.client, chain.version)

    def leave_in_flight(self) -> None:
        """The run is over: the records of chains that are not."""
        for chain in self.at_work.values():
            chain.outcome = Outcome.IN_FLIGHT
            self._tasks.recorder.chain(chain)
