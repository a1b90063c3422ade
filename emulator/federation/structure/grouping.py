"""Which clients form a superclient: FedSeq's metrics τ and groupings φ.

Zaccone, Rizzardi, Caldarola, Ciccone and Caputo, "Speeding up Heterogeneous Federated Learning
with Sequentially Trained Superclients" (ICPR 2022), section III; where the paper leaves a thing
open, the authors' code (github.com/RickZack/FedSeq) decides, except where a docstring says so.

A client is known by its representer [d], an estimate of its data: a probability vector over the
classes (ψ_conf) or a point in the space of the principal components of its classifier (ψ_clf).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist, squareform

from emulator.errors import ScenarioError

Floats = NDArray[np.float64]
Metric = Callable[[Floats, Floats, Floats], Floats]
"""Scores [n] of n candidates [n, d]: (of the group [d], of the candidates, merged [n, d])."""

_LEAST_PROBABILITY = 1e-12


def _euclidean(group: Floats, candidates: Floats, merged: Floats) -> Floats:
    """‖a − b‖₂."""
    distances: Floats = np.sqrt(((candidates - group) ** 2).sum(1))
    return distances


def _cosine(group: Floats, candidates: Floats, merged: Floats) -> Floats:
    """1 − a·b / (‖a‖‖b‖); 1, as of orthogonal vectors, where one of them is zero."""
    norms = np.sqrt((group**2).sum()) * np.sqrt((candidates**2).sum(1))
    products = (candidates * group).sum(1)
    cosines: Floats = np.divide(products, norms, out=np.zeros_like(norms), where=norms > 0)
    return 1.0 - cosines


def _gini(group: Floats, candidates: Floats, merged: Floats) -> Floats:
    """1 − Σ_c m_c², the impurity of the merged vector m."""
    impurity: Floats = 1.0 - (merged**2).sum(1)
    return impurity


def _kl(group: Floats, candidates: Floats, merged: Floats) -> Floats:
    """1 − KL(m ‖ uniform) = 1 − Σ_c m_c ln(m_c N_C), in nats."""
    classes = merged.shape[1]
    safe = np.maximum(merged, _LEAST_PROBABILITY)
    divergence: Floats = (safe * np.log(safe * classes)).sum(1)
    return 1.0 - divergence


METRICS: dict[str, Metric] = {
    "euclidean": _euclidean,
    "cosine": _cosine,
    "gini": _gini,
    "kl": _kl,
}
"""τ by name, each the larger the better a candidate completes the group."""


@dataclass(frozen=True, slots=True)
class Limits:
    """A group is open while it holds fewer than ``min_samples`` and fewer than ``max_clients``
    clients; it may close below ``min_samples``."""

    min_samples: int
    max_clients: int

    def is_open(self, clients: int, samples: int) -> bool:
        return samples < self.min_samples and clients < self.max_clients


def most_superclients(samples: Sequence[int], limits: Limits) -> int:
    """No grouping of clients that hold so many ``samples`` makes more superclients; 0: none can be
    made."""
    n, held, least = len(samples), 0, 0
    for own in sorted(samples, reverse=True):
        if not limits.is_open(least, held):
            break
        held, least = held + own, least + 1
    # A group closes because it holds enough, or because it is full.
    enough = min(n, sum(samples) // limits.min_samples)
    most = enough + (n - enough) // limits.max_clients
    return min(most, n // max(1, least))


@dataclass(slots=True)
class Grouping:
    """``groups``: the clients of each superclient, in the order in which they joined.

    ``scores`` and ``scores_below`` count the greedy grouping's scores, and those of them at or
    below 0, where a search that starts from 0 would take the first client that comes.
    """

    groups: list[list[int]]
    scores: int = 0
    scores_below: int = 0


@dataclass(slots=True)
class _Groups:
    """Groups that fill up one after the other."""

    samples: Sequence[int]
    limits: Limits
    closed: list[list[int]] = field(default_factory=list)
    open: list[int] = field(default_factory=list)
    held: int = 0

    def add(self, client: int) -> None:
        self.open.append(client)
        self.held += self.samples[client]
        if not self.limits.is_open(len(self.open), self.held):
            self.closed.append(self.open)
            self.open, self.held = [], 0

    def finish(self) -> list[list[int]]:
        """All groups. The clients of one that is still open, and so too small, are dealt to the
        others: the last first, to the smallest by samples and so on in turn, full ones left out.

        Raises :class:`ScenarioError` where they have no place.
        """
        if not self.open:
            return self.closed
        total = sum(map(len, self.closed)) + len(self.open)
        if not self.closed or total > len(self.closed) * self.limits.max_clients:
            raise ScenarioError(
                f"federation.structure: {len(self.closed)} superclients of at most "
                f"{self.limits.max_clients} clients have no place for all of the {total} clients, "
                f"and the {len(self.open)} that are left over hold {self.held} samples, less than "
                f"min_samples, {self.limits.min_samples}; use a smaller min_samples or a larger "
                "max_clients"
            )
        room = [group for group in self.closed if len(group) < self.limits.max_clients]
        room.sort(key=lambda group: sum(self.samples[client] for client in group))
        turn = 0
        while self.open:
            group = room[turn % len(room)]
            turn += 1
            if len(group) < self.limits.max_clients:
                group.append(self.open.pop())
        return self.closed


def random_grouping(samples: Sequence[int], limits: Limits, rng: np.random.Generator) -> Grouping:
    """φ_rand: the clients in shuffled order."""
    groups = _Groups(samples, limits)
    for client in rng.permutation(len(samples)).tolist():
        groups.add(client)
    return Grouping(groups.finish())


def kmeans_grouping(
    samples: Sequence[int], limits: Limits, clusters: Sequence[int], rng: np.random.Generator
) -> Grouping:
    """φ_kmeans: one client of each cluster in turn, going on across superclients.

    ``clusters`` [clients] numbers each client's cluster of representers. The turn goes round the
    clusters without beginning anew for a superclient, past empty ones; of a cluster it takes the
    last client, in an order that is shuffled here (the code takes them by number).
    """
    members: dict[int, list[int]] = {}
    for client in rng.permutation(len(samples)).tolist():
        members.setdefault(clusters[client], []).append(client)
    groups = _Groups(samples, limits)
    for client in _in_turn([members[cluster] for cluster in sorted(members)]):
        groups.add(client)
    return Grouping(groups.finish())


def _in_turn(stacks: list[list[int]]) -> Iterator[int]:
    while any(stacks):
        for stack in stacks:
            if stack:
                yield stack.pop()


def greedy_grouping(
    samples: Sequence[int],
    limits: Limits,
    representers: Floats,
    metric: str,
    rng: np.random.Generator,
    *,
    first: str = "random",
    merge: str = "half",
) -> Grouping:
    """φ_greedy: always the client that τ rates highest beside those that are in.

    ``representers`` [clients, d]. The group's own is the mean of its clients', weighted by
    samples; ``merge`` says what a candidate would make of it: ``half`` (a + b)/2, as the code has
    it, or the ``mean`` that it would become. The ``first`` client is ``random``, as in the paper,
    or, with ``argmax_uniform``, the one that τ rates highest beside the uniform vector, as in the
    code. The search starts from −∞ where the code's starts from 0. Equal scores: the lowest
    number.
    """
    groups, score = _Groups(samples, limits), METRICS[metric]
    shuffled = rng.permutation(len(samples))
    free = np.ones(len(samples), dtype=bool)
    weights = np.asarray(samples, dtype=np.float64)
    found = Grouping([])
    while free.any():
        if not groups.open and first == "random":
            client = int(shuffled[free[shuffled]][0])
        else:
            group = _representer(representers[groups.open], weights[groups.open])
            left = np.flatnonzero(free)
            candidates = representers[left]
            if merge == "mean":
                merged = _means(group, groups.held, candidates, weights[left])
            else:
                merged = (group + candidates) / 2
            scores = score(group, candidates, merged)
            found.scores += len(scores)
            found.scores_below += int((scores <= 0).sum())
            client = int(left[scores.argmax()])
        free[client] = False
        groups.add(client)
    found.groups = groups.finish()
    return found


def _representer(of_clients: Floats, samples: Floats) -> Floats:
    """A group's own [d], of its clients' [n, d]; the uniform vector while there is none."""
    n, dimension = of_clients.shape
    if n == 0:
        return np.full(dimension, 1.0 / dimension)
    weights = samples if samples.any() else np.ones(n)
    mean: Floats = np.average(of_clients, axis=0, weights=weights)
    return mean


def _means(group: Floats, held: int, candidates: Floats, samples: Floats) -> Floats:
    """What each candidate [n, d] with so many ``samples`` [n] would make of a group that holds
    ``held``; the group as it is where neither holds any."""
    both = held + samples
    share = np.divide(samples, both, out=np.zeros_like(both), where=both > 0)[:, None]
    means: Floats = (1.0 - share) * group + share * candidates
    return means


def place_at_random(
    groups: list[list[int]], samples: Sequence[int], limits: Limits, clients: Sequence[int],
    rng: np.random.Generator,
) -> list[list[int]]:  # fmt: skip
    """``groups`` and, in shuffled order, ``clients`` of whose data nothing is known: they make
    superclients of their own, and those left over are dealt to all, as everywhere."""
    found = _Groups(samples, limits, [list(group) for group in groups])
    for client in rng.permutation(clients).tolist():
        found.add(client)
    return found.finish()


@dataclass(frozen=True, slots=True)
class Quality:
    """How well one superclient stands for all data. Distances are Euclidean, between shares of
    samples by class: ``intra`` the mean over pairs of its own clients, ``inter`` the mean to the
    other superclients; None where there is no pair, or data are only declared."""

    members: list[int]
    samples: int
    balance: float | None
    covered: float | None
    intra: float | None
    inter: float | None


def quality(
    groups: Sequence[list[int]], samples: Sequence[int], labels: NDArray[np.int64] | None
) -> list[Quality]:
    """Of every superclient; ``labels`` [all clients, classes] counts samples."""
    if labels is None:
        return [Quality(g, sum(samples[c] for c in g), None, None, None, None) for g in groups]
    counts = np.array([labels[group].sum(0) for group in groups])
    between = squareform(pdist(_shares(counts)))
    found = []
    for number, group in enumerate(groups):
        pairs = pdist(_shares(labels[group]))
        others = np.delete(between[number], number)
        found.append(
            Quality(
                group, int(counts[number].sum()), balance_ratio(counts[number]),
                covered_classes(counts[number]), float(pairs.mean()) if len(pairs) else None,
                float(others.mean()) if len(others) else None,
            )
        )  # fmt: skip
    return found


def _shares(counts: NDArray[np.int64]) -> Floats:
    """Each row [classes] as shares; zeros where it is empty."""
    totals = counts.sum(1, keepdims=True)
    shares: Floats = np.divide(counts, totals, out=np.zeros(counts.shape), where=totals > 0)
    return shares


def balance_ratio(counts: NDArray[np.int64]) -> float:
    """min_c N_c / max_c N_c of a superclient's samples by class ``counts`` [classes]."""
    return float(counts.min() / counts.max()) if counts.max() else 0.0


def covered_classes(counts: NDArray[np.int64]) -> float:
    """The share of classes of which a superclient has any sample; ``counts`` [classes]."""
    return float((counts > 0).mean())
