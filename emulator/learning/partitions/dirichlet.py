"""Each label's samples divided among the clients by a Dirichlet draw."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ScenarioError
from emulator.learning.partitions.owners import (
    Indices,
    by_owner,
    check_alpha,
    check_counts,
    check_positive,
)


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
    check_alpha(alpha, "for alpha 0, one label a client, use kind: shards")
    return divided("dirichlet", labels, clients, rng, alpha, min_samples, attempts)


def log_shares(alpha: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """The logarithms of a Dirichlet draw, up to a constant.

    Dirichlet as normalized gammas, in logarithms: for small alpha the gammas underflow to zero,
    all of them at once for some draws. Gamma(a) = Gamma(a + 1) * U^(1/a) with a uniform U
    (Marsaglia, Tsang 2000), and -log U is exponential.
    """
    drawn: NDArray[np.float64] = np.log(rng.standard_gamma(alpha + 1.0))
    return drawn - rng.standard_exponential(alpha.shape) / alpha


def divided(
    kind: str,
    labels: NDArray[np.int64],
    clients: int,
    rng: np.random.Generator,
    alpha: float,
    min_samples: int,
    attempts: int,
) -> list[Indices]:
    """The recipe of :func:`dirichlet`; ``kind`` is the partition's name, for messages."""
    if type(min_samples) is not int or min_samples < 0:
        raise ScenarioError(
            f"task.partition.min_samples: {min_samples!r} is not allowed; write 0 or more"
        )
    check_positive("attempts", attempts)
    check_counts(labels, clients, 1)
    if min_samples * clients > len(labels):
        raise ScenarioError(
            f"task.partition.min_samples: {min_samples} samples for each of {clients} clients are "
            f"{min_samples * clients}, and there are {len(labels)}; min_samples may be "
            f"{len(labels) // clients} at most, or take fewer clients"
        )
    _, label_codes, label_sizes = np.unique(labels, return_inverse=True, return_counts=True)
    best = -1
    for _ in range(attempts):
        sizes = _sizes(label_sizes, clients, alpha, rng)
        smallest = int(sizes.sum(axis=0).min())
        best = max(best, smallest)
        if smallest >= min_samples:
            break
    else:
        raise ScenarioError(
            f"task.partition: {kind} with alpha {alpha:g} on {len(labels)} samples and "
            f"{clients} clients: in {attempts} attempts the smallest client never held more than "
            f"{best} sample(s), min_samples is {min_samples}; take a larger alpha, a smaller "
            "min_samples, fewer clients or more attempts"
        )
    owner = np.empty(len(labels), np.int64)
    for code, client_sizes in enumerate(sizes):
        members = rng.permutation(np.flatnonzero(label_codes == code))
        owner[members] = np.repeat(np.arange(clients), client_sizes)
    return by_owner(owner, clients)


def _sizes(
    label_sizes: NDArray[np.int64], clients: int, alpha: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """How many samples of each label each client gets, ``[labels, clients]``: one attempt."""
    samples = int(label_sizes.sum())
    sizes = np.zeros((len(label_sizes), clients), np.int64)
    held = np.zeros(clients, np.int64)
    for code, label_size in enumerate(label_sizes):
        log_share = log_shares(np.full(clients, float(alpha)), rng)
        # Some client holds less than the mean while samples are left: one share stays finite.
        log_share[held * clients >= samples] = -np.inf
        cumulative = np.cumsum(np.exp(log_share - log_share.max()))
        # Dividing by the last entry makes it, and all after the last open client, exactly 1.
        ends = np.floor(cumulative / cumulative[-1] * label_size).astype(np.int64)
        sizes[code] = np.diff(ends, prepend=0)
        held += sizes[code]
    return sizes
