"""One client's one task: download, train, upload, and what can come between.

A participation is a small state machine and no process. At dispatch it asks when the client's
session ends and cuts the work there by arithmetic. Where links are not shared, everything is known
then, and a single timer marks the end; where they are shared, the network says when a transfer is
over, and a timer waits for the client to go offline.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial

from emulator.errors import InternalError, RunError
from emulator.simulation.availability import Availability, work_together
from emulator.simulation.clock import Clock, Rank
from emulator.simulation.network import Direction, Network, PeerLinks
from emulator.simulation.participation import NEVER, Outcome, Participation


class Participations:
    """Starts, interrupts and ends participations.

    ``on_begin`` hears of the instant at which a client starts to work, ``on_end`` of the physical
    end (upload complete, dropped, cancelled), when the client is free again, ``on_loss`` of a loss
    after that, and ``on_lent`` of the seconds that a client spent on handing a model to another.
    """

    def __init__(
        self,
        clock: Clock,
        availability: Availability,
        network: Network,
        on_offline: str,
        on_begin: Callable[[float], None],
        on_end: Callable[[Participation], None],
        on_loss: Callable[[Participation], None],
        on_lent: Callable[[float], None],
        peers: PeerLinks,
    ) -> None:
        self._clock = clock
        self._availability = availability
        self._shared = network if network.shared else None
        self._unshared = None if network.shared else network
        self._drop = on_offline == "drop"
        self.pauses = on_offline == "pause"
        self._on_begin = on_begin
        self._on_end = on_end
        self._on_loss = on_loss
        self._on_lent = on_lent
        self._peers = peers
        self.at_work: dict[int, Participation] = {}
        """The task of each client that has one."""
        self._queues: dict[int, deque[Participation]] = {}

    def running(self) -> list[Participation]:
        """All that have not ended, in order of dispatch."""
        queued = (p for queue in self._queues.values() for p in queue)
        return sorted((*self.at_work.values(), *queued), key=lambda p: p.task)

    def start(self, participation: Participation) -> None:
        """Begin now, or when the client has done what it was asked before."""
        client = participation.client
        if client in self.at_work:
            self._queues.setdefault(client, deque()).append(participation)
            return
        self.at_work[client] = participation
        participation.begun_s = self._clock.now
        self._on_begin(participation.begun_s)
        if self._shared is not None:
            self._start_shared(participation)
        else:
            self._start_unshared(participation)

    def cancel(self, participation: Participation, outcome: Outcome) -> None:
        """The server gives up on it now; the client is free again."""
        self._settle(participation, self._clock.now)
        participation.outcome = outcome
        self._free(participation)

    def account(self, participation: Participation) -> None:
        """Bring the bytes and busy seconds of a running participation up to now."""
        if not math.isnan(participation.begun_s):
            self._settle(participation, self._clock.now)

    def pay_sender(self, p: Participation) -> None:
        """Charge the client that the model came from, once it is known what that has cost."""
        sender, p.sender = p.sender, None
        if sender is None:
            return
        until_s = self._clock.now if math.isnan(p.downloaded_s) else p.downloaded_s
        lent_s = until_s - p.begun_s
        if self.pauses:
            lent_s = self._availability.online_seconds(sender.client, p.begun_s, until_s)
        sender.busy_s += lent_s
        sender.lent_bytes += p.bytes_down
        if p.terms.down is not None:
            pieces = p.terms.down.moved(p.bytes_down)
            before = sender.lent_pieces or (0,) * len(pieces)
            sender.lent_pieces = tuple(map(sum, zip(before, pieces, strict=True)))
        if not math.isnan(p.downloaded_s):
            sender.uploaded_s = p.downloaded_s
        self._on_lent(lent_s)

    # --- unshared links: closed form ---------------------------------------------------------

    def _start_unshared(self, p: Participation) -> None:
        network, now, client, terms = self._unshared, p.begun_s, p.client, p.terms
        assert network is not None
        down_s, up_s = network.durations_s(client, terms.down_bytes, terms.up_bytes)
        in_chain = p.chain is not None
        if in_chain:
            down_s = self._download_s(p, down_s)
            up_s = up_s if p.uploads else 0.0
        total_s = down_s + p.training_s + up_s
        if not now + total_s > now and p.source != client:
            raise RunError(
                f"a task of client {client} would take {total_s!r} s at simulated time {now!r} s; "
                "every task must move the clock: give the client samples, a device time or a link"
            )
        elapse = self._elapse
        if self.pauses:
            p.downloaded_s = self._arrives(p, down_s)
            p.trained_s = elapse(client, p.downloaded_s, p.training_s)
            p.uploaded_s = end_s = elapse(client, p.trained_s, up_s)
        else:
            p.downloaded_s = downloaded_s = now + down_s
            p.trained_s = trained_s = downloaded_s + p.training_s
            p.uploaded_s = end_s = trained_s + up_s
        uploads = True
        if p.fails_at < 1.0:
            end_s, uploads = elapse(client, p.downloaded_s, p.fails_at * p.training_s), False
        if self._drop:
            until_s = self._availability.stays_until(client, now, end_s)
            if in_chain:
                until_s = min(until_s, self._sender_stays_until(p, p.downloaded_s))
            if until_s < end_s:
                end_s, uploads = until_s, False
        if end_s == math.inf:
            return  # it never comes back: it stays in flight until somebody cancels it
        if uploads:
            p.timer = self._clock.at(end_s, Rank.UPLOAD, client, partial(self._unshared_upload, p))
        else:
            p.timer = self._clock.at(end_s, Rank.OFFLINE, client, partial(self._goes_offline, p))

    def _unshared_upload(self, p: Participation) -> None:
        p.timer = None
        p.bytes_down, p.bytes_up = float(p.terms.down_bytes), float(p.terms.up_bytes)
        if not p.uploads:
            p.uploaded_s = NEVER
        # Outside _busy_s() only because this is the way that most tasks go.
        now = self._clock.now
        p.busy_s = self._busy_s(p, now) if self.pauses else now - p.begun_s
        self._reported(p)

    def _elapse(self, client: int, from_s: float, work_s: float) -> float:
        """When ``work_s`` seconds of work begun at ``from_s`` are done; inf when never."""
        if not self.pauses:
            return from_s + work_s
        return work_together(self._availability, (client,), from_s, work_s)[0]

    # --- from client to client: closed form, links of two that nobody else uses -----------------

    def _download_s(self, p: Participation, from_server_s: float) -> float:
        """How long the model takes to come, with nobody away."""
        if p.source is None:
            return from_server_s
        if p.source == p.client:
            return 0.0
        return self._peers.peer_s(p.source, p.client, p.terms.down_bytes)

    def _ends(self, p: Participation) -> tuple[int, ...]:
        """The clients that must be online while the model comes."""
        return (p.client,) if p.sender is None else (p.sender.client, p.client)

    def _arrives(self, p: Participation, down_s: float) -> float:
        if not self.pauses:
            return p.begun_s + down_s
        return work_together(self._availability, self._ends(p), p.begun_s, down_s)[0]

    def _sender_stays_until(self, p: Participation, arrives_s: float) -> float:
        """When the sender goes offline, if that is before the model has arrived; else inf."""
        if p.sender is None:
            return math.inf
        until_s = self._availability.online_until(p.sender.client, p.begun_s)
        return until_s if until_s < arrives_s else math.inf

    def _moved_from_peer(self, p: Participation, now: float) -> float:
        """Bytes of the model that have come by ``now`` from the client that has it."""
        size = p.terms.down_bytes
        if not math.isnan(p.downloaded_s) and p.downloaded_s <= now:
            return size
        if p.sender is None:
            return 0.0
        active_s = now - p.begun_s
        if self.pauses:
            _, left_s = work_together(self._availability, self._ends(p), p.begun_s, active_s, now)
            active_s -= left_s
        return self._peers.peer_moved_bytes(p.sender.client, p.client, size, active_s)

    # --- shared links: the network says when --------------------------------------------------

    def _start_shared(self, p: Participation) -> None:
        if self._drop:
            until_s = self._availability.online_until(p.client, self._clock.now)
            if until_s < math.inf:
                p.offline_timer = self._clock.at(
                    until_s, Rank.OFFLINE, p.client, partial(self._goes_offline, p)
                )
        if p.source is None:
            self._transfer(p, "down", p.terms.down_bytes, self._download_done)
        else:
            self._start_from_peer(p)

    def _start_from_peer(self, p: Participation) -> None:
        arrives_s = self._arrives(p, self._download_s(p, 0.0))
        lost_s = self._sender_stays_until(p, arrives_s) if self._drop else math.inf
        if lost_s < arrives_s:
            action = partial(self._goes_offline, p)
            p.timer = self._clock.at(lost_s, Rank.OFFLINE, p.client, action)
        elif arrives_s < math.inf:
            action = partial(self._download_done, p)
            p.timer = self._clock.at(arrives_s, Rank.TRANSFER, p.client, action)

    def _transfer(
        self,
        p: Participation,
        direction: Direction,
        size_bytes: int,
        done: Callable[[Participation], None],
    ) -> None:
        assert self._shared is not None
        p.flow = self._shared.start(p.client, direction, size_bytes, partial(done, p))
        if self.pauses:
            self._pause_at_session_end(p)

    def _download_done(self, p: Participation) -> None:
        p.downloaded_s = now = self._clock.now
        p.bytes_down = float(p.terms.down_bytes)
        self._leave_flow(p)
        if p.fails_at < 1.0:
            end_s = self._elapse(p.client, now, p.fails_at * p.training_s)
            if end_s < math.inf:
                action = partial(self._goes_offline, p)
                p.timer = self._clock.at(end_s, Rank.OFFLINE, p.client, action)
            return
        p.training_ends_s = end_s = self._elapse(p.client, now, p.training_s)
        if not p.uploads:
            if end_s < math.inf:
                action = partial(self._ends_with_training, p)
                p.timer = self._clock.at(end_s, Rank.UPLOAD, p.client, action)
        elif not self.pauses:
            # Training and the latency after it are one wait: nobody can come between.
            assert self._shared is not None
            done = partial(self._upload_done, p)
            p.flow = self._shared.start(p.client, "up", p.terms.up_bytes, done, end_s)
        elif end_s < math.inf:
            action = partial(self._training_done, p)
            p.timer = self._clock.at(end_s, Rank.TRANSFER, p.client, action)

    def _ends_with_training(self, p: Participation) -> None:
        p.timer = None
        p.trained_s = now = self._clock.now
        p.busy_s = self._busy_s(p, now)
        self._reported(p)

    def _training_done(self, p: Participation) -> None:
        p.timer = None
        self._transfer(p, "up", p.terms.up_bytes, self._upload_done)

    def _upload_done(self, p: Participation) -> None:
        p.trained_s = p.training_ends_s
        p.uploaded_s = now = self._clock.now
        if not now > p.begun_s and p.source != p.client:
            raise RunError(
                f"a task of client {p.client} took no simulated time at {now!r} s; every task "
                "must move the clock: give the client samples, a device time or a link"
            )
        p.bytes_up = float(p.terms.up_bytes)
        p.busy_s = self._busy_s(p, now)
        self._leave_flow(p)
        self._reported(p)

    def _goes_offline(self, p: Participation) -> None:
        self._settle(p, self._clock.now)
        self._lost(p)

    def _pause_at_session_end(self, p: Participation) -> None:
        until_s = self._availability.online_until(p.client, self._clock.now)
        if until_s == -math.inf:
            # Training ended at the very instant at which a session did, one rounding later.
            self._pause_flow(p)
        elif until_s < math.inf:
            p.offline_timer = self._clock.at(
                until_s, Rank.OFFLINE, p.client, partial(self._pause_flow, p)
            )

    def _pause_flow(self, p: Participation) -> None:
        assert self._shared is not None
        assert p.flow is not None
        self._shared.pause(p.flow)
        later_s = math.nextafter(self._clock.now, math.inf)
        back_s = self._availability.next_online(p.client, later_s)
        p.offline_timer = None
        if back_s < math.inf:
            p.offline_timer = self._clock.at(
                back_s, Rank.OFFLINE, p.client, partial(self._resume_flow, p)
            )

    def _resume_flow(self, p: Participation) -> None:
        assert self._shared is not None
        assert p.flow is not None
        self._shared.resume(p.flow)
        self._pause_at_session_end(p)

    def _leave_flow(self, p: Participation) -> None:
        """A transfer is over; a pause that was to come is none any more."""
        p.flow = None
        if self.pauses and p.offline_timer is not None:
            self._clock.cancel(p.offline_timer)
            p.offline_timer = None

    # --- ends -----------------------------------------------------------------------------------

    def _busy_s(self, p: Participation, now: float) -> float:
        if not self.pauses:
            return now - p.begun_s
        return self._availability.online_seconds(p.client, p.begun_s, now)

    def _settle(self, p: Participation, now: float) -> None:
        """Cut the record at ``now``: what lies later never came, bytes are those that moved."""
        p.busy_s = self._busy_s(p, now)
        if self._shared is not None:
            if p.training_ends_s <= now:
                p.trained_s = p.training_ends_s
            if p.flow is not None:
                if math.isnan(p.downloaded_s):
                    p.bytes_down = p.flow.delivered_bytes
                else:
                    p.bytes_up = p.flow.delivered_bytes
            elif p.source is not None:
                p.bytes_down = self._moved_from_peer(p, now)
            return
        p.bytes_down, p.bytes_up = float(p.terms.down_bytes), float(p.terms.up_bytes)
        if not p.uploaded_s <= now or p.fails_at < 1.0:
            p.bytes_up = self._moved(p, "up", p.trained_s, now)
            p.uploaded_s = NEVER
            if not p.trained_s <= now or p.fails_at < 1.0:
                p.bytes_up, p.trained_s = 0.0, NEVER
                if not p.downloaded_s <= now:
                    if p.source is None:
                        p.bytes_down = self._moved(p, "down", p.begun_s, now)
                    else:
                        p.bytes_down = self._moved_from_peer(p, now)
                    p.downloaded_s = NEVER

    def _moved(self, p: Participation, direction: Direction, from_s: float, now: float) -> float:
        """Bytes of an unshared transfer begun at ``from_s`` that have moved by ``now``."""
        if not from_s < now:
            return 0.0
        active_s = now - from_s
        if self.pauses:
            active_s = self._availability.online_seconds(p.client, from_s, now)
        size = p.terms.down_bytes if direction == "down" else p.terms.up_bytes
        assert self._unshared is not None
        return self._unshared.moved_bytes(p.client, direction, size, active_s)

    def _reported(self, p: Participation) -> None:
        self._free(p)
        p.terms.on_upload(p)

    def _lost(self, p: Participation) -> None:
        if math.isnan(p.downloaded_s):
            p.outcome = Outcome.DROPPED_DOWNLOAD
        elif math.isnan(p.trained_s):
            p.outcome = Outcome.DROPPED_TRAINING
        else:
            p.outcome = Outcome.DROPPED_UPLOAD
        self._free(p)
        self._on_loss(p)

    def _free(self, p: Participation) -> None:
        """The client has ended the task, one way or the other, and may begin another."""
        if self.at_work.pop(p.client, None) is not p:
            raise InternalError(f"client {p.client} ended task {p.task}, which it was not doing")
        p.ended_s = self._clock.now
        if p.timer is not None:
            self._clock.cancel(p.timer)
        if p.offline_timer is not None:
            self._clock.cancel(p.offline_timer)
        if p.flow is not None and self._shared is not None:
            self._shared.abandon(p.flow)
        p.timer = p.offline_timer = p.flow = None
        if p.sender is not None:
            self.pay_sender(p)
        self._on_end(p)
        if self._queues:
            queue = self._queues.get(p.client)
            if queue:
                self.start(queue.popleft())
