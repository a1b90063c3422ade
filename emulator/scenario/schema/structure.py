"""``federation.structure``: who trains together."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from emulator.scenario.schema.base import Count, Kind, Section
from emulator.scenario.schema.local import Sgd
from emulator.scenario.units import NonNegativeSeconds, PositiveSeconds

Epochs = Annotated[int, Field(ge=1, le=1_000_000)]


class Star(Section):
    """Every client trains alone, from the server's model."""

    kind: Literal["star"]


class Grouping(Section):
    """A group takes clients while it holds fewer than ``min_samples`` and fewer than
    ``max_clients`` clients; the clients of a last group that stays below ``min_samples`` are dealt
    to the others."""

    min_samples: Count = 800
    max_clients: Count = 11


class RandomGrouping(Grouping):
    """The clients in shuffled order."""

    kind: Literal["random"]


class KMeansGrouping(Grouping):
    """K-means of the clients' representers into as many clusters as there are classes, then one
    client of each cluster in turn."""

    kind: Literal["kmeans"]


class GreedyGrouping(Grouping):
    """Always the client that ``metric`` rates highest beside those that are in.

    ``first``: a random client, or the one that the metric rates highest beside the uniform vector
    (the authors' code). ``merge``: what a candidate would make of the group: (a + b)/2 (the code),
    or the mean by samples.
    """

    kind: Literal["greedy"]
    metric: Literal["euclidean", "cosine", "gini", "kl"] = "kl"
    first: Literal["random", "argmax_uniform"] = "random"
    merge: Literal["half", "mean"] = "half"


class Conf(Section):
    """What a client's pre-trained model is sure of, on exemplars that are held out of the test
    set: ``task.exemplars`` says how many of each class. The whole model goes up."""

    kind: Literal["conf"]


class Clf(Section):
    """The weights of the last ``layers`` Linear layers, by the principal components that keep 90 %
    of the variance. Only those layers go up."""

    kind: Literal["clf"]
    layers: Annotated[int, Field(ge=1, le=3)] = 1


class Pretraining(Section):
    """Each client trains for so many ``epochs`` from one initial model, which is not that of the
    federation; batch size and optimizer are those of ``local`` unless said otherwise.

    ``absent``: clients that have not shown up are waited for (``wait_all``), or placed at random
    after the ``deadline``; ``free`` charges neither time nor bytes, as the paper counts.
    ``similarity`` writes the cosine similarity of every two clients' models after these epochs.
    """

    epochs: Epochs = 10
    batch_size: Count | None = None
    optimizer: Sgd | None = None
    absent: Literal["wait_all", "deadline", "free"]
    deadline: PositiveSeconds | None = None
    similarity: tuple[Epochs, ...] = Field(default=(), strict=False)

    @model_validator(mode="after")
    def _ends(self) -> Pretraining:
        if (self.absent == "deadline") != (self.deadline is not None):
            raise ValueError(
                "absent: deadline needs deadline, a number of seconds, and nothing else takes one; "
                f"found absent: {self.absent} and deadline: {self.deadline}"
            )
        beyond = [e for e in self.similarity if e > self.epochs]
        if beyond:
            raise ValueError(
                f"similarity asks for the models after epoch {beyond[0]}, and pre-training has "
                f"{self.epochs}"
            )
        if list(self.similarity) != sorted(set(self.similarity)):
            raise ValueError("similarity must list epochs in ascending order, each once")
        return self


class Swap(Section):
    """The turn goes to the first in order that is online. When nobody is, ``timeout`` after the
    turn began, all who are left are left out of the pass, unless one is back at that very instant.
    """

    kind: Literal["swap"]
    timeout: NonNegativeSeconds


class Skip(Section):
    """The member is waited for, and ``timeout`` after its turn began left out of the pass, unless
    it is back at that very instant."""

    kind: Literal["skip"]
    timeout: NonNegativeSeconds


class Wait(Section):
    """The member is waited for; ``timeout`` after its turn began the chain is given up."""

    kind: Literal["wait"]
    timeout: PositiveSeconds | None = None


class Abort(Section):
    """The chain is given up at once. Its first turn, while the model is still at the server, goes
    to the first in order that is online."""

    kind: Literal["abort"]


Absent = Annotated[Swap | Skip | Wait | Abort, Kind]


class Superclients(Section):
    """FedSeq (Zaccone et al. 2022): groups of clients that train one after the other.

    Participants, buffers and fractions of the pacing count superclients. ``passes`` (E_S): how
    often a model goes round. ``hop``: straight to the next client (``p2p``: both latencies and the
    slower of the two links; the server's link is not used), or up to the server and down again
    (``relay``). ``absent``: what happens when the member whose turn it is is not online, or was
    lost at work; where the client that holds the model is the one who is away, the chain is given
    up at the timeout. Any grouping but ``random`` needs an ``approximator`` and ``pretraining``,
    or, with --timing-only, ``stand_in: random``.
    """

    kind: Literal["superclients"]
    grouping: Annotated[RandomGrouping | KMeansGrouping | GreedyGrouping, Kind]
    approximator: Annotated[Conf | Clf, Kind] | None = None
    pretraining: Pretraining | None = None
    passes: Count = 1
    hop: Literal["p2p", "relay"]
    absent: Absent
    stand_in: Literal["random"] | None = None

    @model_validator(mode="after")
    def _knows_its_clients(self) -> Superclients:
        needs = not isinstance(self.grouping, RandomGrouping)
        for name in ("approximator", "pretraining"):
            given = getattr(self, name) is not None
            if needs and not given:
                raise ValueError(
                    f"{name} is missing: grouping '{self.grouping.kind}' goes by what the clients' "
                    "pre-trained models tell of their data; say approximator: {kind: conf} and "
                    "pretraining: {absent: wait_all}, or grouping: {kind: random}"
                )
            if given and not needs:
                raise ValueError(f"{name}: grouping 'random' asks for none; leave it out")
        metric = getattr(self.grouping, "metric", None)
        if metric in ("gini", "kl") and not isinstance(self.approximator, Conf):
            raise ValueError(
                f"grouping.metric: '{metric}' is for probability vectors, and approximator 'clf' "
                "gives weights; say euclidean or cosine, or approximator: {kind: conf}"
            )
        if self.stand_in is not None and not needs:
            raise ValueError("stand_in: grouping 'random' needs none; leave it out")
        return self


def _by_the_server(hop: object) -> object:
    if hop == "p2p":
        raise ValueError(
            "'p2p' hands a model on without the server, which would see what a whole chain has "
            "made of it, and cohorts are found from what each client does; say relay"
        )
    return hop


class RoundSuperclients(Section):
    """FedSeq inside a cohort: the clients that a round asks are dealt at random into superclients
    of at most ``size``, as equal as can be, for this round only. ``passes``, ``hop`` and ``absent``
    as in superclients. Hops go by the server (``relay``), which so sees what each member has made
    of the model that it was sent, and that is what clustering takes of a member (with several
    passes, of its first turn). The budget counts clients: a round of n has ⌈n / size⌉ chains, and
    its ``min_updates`` counts chains. All members of a chain are free when the chain is over."""

    size: Annotated[int, Field(ge=1, le=1_000_000)]
    passes: Count = 1
    hop: Annotated[Literal["relay"], BeforeValidator(_by_the_server)]
    absent: Absent

    def chains(self, clients: int) -> int:
        """How many chains so many clients make."""
        return -(-clients // self.size)
