"""Synchronous rounds with over-commitment and a deadline.

A round asks floor(participants × over_commitment) clients (Bonawitz et al. 2019) and closes with
the ``participants``-th upload, at the deadline, or when the server knows that nobody is left to
wait for. It then makes a version of what arrived, earliest first. With fewer than ``min_updates``,
or a smaller share than ``target_ratio`` (FLASH's update_frac, Yang et al. 2021), the round failed:
what arrived is discarded and the model stays.

REFL's target ratio (Abdelmoniem et al. 2023) is another thing: its round ends as soon as that share
of those asked has reported. That is over-commitment: 0.8 of 10 are 8 participants and 1.25.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from typing import Any

from simpy.events import Event, Process
from simpy.exceptions import Interrupt

from emulator.errors import RunError, ScenarioError
from emulator.federation.pacing import constant
from emulator.federation.pacing.deadline import Deadline, deadline
from emulator.federation.server import Server
from emulator.federation.structure import Contribution
from emulator.scenario.schema import Synchronous
from emulator.simulation.clock import Rank, Timer
from emulator.simulation.participation import Outcome


class Round:
    """What one round waits for. ``closing`` fires at the instant of its aggregation."""

    def __init__(self, server: Server, wanted: int, closing: Timer, deadline: Deadline) -> None:
        self.wanted = wanted
        self.closing = closing
        self.by_deadline = False
        self.closed = False
        self.arrived: list[Contribution] = []
        self.awaited: set[int] = set()
        self._server = server
        self._deadline = deadline

    def uploaded(self, p: Contribution) -> None:
        """An upload is complete."""
        self._deadline.upload_took(p.uploaded_s - p.dispatched_s)
        if self.closed:
            self._server.dismiss(p, Outcome.LATE)
            return
        self.awaited.discard(p.task)
        self.arrived.append(p)
        if len(self.arrived) >= self.wanted or not self.awaited:
            self.close()

    def lost(self, p: Contribution) -> None:
        """The server learns that a client will not report."""
        self.awaited.discard(p.task)
        if not self.closed and not self.awaited:
            self.close()

    def deadline(self) -> None:
        """The time is up."""
        self.by_deadline = True
        self.close()

    def close(self) -> None:
        """Aggregate at this instant, after everything else that happens in it."""
        clock = self._server.clock
        if not self.closing.triggered:
            clock.set(self.closing, clock.now)


class SynchronousPacing:
    """See the module."""

    def __init__(self, server: Server, section: Synchronous, *, everyone: bool) -> None:
        self._server = server
        self._section = section
        self._deadline = deadline(section)
        self._round = self._new_round(0)
        self._round.closed = True
        self.waits_for = "nothing yet"
        self._says: dict[str, str] = {}
        """What the log says of each round beside."""
        # Every update of a round starts from the version before: there is nothing to discount.
        self.discount = constant
        self._begun: list[Contribution] = []
        self._process: Process
        self._restarts: Timer

    def start(self) -> None:
        n, section = self._server.structure.candidates.clients, self._section
        if section.asked(n) > n and section.too_few != "proceed":
            who = self._server.structure.contributor
            raise ScenarioError(
                f"federation.pacing asks {section.asked(n)} {who}s each round, more than the {n} "
                f"{who}s there are; lower participants or over_commitment, or say too_few: proceed"
            )
        self._process = self._server.clock.process(self._rounds())

    def leftovers(self) -> list[Contribution]:
        """Contributions that no version has taken yet when the run ends."""
        return list(self._round.arrived) if not self._round.closed else []

    def model(self) -> Any:
        """The newest version."""
        return self._server.state

    def under_way(self) -> list[Contribution]:
        """What this server waits for: of the round, and of earlier ones' stragglers."""
        arrived = self._round.arrived
        return [c for c in self._begun if c.outcome is None and c not in arrived]

    def fail(self, under_way: Sequence[Contribution]) -> None:
        """The server has died: what has come for this round is lost, and so is what is
        ``under_way``."""
        received = self.leftovers()
        self._round.closed = True
        for p in under_way:
            self._server.cancel(p, Outcome.SERVER_FAILED)
        for p in received:
            self._server.dismiss(p, Outcome.SERVER_FAILED)
        self._restarts = self._server.clock.idle_timer(Rank.OFFLINE)
        self.waits_for = "the restart of its process"
        self._process.interrupt()

    def restart(self) -> None:
        """The server is back: the round that was not complete is done again."""
        self._server.clock.set(self._restarts, self._server.clock.now)

    def _rounds(self) -> Generator[Event, Any, None]:
        for number in itertools.count():
            yield from self._until_over(number)
            if self._server.retired:
                return

    def _until_over(self, number: int) -> Generator[Event, Any, None]:
        """Round ``number``, begun anew as often as the server fails; then the next may begin."""
        server, clock, is_over = self._server, self._server.clock, False
        while True:
            try:
                if not is_over:
                    yield from server.before_round()
                    yield from self._one_round(number, *self._size())
                    is_over = True
                if not server.retired:
                    yield clock.at(clock.now, Rank.DISPATCH)
                return
            except Interrupt:
                yield self._restarts

    def _size(self) -> tuple[int, int]:
        """How many updates a round waits for, and how many it asks."""
        server, section = self._server, self._section
        wanted = server.share(section.wanted(server.structure.candidates.clients))
        return wanted, section.asked_for(wanted)

    def _one_round(self, number: int, wanted: int, asked: int) -> Generator[Event, Any, None]:
        """Round ``number``, which asks ``asked`` and waits for ``wanted``."""
        server, clock = self._server, self._server.clock
        chosen, wanted = server.contributors((yield from self._recruit(asked)), wanted)
        started_s = clock.now
        self._round = current = self._new_round(wanted)
        duration_s = self._deadline.of_round(number)
        if duration_s is not None and not started_s + duration_s > started_s:
            raise RunError(
                f"the deadline of round {number}, {duration_s!r} s, does not move the clock at "
                f"simulated time {started_s!r} s; a longer federation.pacing.deadline is needed"
            )
        varying = {"deadline_s": duration_s} if self._deadline.varies else {}
        server.log("round", version=server.version, asked=len(chosen), **varying, **self._says)
        terms = server.terms(current.uploaded, current.lost)
        tasks = [server.dispatch(contributor, terms) for contributor in chosen]
        self._begun = [c for c in self._begun if not c.closed] + tasks
        current.awaited.update(p.task for p in tasks if p.outcome is None)
        time_is_up = None
        if duration_s is not None:
            time_is_up = clock.at(started_s + duration_s, Rank.DEADLINE, action=current.deadline)
        self.waits_for = f"{wanted} uploads of the round begun at t={started_s}"
        try:
            yield current.closing
        finally:
            if time_is_up is not None:
                clock.cancel(time_is_up)
        self._close(current, tasks, started_s)

    def _new_round(self, wanted: int) -> Round:
        closing = self._server.clock.idle_timer(Rank.AGGREGATION)
        return Round(self._server, wanted, closing, self._deadline)

    def _recruit(self, n: int) -> Generator[Event, Any, Sequence[int]]:
        """Clients for a round, once there are enough of them."""
        server, policy, clock = self._server, self._section.too_few, self._server.clock
        yield clock.at(clock.now + server.window_s, Rank.DISPATCH)
        while True:
            chosen = server.select(n)
            if len(chosen) >= n or (chosen and policy == "proceed"):
                return chosen
            found = len(server.structure.candidates.all_available())
            if policy == "fail":
                raise RunError(
                    f"too few clients at simulated time {clock.now!r} s: {found} are online and "
                    f"idle, the round asks {n}; federation.pacing.too_few is 'fail' "
                    "(allowed: wait, proceed, fail)"
                )
            server.log("wait", online=found, needed=n)
            self.waits_for = f"{n} clients online and idle ({found} are)"
            yield server.somebody_comes()
            yield clock.at(clock.now, Rank.DISPATCH)

    def _close(self, current: Round, tasks: list[Contribution], started_s: float) -> None:
        server, section = self._server, self._section
        current.closed = True
        taken, surplus = current.arrived[: current.wanted], current.arrived[current.wanted :]
        for p in surplus:
            server.dismiss(p, Outcome.LATE)
        if section.stragglers == "cancel":
            outcome = Outcome.LATE if current.by_deadline else Outcome.CANCELLED
            for p in tasks:
                if p.outcome is None and p not in current.arrived:
                    server.cancel(p, outcome)
        if len(taken) < section.quorum(current.wanted, len(tasks)):
            for p in taken:
                server.dismiss(p, Outcome.DISCARDED)
            server.log("round_failed", version=server.version, updates=len(taken))
            return
        for p in taken:
            server.accept(p)
        self._take(taken, started_s)

    def _take(self, taken: list[Contribution], started_s: float) -> None:
        """The round has been good: make a version of what counts."""
        self._server.merge(taken, started_s)
