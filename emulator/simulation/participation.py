"""What is known of one client's one task, and how it can end."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from emulator.simulation.clock import Call
from emulator.simulation.network import Flow

NEVER = math.nan


class Outcome(StrEnum):
    """How a participation ended; every dispatch ends in exactly one of these."""

    __hash__ = str.__hash__  # Enum's own is written in Python

    REPORTED = "reported"
    LATE = "late"
    DISCARDED = "discarded"
    CANCELLED = "cancelled"
    DROPPED_DOWNLOAD = "dropped_download"
    DROPPED_TRAINING = "dropped_training"
    DROPPED_UPLOAD = "dropped_upload"
    SERVER_FAILED = "server_failed"
    IN_FLIGHT = "in_flight"


@dataclass(frozen=True, slots=True)
class Message:
    """Bytes of one message in the order in which they travel: a header, a control message, and
    what it holds of each part of the model."""

    header: int
    control: int
    parts: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return self.header + self.control + sum(self.parts)

    def moved(self, moved_bytes: float) -> list[int]:
        """How much of each of its pieces has travelled when ``moved_bytes`` have."""
        left, found = round(moved_bytes), list[int]()
        for piece in (self.header, self.control, *self.parts):
            found.append(min(piece, left))
            left -= found[-1]
        return found


@dataclass(frozen=True, slots=True)
class Terms:
    """What a task, or the tasks of a round or a run have in common: message sizes, and who hears
    of the end (the upload, where there is one) and of the loss. ``down`` and ``up`` take the
    messages apart, where a model travels in parts."""

    down_bytes: int
    up_bytes: int
    on_upload: Callable[[Any], None]
    on_loss: Callable[[Any], None]
    down: Message | None = None
    up: Message | None = None


class Participation:
    """What is known of one task. Times are simulated seconds, NaN when they never came.

    ``update`` and ``state`` are handles of the learning plane: the update, and the client's own
    state after it; ``state_before``, once it counts, the one that it had. ``fails_at`` below 1 is
    the fraction of its training at which the task is lost. ``owner`` is the structure that hears if
    it is not reported, ``cohort`` the one it is a task of, ``visit`` what names the random stream
    of a training that is chosen only once it has reported. ``plan`` is the payload's, ``moved``
    says that others have trained the model before. Where it
    travels in parts, ``cross_staleness`` counts the versions of the part that was frozen, and
    ``lent_pieces`` takes apart ``lent_bytes``. ``step`` is a handle of what it has made of the
    model that it was sent, where that is another one than ``update``.

    A task in a chain of clients may be without a server at either end. ``source`` is the client
    that the model comes from: another, whose link and seconds are lent by its own task
    ``sender``, or the client itself, which has it already. One that does not ``uploads`` ends with
    its training; what it hands on to others later is ``lent_bytes``.
    """

    # Class-level: a task sets only what happens to it. Tasks come by the million.
    fails_at = 1.0
    phase = "training"
    owner: Any = None
    cohort: str | None = None
    visit: tuple[int, ...] = ()
    plan: Any = None
    state_before: Any = None
    moved = False
    step: Any = None
    cross_staleness: int | None = None
    lent_pieces: tuple[int, ...] = ()
    chain: int | None = None
    ring_pass: int | None = None
    source: int | None = None
    sender: Participation | None = None
    uploads = True
    lent_bytes = 0.0
    bytes_down = 0.0
    bytes_up = 0.0
    busy_s = 0.0
    outcome: Outcome | None = None
    staleness: int | None = None
    closed = False
    timer: Call | None = None
    offline_timer: Call | None = None
    flow: Flow | None = None

    def __init__(
        self,
        task: int,
        client: int,
        version: int,
        samples: int,
        training_s: float,
        terms: Terms,
        update: Any,
        state: Any,
        dispatched_s: float,
    ) -> None:
        self.task = task
        self.client = client
        self.version = version
        self.samples = samples
        self.training_s = training_s
        self.terms = terms
        self.update = update
        self.state = state
        self.dispatched_s = dispatched_s
        self.begun_s = self.downloaded_s = self.training_ends_s = NEVER
        self.trained_s = self.uploaded_s = self.ended_s = NEVER

    @property
    def records(self) -> tuple[Participation]:
        """The tasks that it is made of, as a contribution of its own: itself."""
        return (self,)
