"""FedSeq's metrics and groupings, worked by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ScenarioError
from emulator.federation.structure.grouping import (
    METRICS,
    Limits,
    balance_ratio,
    covered_classes,
    greedy_grouping,
    kmeans_grouping,
    most_superclients,
    random_grouping,
)

A, B = [1.0, 0.0], [0.0, 1.0]
"""Clients of one class only."""


class Ordered:
    """Stands in for a generator that does not shuffle."""

    def permutation(self, n: int) -> np.ndarray:
        return np.arange(n)


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def score(metric: str, group: Sequence[float], candidate: Sequence[float]) -> float:
    a, b = np.array(group), np.array([candidate])
    return float(METRICS[metric](a, b, (a + b) / 2)[0])


@pytest.mark.parametrize(
    ("metric", "group", "candidate", "expected"),
    [
        ("euclidean", [0, 0], [3, 4], 5.0),
        ("cosine", [1, 0], [0, 2], 1.0),
        ("cosine", [1, 0], [5, 0], 0.0),
        ("cosine", [1, 0], [-2, 0], 2.0),
        ("cosine", [3, 4], [4, 3], 1 - 24 / 25),
        ("cosine", [0, 0], [4, 3], 1.0),
        # m = (1/2, 1/2): 1 − 1/2; m = (1, 0): 0; m = (3/4, 1/4): 1 − 10/16.
        ("gini", A, B, 0.5),
        ("gini", A, A, 0.0),
        ("gini", A, [0.5, 0.5], 0.375),
        # KL to the uniform is 0, then ln 2, then 3/4 ln(3/2) + 1/4 ln(1/2).
        ("kl", A, B, 1.0),
        ("kl", A, A, 1 - math.log(2)),
        ("kl", A, [0.5, 0.5], 1 - 0.75 * math.log(1.5) - 0.25 * math.log(0.5)),
    ],
)
def test_a_metric_is_its_formula(
    metric: str, group: Sequence[float], candidate: Sequence[float], expected: float
) -> None:
    assert score(metric, group, candidate) == pytest.approx(expected, abs=1e-10)


def test_kl_falls_below_zero_for_peaked_vectors_of_many_classes() -> None:
    """Two one-class clients of 10 classes: m = (1/2, 1/2, 0, …), KL = ln 5 > 1."""
    one, other = np.eye(10)[:2]
    assert score("kl", one.tolist(), other.tolist()) == pytest.approx(1 - math.log(5), abs=1e-9)


# Clients 0 and 1 hold class 0, 2 and 3 class 1; groups of two. The first client is 0 throughout.
TWO_CLASSES = np.array([A, A, B, B])


@pytest.mark.parametrize("metric", ["euclidean", "cosine", "gini", "kl"])
def test_greedy_pairs_opposites(metric: str) -> None:
    found = greedy_grouping([10] * 4, Limits(20, 5), TWO_CLASSES, metric, Ordered())
    assert found.groups == [[0, 2], [1, 3]]


def test_greedy_takes_the_best_where_no_score_is_above_zero() -> None:
    """Ten classes, one-class clients: every KL score is at most 0, another class is still better
    than the same one. A search from 0 would pair 0 with 1, which is the same class."""
    representers = np.eye(10)[[0, 0, 1]]
    found = greedy_grouping([10] * 3, Limits(20, 3), representers, "kl", Ordered())
    # 0 first; beside it 1 scores 1 − ln 10, and 2 scores 1 − ln 5; 1 is left over and joins them.
    assert found.groups == [[0, 2, 1]]
    assert found.scores == 2
    assert found.scores_below == 2


def test_greedy_left_over_without_a_place() -> None:
    with pytest.raises(ScenarioError, match="1 that are left over hold 10 samples"):
        greedy_grouping([10] * 5, Limits(20, 2), np.eye(5), "gini", Ordered())


def test_the_group_is_the_mean_weighted_by_samples() -> None:
    """Client 0 (30 samples, class 0) and 1 (10 samples, class 1) make (3/4, 1/4). Beside that
    client 2, (0, 1), merges by half to (3/8, 5/8), Gini 1 − 34/64, and client 3, (1/4, 3/4), to
    (1/2, 1/2), Gini 1/2. By the mean, with 40 samples each, it is the same; with 10 samples 2
    makes (3/5, 2/5), Gini 12/25, and 3 makes (13/20, 7/20), Gini 91/200."""
    representers = np.array([A, B, B, [0.25, 0.75]])
    half = greedy_grouping([30, 10, 10, 10], Limits(50, 4), representers, "gini", Ordered())
    mean = greedy_grouping(
        [30, 10, 10, 10], Limits(50, 4), representers, "gini", Ordered(), merge="mean"
    )
    # Beside client 0 alone, 1 and 2 are alike and the lower number goes first.
    assert half.groups[0][:3] == [0, 1, 3]
    assert mean.groups[0][:3] == [0, 1, 2]


def test_the_first_client_of_the_code_is_the_most_uniform() -> None:
    representers = np.array([A, B, [0.5, 0.5], [0.9, 0.1]])
    by_code = greedy_grouping(
        [10] * 4, Limits(20, 2), representers, "kl", Ordered(), first="argmax_uniform"
    )
    assert by_code.groups[0][0] == 2
    farthest = greedy_grouping(
        [10] * 4, Limits(20, 2), representers, "cosine", Ordered(), first="argmax_uniform"
    )
    assert farthest.groups[0][0] == 0


def test_kmeans_goes_round_the_clusters_without_beginning_anew() -> None:
    """Clusters {0: 0, 1}, {1: 2, 3}, {2: 4}; groups of two; the last of a cluster first. The
    round: 1, 3, 4, 0, 2: the second group begins at cluster 2."""
    found = kmeans_grouping([10] * 5, Limits(20, 3), [0, 0, 1, 1, 2], Ordered())
    # 2 is left over and dealt to the first of the smallest groups.
    assert found.groups == [[1, 3, 2], [4, 0]]


def test_random_fills_in_shuffled_order() -> None:
    order = rng(3).permutation(6).tolist()
    found = random_grouping([10] * 6, Limits(30, 9), rng(3))
    assert found.groups == [order[:3], order[3:]]


def test_the_worked_example_of_the_paper() -> None:
    """500 clients of 100 samples, 800 wanted: 8 a group, 62 groups, 4 clients left over."""
    found = random_grouping([100] * 500, Limits(800, 11), rng())
    assert len(found.groups) == 62
    assert sorted(map(len, found.groups)) == [8] * 58 + [9] * 4
    assert max(int(0.2 * len(found.groups)), 1) == 12


def test_a_group_closes_below_min_samples_when_it_is_full() -> None:
    found = random_grouping([10, 10, 10, 10], Limits(100, 2), Ordered())
    assert found.groups == [[0, 1], [2, 3]]


def test_left_overs_go_to_the_smallest_from_the_end() -> None:
    """Groups [0], [1], [2] of 30, 20 and 25 samples, then 3 and 4 are left over with 5 each."""
    found = random_grouping([30, 20, 25, 5, 5], Limits(20, 3), Ordered())
    assert found.groups == [[0], [1, 4], [2, 3]]


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=60),
    st.integers(1, 200),
    st.integers(1, 12),
    st.sampled_from(["random", "kmeans", "greedy"]),
    st.integers(0, 3),
)
def test_everyone_is_in_one_group(
    samples: list[int], min_samples: int, max_clients: int, kind: str, seed: int
) -> None:
    limits, n = Limits(min_samples, max_clients), len(samples)
    drawn = rng(seed).dirichlet([0.3] * 4, n)
    try:
        if kind == "random":
            groups = random_grouping(samples, limits, rng(seed)).groups
        elif kind == "kmeans":
            clusters = drawn.argmax(1).tolist()
            groups = kmeans_grouping(samples, limits, clusters, rng(seed)).groups
        else:
            groups = greedy_grouping(samples, limits, drawn, "kl", rng(seed)).groups
    except ScenarioError:
        return
    assert sorted(client for group in groups for client in group) == list(range(n))
    assert all(1 <= len(group) <= max_clients for group in groups)
    for group in groups:
        # Large enough or full; a left-over makes a group larger, never smaller.
        assert sum(samples[c] for c in group) >= min_samples or len(group) == max_clients


def test_quality_of_a_superclient() -> None:
    assert balance_ratio(np.array([10, 5, 20])) == 0.25
    assert balance_ratio(np.array([10, 0])) == 0.0
    assert balance_ratio(np.array([0, 0])) == 0.0
    assert covered_classes(np.array([10, 0, 3, 0])) == 0.5


# --- how many there can be ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "min_samples", "max_clients", "most"),
    [
        ([10] * 12, 30, 11, 4),
        ([10] * 12, 21, 11, 4),  # three each, though 120 // 21 is 5
        ([10] * 12, 1000, 5, 2),  # full before they hold enough
        ([10] * 12, 1000, 11, 1),
        ([10] * 10, 1000, 11, 0),
        ([100, 1, 1, 1], 50, 11, 2),  # by samples; in truth it is one
        ([0, 0, 0, 0], 1, 2, 2),
        ([5], 5, 11, 1),
    ],
)
def test_most_superclients(
    samples: list[int], min_samples: int, max_clients: int, most: int
) -> None:
    assert most_superclients(samples, Limits(min_samples, max_clients)) == most


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=30), st.integers(1, 80), st.integers(1, 8),
    st.integers(0, 9),
)  # fmt: skip
def test_no_grouping_makes_more(
    samples: list[int], min_samples: int, max_clients: int, seed: int
) -> None:
    limits = Limits(min_samples, max_clients)
    try:
        groups = random_grouping(samples, limits, rng(seed)).groups
    except ScenarioError:
        return
    assert 1 <= len(groups) <= most_superclients(samples, limits)
