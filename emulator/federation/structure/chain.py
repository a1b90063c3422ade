"""A chain: the members of a superclient train one after the other, each from what the one before
has made of the model (Zaccone et al., "Sequentially Trained Superclients", ICPR 2022, Algorithm 1).

In each of E_S ring passes every member has one turn, in an order that is shuffled anew. The model
goes straight to the next member (``p2p``), or up to the server and down again (``relay``). When
the member whose turn it is is not online, ``absent`` says what happens: ``swap`` gives the turn to
the first in order that is online; ``skip`` waits for it and then leaves it out; ``wait`` waits;
``abort`` gives the chain up, once somebody has begun. A member that is lost at work has its turn
again, once, and ``absent`` holds as if the turn had just come; what it has received it still has,
what it has computed is gone. When time is up, ``swap`` and ``skip`` leave out of the pass who is
not there; ``wait``, and all of them where the holder of the model is the one who is away, give the
chain up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from emulator.errors import RunError
from emulator.federation.payload import Payload
from emulator.federation.tasks import Tasks
from emulator.learning_interface import Learner
from emulator.scenario.schema import Absent
from emulator.simulation.availability import together_from
from emulator.simulation.clock import Call, Rank
from emulator.simulation.devices import Work
from emulator.simulation.participation import NEVER, Outcome, Participation, Terms

NEVER_AFTER_S = 10 * 365 * 86_400.0
"""Clients that are not online together for so long are taken never to be."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What all chains of a structure have in common. ``order(superclient, visit, ring_pass)`` are
    the members in the order of a pass, ``over(chain)`` hears that a chain is. The server of a
    ``cohort`` wants to know what each member has made of the model that it was sent."""

    tasks: Tasks
    learner: Learner
    payload: Payload
    relay: bool
    passes: int
    absent: Absent
    order: Callable[[int, tuple[int, ...], int], list[int]]
    over: Callable[[Chain], None]
    cohort: str | None = None


class Chain:
    """A contribution of the superclient ``client``, number ``task`` among the chains of the run.

    ``base`` is the model that it begins with, ``model`` the newest that a member has made of it,
    ``visit`` with the ring pass the visit key of its trainings, ``walker`` whose model it is, in
    FedSeqInter.
    """

    outcome: Outcome | None = None
    staleness: int | None = None
    cross_staleness: int | None = None
    uploaded_s = NEVER
    closed = False
    update: Any = None

    def __init__(
        self, rules: Rules, task: int, superclient: int, version: int, base: Any,
        visit: tuple[int, ...], terms: Terms, walker: int | None = None,
    ) -> None:  # fmt: skip
        self.task = task
        self.client = superclient
        self.version = version
        self.base = self.model = base
        self.visit = visit
        self.terms = terms
        self.walker = walker
        self.dispatched_s = rules.tasks.clock.now
        self.records: list[Participation] = []
        self.states: dict[int, Any] = {}
        """What the members keep, if the chain counts."""
        self.left_out = 0
        self.is_over = False
        self.plan = rules.payload.plan(superclient)
        self._rules = rules
        self._clock = rules.tasks.clock
        self._ring_pass = -1
        self._remaining: list[int] = []
        self._lost_once: set[int] = set()
        self._is_last = False
        self._holder: Participation | None = None
        self._has: set[int] = set()
        """The clients that hold the newest model, beside the server at first and in a relay."""
        self._running: Participation | None = None
        self._turn_s = self.dispatched_s
        self._wake: Call | None = None

    @property
    def samples(self) -> int:
        """Samples of all members that have trained, each counted once."""
        return sum({p.client: p.samples for p in self.records}.values())

    # --- turns ----------------------------------------------------------------------------------

    def begin(self) -> None:
        of_cohort = {} if self._rules.cohort is None else {"cohort": self._rules.cohort}
        self._log("chain", version=self.version, **of_cohort, **self._of_walker())
        self._give_turn()

    def _give_turn(self) -> None:
        """Let the next member begin, or wait for one."""
        self._wake = None
        if self.is_over:
            return
        if not self._remaining:
            if self._ring_pass + 1 == self._rules.passes:
                self._bring_home()
                return
            self._ring_pass += 1
            self._remaining = self._rules.order(self.client, self.visit, self._ring_pass)
            self._lost_once.clear()
        asked = self._asked()
        for member in asked:
            if self._is_there(member):
                self._remaining.remove(member)
                self._train(member)
                return
        self._wait([self._needed(member) for member in asked], self._members_absent)

    def _asked(self) -> list[int]:
        """Who may have the turn now."""
        kind = self._rules.absent.kind
        # Given up before anybody has begun, a chain would be begun again at the same instant.
        swaps = kind == "swap" or (kind == "abort" and not self.records)
        return list(self._remaining) if swaps else self._remaining[:1]

    def _needed(self, member: int) -> tuple[int, ...]:
        """Who must be online for ``member`` to begin."""
        if self._holder is None or member in self._has:
            return (member,)
        return (self._holder.client, member)

    def _is_there(self, member: int) -> bool:
        there: bool = self._rules.tasks.population.available(member)
        return there and all(map(self._is_online, self._needed(member)))

    def _train(self, member: int) -> None:
        rules = self._rules
        visit = (*self.visit, self._ring_pass)
        state = self.states.get(member, rules.tasks.states.get(member))
        update, state = rules.learner.train(self.model, state, member, visit, self.plan.part)
        source, sender = None, None
        if member in self._has:
            source = member
        elif self._holder is not None:
            source, sender = self._holder.client, self._holder
        self._is_last = not self._remaining and self._ring_pass + 1 == rules.passes
        self._start(member, update, state, self.plan.work(member), source, sender,
                    uploads=rules.relay or self._is_last)  # fmt: skip

    def _start(
        self, client: int, update: Any, state: Any, work: Work | None, source: int | None,
        sender: Participation | None, *, uploads: bool, phase: str = "training",
    ) -> None:  # fmt: skip
        rules = self._rules
        done = self._delivered if phase == "delivery" else self._trained
        terms = self.plan.in_chain(
            client, Terms(0, 0, done, self._lost), comes=source != client,
            moved=bool(self.records), goes=uploads,
        )  # fmt: skip
        p = rules.tasks.make(client, self.version, update, state, work, terms, self.plan)
        p.chain, p.ring_pass, p.phase, p.uploads = self.task, self._ring_pass, phase, uploads
        p.source, p.sender, p.moved = source, sender, bool(self.records)
        p.cohort = rules.cohort
        self._running = p
        rules.tasks.start(p)

    def _trained(self, p: Participation) -> None:
        """A member has trained and, where it was to, uploaded."""
        if self._rules.cohort is not None:
            p.step = self._rules.learner.chain_update(self.model, p.update)
        elif self.records:
            self.records[-1].update = None  # superseded; what comes after it holds on to it
        self.records.append(p)
        self._running = None
        self.model = p.update
        if p.state is not None:
            self.states[p.client] = p.state
        self._turn_s = self._clock.now
        if not self._rules.relay:
            self._holder, self._has = p, {p.client}
        if self._is_last:
            self._complete()  # with the upload: before anything else of this instant
        else:
            self._next()

    def _next(self) -> None:
        wake = self._clock.soon(Rank.DISPATCH, self.client, self._give_turn)
        if wake is not None:  # else the turn is given already, and may have set another
            self._wake = wake

    def _lost(self, p: Participation) -> None:
        """The server hears that a member was lost at work."""
        if self.is_over:
            return
        self._running = None
        self._turn_s = self._clock.now
        if not (self._rules.relay or math.isnan(p.downloaded_s)):
            self._has.add(p.client)
        if self._rules.absent.kind == "abort":
            self._give_up("lost", p.client)
            return
        again = p.client not in self._lost_once
        if not self._sender_left(p):
            self._lost_once.add(p.client)
        if p.phase == "delivery":
            if not again:
                self._give_up("lost", p.client)
                return
        elif again:
            self._remaining.insert(0, p.client)
        else:
            self._leave_out(p.client)
        self._next()

    def _sender_left(self, p: Participation) -> bool:
        """Whether a transfer broke off at its other end: the receiver was online, and goes on."""
        online_until = self._rules.tasks.population.availability.online_until
        from_other = p.source is not None and p.source != p.client
        return bool(from_other and math.isnan(p.downloaded_s)
                    and online_until(p.client, p.ended_s) > p.ended_s)  # fmt: skip

    def _leave_out(self, member: int) -> None:
        self.left_out += 1
        self._log("left_out", client=member, ring_pass=self._ring_pass)

    # --- who is not there -----------------------------------------------------------------------

    def _wait(self, needed: Sequence[tuple[int, ...]], time_is_up: Callable[[], None]) -> None:
        """Go on as soon as any of these groups of clients is online; else when time is up."""
        absent, availability = self._rules.absent, self._rules.tasks.population.availability
        if absent.kind == "abort":
            self._give_up("absent", needed[0][-1])
            return
        timeout_s = getattr(absent, "timeout", None)
        until_s = math.inf if timeout_s is None else self._turn_s + timeout_s
        now = self._clock.now
        if absent.kind == "wait" and not until_s > self._turn_s:
            raise RunError(
                f"federation.structure.absent.timeout, {timeout_s!r} s, does not move the clock at "
                f"simulated time {now!r} s; a longer one is needed"
            )
        limit_s = min(until_s, now + NEVER_AFTER_S)
        ready_s = min(together_from(availability, clients, now, limit_s) for clients in needed)
        self._log("absent", client=needed[0][-1], ring_pass=self._ring_pass)
        if ready_s <= until_s and ready_s < math.inf:
            self._wake = self._clock.at(ready_s, Rank.CHECK_IN, self.client, self._give_turn)
        elif until_s < math.inf:
            self._wake = self._clock.at(until_s, Rank.DEADLINE, self.client, time_is_up)

    def _members_absent(self) -> None:
        asked = self._asked()
        holder = self._holder
        if self._rules.absent.kind == "wait":
            self._give_up("absent", asked[0])
            return
        if holder is not None and not self._is_online(holder.client):
            self._give_up("holder_absent", holder.client)
            return
        for member in asked:
            self._remaining.remove(member)
            self._leave_out(member)
        self._turn_s = self._clock.now
        if not self._remaining and self._ring_pass + 1 == self._rules.passes:
            self._lost_once.clear()  # a delivery may be lost once, whatever was lost before
        self._give_turn()

    def _is_online(self, client: int) -> bool:
        now = self._clock.now
        until_s: float = self._rules.tasks.population.availability.online_until(client, now)
        return bool(until_s > now)

    # --- ends -----------------------------------------------------------------------------------

    def _bring_home(self) -> None:
        """Everybody has had a turn, and the last to train did not know that it was the last."""
        if not self.records:
            self._give_up("nobody_trained", None)
        elif self._holder is None:
            self._complete()
        elif self._is_online(self._holder.client):
            client = self._holder.client
            self._start(client, self.model, None, None, client, None,
                        uploads=True, phase="delivery")  # fmt: skip
        else:
            self._wait([(self._holder.client,)], self._holder_absent)

    def _holder_absent(self) -> None:
        assert self._holder is not None
        self._give_up("holder_absent", self._holder.client)

    def _delivered(self, p: Participation) -> None:
        self.records.append(p)
        self._complete()

    def _complete(self) -> None:
        """The server has what the chain brings."""
        self.uploaded_s = self._clock.now
        learner, last = self._rules.learner, self.records[-1].client
        self.model = learner.leaving(self.base, self.model, last, self.visit, self.plan.part)
        self.update = learner.chain_update(self.base, self.model)
        self._end("uploaded", model=self.model.id)
        self.terms.on_upload(self)

    def _give_up(self, why: str, client: int | None) -> None:
        self.outcome = Outcome.DISCARDED
        self._end("given_up", why=why, client=client)
        self.close()
        self.terms.on_loss(self)

    def cancel(self, outcome: Outcome) -> None:
        """The server gives up on it now."""
        self.outcome = outcome
        self.is_over = True  # before its task ends: what follows from that is of no interest
        if self._running is not None and self._running.outcome is None:
            self._rules.tasks.participations.cancel(self._running, outcome)
        self._end("cancelled")
        self.close()

    def _end(self, how: str, **fields: Any) -> None:
        self.is_over = True
        if self._wake is not None:
            self._clock.cancel(self._wake)
            self._wake = None
        self._running = None
        trained = [p.client for p in self.records if p.phase == "training"]
        self._log("chain_end", how=how, provenance=trained, **fields, **self._of_walker())
        self._rules.over(self)

    def close(self) -> None:
        """Its outcome is final: so is that of its members' tasks."""
        self.closed = True
        for p in self.records:
            p.outcome, p.staleness = self.outcome, self.staleness
            p.cross_staleness, p.step = self.cross_staleness, None
            self._rules.tasks.close(p)
        self._rules.tasks.recorder.chain(self)
        self.update = self.base = self.model = None

    def _of_walker(self) -> dict[str, int]:
        return {} if self.walker is None else {"walker": self.walker}

    def _log(self, event: str, **fields: Any) -> None:
        self._rules.tasks.recorder.event(
            self._clock.now, event, f"superclient/{self.client}", chain=self.task, **fields
        )
