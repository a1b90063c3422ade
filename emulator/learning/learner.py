"""The learning plane as the simulation sees it: ask for an operation, get a handle at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from emulator.learning.assigning import Assigning
from emulator.learning.clustering import AffinityConfig
from emulator.learning.lazy import Learning
from emulator.learning.lineage import Handle, Operation, canonical, digest, identity
from emulator.learning.matching import MatchConfig, Matching
from emulator.learning.memo import Values
from emulator.learning.method import Method
from emulator.learning.methods.auxo import Participants
from emulator.learning.objectives import kept_name
from emulator.learning.operations import (
    AggregateConfig,
    DivergenceConfig,
    EvaluateClientsConfig,
    EvaluateConfig,
    TrainConfig,
)
from emulator.learning.pretraining import PretrainConfig
from emulator.learning.privacy import LeavingConfig
from emulator.learning.server_steps import uploads
from emulator.learning.training import Recipe
from emulator.learning_interface import Part

EVALUATION_SHARD = 1000
"""Test samples an evaluation operation takes; fixed, so that sums do not depend on workers."""

CLIENTS_SHARD = 50
"""Clients that an operation evaluates one by one."""


class Learner(Assigning):
    """The operations of a ``method``, see :class:`emulator.learning.lazy.Lazy`."""

    def __init__(
        self, method: Method, learning: Learning | None, position: Callable[[], int]
    ) -> None:
        super().__init__(learning, position)
        self._method = method
        self._uploads = ("model",) if method.chains else uploads(method.server_optimizer)
        choices = [*self._uploads, f"batch_norm={method.batch_norm}"]
        self._method_id = identity(
            "method",
            canonical(method.objective),
            repr(method.recipe),
            method.seed,
            *(choices if choices != ["delta", "batch_norm=None"] else ()),
        )
        self._of_each = None if method.chains else method.privacy
        if self._of_each is not None:
            self._method_id = identity("private", self._method_id, repr(self._of_each))
        self._merge_id = identity(
            "merge", canonical(method.server_optimizer), method.normalise, method.clients
        )
        self._matches = method.server_optimizer["kind"] == "fedma"
        self._stateful = (
            kept_name(method.objective) is not None or method.batch_norm == "local" or self._matches
        )

    # --- operations -----------------------------------------------------------------------

    def initial(self, number: int = 0) -> Handle:
        """The server's state before the first version: of several models, that one."""
        root, learning = self._method.root, self._learning
        if number == 0:
            config = learning.initial_model if learning else None
            return self._handles("initial", root, (), config, ("server",))[0]
        config = learning.more_models[number - 1] if learning else None
        operation_id = identity("initial", root, number)
        return self._handles("initial", operation_id, (), config, ("server",))[0]

    def train(
        self, server: Handle, state: Handle | None, client: int, visit: tuple[int, ...],
        part: Part | None = None, recipe: str | None = None,
    ) -> tuple[Handle, Handle | None]:  # fmt: skip
        """(update, the client's new state or None) of one visit of ``client``.

        ``server`` is frozen by this call; ``visit`` is the structure's visit key. In a chain it is
        what the client before has trained, and the update is what the next one starts from.
        Without ``part`` all layers are trained, as ``local`` says or by that ``recipe``.
        """
        method = self._method
        # identity(), written out: this is asked for every task.
        key = "\x1f".join(map(str, visit))
        operation_id = digest(
            f"train\x1f{server.id}\x1f{state.id if state else ''}\x1f{client}\x1f{key}"
            f"\x1f{self._method_id}{self._part_id(part, recipe)}"
        )
        if self._learning is None:
            new = Handle(operation_id + ".state", None) if self._stateful else None
            return Handle(operation_id + ".update", None), new
        config = TrainConfig(
            client,
            visit,
            method.seed,
            self._recipe(part, recipe),
            method.objective,
            self._uploads,
            method.batch_norm,
            None if part is None else part.layers,
            self._matching(part.layers) if part is not None and self._matches else None,
            self._of_each,
        )
        names = ("update", "state") if self._stateful else ("update",)
        handles = self._handles("train", operation_id, (server, state), config, names)
        return handles[0], handles[1] if self._stateful else None

    def _recipe(self, part: Part | None, recipe: str | None) -> Recipe:
        name = recipe if part is None else part.recipe
        return self._method.recipe if name is None else self._method.recipes[name]

    def _part_id(self, part: Part | None, recipe: str | None) -> str:
        if part is None and recipe is None:
            return ""
        layers = () if part is None else part.layers
        return "\x1f".join(("", *layers, repr(self._recipe(part, recipe))))

    def _matching(self, trained: tuple[str, ...]) -> Matching:
        """FedMA's sub-round in which these layers are trained."""
        layers = self._method.layers
        return Matching(layers, len(layers) - len(trained))

    def leaving(
        self, base: Handle, last: Handle, client: int, visit: tuple[int, ...],
        part: Part | None = None,
    ) -> Handle:  # fmt: skip
        """The model ``last`` of a chain that began at ``base``, as it leaves its last client: with
        local differential privacy clipped and noised, else as it is."""
        method = self._method
        if method.privacy is None:
            return last
        layers = None if part is None else part.layers
        config = LeavingConfig(client, visit, method.seed, method.privacy, layers)
        operation_id = identity("leaving", base.id, last.id, repr(config))
        return self._handles("leaving", operation_id, (base, last), config, ("update",))[0]

    def chain_update(self, server: Handle, last: Handle) -> Handle:
        """What a chain that began at ``server`` brings it: the model that ``last`` has trained,
        less the one it began with."""
        operation_id = identity("chain update", server.id, last.id)
        return self._handles("chain_update", operation_id, (server, last), None, ("update",))[0]

    def aggregate(
        self,
        server: Handle,
        updates: Sequence[Handle],
        weights: Sequence[float],
        discounts: Sequence[float],
        contributors: int | None = None,
        layers: tuple[str, ...] | None = None,
        clients: Sequence[int] = (),
    ) -> Handle:
        """The server's next state from updates in canonical order, p_k and s(τ_k) beside them.

        ``contributors`` is N of the methods that need it: all clients, unless said otherwise. Only
        ``layers`` change, with all that the server keeps for them; without, all do. ``clients``:
        whose updates they are.
        """
        if self._matches:
            assert layers is not None
            return self._match(server, updates, layers, clients)
        operation_id = identity(
            "aggregate",
            server.id,
            *(update.id for update in updates),
            *map(repr, weights),
            *map(repr, discounts),
            self._merge_id,
            *(() if contributors is None else (contributors,)),
            *(() if layers is None else ("layers", *layers)),
        )
        if self._learning is None:
            return Handle(operation_id + ".server", None)
        config = AggregateConfig(
            tuple(weights),
            tuple(discounts),
            self._method.normalise,
            self._method.server_optimizer,
            self._method.clients if contributors is None else contributors,
            layers,
        )
        handles = self._handles("aggregate", operation_id, (server, *updates), config, ("server",))
        return self._kept(handles[0])

    def mean(self, server: Handle, updates: Sequence[Handle]) -> Handle:
        """``server`` moved by the plain mean of these updates, whatever the server's step is."""
        operation_id = identity("mean", server.id, *(update.id for update in updates))
        ones, step = (1.0,) * len(updates), {"kind": "average", "lr": 1.0}
        config = AggregateConfig(ones, ones, "weights", step, self._method.clients)
        handles = self._handles("aggregate", operation_id, (server, *updates), config, ("server",))
        return self._kept(handles[0])

    def _match(
        self, server: Handle, updates: Sequence[Handle], trained: tuple[str, ...],
        clients: Sequence[int],
    ) -> Handle:  # fmt: skip
        """FedMA's step, of the lowest of the layers that were trained."""
        method = self._method
        operation_id = identity(
            "match", server.id, *(update.id for update in updates), *clients, self._merge_id,
            len(trained), method.seed,
        )  # fmt: skip
        config = MatchConfig(
            self._matching(trained), tuple(clients), method.clients, method.server_optimizer,
            method.seed, int(operation_id[:12], 16),
        )  # fmt: skip
        handles = self._handles("match", operation_id, (server, *updates), config, ("server",))
        return self._kept(handles[0])

    def divergence(
        self, server: Handle, updates: Sequence[Handle], weights: Sequence[float],
        layers: tuple[str, ...], metric: str, on: str,
    ) -> Values:  # fmt: skip
        """How far apart updates in canonical order are, computed now: ``divergence``, a number for
        each of ``layers`` (None with fewer than two finite updates), and the positions of
        ``nonfinite`` ones among the updates."""
        config = DivergenceConfig(layers, metric, on, tuple(weights))
        operation_id = identity(
            "divergence", server.id, *(update.id for update in updates), *map(repr, weights),
            metric, on, *layers,
        )  # fmt: skip
        return self._value_of("divergence", operation_id, (server, *updates), config)

    def affinity(
        self, kept: Handle | None, updates: Sequence[Handle], trainings: Sequence[Handle],
        clients: Sequence[int], known: Sequence[bool], sides: Sequence[int],
        layers: tuple[str, ...] | None, *, inherits: bool,
    ) -> tuple[Values, Handle]:  # fmt: skip
        """What the updates of a cohort's version tell of its participants, computed now: see
        ``clustering.affinity``; beside it the ``losses`` of the ``trainings`` behind them. The
        handle is what the cohort keeps in place of ``kept``, which is its parent's if it
        ``inherits``."""
        method = self._method
        assert method.sketching is not None
        assert method.rewards is not None
        config = AffinityConfig(
            tuple(clients), Participants(tuple(known), tuple(sides)), layers, method.sketching,
            method.rewards, inherits,
        )  # fmt: skip
        operation_id = identity(
            "affinity", method.root, kept.id if kept else "",
            *(update.id for update in updates), repr(config),
        )  # fmt: skip
        (after,) = self._handles("affinity", operation_id, (kept, *updates), config, ("kept",))
        self._force_values([after])
        values = self.values(operation_id)
        return {**values, "losses": [self._loss_of(training) for training in trainings]}, after

    def _loss_of(self, update: Handle) -> float | None:
        """The mean training loss behind an update; None behind several trainings, and where
        nothing but the noised update leaves a client."""
        if self._method.privacy is not None:
            return None
        found: float | None = self.values(update.id.partition(".")[0]).get("loss")
        return found

    def evaluate(self, server: Handle) -> Values | None:
        """Accuracy, mean loss and n on the test set, computed now; None in a timing-only run."""
        if self._learning is None:
            return None
        n = self._method.test_samples
        # By the statistics of the samples themselves: in one piece, for a short last shard would
        # give poor ones.
        by_batch = self._method.batch_norm == "local"
        size, how = (n, ("by batch",)) if by_batch else (EVALUATION_SHARD, ())
        shards = []
        for start in range(0, n, size):
            config = EvaluateConfig(start, min(n, start + size), by_batch)
            operation_id = identity("evaluate", server.id, config.start, config.stop, *how)
            shards.append(Operation("evaluate", operation_id, (server,), config))
        self._force([s for s in shards if self._learning.memo.value(s.id) is None])
        sums = [self.values(shard.id) for shard in shards]
        total = {key: sum(s[key] for s in sums) for key in ("correct", "loss", "n")}
        return {
            "accuracy": total["correct"] / total["n"],
            "loss": total["loss"] / total["n"],
            "n": total["n"],
        }

    def evaluate_clients(
        self, server: Handle, states: Mapping[int, Handle], clients: Sequence[int] | None = None
    ) -> list[tuple[int, float, float, int]]:
        """(client, accuracy, mean loss, n) of every client, or of these ``clients`` in ascending
        order, that has samples to be tested on.

        Where clients keep their own batch-normalization statistics, ``states`` has them; a client
        without a state uses the server's. Empty in a timing-only run.
        """
        if self._learning is None:
            return []
        own = self._method.batch_norm == "local"
        tested, shards = self._method.tested_clients, list[Operation]()
        if clients is not None:
            has_some = set(tested)
            tested = tuple(client for client in clients if client in has_some)
        for first in range(0, len(tested), CLIENTS_SHARD):
            config = EvaluateClientsConfig(tested[first : first + CLIENTS_SHARD])
            held = [states.get(client) for client in config.clients] if own else []
            ids = [state.id if state else "" for state in held]
            operation_id = identity("evaluate clients", server.id, *config.clients, *ids)
            shards.append(Operation("evaluate_clients", operation_id, (server, *held), config))
        self._force([s for s in shards if self._learning.memo.value(s.id) is None])
        found = []
        for shard in shards:
            sums = self.values(shard.id)
            for client, correct, loss, n in zip(
                shard.config.clients, sums["correct"], sums["loss"], sums["n"], strict=True
            ):
                found.append((client, correct / n, loss / n, int(n)))
        return found

    def personalize(
        self, server: Handle, states: Mapping[int, Handle], clients: Sequence[int] | None = None
    ) -> list[tuple[int, float, float, int]]:
        """As :meth:`evaluate_clients`, of the model that each client has made its own by training
        on its samples as ``Method.fine_tuning`` says (FTFA, Cheng et al. 2021). Its mini-batches
        come from a stream of their own: that of no visit."""
        method, found = self._method, list[tuple[int, float, float, int]]()
        if self._learning is None:
            return found
        assert method.fine_tuning is not None
        local = method.batch_norm == "local"
        tested = sorted(set(method.tested_clients).intersection(
            method.tested_clients if clients is None else clients
        ))  # fmt: skip
        for first in range(0, len(tested), CLIENTS_SHARD):
            shard, wanted = tested[first : first + CLIENTS_SHARD], list[Operation]()
            for client in shard:
                state = states.get(client) if local else None
                config = TrainConfig(
                    client, (), method.seed, method.fine_tuning, {"kind": "plain"}, ("model",),
                    method.batch_norm,
                )  # fmt: skip
                operation_id = identity(
                    "personalize", server.id, state.id if state else "", client, method.seed,
                    repr(method.fine_tuning), repr(method.batch_norm),
                )  # fmt: skip
                names = ("update", "state") if local else ("update",)
                trained, *after = self._handles(
                    "personalize", operation_id, (server, state), config, names
                )
                # Frozen statistics stay the server's.
                own = after or ([server] if method.batch_norm == "freeze" else [])
                measured = EvaluateClientsConfig((client,))
                tested_id = identity("evaluate personalized", operation_id)
                wanted.append(
                    Operation("evaluate_clients", tested_id, (trained, *own), measured)
                )  # fmt: skip
            self._force([o for o in wanted if self._learning.memo.value(o.id) is None])
            for client, operation in zip(shard, wanted, strict=True):
                sums = self.values(operation.id)
                correct, loss, n = (sums[name][0] for name in ("correct", "loss", "n"))
                found.append((client, correct / n, loss / n, int(n)))
        return found

    # --- pre-training ---------------------------------------------------------------------

    def pretrain(self, client: int) -> tuple[Handle, ...]:
        """What ``client`` sends of its pre-training, then its model after each epoch of
        ``Pretraining.similarity``."""
        common, root = self._method.pretraining, self._method.root
        assert common is not None
        config = PretrainConfig(client, self._method.seed, common)
        operation_id = identity("pretrain", root, client, self._method.seed, repr(common))
        names = ("update", *(f"after{epoch}" for epoch in common.similarity))
        if self._learning is None:
            return tuple(Handle(f"{operation_id}.{name}", None) for name in names)
        model = self._learning.pretraining_model
        initial = self._handles("initial", identity("initial", root), (), model, ("server",))
        return tuple(self._handles("pretrain", operation_id, (initial[0],), config, names))

    def representers(self, sent: Sequence[Handle]) -> list[list[float]]:
        """D̃_k [clients, d] of the clients whose pre-training has ``sent`` this, computed now."""
        common = self._method.pretraining
        assert common is not None
        if common.layers is not None:
            found: list[list[float]] = self._of_all("components", sent)["components"]
            return found
        self._force_values(sent)
        return [self.values(handle.id.partition(".")[0])["confidence"] for handle in sent]

    def similarity(self, models: Sequence[Handle]) -> list[list[float]]:
        """The cosine of every two of these models [clients, clients], computed now."""
        found: list[list[float]] = self._of_all("similarity", models)["cosine"]
        return found

    def _of_all(self, kind: str, inputs: Sequence[Handle]) -> Values:
        """The values of an operation on what all clients have sent."""
        operation_id = identity(kind, *(handle.id for handle in inputs))
        return self._value_of(kind, operation_id, inputs, None)
