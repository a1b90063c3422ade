"""Each client's own mix of labels by a Dirichlet draw, all clients of one size."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from emulator.learning.partitions.dirichlet import log_shares
from emulator.learning.partitions.owners import Indices, by_owner, check_alpha, check_counts


def client_dirichlet(
    labels: NDArray[np.int64], clients: int, rng: np.random.Generator, *, alpha: float
) -> list[Indices]:
    """Every client draws its mix of labels q ~ Dirichlet(alpha * p), then its samples from q.

    Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification" (2019, arXiv 1909.06335), section 3: p are the shares of the labels in all
    data, so with N equal classes each has the concentration alpha / N. Sizes are equal, as iid's.
    Clients draw in turn, without replacement: a label that is used up leaves the mix, and the
    other shares are renormalized; so the last clients hold what is left, whatever they drew.
    Raises ScenarioError with more clients than samples.
    """
    check_alpha(alpha, "for alpha 0, one label a client, use kind: shards")
    check_counts(labels, clients, clients)
    _, label_codes, label_sizes = np.unique(labels, return_inverse=True, return_counts=True)
    concentration = alpha * label_sizes / len(labels)
    # The samples of each label in random order: a client takes the next ones.
    queues = [
        rng.permutation(np.flatnonzero(label_codes == code)) for code in range(len(label_sizes))
    ]
    taken = np.zeros_like(label_sizes)
    owner = np.empty(len(labels), np.int64)
    for client in range(clients):
        missing = len(labels) // clients + (client < len(labels) % clients)
        log_share = log_shares(concentration, rng)
        while missing:
            left = label_sizes - taken
            log_share[left == 0] = -np.inf
            share = np.exp(log_share - log_share.max())
            # What is drawn beyond a label's last sample is drawn again from the others: the same
            # law as one draw after the other from the labels that are left.
            drawn = np.minimum(rng.multinomial(missing, share / share.sum()), left)
            for code in np.flatnonzero(drawn):
                owner[queues[code][taken[code] : taken[code] + drawn[code]]] = client
            taken += drawn
            missing -= int(drawn.sum())
    return by_owner(owner, clients)
