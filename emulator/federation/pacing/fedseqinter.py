"""FedSeqInter (Zaccone et al., ICPR 2022, Algorithm 1): models walk over superclients, out of sync.

M walkers, each with a model of its own, go from superclient to superclient; at a superclient's end
the model is at the server. θ ← Σ_i w_i Θ_i / Σ_i w_i is taken now and then, with w_i the samples
that walker i has seen since the last time, and all go on from θ. The paper averages every N_S
rounds (``lockstep``); how walkers go out of sync it leaves open, see
:class:`emulator.scenario.schema.FedSeqInter` for the modes. A hop whose chain was given up does not
count: the walker is back where it was, and draws again.

Between two averages the model that is evaluated is the average that would be taken now, as the
authors' code does ("virtual"); with ``merge`` it is the server's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from emulator.errors import ScenarioError
from emulator.federation.pacing import constant, staleness_function
from emulator.federation.server import Server
from emulator.federation.structure import Trained
from emulator.federation.structure.chain import Chain
from emulator.scenario.schema import FedSeqInter
from emulator.simulation.clock import Call, Rank
from emulator.simulation.participation import Outcome


@dataclass(slots=True, eq=False)
class Walker:
    """``model`` is None while it is the server's; ``hops``, ``samples`` and ``chains`` count from
    ``version``, with which it has set out; ``visits`` counts all hops."""

    number: int
    version: int = 0
    model: Any = None
    hops: int = 0
    samples: int = 0
    visits: int = 0
    chains: list[Chain] = field(default_factory=list)
    at: Chain | None = None

    @property
    def last(self) -> Trained:
        """What its model is known by: the last superclient, the version, when that hop began."""
        chain = self.chains[-1]
        return Trained(chain.client, self.version, chain.dispatched_s, chain.plan.rate)

    def set_out(self, version: int) -> None:
        """Go on from the server's model."""
        self.version, self.model, self.hops, self.samples = version, None, 0, 0
        self.chains = []


class FedSeqInterPacing:
    """See the module."""

    def __init__(self, server: Server, section: FedSeqInter, *, everyone: bool) -> None:
        self._server = server
        self._section = section
        self.discount = staleness_function(section.staleness) if section.staleness else constant
        self._walkers: list[Walker] = []
        self._period = 0
        self._rounds = 0
        self._hops = 0
        self._since_s = 0.0
        self._virtual: Any = None
        self._averaging: Call | None = None
        self._merging: list[Walker] = []
        self._asking: Call | None = None
        self._check_in: object | None = None
        self._terms = server.terms(self._arrived, self._lost)

    @property
    def waits_for(self) -> str:
        """What the server needs to go on."""
        hosted = sum(walker.at is not None for walker in self._walkers)
        return (
            f"{len(self._walkers)} walkers: {hosted} in a superclient, and "
            f"{sum(map(self._is_parked, self._walkers))} that have made their {self._period} hops"
        )

    def start(self) -> None:
        n = self._server.structure.candidates.clients
        wanted = self._section.wanted(n)
        if wanted > n:
            raise ScenarioError(
                f"federation.pacing.walkers is {wanted}, more than the {n} superclients that "
                "federation.structure.grouping makes; a superclient hosts one walker at a time"
            )
        self._period = self._section.hops or n
        self._walkers = [Walker(number) for number in range(wanted)]
        self._since_s = self._server.clock.now
        self._ask_soon()

    def leftovers(self) -> list[Chain]:
        """Chains that no version has taken yet when the run ends."""
        return [chain for walker in self._walkers for chain in walker.chains]

    def model(self) -> Any:
        """The newest version, or the average that would be taken now."""
        server = self._server
        walked = [walker for walker in self._walkers if walker.hops]
        if self._section.mode == "merge" or not walked:
            return server.state
        if self._virtual is None:
            self._virtual = self._mean(walked)
            server.watch_finite(self._virtual, [walker.last for walker in walked])
        return self._virtual

    def _mean(self, walked: Sequence[Walker]) -> Any:
        server = self._server
        updates = [server.learner.chain_update(server.state, walker.model) for walker in walked]
        return server.aggregate(updates, [self._weight(w) for w in walked], [1.0] * len(walked))

    def _weight(self, walker: Walker) -> float:
        return float(walker.samples) if self._section.weights == "samples" else 1.0

    # --- hops -----------------------------------------------------------------------------------

    def _is_parked(self, walker: Walker) -> bool:
        """Whether it waits for the others, or for its merge."""
        return self._section.mode in ("free_hops", "merge") and walker.hops >= self._period

    def _ask_soon(self) -> None:
        if self._asking is None:
            self._asking = self._server.clock.soon(Rank.DISPATCH, 0, self._ask)

    def _ask(self) -> None:
        """Send on the walkers that are ready, as far as there are superclients for them."""
        self._asking = None
        server, together = self._server, self._section.mode == "lockstep"
        ready = [w for w in self._walkers if w.at is None and not self._is_parked(w)]
        if not ready or (together and len(ready) < len(self._walkers)):
            return
        chosen = server.select(len(ready))
        if len(chosen) < len(ready):
            waiting = len(ready) if together else len(ready) - len(chosen)
            server.log("parked", walkers=waiting)
            if self._check_in is None:
                self._check_in = server.structure.candidates.at_next_check_in(self._checked_in)
            if together:
                return
        for walker, superclient in zip(ready, chosen, strict=False):
            visit = (walker.number, walker.visits)
            base = server.state if walker.model is None else walker.model
            # The chain may be given up at once, and its walker asked again.
            walker.at = server.structure.begin(  # type: ignore[attr-defined]
                superclient, walker.version, base, self._terms, visit, walker.number
            )

    def _checked_in(self) -> None:
        self._check_in = None
        self._ask_soon()

    def _arrived(self, chain: Chain) -> None:
        server, walker = self._server, self._walker_of(chain)
        server.accept(chain)
        walker.at = None
        walker.model, chain.update = chain.model, None
        chain.model = chain.base = None
        walker.hops += 1
        walker.visits += 1
        walker.samples += chain.samples
        walker.chains.append(chain)
        self._virtual = None
        self._hops += 1
        every = server.policy.evaluate_every_hops
        if every is not None and self._hops % every == 0:
            server.evaluate_soon()
        if self._section.mode == "merge" and walker.hops >= self._period:
            self._merging.append(walker)
        self._go_on()

    def _lost(self, chain: Chain) -> None:
        self._walker_of(chain).at = None
        self._go_on()

    def _walker_of(self, chain: Chain) -> Walker:
        assert chain.walker is not None
        return self._walkers[chain.walker]

    def _go_on(self) -> None:
        """Somebody has left a superclient: is it time for an average?"""
        walkers, mode = self._walkers, self._section.mode
        if mode == "lockstep":
            if any(walker.at is not None for walker in walkers):
                return
            self._rounds += 1
            due = self._rounds % self._period == 0
        elif mode == "free_hops":
            due = all(map(self._is_parked, walkers))
        elif mode == "free_quota":
            due = sum(walker.hops for walker in walkers) >= len(walkers) * self._period
        else:
            due = bool(self._merging)
        if due and self._averaging is None:
            self._averaging = self._server.clock.at(
                self._server.clock.now, Rank.AGGREGATION, 0, self._make_version
            )
        elif not due:
            self._ask_soon()

    # --- versions -------------------------------------------------------------------------------

    def _make_version(self) -> None:
        self._averaging = None
        if self._section.mode == "merge":
            merging, self._merging = sorted(self._merging, key=lambda w: w.number), []
            for walker in merging:
                if not self._server.stopped:
                    self._server.evaluate_if_due()  # before another version takes its place
                    self._merge(walker)
        else:
            self._average()
        self._ask_soon()

    def _average(self) -> None:
        server, walkers = self._server, self._walkers
        for walker in walkers:
            if walker.at is not None:
                server.cancel(walker.at, Outcome.CANCELLED)
                walker.at = None
        walked = [walker for walker in walkers if walker.hops]
        if walked:
            state, self._virtual = self.model(), None
            self._take(state, walked)
        for walker in walkers:
            walker.set_out(server.version)

    def _merge(self, walker: Walker) -> None:
        server = self._server
        discount = self.discount(server.version - walker.version)
        state = server.aggregate([walker.model], [self._weight(walker)], [discount])
        server.watch_finite(state, [walker.last])
        self._take(state, [walker])
        walker.set_out(server.version)

    def _take(self, state: Any, walked: Sequence[Walker]) -> None:
        """Make ``state``, of these walkers' models, the next version."""
        server = self._server
        chains = [chain for walker in walked for chain in walker.chains]
        for chain in chains:
            chain.staleness = server.version - chain.version
        server.advance(state, chains, self._since_s)
        self._since_s = server.clock.now
