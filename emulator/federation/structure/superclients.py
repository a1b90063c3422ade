"""FedSeq's superclients (Zaccone et al., ICPR 2022): groups of clients, each of which trains as a
chain. A superclient has one chain at a time, and may be asked when any of its members may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.federation.payload import Payload
from emulator.federation.structure.chain import Chain, Rules
from emulator.federation.structure.visits import Visits
from emulator.federation.tasks import Tasks
from emulator.learning_interface import Learner
from emulator.random_streams import bits, purpose_key
from emulator.scenario import schema
from emulator.simulation.participation import Outcome, Terms


class Superclients:
    """See the module; also the candidates of a selection. ``groups`` are there once they have
    been formed (see ``formation``)."""

    contributor = "superclient"
    few = False
    groups: list[list[int]]

    def __init__(
        self, section: schema.Superclients, root_seed: int, tasks: Tasks, learner: Learner,
        payload: Payload,
    ) -> None:  # fmt: skip
        self.at_work: dict[int, Chain] = {}
        self.on_free: Callable[[], None]
        """Hears that a superclient may be asked again."""
        self._tasks = tasks
        self._visits = Visits()
        self._started = 0
        self._order_key = purpose_key(root_seed, "order of a chain")
        self._rules = Rules(
            tasks, learner, payload, section.hop == "relay", section.passes, section.absent,
            self._order, self._over,
        )  # fmt: skip
        tasks.on_finish = self._leave_in_flight

    @property
    def candidates(self) -> Superclients:
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

    def _order(self, superclient: int, visit: tuple[int, int], ring_pass: int) -> list[int]:
        """The members in the order of a pass: by a random key a client, so that one more client
        leaves the order of the others as it is."""
        key = bits(bits(self._order_key, *visit), ring_pass, 0)
        return sorted(self.groups[superclient], key=lambda client: bits(key, client, 0))

    def dispatch(self, superclient: int, version: int, server: Any, terms: Terms) -> Chain:
        """A chain from the server's model."""
        visit = self._visits.visit(superclient, version)
        return self.begin(superclient, version, server, terms, visit)

    def begin(
        self, superclient: int, version: int, base: Any, terms: Terms, visit: tuple[int, int],
        walker: int | None = None,
    ) -> Chain:  # fmt: skip
        """A chain from the model ``base``, for a walker or for the server."""
        chain = Chain(self._rules, self._started, superclient, version, base, visit, terms, walker)
        self._started += 1
        self.at_work[superclient] = chain
        chain.begin()
        return chain

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

    def _leave_in_flight(self) -> None:
        for chain in self.at_work.values():
            chain.outcome = Outcome.IN_FLIGHT
            self._tasks.recorder.chain(chain)
