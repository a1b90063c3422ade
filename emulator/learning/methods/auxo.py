"""Auxo's online clustering (Liu et al., "Auxo: Efficient Federated Learning via Scalable Client
Clustering", SoCC 2023, §4): what the updates of one round tell of its participants.

Of each participant's update a *sketch* is taken. Sketches are centred on the mean of those that the
cohort knows as its own; the direction of a centred sketch says on which side of the cohort its
client is, and its length how far from the middle:

    reward_i = R0 · (1 − d_i / (mean d + tolerance · std d)) · ρ,    ρ = known / participants

as in the authors' code, whose tolerance is 1, but for two things (``variant: code`` does without).
The length of an update tells less of whose data it is than of how often its client has trained
before; so d is taken along the *cuts* by which the cohort has come about: of each ancestor the
direction from its one side to the other. And mean and standard deviation are those of the known
participants: a few strangers from far away would stretch the scale for all, and nearer ones belong.

Few of a cohort's clients take part in one round, so that it keeps the directions of the last ones
that did; 2-means of these says where the sides are, each named as most of its members were the time
before. (The paper leaves the arithmetic of its Algorithm 1 open; the authors' code takes sides from
a single round for good, and hands them on to the nearest neighbour.)
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
KEPT = 256
"""So many directions a cohort keeps."""


@dataclass(frozen=True, slots=True)
class Participants:
    """Who they are, along the rows of the sketches: ``known`` to the cohort, and the side that each
    has said it is on, :data:`NOWHERE` if none."""

    known: tuple[bool, ...]
    sides: tuple[int, ...]


def count_sketch(vectors: Tensor, dimensions: int, rng: np.random.Generator) -> Tensor:
    """A random projection [n, dimensions] of ``vectors`` [n, P] that keeps inner products in the
    mean: each coordinate goes to one random place with a random sign (Charikar et al. 2002)."""
    size = vectors.shape[1]
    place = torch.from_numpy(rng.integers(dimensions, size=size)).to(vectors.device)
    sign = torch.from_numpy(2.0 * rng.integers(2, size=size) - 1.0).to(vectors.device)
    out = torch.zeros(len(vectors), dimensions, dtype=torch.float64, device=vectors.device)
    return out.index_add_(1, place, vectors.double() * sign)


@dataclass(frozen=True, slots=True)
class RewardRule:
    """R0, the tolerance, and whether distances are the authors' code's."""

    scale: float
    tolerance: float
    as_in_code: bool


def rewards(distances: Floats, known: Sequence[bool], rule: RewardRule) -> Floats:
    """R0 · (1 − d / (mean d + tolerance · std d)) · ρ; mean and std over the known, or over all."""
    typical_of = distances if rule.as_in_code else distances[np.array(known)]
    typical = typical_of.mean() + rule.tolerance * typical_of.std()
    if typical == 0:
        found = np.where(distances > 0, -rule.scale, rule.scale)
    else:
        found = rule.scale * (1.0 - distances / typical)
    share: Floats = found * (sum(known) / len(known))
    return share


@dataclass(frozen=True, slots=True)
class Memory:
    """What a cohort keeps: ``directions`` [at most :data:`KEPT`, d] of its last known participants,
    the ``centres`` [2, d] of its sides, None before there are any, and the ``cuts`` [ancestors, d]
    by which it has come about."""

    directions: Floats
    centres: Floats | None
    cuts: Floats

    def inherited(self) -> Memory:
        """What a child begins with."""
        cuts = self.cuts
        if self.centres is not None:
            cuts = np.concatenate([cuts, np.diff(self.centres, axis=0)])
        return Memory(self.directions[:0], None, cuts)


def cluster(
    sketches: Floats, who: Participants, memory: Memory | None, rule: RewardRule, seed: int
) -> tuple[dict[str, Any], Memory]:
    """What the sketches [n, d] tell: ``rewards`` and ``sides`` [n] (:data:`NOWHERE` while there are
    none), ``margins`` [n] (distance to the other side over that to its own), ``spread`` and
    ``spread_of_sides`` (mean squared distances, unbiased, of those that had a side before; None
    with fewer than two on a side). Beside it what the cohort keeps, in place of ``memory``.

    Fewer than two known participants are no middle: then all are taken for known.
    """
    known = np.array(who.known)
    if known.sum() < 2:
        known = np.ones(len(sketches), dtype=bool)
    centred = sketches - sketches[known].mean(0)
    distances = np.linalg.norm(centred, axis=1)
    directions = centred / np.maximum(distances, 1e-300)[:, None]
    if memory is None:
        memory = Memory(directions[:0], None, directions[:0])
    kept = np.concatenate([memory.directions, directions[known]])[-KEPT:]
    centres = _two_means(kept, memory.centres, seed)
    claimed = np.where(known, who.sides, NOWHERE)
    sides, margins = np.full(len(sketches), NOWHERE), np.ones(len(sketches))
    if centres is not None:
        from_each = np.linalg.norm(directions[:, None] - centres[None], axis=2)
        sides = from_each.argmin(1)
        if memory.centres is None and (claimed == 1 - sides).sum() > (claimed == sides).sum():
            # New to this cohort, or to this part of a model: named as most of them name it.
            centres, from_each, sides = centres[::-1].copy(), from_each[:, ::-1], 1 - sides
        near, far = np.sort(from_each, axis=1).T
        margins = far / np.maximum(near, 1e-300)
    if len(memory.cuts) and not rule.as_in_code:
        basis = _span(memory.cuts)
        distances = np.linalg.norm(centred @ basis, axis=1)
    spread, of_sides = _spreads(sketches, claimed)
    return {
        "rewards": rewards(distances, known.tolist(), rule).tolist(), "sides": sides.tolist(),
        "margins": margins.tolist(), "spread": spread, "spread_of_sides": of_sides,
    }, Memory(kept, centres, memory.cuts)  # fmt: skip


def _span(cuts: Floats) -> Floats:
    """An orthonormal basis [d, rank] of what the cuts span."""
    basis, lengths, _ = np.linalg.svd(cuts.T, full_matrices=False)
    found: Floats = basis[:, lengths > 1e-9 * lengths[0]]
    return found


def _two_means(directions: Floats, before: Floats | None, seed: int) -> Floats | None:
    """The directions of two clusters [2, d], named as most of them were ``before``; None where all
    are alike."""
    if len(np.unique(directions, axis=0)) < 2:
        return before
    # Loaded where it is used: scikit-learn takes a second, in every worker.
    from sklearn.cluster import KMeans

    found = KMeans(2, n_init=10, random_state=seed).fit(directions)
    centres: Floats = found.cluster_centers_
    centres /= np.maximum(np.linalg.norm(centres, axis=1), 1e-300)[:, None]
    if before is not None:
        named = np.linalg.norm(directions[:, None] - before[None], axis=2).argmin(1)
        if 2 * (named == found.labels_).sum() < len(named):
            centres = centres[::-1].copy()
    return centres


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
