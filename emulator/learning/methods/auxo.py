"""Auxo's online clustering (Liu et al., "Auxo: Efficient Federated Learning via Scalable Client
Clustering", SoCC 2023, §4): what the updates of one round tell of its participants.

Of each participant's update a *sketch* is taken. Sketches are centred on the mean of those that the
cohort knows as its own; the direction of a centred sketch says on which side of the cohort its
client is, and its length how far from the middle:

    reward_i = R0 · (1 − d_i / (mean d + std d)) · ρ,    ρ = known / participants

as in the authors' code. Sides are found by 2-means; from the second time on it begins at the means
of those who have said on which side they are, so that sides keep their names. The paper leaves its
Algorithm 1's arithmetic open; the code gives a label once and for all, from one round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
NOWHERE = -1
"""In place of a side: not known."""


@dataclass(frozen=True, slots=True)
class Participants:
    """Who they are, along the rows of the sketches: ``known`` to the cohort, and the side that each
    has said it is on, :data:`NOWHERE` if none. ``first``: nobody has a side yet."""

    known: tuple[bool, ...]
    sides: tuple[int, ...]
    first: bool


def count_sketch(vectors: Tensor, dimensions: int, rng: np.random.Generator) -> Tensor:
    """A random projection [n, dimensions] of ``vectors`` [n, P] that keeps inner products in the
    mean: each coordinate goes to one random place with a random sign (Charikar et al. 2002)."""
    size = vectors.shape[1]
    place = torch.from_numpy(rng.integers(dimensions, size=size)).to(vectors.device)
    sign = torch.from_numpy(2.0 * rng.integers(2, size=size) - 1.0).to(vectors.device)
    out = torch.zeros(len(vectors), dimensions, dtype=torch.float64, device=vectors.device)
    return out.index_add_(1, place, vectors.double() * sign)


def rewards(distances: Floats, known: Sequence[bool], scale: float) -> Floats:
    """R0 · (1 − d / (mean d + std d)) · ρ, with R0 = ``scale``."""
    typical = distances.mean() + distances.std()
    if typical == 0:
        return np.full(len(distances), scale)
    found: Floats = scale * (1.0 - distances / typical) * (sum(known) / len(known))
    return found


def cluster(sketches: Floats, who: Participants, scale: float, seed: int) -> dict[str, Any]:
    """What the sketches [n, d] tell: ``rewards`` and ``sides`` [n] (:data:`NOWHERE` where none is
    given), ``margins`` [n] (distance to the other side over that to its own), ``spread`` and
    ``spread_of_sides`` (mean squared distances, unbiased, of those that had a side before; None
    with fewer than two on a side).

    Fewer than two known participants are no middle: then all are taken for known.
    """
    known = np.array(who.known)
    if known.sum() < 2:
        known = np.ones(len(sketches), dtype=bool)
    centred = sketches - sketches[known].mean(0)
    distances = np.linalg.norm(centred, axis=1)
    directions = centred / np.maximum(distances, 1e-300)[:, None]
    sides, margins = _sides(directions, known, who, seed)
    spread, of_sides = _spreads(sketches, np.where(known, who.sides, NOWHERE))
    return {
        "rewards": rewards(distances, known.tolist(), scale).tolist(), "sides": sides.tolist(),
        "margins": margins.tolist(), "spread": spread, "spread_of_sides": of_sides,
    }  # fmt: skip


def _sides(
    directions: Floats, known: NDArray[np.bool_], who: Participants, seed: int
) -> tuple[NDArray[np.int64], Floats]:
    # Loaded where it is used: scikit-learn takes a second, in every worker.
    from sklearn.cluster import KMeans

    nowhere = np.full(len(directions), NOWHERE), np.ones(len(directions))
    claimed = np.where(known, who.sides, NOWHERE)
    mine, there = directions[known], [claimed == 0, claimed == 1]
    if len(np.unique(mine, axis=0)) < 2:
        return nowhere
    if who.first:
        means = KMeans(2, n_init=10, random_state=seed).fit(mine).cluster_centers_
    elif all(map(np.any, there)):
        begin = np.stack([directions[these].mean(0) for these in there])
        means = KMeans(2, init=begin, n_init=1, max_iter=20).fit(mine).cluster_centers_
    elif any(map(np.any, there)):
        # Only one side is there for sure: a quarter, the nearest to it, is taken to be on it.
        side = int(there[1].any())
        mean = directions[there[side]].mean(0)
        distance = np.where(known, np.linalg.norm(directions - mean, axis=1), np.inf)
        nearest = np.argsort(distance, kind="stable")[: -(-len(mine) // 4)]
        nowhere[0][nearest] = side
        return nowhere
    else:
        return nowhere
    from_each = np.linalg.norm(directions[:, None] - means[None], axis=2)
    sides = from_each.argmin(1)
    near, far = np.sort(from_each, axis=1).T
    return sides, far / np.maximum(near, 1e-300)


def _spreads(sketches: Floats, sides: NDArray[np.int64]) -> tuple[float | None, float | None]:
    groups = [sketches[sides == side] for side in (0, 1)]
    if min(map(len, groups)) < 2:
        return None, None
    whole = np.concatenate(groups)
    around_one = ((whole - whole.mean(0)) ** 2).sum() / (len(whole) - 1)
    around_two = sum(((g - g.mean(0)) ** 2).sum() for g in groups) / (len(whole) - 2)
    return float(around_one), float(around_two)


def similarity_correlation(sketches: Floats, histograms: Floats) -> float | None:
    """Pearson's r between the cosine of every two sketches [n, d] and the likeness of their
    clients' data, −‖h_i − h_j‖₂ of label distributions [n, classes] (the paper's figure 12); None
    where either is the same for all pairs."""
    upper = np.triu_indices(len(sketches), 1)
    length = np.maximum(np.linalg.norm(sketches, axis=1), 1e-300)
    unit = sketches / length[:, None]
    cosines = (unit @ unit.T)[upper]
    alike = -np.linalg.norm(histograms[:, None] - histograms[None], axis=2)[upper]
    if len(cosines) < 2 or np.ptp(cosines) == 0 or np.ptp(alike) == 0:
        return None
    return float(np.corrcoef(cosines, alike)[0, 1])
