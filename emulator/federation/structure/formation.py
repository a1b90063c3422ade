"""How superclients come about: pre-training on the clock, then grouping (FedSeq, section III).

Every client trains for some epochs from a common model, and from what its model tells of its data
(ψ, in the learning plane) clients are put together (φ and τ, in ``grouping``). The paper does not
count what this costs; here every client is asked as soon as it may be, again where it was lost, and
its time and bytes are those of any other task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from emulator.errors import PolicyStop
from emulator.federation.payload import LOCAL_RATE
from emulator.federation.structure.grouping import (
    Grouping,
    Limits,
    greedy_grouping,
    kmeans_grouping,
    place_at_random,
    quality,
    random_grouping,
)
from emulator.federation.structure.superclients import Superclients
from emulator.federation.structure.survey import Callback, Survey
from emulator.federation.tasks import Tasks
from emulator.learning_interface import Learner
from emulator.random_streams import generator
from emulator.scenario import schema
from emulator.simulation.clock import Rank
from emulator.simulation.devices import Work
from emulator.simulation.participation import Message, Participation, Terms


@dataclass(frozen=True, slots=True)
class Clients:
    """Those who are to be grouped, by number, and what they hold: ``samples`` [all clients], and
    ``labels`` [all clients, classes] by class, or None where data are only declared."""

    numbers: Sequence[int]
    samples: Sequence[int]
    labels: NDArray[np.int64] | None


@dataclass(frozen=True, slots=True)
class Cost:
    """What pre-training takes: ``work(client)``, and the bytes of its two messages, of which
    ``header_bytes`` each are no model."""

    work: Callable[[int], Work]
    down_bytes: int
    up_bytes: int
    header_bytes: int


class Formation:
    """See the module; ``cost`` is None where clients are grouped at random, and not asked."""

    def __init__(
        self, section: schema.Superclients, root_seed: int, clients: Clients, cost: Cost | None,
        tasks: Tasks, learner: Learner, superclients: Superclients, formed: Callable[[], None],
        *, stop_on_nonfinite: bool,
    ) -> None:  # fmt: skip
        self._section = section
        self._clients = clients
        self._cost = cost
        self._tasks = tasks
        self._learner = learner
        self._superclients = superclients
        self._formed = formed
        self._stop_on_nonfinite = stop_on_nonfinite
        self._rng = generator(root_seed, "superclients")
        self._handles: dict[int, Sequence[Any]] = {}
        self._survey: Survey | None = None

    @property
    def waits_for(self) -> str:
        """What there is to come before the first round."""
        return self._survey.waits_for if self._survey else "superclients to be formed"

    def begin(self) -> None:
        """Ask everybody; or, where nothing is to be waited for, form the superclients now."""
        clock, pretraining = self._tasks.clock, self._section.pretraining
        clients = self._clients.numbers
        if self._cost is None:
            clock.at(clock.now, Rank.DISPATCH, action=self._form)
            return
        assert pretraining is not None
        if pretraining.absent == "free":
            for client in clients:
                self._handles[client] = self._learner.pretrain(client)
            clock.at(clock.now, Rank.DISPATCH, action=self._form)
            return
        self._log("pretraining", clients=len(clients), epochs=pretraining.epochs)
        self._survey = Survey(
            self._tasks, clients, self._task_of, self._form, what="pre-training",
            deadline_s=pretraining.deadline,
        )  # fmt: skip
        self._survey.begin()

    def _log(self, event: str, **fields: Any) -> None:
        self._tasks.recorder.event(self._tasks.clock.now, event, "server", **fields)

    def _task_of(self, client: int, uploaded: Callback, lost: Callback) -> Participation:
        """The pre-training of ``client``."""
        cost = self._cost
        assert cost is not None
        down, up = (Message(cost.header_bytes, 0, (0, 0, size - cost.header_bytes))
                    for size in (cost.down_bytes, cost.up_bytes))  # fmt: skip
        terms = Terms(down.size_bytes, up.size_bytes, uploaded, lost, down, up)
        self._handles[client] = handles = self._learner.pretrain(client)
        p = self._tasks.make(client, 0, handles[0], None, cost.work(client), terms)
        p.phase = "pretraining"
        return p

    # --- grouping -------------------------------------------------------------------------------

    def _form(self) -> None:
        clients, section = self._clients, self._section
        limits = Limits(section.grouping.min_samples, section.grouping.max_clients)
        missing = self._survey.missing if self._survey else set[int]()
        seen = [client for client in clients.numbers if client not in missing]
        vectors = self._representers(seen)
        if vectors is not None:
            finite = np.isfinite(vectors).all(1)
            for client in np.array(seen)[~finite].tolist():
                self._not_finite(client)
            seen, vectors = np.array(seen)[finite].tolist(), vectors[finite]
        unseen, found = sorted(set(clients.numbers) - set(seen)), Grouping([])
        if sum(clients.samples[client] for client in seen) >= limits.min_samples or not unseen:
            found = self._grouping(seen, vectors, limits)
        else:
            unseen = list(clients.numbers)  # too few to make one superclient of
        if unseen:
            found.groups = place_at_random(found.groups, clients.samples, limits, unseen, self._rng)
        self._log(
            "superclients", groups=found.groups, unseen=len(unseen), scores=found.scores,
            scores_below=found.scores_below,
        )  # fmt: skip
        self._tasks.recorder.superclients(quality(found.groups, clients.samples, clients.labels))
        self._superclients.groups = found.groups
        if section.pretraining is not None and self._learner.learns:
            for number, epoch in enumerate(section.pretraining.similarity, start=1):
                models = [self._handles[client][number] for client in seen]
                cosines = self._learner.similarity(models) if len(seen) > 1 else []
                self._tasks.recorder.similarity(epoch, seen, cosines)
        self._handles.clear()
        self._formed()

    def _representers(self, seen: list[int]) -> NDArray[np.float64] | None:
        """What the clients' models tell [seen, d]; None where groups are made at random."""
        if self._cost is None or not seen or not self._learner.learns:
            return None
        sent = [self._handles[client][0] for client in seen]
        return np.array(self._learner.representers(sent), dtype=np.float64)

    def _not_finite(self, client: int) -> None:
        """Whose model has diverged tells nothing: it is placed as one that was not seen."""
        self._tasks.recorder.event(
            self._tasks.clock.now, "nonfinite", f"client/{client}", phase="pretraining"
        )
        if self._stop_on_nonfinite:
            pretraining = self._section.pretraining
            own = pretraining is not None and pretraining.optimizer is not None
            rate = "federation.structure.pretraining.optimizer.lr" if own else LOCAL_RATE
            raise PolicyStop(
                f"the pre-trained model of client {client} is not finite, and "
                f"federation.on_nonfinite is 'stop' (allowed: drop, stop); a smaller {rate} helps"
            )

    def _grouping(
        self, seen: list[int], vectors: NDArray[np.float64] | None, limits: Limits
    ) -> Grouping:
        samples = [self._clients.samples[client] for client in seen]
        section = self._section.grouping
        if vectors is None:
            found = random_grouping(samples, limits, self._rng)
        elif isinstance(section, schema.GreedyGrouping):
            found = greedy_grouping(
                samples, limits, vectors, section.metric, self._rng, first=section.first,
                merge=section.merge,
            )  # fmt: skip
        else:
            found = kmeans_grouping(samples, limits, self._clusters(vectors), self._rng)
        found.groups = [[seen[position] for position in group] for group in found.groups]
        return found

    def _clusters(self, vectors: NDArray[np.float64]) -> list[int]:
        """As many clusters as there are classes, as the authors' code has it."""
        # Loaded where it is used: scikit-learn takes a second.
        from sklearn.cluster import KMeans

        assert self._clients.labels is not None
        k = min(self._clients.labels.shape[1], len(np.unique(vectors, axis=0)))
        with threadpool_limits(limits=1):
            kmeans = KMeans(k, n_init=10, random_state=int(self._rng.integers(2**31)))
            clusters: list[int] = kmeans.fit_predict(vectors).tolist()
        return clusters
