"""FedSeq's approximators ψ: what a client's pre-trained model tells of its data.

Zaccone et al., "Speeding up Heterogeneous Federated Learning with Sequentially Trained
Superclients" (ICPR 2022), section III; of the confidence vector the authors' code has the reading
that is used, since only that gives a probability vector.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from emulator.errors import ScenarioError

EXPLAINED_VARIANCE = 0.9


def classifier_weights(model: nn.Module, layers: int) -> Tensor:
    """ψ_clf before its principal components: the weights [d], without biases, of the last
    ``layers`` Linear layers, the last one first.

    Raises :class:`ScenarioError` for a model that has fewer.
    """
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if len(linear) < layers:
        raise ScenarioError(
            f"federation.structure.approximator.layers is {layers}, and task.model has "
            f"{len(linear)} Linear layers"
        )
    last_first = linear[::-1][:layers]
    return torch.cat([layer.weight.detach().reshape(-1) for layer in last_first])


def principal_components(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rows of ``matrix`` [clients, d] by the fewest principal components that explain 90 % of
    the variance, [clients, m]; one column of zeros where all rows are alike."""
    if not np.ptp(matrix, axis=0).any():
        return np.zeros((len(matrix), 1))
    # Loaded where it is used: scikit-learn takes a second, in every worker.
    from sklearn.decomposition import PCA

    pca = PCA(n_components=EXPLAINED_VARIANCE, svd_solver="full")
    found: NDArray[np.float64] = pca.fit_transform(matrix)
    return found


def confidence(logits: Tensor, y: Tensor, classes: int) -> list[float]:
    """ψ_conf: p_c ∝ Σ_{x of class c} softmax(f(x))_c, of sum 1; [classes].

    ``logits`` [n, classes] of the exemplars, whose labels are ``y`` [n].
    """
    own = torch.softmax(logits.double(), 1).gather(1, y[:, None])[:, 0]
    mass = torch.zeros(classes, dtype=torch.float64, device=own.device)
    mass.index_add_(0, y, own)
    found: list[float] = (mass / mass.sum()).tolist()
    return found


def exemplars(
    y: NDArray[np.int64], classes: int, per_class: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(positions of ``per_class`` samples of every class, those of the rest), both ascending.

    ``y`` [n] are the labels of the test set; every method that is compared is evaluated on the
    rest. Raises :class:`ScenarioError` where a class has no more samples than that.
    """
    taken: list[NDArray[np.int64]] = []
    for c in range(classes):
        members = np.flatnonzero(y == c)
        if len(members) <= per_class:
            raise ScenarioError(
                f"task.exemplars: class {c} has {len(members)} test samples; {per_class} to be "
                "held out leave none to evaluate on; hold out fewer"
            )
        taken.append(rng.choice(members, per_class, replace=False))
    chosen = np.sort(np.concatenate(taken))
    return chosen, np.setdiff1d(np.arange(len(y)), chosen)


def pairwise_cosine(vectors: Sequence[Tensor]) -> NDArray[np.float64]:
    """Cosine similarity of every two models [P], [clients, clients]; the paper's heat-map."""
    from sklearn.metrics.pairwise import cosine_similarity

    found: NDArray[np.float64] = cosine_similarity(torch.stack(list(vectors)).double().cpu())
    return found
