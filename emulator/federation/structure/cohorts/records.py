"""What all clients remember of cohorts, what they make of it at a check-in, and the letters to them
that wait until they come."""

from __future__ import annotations

from collections.abc import Callable, Collection

from emulator.federation.structure.cohorts.affinity import Affinity, Exploration, Request
from emulator.federation.structure.cohorts.tree import Tree
from emulator.random_streams import purpose_key, uniform


class Records:
    """``loss``: the probability that a client has lost its records when it checks in, if it is of
    the share ``forgetful``; ``on_loss`` hears of each that had some. ``liars`` say the other side
    than the one that they know."""

    def __init__(
        self, exploration: Exploration, root_seed: int, loss: float, forgetful: float,
        liars: Collection[int], on_loss: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._exploration = exploration
        self._loss = loss
        self._forgetful = forgetful
        self._liars = frozenset(liars)
        self._on_loss = on_loss
        self._affinities: dict[int, Affinity] = {}
        self._letters: dict[int, list[Callable[[Affinity], None]]] = {}
        self._check_ins: dict[int, int] = {}
        self._explore_key = purpose_key(root_seed, "exploration")
        self._which_key = purpose_key(root_seed, "explored cohort")
        self._match_key = purpose_key(root_seed, "cohort of a newcomer")
        self._loss_key = purpose_key(root_seed, "lost records")
        self._forgetful_key = purpose_key(root_seed, "who loses records")

    def check_ins(self, client: int) -> int:
        """How often the client has sent a request."""
        return self._check_ins.get(client, 0)

    def draw(self, client: int, n: int | None = None) -> float:
        """From (0, 1): where the client goes, of equals, at its n-th check-in or the next one."""
        return uniform(self._match_key, client, self.check_ins(client) if n is None else n)

    def request(self, client: int) -> Request:
        """What the client sends at one more check-in."""
        n = self.check_ins(client)
        self._check_ins[client] = n + 1
        if self._loss and self._loses(client, n):
            self._lose(client)
        records = self._affinities.get(client)
        if records is None:  # most of a large population have none: nothing is kept for them
            return Request()
        found = records.request(
            self._exploration, uniform(self._explore_key, client, n),
            uniform(self._which_key, client, n),
        )  # fmt: skip
        if client in self._liars and found.side is not None:
            return Request(found.cohort, 1 - found.side, found.known, found.explores)
        return found

    def _loses(self, client: int, n: int) -> bool:
        """Whether it has lost its records when it checks in for the n-th time."""
        if not uniform(self._forgetful_key, client, 0) < self._forgetful:
            return False
        return uniform(self._loss_key, client, n) < self._loss

    def _lose(self, client: int) -> None:
        lost = self._affinities.pop(client, None)
        if lost is not None and lost.records:
            self._on_loss(client)

    def _of(self, client: int) -> Affinity:
        found = self._affinities.get(client)
        if found is None:
            found = self._affinities[client] = Affinity()
        return found

    # --- letters --------------------------------------------------------------------------------

    def write(self, client: int, letter: Callable[[Affinity], None]) -> None:
        """``letter`` changes the client's records once it is delivered."""
        self._letters.setdefault(client, []).append(letter)

    def deliver(self, client: int) -> None:
        """All that waits for the client reaches it, in the order in which it was written."""
        for letter in self._letters.pop(client, ()):
            letter(self._of(client))

    # --- seen from outside ----------------------------------------------------------------------

    def home(self, client: int, tree: Tree) -> str:
        """The cohort that serves a client now: the one that it would ask for without exploring; for
        one that has no record, the one that a newcomer is sent to."""
        draw = self.draw(client)
        found = self._affinities.get(client, Affinity())
        best = found.best(draw)
        side = found.records[best].side if best is not None else None
        return tree.match(best, side, draw)

    def is_known(self, client: int, leaf: str) -> bool:
        """Whether the client counts itself as one of the cohort ``leaf``'s."""
        found = self._affinities.get(client)
        return found is not None and found.knows(leaf)
