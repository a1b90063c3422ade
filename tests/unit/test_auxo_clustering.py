"""Auxo's clustering of one version's updates: rewards, sides, spreads, cuts and sketches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from emulator.learning.clustering import AffinityConfig, Sketching
from emulator.learning.lineage import Tensors
from emulator.learning.methods.auxo import (
    KEPT,
    NOWHERE,
    Memory,
    Participants,
    RewardRule,
    cluster,
    count_sketch,
    rewards,
    similarity_correlation,
)
from emulator.learning.operations import Workbench, one_thread
from emulator.learning.training import Layout
from emulator.random_streams import generator

Floats = NDArray[np.float64]

PAPER = RewardRule(5.0, 2.0, as_in_code=False)
CODE = RewardRule(5.0, 1.0, as_in_code=True)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    with one_thread():
        yield


def rows(*values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)


def everyone(n: int, sides: Sequence[int] | None = None) -> Participants:
    """``n`` participants that the cohort knows, on these sides."""
    return Participants((True,) * n, tuple(sides) if sides else (NOWHERE,) * n)


# --- rewards --------------------------------------------------------------------------------------

STD = math.sqrt(8) / 3
"""Of the distances 1, 1 and 3, whose mean is 5/3."""


def test_rewards_by_hand() -> None:
    """1/(5/3 + 0.943) = 0.383, so that the near ones get 5 · 0.617."""
    rule = RewardRule(5.0, 1.0, as_in_code=False)
    found = rewards(rows([1, 1, 3])[0], [True] * 3, rule)
    assert found.tolist() == pytest.approx([3.084, 3.084, -0.748], abs=5e-4)
    same = rewards(rows([1, 1, 3])[0], [True] * 3, CODE)
    assert same.tolist() == found.tolist()


def test_the_scale_is_that_of_the_known() -> None:
    """1 and 3 have mean 2 and standard deviation 1: with tolerance 2 rewards end at 4. Two of
    three are known."""
    found = rewards(rows([1, 3, 8])[0], [True, True, False], PAPER)
    assert found.tolist() == pytest.approx([5 * 3 / 4 * 2 / 3, 5 / 4 * 2 / 3, -5 * 2 / 3])


def test_the_released_code_takes_the_scale_of_all() -> None:
    found = rewards(rows([1, 1, 3])[0], [True, True, False], CODE)
    end = 5 / 3 + STD
    assert found.tolist() == pytest.approx([10 / 3 * (1 - d / end) for d in (1, 1, 3)])


def test_at_the_mean_and_so_many_deviations_a_reward_is_zero() -> None:
    for tolerance, end in ((0.0, 2.0), (1.0, 3.0), (2.5, 4.5)):
        rule = RewardRule(7.0, tolerance, as_in_code=False)
        found = rewards(rows([1, 3, end, 0])[0], [True, True, False, False], rule)
        assert found[2:].tolist() == pytest.approx([0.0, 3.5])


def test_who_is_not_apart_has_the_full_reward() -> None:
    """All in the middle; then a stranger beside them, whom there is no scale for."""
    assert rewards(np.zeros(3), [True] * 3, PAPER).tolist() == [5.0] * 3
    found = rewards(rows([0, 0, 0.1])[0], [True, True, False], PAPER)
    assert found.tolist() == pytest.approx([10 / 3, 10 / 3, -10 / 3])  # ρ = 2/3


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.booleans()), min_size=1, max_size=20),
    st.floats(0, 3), st.booleans(),
)  # fmt: skip
def test_nearer_is_never_less(
    drawn: list[tuple[int, bool]], tolerance: float, as_in_code: bool
) -> None:
    distances = np.array([d / 10 for d, _ in drawn])
    known = [k for _, k in drawn]
    known[0] = True
    found = rewards(distances, known, RewardRule(5.0, tolerance, as_in_code))
    order = distances.argsort(kind="stable")
    assert (np.diff(found[order]) <= 1e-12).all()
    assert (found <= 5.0).all()


# --- sides ----------------------------------------------------------------------------------------


def blobs(rng: np.random.Generator, labels: Sequence[int]) -> Floats:
    """Sketches of 16 dimensions around 10, 3 to the left or to the right by label; sd 1/2."""
    found = 10.0 + rng.normal(0.0, 0.5, (len(labels), 16))
    found[:, 0] += 6.0 * np.array(labels) - 3.0
    return found


def found_sides(
    rng: np.random.Generator, labels: Sequence[int], memory: Memory | None, seed: int = 0
) -> tuple[list[int], Memory]:
    values, after = cluster(blobs(rng, labels), everyone(len(labels)), memory, PAPER, seed)
    return values["sides"], after


@pytest.mark.parametrize("seed", range(5))
def test_two_blobs_are_two_sides(seed: int) -> None:
    rng = generator(seed, "blobs")
    labels = rng.permutation([0] * 6 + [1] * 4).tolist()
    sides, memory = found_sides(rng, labels, None, seed)
    assert sides in (labels, [1 - label for label in labels])
    assert memory.directions.shape == (10, 16)
    assert memory.centres is not None
    # From one centre to the other, along the axis that tells them apart.
    axis = np.diff(memory.centres, axis=0)[0] * (1 if sides == labels else -1)
    assert axis[0] > 1.8
    assert np.abs(axis[1:]).max() < 0.5


@pytest.mark.parametrize("seed", range(5))
def test_sides_keep_their_names(seed: int) -> None:
    """Over versions of which few of each side take part, or one side does not at all."""
    rng = generator(seed, "blobs")
    labels = [0] * 5 + [1] * 5
    sides, memory = found_sides(rng, labels, None, seed)
    swapped = sides[0]
    for number, labels in enumerate([[0, 1, 1], [1, 0, 0], [1, 1, 1, 1], [0, 1], [0] * 4, [1, 0]]):
        sides, memory = found_sides(rng, labels, memory, 100 + number)
        if len(set(labels)) == 2:  # who is alone has no other to be compared with
            assert sides == [label ^ swapped for label in labels], number


def test_names_stay_whatever_the_seed_of_the_clustering() -> None:
    rng = generator(1, "blobs")
    _, memory = found_sides(rng, [0, 1] * 4, None)
    x = blobs(rng, [0, 0, 1, 1])
    found = {tuple(cluster(x, everyone(4), memory, PAPER, seed)[0]["sides"]) for seed in range(10)}
    assert len(found) == 1


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ([1, 1, 1, 0, 0, 0], 1),
        ([0, 0, 0, 1, 1, 1], 0),
        ([NOWHERE, NOWHERE, 1, NOWHERE, NOWHERE, NOWHERE], 1),
        ([1, 0, 0, 1, 1, 0], 0),  # four of six say so
    ],
)
def test_sides_that_are_new_to_a_cohort_are_named_as_most_name_them(
    seed: int, claims: list[int], name: int
) -> None:
    x = blobs(generator(seed, "blobs"), [0, 0, 0, 1, 1, 1])
    values, memory = cluster(x, everyone(6, claims), None, PAPER, seed)
    assert values["sides"] == [name] * 3 + [1 - name] * 3
    assert all(margin > 1 for margin in values["margins"])
    assert memory.centres is not None
    assert memory.centres[name][0] < -0.9
    assert memory.centres[1 - name][0] > 0.9
    # Once there are names they stay, whatever is said.
    values, _ = cluster(x, everyone(6, [1 - name] * 3 + [name] * 3), memory, PAPER, seed)
    assert values["sides"] == [name] * 3 + [1 - name] * 3


def test_what_strangers_say_names_no_side() -> None:
    x = blobs(generator(0, "blobs"), [0, 0, 0, 1, 1, 1, 1, 1])
    who = Participants((True,) * 6 + (False,) * 2, (1, NOWHERE, 1, 0, NOWHERE, NOWHERE, 1, 1))
    values, _ = cluster(x, who, None, PAPER, 0)
    assert values["sides"] == [1] * 3 + [0] * 5


def test_the_same_seed_finds_the_same() -> None:
    x = generator(1, "blobs").normal(size=(12, 16))
    one, other = (cluster(x, everyone(12), None, PAPER, 7) for _ in range(2))
    assert one[0] == other[0]
    np.testing.assert_array_equal(one[1].directions, other[1].directions)


def test_a_cohort_keeps_the_directions_of_its_last_participants() -> None:
    before = np.tile(rows([0, 1]), (KEPT - 1, 1))
    memory = Memory(before, rows([1, 0], [-1, 0]), np.empty((0, 2)))
    _, after = cluster(rows([3, 0], [1, 0], [2, 0.5]), everyone(3), memory, PAPER, 0)
    assert len(after.directions) == KEPT
    np.testing.assert_array_equal(after.directions[:-3], before[: KEPT - 3])
    np.testing.assert_allclose(np.linalg.norm(after.directions, axis=1), 1.0)


def test_only_the_known_are_the_middle_and_are_kept() -> None:
    """(1, 0) and (−1, 0) are; their mean is 0, whatever a stranger does. The stranger at (2, 0) has
    a side all the same."""
    who = Participants((True, True, False), (NOWHERE,) * 3)
    values, memory = cluster(rows([1, 0], [-1, 0], [2, 0]), who, None, PAPER, 0)
    assert memory.directions.tolist() == [[1, 0], [-1, 0]]
    assert values["sides"][0] == values["sides"][2] != values["sides"][1]
    # Distances 1, 1, 2: the scale is 1, and two of three are known.
    assert values["rewards"] == pytest.approx([0.0, 0.0, -10 / 3])


@pytest.mark.parametrize("known", [(False,) * 4, (False, True, False, False)])
def test_fewer_than_two_known_are_no_middle(known: tuple[bool, ...]) -> None:
    x = rows([1, 0], [-1, 0.5], [2, 0], [-2, 1])
    found, memory = cluster(x, Participants(known, (0, 1, 0, 1)), None, PAPER, 0)
    expected, of_all = cluster(x, everyone(4, [0, 1, 0, 1]), None, PAPER, 0)
    assert found == expected
    np.testing.assert_array_equal(memory.directions, of_all.directions)


def test_equal_updates_have_no_sides() -> None:
    values, memory = cluster(rows([2, 1], [2, 1], [2, 1]), everyone(3), None, PAPER, 0)
    assert values["sides"] == [NOWHERE] * 3
    assert values["margins"] == [1.0] * 3
    assert values["rewards"] == [5.0] * 3
    assert memory.centres is None


def test_the_margin_is_how_much_farther_the_other_side_is() -> None:
    """Eight directions at ±1 along one axis were kept, and hold the centres there; at 45° the
    distances to them are 2 sin(22.5°) and 2 sin(67.5°), and their ratio is 1 + √2."""
    kept = np.tile(rows([1, 0], [-1, 0]), (120, 1))
    memory = Memory(kept, rows([1, 0], [-1, 0]), np.empty((0, 2)))
    values, _ = cluster(rows([1, 1], [-1, -1], [1, -1], [-1, 1]), everyone(4), memory, PAPER, 0)
    assert values["sides"] == [0, 1, 0, 1]
    assert values["margins"] == pytest.approx([1 + math.sqrt(2)] * 4, rel=0.02)


# --- spreads --------------------------------------------------------------------------------------

FOUR = rows([0, 0], [2, 0], [4, 0], [6, 0])


def spreads(
    x: Floats, sides: Sequence[int], known: Sequence[bool] | None = None
) -> tuple[float | None, float | None]:
    who = Participants(tuple(known or (True,) * len(x)), tuple(sides))
    values, _ = cluster(x, who, None, PAPER, 0)
    return values["spread"], values["spread_of_sides"]


def test_spreads_by_hand() -> None:
    """Around 3: (9 + 1 + 1 + 9)/3. Around 1 and 5: (1 + 1 + 1 + 1)/2, two of four being free."""
    assert spreads(FOUR, [0, 0, 1, 1]) == pytest.approx((20 / 3, 2.0))
    assert spreads(FOUR, [1, 1, 0, 0]) == pytest.approx((20 / 3, 2.0))
    # Around 2 and 4: (4 + 4 + 4 + 4)/2.
    assert spreads(FOUR, [0, 1, 0, 1]) == pytest.approx((20 / 3, 8.0))


def test_spreads_are_those_of_who_had_a_side_before() -> None:
    x = np.concatenate([FOUR, rows([90, 0], [50, 50])])
    assert spreads(x, [0, 0, 1, 1, NOWHERE, NOWHERE]) == pytest.approx((20 / 3, 2.0))
    # Who is not known has not been given that side by the cohort.
    known = [True] * 4 + [False] * 2
    assert spreads(x, [0, 0, 1, 1, 1, 0], known) == pytest.approx((20 / 3, 2.0))


@pytest.mark.parametrize("sides", [[0, 0, 0, 1], [1, 1, 1, 1], [NOWHERE] * 4, [0, 0, NOWHERE, 1]])
def test_one_client_on_a_side_has_no_spread(sides: list[int]) -> None:
    assert spreads(FOUR, sides) == (None, None)


def mean_ratio(apart: float) -> float:
    """J² of the sides over J² of all, of 24 participants in 8 dimensions, in the mean over 60
    seeds; the sides lie so far apart, in standard deviations."""
    sides = [0, 1] * 12
    whole, of_sides = 0.0, 0.0
    for seed in range(60):
        x = generator(seed, "cloud").normal(size=(24, 8))
        x[:, 0] += apart * np.array(sides)
        found = spreads(x, sides)
        assert found[0] is not None
        assert found[1] is not None
        whole, of_sides = whole + found[0], of_sides + found[1]
    return of_sides / whole


def test_halves_of_one_cloud_are_as_wide_as_the_cloud() -> None:
    """Their sums of squares are smaller, by what two means fit better than one."""
    assert mean_ratio(0.0) == pytest.approx(1.0, abs=0.01)


def test_two_clouds_are_much_narrower_than_both() -> None:
    """8 of 8 + 36 · 24/23 · 1/4 · 4, for clouds 12 apart: (12/2)² · 24/23 = 37.6."""
    assert mean_ratio(12.0) == pytest.approx(8 / (8 + 37.57), abs=0.01)


# --- cuts -----------------------------------------------------------------------------------------


def test_a_child_inherits_the_direction_that_it_was_cut_along() -> None:
    parent = Memory(rows([1, 0, 0], [0, 1, 0]), rows([0, 1, 0], [0, 0, 1]), np.empty((0, 3)))
    child = parent.inherited()
    assert child.directions.shape == (0, 3)
    assert child.centres is None
    assert child.cuts.tolist() == [[0, -1, 1]]
    grandchild = replace(child, centres=rows([1, 0, 0], [-1, 0, 0])).inherited()
    assert grandchild.cuts.tolist() == [[0, -1, 1], [-2, 0, 0]]


def test_without_sides_nothing_was_cut() -> None:
    child = Memory(rows([1, 0]), None, rows([0, 1])).inherited()
    assert child.cuts.tolist() == [[0, 1]]
    assert child.directions.shape == (0, 2)


def circle(*along: float) -> Floats:
    """Sketches of length 3 around 0, so far along the first axis, the rest of it around that."""
    angles = np.arange(len(along)) * 2 * np.pi / len(along)
    across = np.sqrt(9.0 - np.array(along) ** 2)
    return np.stack([np.array(along), across * np.cos(angles), across * np.sin(angles)], axis=1)


def test_a_stranger_along_the_cut_is_told_by_its_place_and_not_by_its_length() -> None:
    """The known ones are all around the cut, and as far from the middle as the stranger."""
    known = circle(0.0, 0.5, 0.0, -0.5)
    x = np.concatenate([known, rows([3, 0, 0])])
    who = Participants((True,) * 4 + (False,), (NOWHERE,) * 5)
    np.testing.assert_allclose(known.mean(0), 0.0, atol=1e-12)
    memory = Memory(np.empty((0, 3)), None, rows([0.7, 0, 0]))
    values, after = cluster(x, who, memory, PAPER, 0)
    # 0, 1/2, 0 and 1/2 from the middle: mean and standard deviation are 1/4 each.
    expected = [5 * 0.8 * (1 - d / 0.75) for d in (0.0, 0.5, 0.0, 0.5, 3.0)]
    assert values["rewards"] == pytest.approx(expected)
    assert values["rewards"][-1] < 0 < min(values["rewards"][:-1])
    assert after.cuts.tolist() == memory.cuts.tolist()
    # By its length it is like everyone.
    values, _ = cluster(x, who, memory, CODE, 0)
    assert np.ptp(values["rewards"]) < 1e-9
    values, _ = cluster(x, who, None, PAPER, 0)
    assert np.ptp(values["rewards"]) < 1e-9


def test_two_cuts_measure_in_their_plane() -> None:
    """Cuts along (1, 0, 0) and (1, 1, 0): what counts is the distance in both dimensions."""
    memory = Memory(np.empty((0, 3)), None, rows([1, 0, 0], [1, 1, 0]))
    x = rows([3, 4, 9], [-3, -4, -9], [0, 1, 5], [0, -1, -5])
    values, _ = cluster(x, everyone(4), memory, PAPER, 0)
    # 5, 5, 1 and 1: mean 3, standard deviation 2, and so 7.
    assert values["rewards"] == pytest.approx([5 * (1 - d / 7) for d in (5, 5, 1, 1)])


# --- sketches -------------------------------------------------------------------------------------


def sketched(vectors: torch.Tensor, dimensions: int, number: int) -> torch.Tensor:
    return count_sketch(vectors, dimensions, generator(5, "sketch", number))


def test_a_sketch_keeps_inner_products_in_the_mean() -> None:
    """Of 2,000 sketches; the standard deviation of each is √((‖x‖²‖y‖² + ⟨x, y⟩²)/16) at most, and
    four standard errors are allowed."""
    x = torch.from_numpy(generator(0, "vectors").normal(size=(2, 40)))
    found = torch.stack([s @ s.T for i in range(2000) for s in [sketched(x, 16, i)]]).mean(0)
    exact = x @ x.T
    norms = exact.diagonal()
    error = 4 * torch.sqrt((torch.outer(norms, norms) + exact**2) / 16 / 2000)
    assert ((found - exact).abs() < error).all()


def test_a_sketch_is_the_same_for_the_same_stream_and_linear() -> None:
    x = torch.from_numpy(generator(0, "vectors").normal(size=(3, 40)))
    first = sketched(x, 8, 0)
    assert first.shape == (3, 8)
    assert first.dtype == torch.float64
    assert torch.equal(first, sketched(x, 8, 0))
    assert not torch.equal(first, sketched(x, 8, 1))
    # A client's sketch does not depend on who else takes part, and that of a sum is the sum.
    assert torch.equal(sketched(x[1:2], 8, 0), first[1:2])
    torch.testing.assert_close(sketched(x[:1] - 2 * x[1:2], 8, 0), first[:1] - 2 * first[1:2])


def test_every_coordinate_goes_to_one_place_with_a_sign() -> None:
    found = sketched(torch.eye(30), 4, 0)
    assert ((found != 0).sum(1) == 1).all()
    assert set(found[found != 0].tolist()) == {-1.0, 1.0}
    assert ((found != 0).sum(0) > 0).all()


# --- likeness of updates and of data --------------------------------------------------------------

HALVES = rows([1, 0], [0, 1], [0.5, 0.5])


def test_correlation_by_hand() -> None:
    """Cosines of pairs: 0, 0.6, 0.8; the first and the third hold the same data. With deviations
    −7/15, 2/15, 5/15 of the one, −1/3, 2/3, −1/3 of the other, r = 1/√13."""
    found = similarity_correlation(rows([1, 0], [0, 2], [3, 4]), rows([1, 0], [0, 1], [1, 0]))
    assert found == pytest.approx(1 / math.sqrt(13))


def test_updates_as_alike_as_their_data_correlate() -> None:
    sketches = rows([1, 0], [0, 1], [2, 2])
    assert similarity_correlation(sketches, HALVES) == pytest.approx(1.0)
    # The odd one out of the updates is in the middle of the data.
    assert similarity_correlation(sketches[[0, 2, 1]], HALVES) == pytest.approx(-0.5)


@pytest.mark.parametrize(
    ("sketches", "histograms"),
    [
        (rows([1, 0], [0, 1]), HALVES[:2]),  # a single pair
        (rows([1, 0]), HALVES[:1]),
        (rows([1, 0], [0, 1], [2, 2]), HALVES[[0, 0, 0]]),
        (rows([1, 0], [1, 0], [1, 0]), HALVES),
        (rows([0, 0], [0, 0], [0, 0]), HALVES),  # without a direction
    ],
)
def test_without_differences_there_is_no_correlation(sketches: Floats, histograms: Floats) -> None:
    assert similarity_correlation(sketches, histograms) is None


# --- the operation --------------------------------------------------------------------------------

CLIENTS = 6


def bench(planted: NDArray[np.int64] | None = None) -> Workbench:
    """Two layers of 4 and 2 values; client c holds four samples, c of which are of class 1."""
    layout = Layout(
        nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False)), torch.device("cpu")
    )
    y = torch.tensor([int(i < c) for c in range(CLIENTS) for i in range(4)])
    parts = [np.arange(4 * c, 4 * c + 4) for c in range(CLIENTS)]
    empty = torch.zeros(0)
    return Workbench(layout, torch.zeros(len(y), 2), y, empty, empty, parts, planted=planted)


def config(n: int, **options: Any) -> AffinityConfig:
    plain = AffinityConfig(
        tuple(range(n)), everyone(n), None, Sketching(None, None, 3), PAPER, inherits=False
    )
    return replace(plain, **options)


def updates(*along: float, across: float = 0.0) -> list[Tensors]:
    """Updates of 6 values: so far along the first, and across the second in turn."""
    return [
        {"delta": torch.tensor([x, across * (-1) ** i, 0, 0, 0, 0], dtype=torch.float32)}
        for i, x in enumerate(along)
    ]


def run(of: AffinityConfig, kept: Tensors | None, sent: Sequence[Tensors]) -> tuple[Any, Tensors]:
    result = bench().run("affinity", of, [kept, *sent])
    return result.values, result.outputs["kept"]


def cuts_of(kept: Tensors) -> dict[str, int]:
    """How many cuts there are of each part."""
    return {
        name.partition(" ")[2]: len(value) for name, value in kept.items() if name.startswith("cut")
    }


def test_the_operation_clusters_the_updates() -> None:
    sent = updates(1, 2, -1, -2)
    values, kept = run(config(4), None, sent)
    expected, memory = cluster(
        np.stack([update["delta"].double().numpy() for update in sent]), everyone(4), None, PAPER, 3
    )
    for name in ("rewards", "sides", "margins", "spread", "spread_of_sides"):
        assert values[name] == expected[name], name
    (directions,) = (value for name, value in kept.items() if name.startswith("directions"))
    assert directions.tolist() == memory.directions.tolist()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_update_that_is_not_finite_has_no_reward_and_no_side(value: float) -> None:
    sent = updates(1, 2, -1, -2, across=0.5)
    expected, kept_without = run(config(4), None, sent)
    sent.insert(1, {"delta": torch.full((6,), value)})
    with_it = config(5, clients=(0, 5, 1, 2, 3))
    values, kept = run(with_it, None, sent)
    for name, of_none in (("rewards", None), ("sides", NOWHERE), ("margins", 1.0)):
        assert values[name].pop(1) == of_none
        assert values[name] == expected[name], name
    assert values["correlation"] == expected["correlation"]
    assert kept.keys() == kept_without.keys()
    assert all(torch.equal(kept[name], kept_without[name]) for name in kept)


def test_who_is_known_and_on_which_side_stays_with_its_client() -> None:
    """The first of five is lost; of the others all but the last are known, and have sides."""
    sent = [{"delta": torch.full((6,), math.nan)}, *updates(0, 2, 4, 6, 90)]
    who = Participants((True,) * 5 + (False,), (1, 0, 0, 1, 1, 0))
    values, _ = run(config(6, who=who), None, sent)
    assert (values["spread"], values["spread_of_sides"]) == pytest.approx((20 / 3, 2.0))
    assert values["rewards"][0] is None
    assert values["rewards"][5] < 0


def test_fewer_than_two_finite_updates_tell_nothing_and_change_nothing() -> None:
    _, kept = run(config(4), None, updates(1, 2, -1, -2))
    lost = {"delta": torch.full((6,), math.nan)}
    values, after = run(config(3), kept, [lost, *updates(1), lost])
    assert values == {
        "rewards": [None] * 3, "sides": [NOWHERE] * 3, "margins": [1.0] * 3, "spread": None,
        "spread_of_sides": None, "correlation": None,
    }  # fmt: skip
    assert after.keys() == kept.keys()
    assert all(torch.equal(after[name], kept[name]) for name in kept)


def test_sides_keep_their_names_by_what_is_kept() -> None:
    first, kept = run(config(6), None, updates(1, 2, 3, -1, -2, -3, across=0.2))
    name = first["sides"][0]
    assert first["sides"] == [name] * 3 + [1 - name] * 3
    for seed in range(5):
        again = config(3, sketching=Sketching(None, None, seed))
        values, kept = run(again, kept, updates(-5, 5, -5, across=0.2))
        assert values["sides"] == [1 - name, name, 1 - name]


def test_a_child_begins_with_a_cut_and_without_sides() -> None:
    _, kept = run(config(4), None, updates(1, 2, -1, -2))
    # Apart across the cut, and one of them is a stranger along it.
    sent = [
        {"delta": torch.tensor([x, y, 0, 0, 0, 0], dtype=torch.float32)}
        for x, y in ((0.1, 3.0), (-0.1, -3.0), (0.2, 3.0), (-0.2, -3.0), (3.0, 0.0))
    ]
    who = Participants((True,) * 4 + (False,), (NOWHERE,) * 5)
    values, after = run(config(5, who=who, inherits=True), kept, sent)
    assert values["rewards"][4] < 0 < min(values["rewards"][:4])
    assert len({values["sides"][0], values["sides"][2]}) == 1
    assert values["sides"][1] != values["sides"][0]
    sizes = {name.split(" ")[0]: len(value) for name, value in after.items()}
    assert sizes == {"directions": 4, "centres": 2, "cuts": 1}
    # It goes on with that; only the first time it is what a parent has kept.
    _, later = run(config(5, who=who), after, sent)
    sizes = {name.split(" ")[0]: len(value) for name, value in later.items()}
    assert sizes == {"directions": 8, "centres": 2, "cuts": 1}


def test_a_child_whose_clients_are_all_alike_has_no_sides_yet() -> None:
    _, kept = run(config(4), None, updates(1, 2, -1, -2))
    values, after = run(config(3, inherits=True), kept, updates(1, 1, 1))
    assert values["sides"] == [NOWHERE] * 3
    assert not [name for name in after if name.startswith("centres")]
    assert cuts_of(after) == {"": 1}


def test_the_sketch_of_a_layer_leaves_the_others_out() -> None:
    """Values 0 to 3 are the first layer's, 4 and 5 the last one's."""
    sent = [
        {"delta": torch.tensor([x, 0, 0, 0, y, 0], dtype=torch.float32)}
        for x, y in ((9.0, 1.0), (-9.0, 1.0), (9.0, -1.0), (-9.0, -1.0))
    ]
    classifier = Sketching(("1",), None, 3)
    values, kept = run(config(4, sketching=classifier), None, sent)
    a, b, c, d = values["sides"]
    assert a == b != c == d
    assert all(value.shape[-1] == 2 for value in kept.values())
    values, _ = run(config(4), None, sent)
    a, b, c, d = values["sides"]
    assert a == c != b == d


def test_layers_that_were_not_trained_tell_nothing() -> None:
    of = config(4, layers=("0",), sketching=Sketching(("1",), None, 3))
    values, kept = run(of, None, updates(1, 2, -1, -2))
    assert values["rewards"] == [None] * 4
    assert values["sides"] == [NOWHERE] * 4
    assert kept == {}


def test_parts_of_a_model_are_kept_apart() -> None:
    """Only what clients have trained is compared, and each part has its directions."""
    sent = updates(1, 2, -1, -2)
    _, kept = run(config(4, layers=("0",)), None, sent)
    assert {name.partition(" ")[2] for name in kept} == {"0"}
    assert all(value.shape[-1] == 4 for value in kept.values())
    last = [{"delta": torch.tensor([7.0, 7, 7, 7, x, 0])} for x in (1.0, -1.0)]
    _, both = run(config(2, layers=("1",)), kept, last)
    assert {name.partition(" ")[2] for name in both} == {"0", "1"}
    assert all(torch.equal(both[name], kept[name]) for name in kept)


def last_layer(*along: float) -> list[Tensors]:
    """Updates of the last layer only."""
    return [{"delta": torch.tensor([0.0, 0, 0, 0, x, 0])} for x in along]


def test_every_part_that_was_kept_is_cut() -> None:
    """A child's first version is of one part of the model, its second of the other."""
    one, other = config(4, layers=("0",)), config(4, layers=("1",))
    _, kept = run(one, None, updates(1, 2, -1, -2))
    _, kept = run(other, kept, last_layer(1, 2, -1, -2))
    _, kept = run(replace(one, inherits=True), kept, updates(1, 2, -1, -2))
    _, kept = run(other, kept, last_layer(1, 2, -1, -2))
    assert cuts_of(kept) == {"0": 1, "1": 1}


@pytest.mark.parametrize("why", ["layers", "lost"])
def test_a_child_inherits_even_if_its_first_version_tells_nothing(why: str) -> None:
    """It is asked to inherit once: by a version of other layers, or of too few finite updates."""
    sketching = Sketching(("1",), None, 3)
    of = config(4, layers=("1",), sketching=sketching)
    _, kept = run(of, None, last_layer(1, 2, -1, -2))
    if why == "layers":
        values, kept = run(replace(of, layers=("0",), inherits=True), kept, updates(1, 2, -1, -2))
    else:
        lost = [{"delta": torch.full((6,), math.nan)}] * 4
        values, kept = run(replace(of, inherits=True), kept, lost)
    assert values["sides"] == [NOWHERE] * 4
    assert cuts_of(kept) == {"1": 1}
    _, kept = run(of, kept, last_layer(1, 2, -1, -2))
    assert cuts_of(kept) == {"1": 1}
    (directions,) = (value for name, value in kept.items() if name.startswith("directions"))
    assert len(directions) == 4  # none of the parent's


def test_a_projection_is_the_same_in_every_version() -> None:
    sketching = Sketching(None, 3, 3)
    _, kept = run(config(4, sketching=sketching), None, updates(1, 2, -1, -2))
    values, after = run(config(2, sketching=sketching), kept, updates(1, -1))
    (directions,) = (value for name, value in after.items() if name.startswith("directions"))
    assert directions.shape == (6, 3)
    # All lie on one line through the middle.
    assert np.abs(np.linalg.svd(directions.numpy())[1][1:]).max() < 1e-7
    assert values["sides"][0] != values["sides"][1]


def test_data_of_other_planted_clusters_are_not_alike() -> None:
    """Client 1 has 3/4 of class 0 and 1/4 of class 1, in its cluster's places."""
    assert bench().distribution_of(1).tolist() == [0.75, 0.25]
    planted = np.array([0, 2, 1, 0, 1, 2])
    assert bench(planted).distribution_of(1).tolist() == [0, 0, 0, 0, 0.75, 0.25]
    assert bench(planted).distribution_of(0).tolist() == [1, 0, 0, 0, 0, 0]


def test_the_correlation_with_what_the_clients_hold() -> None:
    """Clients 0, 1 and 4: shares of class 1 of 0, 1/4 and 1."""
    sent = updates(3, 3, -3, across=1.0)
    values, _ = run(config(3, clients=(0, 1, 4)), None, sent)
    expected = similarity_correlation(
        np.stack([update["delta"].numpy() for update in sent]),
        rows([1, 0], [0.75, 0.25], [0, 1]),
    )
    assert expected is not None
    assert values["correlation"] == pytest.approx(expected)
