"""The partitions: nothing lost, nothing twice, the recipe's distribution, and a sure end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import beta, chisquare

from emulator.errors import ScenarioError
from emulator.learning.partitions import (
    client_dirichlet,
    dirichlet,
    iid,
    label_shards,
    partition,
    partition_hash,
    quantity,
)
from emulator.random_streams import generator


def balanced(samples: int, classes: int = 10) -> NDArray[np.int64]:
    return np.arange(samples, dtype=np.int64) % classes


def check_partition(parts: list[NDArray[np.int64]], samples: int) -> None:
    """Sorted, int64, disjoint, and every sample held once."""
    for part in parts:
        assert part.dtype == np.int64
        assert np.all(np.diff(part) > 0)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(samples))


label_arrays = st.lists(st.integers(0, 4), min_size=1, max_size=120).map(
    lambda labels: np.array(labels, np.int64)
)
seeds = st.integers(0, 2**32)


@settings(deadline=None)
@given(labels=label_arrays, seed=seeds, data=st.data())
def test_iid_holds_every_sample_once(
    labels: NDArray[np.int64], seed: int, data: st.DataObject
) -> None:
    clients = data.draw(st.integers(1, len(labels)))
    parts = iid(labels, clients, generator(seed, "partition"))
    assert len(parts) == clients
    check_partition(parts, len(labels))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@settings(deadline=None)
@given(labels=label_arrays, seed=seeds, data=st.data())
def test_shards_hold_every_sample_once(
    labels: NDArray[np.int64], seed: int, data: st.DataObject
) -> None:
    shards_per_client = data.draw(st.integers(1, min(3, len(labels))))
    clients = data.draw(st.integers(1, len(labels) // shards_per_client))
    rng = generator(seed, "partition")
    parts = label_shards(labels, clients, rng, shards_per_client=shards_per_client)
    assert len(parts) == clients
    check_partition(parts, len(labels))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= shards_per_client


@settings(deadline=None)
@given(
    labels=label_arrays,
    seed=seeds,
    clients=st.integers(1, 12),
    alpha=st.floats(1e-6, 1e6),
    min_samples=st.integers(0, 3),
)
def test_dirichlet_holds_every_sample_once_or_says_why_not(
    labels: NDArray[np.int64], seed: int, clients: int, alpha: float, min_samples: int
) -> None:
    rng = generator(seed, "partition")
    try:
        parts = dirichlet(labels, clients, rng, alpha=alpha, min_samples=min_samples, attempts=5)
    except ScenarioError:
        assert min_samples > 0
        return
    assert len(parts) == clients
    check_partition(parts, len(labels))
    assert min(len(part) for part in parts) >= min_samples


def test_iid_mixes_the_labels() -> None:
    labels = np.sort(balanced(10_000))
    for part in iid(labels, 5, generator(1, "partition")):
        assert np.bincount(labels[part], minlength=10).min() > 140  # of 200 expected


def test_one_shard_a_client_is_one_label_a_client() -> None:
    labels = balanced(5_000)
    parts = label_shards(labels, 50, generator(1, "partition"), shards_per_client=1)
    held = [np.unique(labels[part]).tolist() for part in parts]
    assert all(len(one) == 1 for one in held)
    assert sorted(one[0] for one in held) == sorted(list(range(10)) * 5)
    assert [one[0] for one in held] != sorted(one[0] for one in held)  # dealt at random
    assert {len(part) for part in parts} == {100}


def test_two_shards_a_client_are_two_labels_at_most() -> None:
    labels = balanced(6_000)
    parts = label_shards(labels, 100, generator(1, "partition"), shards_per_client=2)
    counts = [len(np.unique(labels[part])) for part in parts]
    assert set(counts) == {1, 2}


@pytest.mark.parametrize("alpha", [0.1, 1.0, 3.0])
def test_the_shares_are_dirichlet(alpha: float) -> None:
    """Two clients and one label: the first one's share is Beta(alpha, alpha)."""
    labels = np.zeros(1_000, np.int64)
    rng = generator(3, "partition")
    held = [len(dirichlet(labels, 2, rng, alpha=alpha, min_samples=0)[0]) for _ in range(400)]
    # Shares are rounded down to whole samples, so that cells with whole edges keep their odds.
    edges = np.array([0, 10, 100, 300, 500, 700, 900, 990, 1_001])
    expected = 400 * np.diff(beta(alpha, alpha).cdf(edges / 1_000))
    observed = np.histogram(held, edges)[0]
    assert chisquare(observed, expected).pvalue > 0.01


@pytest.mark.parametrize("seed", range(20))
def test_a_client_with_its_mean_gets_no_more(seed: int) -> None:
    """With alpha near 0 a label goes to one client whole, which then is full: the other's turn."""
    labels = np.repeat([0, 1], 50)
    parts = dirichlet(labels, 2, generator(seed, "partition"), alpha=1e-6, min_samples=0)
    assert sorted(labels[part].tolist() for part in parts) == [[0] * 50, [1] * 50]


def test_alpha_sets_the_skew() -> None:
    labels = balanced(10_000)

    def labels_held(alpha: float) -> float:
        parts = dirichlet(labels, 20, generator(1, "partition"), alpha=alpha, min_samples=1)
        return float(np.mean([len(np.unique(labels[part])) for part in parts]))

    assert labels_held(0.05) < 5 < 9 < labels_held(5.0)
    even = dirichlet(labels, 20, generator(1, "partition"), alpha=1e5, min_samples=1)
    assert max(len(part) for part in even) < 520  # of 500 expected


def test_samples_of_a_label_are_dealt_at_random() -> None:
    """A client's samples are no run of neighbours: the file's order is not in the partition."""
    labels = np.zeros(1_000, np.int64)
    part = dirichlet(labels, 2, generator(1, "partition"), alpha=10.0)[0]
    assert part[0] < 50
    assert part[-1] > 950
    assert (np.diff(part) > 1).sum() > 50


@pytest.mark.parametrize("seed", range(3))
def test_many_skewed_clients_with_one_sample_at_least(seed: int) -> None:
    labels = balanced(60_000)
    parts = partition("dirichlet", labels, 500, generator(seed, "partition"), alpha=0.1)
    check_partition(parts, 60_000)
    assert min(len(part) for part in parts) >= 1


def test_a_floor_out_of_reach_ends_with_an_error() -> None:
    with pytest.raises(ScenarioError) as caught:
        dirichlet(balanced(2_000), 1_000, generator(1, "partition"), alpha=0.01, min_samples=2)
    message = str(caught.value)
    assert "alpha 0.01 on 2000 samples and 1000 clients: in 100 attempts" in message
    assert "never held more than 0 sample(s), min_samples is 2" in message
    assert "larger alpha, a smaller min_samples, fewer clients" in message


@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_quantity_shares_are_dirichlet(alpha: float) -> None:
    """Two clients: the first one's share of all samples is Beta(alpha, alpha)."""
    rng = generator(4, "partition")
    labels = balanced(1_000)
    held = [len(quantity(labels, 2, rng, alpha=alpha, min_samples=0)[0]) for _ in range(400)]
    edges = np.array([0, 10, 100, 300, 500, 700, 900, 990, 1_001])
    expected = 400 * np.diff(beta(alpha, alpha).cdf(edges / 1_000))
    assert chisquare(np.histogram(held, edges)[0], expected).pvalue > 0.01


def test_quantity_deals_labels_at_random() -> None:
    labels = np.sort(balanced(20_000))
    parts = quantity(labels, 10, generator(1, "partition"), alpha=0.5, min_samples=200)
    check_partition(parts, 20_000)
    sizes = [len(part) for part in parts]
    assert max(sizes) > 5 * min(sizes)
    for part in parts:
        expected = np.full(10, len(part) / 10)
        assert chisquare(np.bincount(labels[part], minlength=10), expected).pvalue > 1e-4


def test_quantity_with_a_floor_out_of_reach_ends_with_an_error() -> None:
    with pytest.raises(ScenarioError, match=r"quantity with alpha 0.01 .*in 7 attempts .*fewer cl"):
        quantity(
            balanced(2_000),
            1_000,
            generator(1, "partition"),
            alpha=0.01,
            min_samples=2,
            attempts=7,
        )


@settings(deadline=None)
@given(labels=label_arrays, seed=seeds, alpha=st.floats(1e-6, 1e6), data=st.data())
def test_client_dirichlet_holds_every_sample_once(
    labels: NDArray[np.int64], seed: int, alpha: float, data: st.DataObject
) -> None:
    clients = data.draw(st.integers(1, len(labels)))
    parts = client_dirichlet(labels, clients, generator(seed, "partition"), alpha=alpha)
    assert len(parts) == clients
    check_partition(parts, len(labels))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_a_clients_mix_is_dirichlet() -> None:
    """Two equal labels and alpha 2: the share of one is Beta(1, 1), uniform, and so is its number
    among the client's ten samples; of 40 + 40 samples neither can run out for the first client."""
    labels = balanced(80, classes=2)
    rng = generator(5, "partition")
    firsts = [client_dirichlet(labels, 8, rng, alpha=2.0)[0] for _ in range(550)]
    zeros = np.bincount([int((labels[first] == 0).sum()) for first in firsts], minlength=11)
    assert chisquare(zeros).pvalue > 0.01


def test_the_mix_follows_the_shares_of_the_labels() -> None:
    """Of a label with a quarter of all samples a client holds a quarter, in the mean."""
    labels = np.repeat([0, 1], [500, 1_500])
    rng = generator(6, "partition")
    share = [
        float((labels[client_dirichlet(labels, 5, rng, alpha=1.0)[0]] == 0).mean())
        for _ in range(400)
    ]
    # Beta(1/4, 3/4): the mean of 400 has the deviation sqrt(3/32/400) = 0.015.
    assert float(np.mean(share)) == pytest.approx(0.25, abs=0.05)
    assert float(np.var(share)) == pytest.approx(3 / 32, rel=0.25)


def test_alpha_near_zero_gives_one_label_until_it_is_used_up() -> None:
    labels = balanced(100, classes=2)
    parts = client_dirichlet(labels, 10, generator(1, "partition"), alpha=1e-6)
    assert [len(np.unique(labels[part])) for part in parts] == [1] * 10


def test_an_impossible_floor_is_refused_at_once() -> None:
    rng = generator(1, "partition")
    before = rng.bit_generator.state
    with pytest.raises(ScenarioError, match=r"3000, and there are 2000.*may be 2 at most"):
        dirichlet(balanced(2_000), 1_000, rng, alpha=1.0, min_samples=3)
    assert rng.bit_generator.state == before


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("iid", {}),
        ("shards", {"shards_per_client": 2}),
        ("dirichlet", {"alpha": 0.5, "min_samples": 1}),
        ("quantity", {"alpha": 0.5, "min_samples": 1}),
        ("client_dirichlet", {"alpha": 0.5}),
    ],
)
def test_the_stream_alone_decides(kind: str, options: dict[str, Any]) -> None:
    labels = balanced(400)
    first, again, other = (
        partition(kind, labels, 10, generator(seed, "partition"), **options) for seed in (1, 1, 2)
    )
    assert partition_hash(first) == partition_hash(again)
    assert partition_hash(first) != partition_hash(other)


def test_only_the_holders_hold_data() -> None:
    labels = balanced(100)
    parts = partition("iid", labels, 1_000, generator(1, "partition"), holders=7)
    assert len(parts) == 1_000
    assert all(len(part) == 0 and part.dtype == np.int64 for part in parts[7:])
    check_partition(parts[:7], 100)
    same = iid(labels, 7, generator(1, "partition"))
    assert partition_hash(parts[:7]) == partition_hash(same)


def test_the_hash_tells_who_holds_what() -> None:
    a, b = np.array([0, 1, 2]), np.array([3])
    assert partition_hash([a, b]) != partition_hash([b, a])
    assert partition_hash([a, b]) != partition_hash([np.array([0, 1]), np.array([2, 3])])
    assert partition_hash([a, b]) != partition_hash([a, b, np.empty(0, np.int64)])


@pytest.mark.parametrize(
    ("kind", "clients", "options", "message"),
    [
        ("dirichle", 5, {}, r"'dirichle' is not known \(did you mean 'dirichlet'\?\)"),
        ("dirichlet", 5, {}, "'dirichlet' needs the option 'alpha'"),
        ("dirichlet", 5, {"alpha": 0}, "alpha: 0 is not allowed.*kind: shards"),
        ("dirichlet", 5, {"alpha": float("nan")}, "alpha: nan"),
        ("dirichlet", 5, {"alpha": float("inf")}, "alpha: inf"),
        ("dirichlet", 5, {"alpha": "0.1"}, "alpha: '0.1'"),
        ("dirichlet", 5, {"alpha": 1.0, "min_samples": -1}, "min_samples: -1"),
        ("dirichlet", 5, {"alpha": 1.0, "attempts": 0}, "attempts is 0"),
        ("quantity", 5, {"alpha": -1.0}, "alpha: -1.0"),
        ("client_dirichlet", 5, {"alpha": 0.0}, "alpha: 0.0 .*kind: shards"),
        ("client_dirichlet", 101, {"alpha": 1.0}, "100 samples cannot be cut into 101"),
        ("client_dirichlet", 5, {"alpha": 1.0, "min_samples": 1}, "no option 'min_samples'"),
        ("shards", 5, {}, "needs the option 'shards_per_client'"),
        ("shards", 60, {"shards_per_client": 2}, "100 samples cannot be cut into 120 pieces"),
        ("shards", 5, {"shards_per_client": 0}, "shards_per_client is 0"),
        ("iid", 101, {}, "100 samples cannot be cut into 101 pieces.*holders"),
        ("iid", 0, {}, "clients is 0"),
        ("iid", 5, {"alpha": 1.0}, "'iid' has no option 'alpha'"),
        ("iid", 5, {"holders": 6}, "holders: 6 is not allowed; write a number from 1 to the 5"),
        ("iid", 5, {"holders": 0}, "holders: 0"),
    ],
)
def test_wrong_numbers_are_refused(
    kind: str, clients: int, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ScenarioError, match=message):
        partition(kind, balanced(100), clients, generator(1, "partition"), **options)
