"""IFCA, CFL, FL+HC and FlexCFL: what they decide, by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from emulator.learning import grouping
from emulator.learning.grouping import GroupConfig
from emulator.learning.methods import cfl, fl_hc, flexcfl, ifca

NAN, INF = math.nan, math.inf


def parts(labels: Sequence[int]) -> set[frozenset[int]]:
    """The groups, whatever their names."""
    return {frozenset(i for i, x in enumerate(labels) if x == label) for label in set(labels)}


def rays(*degrees: float) -> NDArray[np.float64]:
    """Vectors of these directions, of lengths 1, 2, and so on: a cosine does not see lengths."""
    angles = np.radians(degrees)
    lengths = 1.0 + np.arange(len(angles))
    return np.stack([np.cos(angles), np.sin(angles)], axis=1) * lengths[:, None]


# --- IFCA -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("losses", "j"),
    [
        ([2.0, 1.0, 3.0], 1), ([1.0, 1.0, 1.0], 0), ([2.0, 1.0, 1.0], 1), ([NAN, 5.0], 1),
        ([5.0, NAN], 0), ([NAN, INF], 0), ([NAN, NAN], 0), ([INF, 1e30], 1),
    ],
)  # fmt: skip
def test_the_smallest_loss_wins_and_of_equal_ones_the_first(losses: list[float], j: int) -> None:
    assert ifca.choose(losses) == j


# --- CFL ------------------------------------------------------------------------------------------


def test_the_norm_of_the_mean_is_not_the_mean_of_the_norms() -> None:
    """(3, 0), (−3, 0) and (0, 4): the mean is (0, 4/3), the norms are 3, 3 and 4."""
    assert cfl.norms(np.array([[3.0, 0.0], [-3.0, 0.0], [0.0, 4.0]])) == (
        pytest.approx(4 / 3), 4.0
    )  # fmt: skip


def test_complete_and_single_linkage_cut_elsewhere() -> None:
    """Directions with gaps of 30, 31 and 45 degrees. Single linkage opens the widest gap. With
    complete linkage the first two are one part, from which the third is 61 degrees at the farthest,
    and so it goes with the fourth."""
    updates = rays(0, 30, 61, 106)
    assert parts(cfl.bipartition(updates, "single")) == {frozenset({0, 1, 2}), frozenset({3})}
    assert parts(cfl.bipartition(updates, "complete")) == {frozenset({0, 1}), frozenset({2, 3})}


# --- FL+HC ----------------------------------------------------------------------------------------

LINE = np.array([[0.0], [1.0], [10.0], [12.0]])


def agglomerate(
    rows: NDArray[np.float64], clusters: int | None = None, threshold: float | None = None,
    metric: str = "euclidean", linkage: str = "complete",
) -> list[int]:  # fmt: skip
    return fl_hc.agglomerate(
        rows, metric=metric, linkage=linkage, clusters=clusters, threshold=threshold
    )


@pytest.mark.parametrize(
    ("threshold", "linkage", "n"),
    [
        # 0 and 1 join at 1, 10 and 12 at 2; the two at 9, 12 or 10.5: 12 − 0, 10 − 1, the mean.
        (0.9, "complete", 4), (1.5, "complete", 3), (2.5, "complete", 2), (11.9, "complete", 2),
        (12.1, "complete", 1), (8.9, "single", 2), (9.1, "single", 1), (10.4, "average", 2),
        (10.6, "average", 1),
    ],
)  # fmt: skip
def test_clusters_within_a_distance(threshold: float, linkage: str, n: int) -> None:
    assert len(set(agglomerate(LINE, threshold=threshold, linkage=linkage))) == n


def test_a_number_of_clusters_is_no_more_than_the_clients() -> None:
    assert parts(agglomerate(LINE, clusters=3)) == {
        frozenset({0, 1}), frozenset({2}), frozenset({3})
    }  # fmt: skip
    assert len(set(agglomerate(LINE, clusters=9))) == 4
    assert agglomerate(LINE[:1], clusters=2) == [0]


def test_a_metric_sees_other_distances() -> None:
    """(0, 0) and (3, 4) are 5 apart, and 7 along the axes; directions only differ by an angle."""
    rows = np.array([[0.0, 0.0], [3.0, 4.0]])
    assert len(set(agglomerate(rows, threshold=6.0))) == 1
    assert len(set(agglomerate(rows, threshold=6.0, metric="manhattan"))) == 2
    rows = np.array([[1.0, 0.0], [100.0, 0.0], [0.0, 1.0]])
    assert parts(agglomerate(rows, clusters=2)) == {frozenset({0, 2}), frozenset({1})}
    assert parts(agglomerate(rows, clusters=2, metric="cosine")) == {
        frozenset({0, 1}), frozenset({2})
    }  # fmt: skip


def test_who_has_not_moved_has_no_direction() -> None:
    rows = np.array([[1.0, 0.0], [2.0, 0.1], [0.0, 0.0]])
    assert parts(agglomerate(rows, clusters=2, metric="cosine", linkage="average")) == {
        frozenset({0, 1}), frozenset({2})
    }  # fmt: skip
    assert len(cfl.bipartition(rows, "complete")) == 3


# --- FlexCFL --------------------------------------------------------------------------------------


def test_the_cosines_to_the_main_directions() -> None:
    """Two clients along the first axis and one along the second: these are the directions, in the
    order of what is along them; their signs are anybody's."""
    updates = np.array([[2.0, 0.0], [-4.0, 0.0], [0.0, 3.0], [0.0, 0.0]])
    found = flexcfl.decomposed_cosine(updates, 2)
    assert np.abs(found) == pytest.approx(np.array([[1, 0], [1, 0], [0, 1], [0, 0]]))
    assert found[0, 0] == -found[1, 0]
    assert flexcfl.decomposed_cosine(updates, 1).shape == (4, 1)


def test_madc_of_two_of_three_and_of_more() -> None:
    assert flexcfl.madc(rays(0, 70)) == pytest.approx(np.zeros((2, 2)))
    half = math.cos(math.pi / 4)
    # To the third, at 45 degrees, the first two have the same angle; of it and one of them the
    # other one is at 0 and at 45.
    expected = np.array([[0, 0, half], [0, 0, half], [half, half, 0]])
    assert flexcfl.madc(rays(0, 90, 45)) == pytest.approx(expected)
    updates = np.random.default_rng(3).normal(size=(6, 4))
    unit = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    cosine = unit @ unit.T
    for i, j in itertools.permutations(range(6), 2):
        others = [z for z in range(6) if z not in (i, j)]
        mean = sum(abs(cosine[i, z] - cosine[j, z]) for z in others) / 4
        assert flexcfl.madc(updates)[i, j] == pytest.approx(mean)


def test_a_newcomer_goes_where_its_update_points() -> None:
    means = np.array([[5.0, 0.0], [0.0, 0.1], [-1.0, 0.0]])
    assert [flexcfl.nearest(np.array(u), means) for u in ([9.0, 8.0], [1.0, 2.0], [-1.0, 0.5])] == [
        0, 1, 2
    ]  # fmt: skip
    assert flexcfl.nearest(np.zeros(2), means) == 0


def test_groups_are_drawn_to_each_other() -> None:
    """η = 1 and models of lengths 5 and 2: ((3, 4) + (0, 2)/2) / (1 + 1/2), and the other way
    ((0, 2) + (3, 4)/5) / (1 + 1/5)."""
    found = flexcfl.inter_group(torch.tensor([[3.0, 4.0], [0.0, 2.0]]), 1.0)
    assert found.flatten().tolist() == pytest.approx([2.0, 10 / 3, 0.5, 7 / 3])
    alike = torch.tensor([[1.0, -2.0]]).repeat(3, 1)
    assert torch.allclose(flexcfl.inter_group(alike, 0.1), alike)
    # A model of zeros has no length: it draws nobody, and is drawn.
    found = flexcfl.inter_group(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), 0.5)
    assert found.flatten().tolist() == pytest.approx([3.0, 4.0, 3 / 11, 4 / 11])


# --- whatever the method --------------------------------------------------------------------------

METHODS: dict[str, Callable[[NDArray[np.float64]], list[int]]] = {
    "cfl": lambda rows: cfl.bipartition(rows, "complete"),
    "fl_hc": lambda rows: agglomerate(rows, clusters=2),
    "edc": lambda rows: flexcfl.group(rows, 2, "edc", 7),
    "madc": lambda rows: flexcfl.group(rows, 2, "madc", 7),
}


@pytest.mark.parametrize("method", METHODS)
def test_groups_are_the_same_in_any_order(method: str) -> None:
    """Seven clients about one direction and five about another, in 30 dimensions."""
    rng = np.random.default_rng(11)
    kinds = np.array([0] * 7 + [1] * 5)
    updates = rng.normal(size=(2, 30))[kinds] + 0.2 * rng.normal(size=(12, 30))
    group = METHODS[method]
    assert parts(group(updates)) == parts(kinds.tolist())
    for _ in range(5):
        order = rng.permutation(12)
        found = np.empty(12, dtype=int)
        found[order] = group(updates[order])
        assert parts(found.tolist()) == parts(kinds.tolist())


@pytest.mark.parametrize("measure", ["edc", "madc"])
def test_fewer_clients_than_groups(measure: str) -> None:
    assert flexcfl.group(rays(0), 3, measure, 1) == [0]
    assert len(set(flexcfl.group(rays(0, 90), 3, measure, 1))) == 2


def grouped(updates: list[list[float]]) -> tuple[list[int | None], list[Any]]:
    """What the operation finds, and the groups' mean updates."""
    config = GroupConfig({"kind": "fl_hc", "metric": "euclidean", "linkage": "complete",
                          "clusters": None, "threshold": 5.0}, 1)  # fmt: skip
    inputs = [{"delta": torch.tensor(update)} for update in updates]
    outputs, values = grouping.group(None, config, inputs)  # type: ignore[arg-type]
    return values["groups"], outputs["references"]["references"].tolist()


def test_groups_are_numbered_as_they_appear_and_leave_out_what_is_not_finite() -> None:
    updates = [[9.0, 0.0], [NAN, 0.0], [0.0, 0.0], [11.0, 0.0], [0.0, 1.0], [INF, 1.0]]
    groups, means = grouped(updates)
    assert groups == [0, None, 1, 0, 1, None]
    assert means == [[10.0, 0.0], [0.0, 0.5]]
    assert grouped(updates[::-1])[0] == [None, 0, 1, 0, None, 1]


def test_nobody_is_in_no_group() -> None:
    assert grouped([]) == ([], [])
    assert grouped([[NAN, 1.0]]) == ([None], [])


def test_the_norms_of_what_is_finite() -> None:
    def norms(*updates: list[float]) -> dict[str, Any]:
        inputs = [{"delta": torch.tensor(update)} for update in updates]
        return grouping.norms(None, None, inputs)[1]  # type: ignore[arg-type]

    assert norms([3.0, 4.0], [NAN, 0.0], [-3.0, 4.0]) == {"mean": 4.0, "largest": 5.0}
    assert norms([INF, 0.0]) == {"mean": None, "largest": None}
