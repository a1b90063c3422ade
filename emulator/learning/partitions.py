"""Who holds which samples: pure functions from labels to one array of indices a client.

Every array is sorted, int64 and disjoint from the others, and together they hold every sample.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ScenarioError
from emulator.learning.registry import call_registered

Indices = NDArray[np.int64]


def iid(labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> list[Indices]:
    """Samples dealt out at random, whatever their label.

    Sizes differ by one at most: the first ``samples % clients`` clients hold one more.
    Raises ScenarioError with more clients than samples.
    """
    _check_counts(labels, clients, clients)
    owner = np.empty(len(labels), np.int64)
    owner[rng.permutation(len(labels))] = np.arange(len(labels)) % clients
    return _by_owner(owner, clients)


def label_shards(
    labels: NDArray[np.int64],
    clients: int,
    rng: np.random.Generator,
    *,
    shards_per_client: int,
) -> list[Indices]:
    """Samples sorted by label and cut into shards, each client holding some at random.

    McMahan et al. 2017 take two shards a client; FedSeq's "alpha = 0" is one. Shard sizes differ
    by one at most: the first ``samples % shards`` shards hold one more, so a shard holds a single
    label only where the sizes divide. Raises ScenarioError with more shards than samples.
    """
    _positive("shards_per_client", shards_per_client)
    shards = clients * shards_per_client
    _check_counts(labels, clients, shards)
    shard_sizes = np.full(shards, len(labels) // shards)
    shard_sizes[: len(labels) % shards] += 1
    shard_owner = rng.permutation(np.repeat(np.arange(clients), shards_per_client))
    owner = np.empty(len(labels), np.int64)
    owner[np.argsort(labels, kind="stable")] = np.repeat(shard_owner, shard_sizes)
    return _by_owner(owner, clients)


def dirichlet(
    labels: NDArray[np.int64],
    clients: int,
    rng: np.random.Generator,
    *,
    alpha: float,
    min_samples: int = 1,
    attempts: int = 100,
) -> list[Indices]:
    """Each label's samples divided among the clients in Dirichlet(alpha) proportions.

    The recipe of FedMA and FedML (also FedSeq's): labels in ascending order, and a client that
    already holds ``samples / clients`` or more gets a share of zero, the others' being
    renormalized. Whole partitions are drawn again until every client holds ``min_samples``: the
    result is the recipe's distribution on that condition, never a repaired draw. Raises
    ScenarioError when the floor cannot be met, or was not in so many attempts.
    """
    if type(alpha) not in (int, float) or not math.isfinite(alpha) or alpha < 1e-6:
        raise ScenarioError(
            f"task.partition.alpha: {alpha!r} is not allowed; write a finite number of at least "
            "1e-6 (for alpha 0, one label a client, use kind: shards)"
        )
    if type(min_samples) is not int or min_samples < 0:
        raise ScenarioError(
            f"task.partition.min_samples: {min_samples!r} is not allowed; write 0 or more"
        )
    _positive("attempts", attempts)
    _check_counts(labels, clients, 1)
    if min_samples * clients > len(labels):
        raise ScenarioError(
            f"task.partition.min_samples: {min_samples} samples for each of {clients} clients are "
            f"{min_samples * clients}, and there are {len(labels)}; min_samples may be "
            f"{len(labels) // clients} at most, or take fewer clients"
        )
    _, label_codes, label_sizes = np.unique(labels, return_inverse=True, return_counts=True)
    best = -1
    for _ in range(attempts):
        sizes = _dirichlet_sizes(label_sizes, clients, alpha, rng)
        smallest = int(sizes.sum(axis=0).min())
        best = max(best, smallest)
        if smallest >= min_samples:
            break
    else:
        raise ScenarioError(
            f"task.partition: dirichlet with alpha {alpha:g} on {len(labels)} samples and "
            f"{clients} clients: in {attempts} attempts the smallest client never held more than "
            f"{best} sample(s), min_samples is {min_samples}; take a larger alpha, a smaller "
            "min_samples, fewer clients or more attempts"
        )
    owner = np.empty(len(labels), np.int64)
    for code, client_sizes in enumerate(sizes):
        members = rng.permutation(np.flatnonzero(label_codes == code))
        owner[members] = np.repeat(np.arange(clients), client_sizes)
    return _by_owner(owner, clients)


def _dirichlet_sizes(
    label_sizes: NDArray[np.int64], clients: int, alpha: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """How many samples of each label each client gets, ``[labels, clients]``: one attempt."""
    samples = int(label_sizes.sum())
    sizes = np.zeros((len(label_sizes), clients), np.int64)
    held = np.zeros(clients, np.int64)
    for code, label_size in enumerate(label_sizes):
        # Dirichlet as normalized gammas, in logarithms: for small alpha the gammas underflow to
        # zero, all of them at once for some draws. Gamma(a) = Gamma(a + 1) * U^(1/a) with a
        # uniform U (Marsaglia, Tsang 2000), and -log U is exponential.
        log_share = np.log(rng.standard_gamma(alpha + 1.0, clients))
        log_share -= rng.standard_exponential(clients) / alpha
        # Some client holds less than the mean while samples are left: one share stays finite.
        log_share[held * clients >= samples] = -np.inf
        cumulative = np.cumsum(np.exp(log_share - log_share.max()))
        # Dividing by the last entry makes it, and all after the last open client, exactly 1.
        ends = np.floor(cumulative / cumulative[-1] * label_size).astype(np.int64)
        sizes[code] = np.diff(ends, prepend=0)
        held += sizes[code]
    return sizes


PARTITIONS: dict[str, Callable[..., list[Indices]]] = {
    "iid": iid,
    "shards": label_shards,
    "dirichlet": dirichlet,
}


def partition(
    kind: str,
    labels: NDArray[np.int64],
    clients: int,
    rng: np.random.Generator,
    *,
    holders: int | None = None,
    **options: Any,
) -> list[Indices]:
    """The partition of this kind among ``clients``, as many arrays as clients.

    With ``holders``, only the first so many clients hold data, and the others get empty arrays.
    Raises ScenarioError for an unknown kind or option, and for numbers that do not fit.
    """
    _positive("clients", clients)
    if holders is None:
        holders = clients
    if type(holders) is not int or not 1 <= holders <= clients:
        raise ScenarioError(
            f"task.partition.holders: {holders!r} is not allowed; write a number from 1 to the "
            f"{clients} clients, or leave it out for all"
        )
    held = call_registered("task.partition", PARTITIONS, kind, options, labels, holders, rng)
    return held + [np.empty(0, np.int64) for _ in range(clients - holders)]


def partition_hash(parts: Sequence[Indices]) -> str:
    """A BLAKE2b hash, hex, of who holds what; the order of the clients is part of it."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(np.array([len(part) for part in parts], "<i8").tobytes())
    for part in parts:
        digest.update(np.asarray(part, "<i8").tobytes())
    return digest.hexdigest()


def _by_owner(owner: Indices, clients: int) -> list[Indices]:
    """The samples of each client, ascending, from the client of each sample."""
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=clients))[:-1]
    return np.split(order, ends)


def _positive(option: str, value: int) -> None:
    if type(value) is not int or value < 1:
        raise ScenarioError(f"task.partition: {option} is {value!r}; write an integer from 1 up")


def _check_counts(labels: NDArray[np.int64], clients: int, pieces: int) -> None:
    """Refuse what would leave clients without samples in silence."""
    _positive("clients", clients)
    if len(labels) < pieces:
        raise ScenarioError(
            f"task.partition: {len(labels)} samples cannot be cut into {pieces} pieces for "
            f"{clients} clients; take fewer clients (or shards), or set holders: to let only the "
            "first clients hold data"
        )
