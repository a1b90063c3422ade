"""The tree of cohorts: ids, distances, and which leaf a client is sent to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.federation.structure.cohorts.tree import (
    ROOT,
    Tree,
    child,
    common_ancestor,
    depth,
    hops_up,
    is_within,
)

LEFT, RIGHT = "c0.0", "c0.1"


def grown(*splits: str) -> Tree:
    """A tree after these splits."""
    tree = Tree()
    for cohort in splits:
        tree.split(cohort)
    return tree


# --- ids ------------------------------------------------------------------------------------------


def test_an_id_is_the_way_from_the_root() -> None:
    assert ROOT == "c0"
    assert (child(ROOT, 0), child(ROOT, 1)) == (LEFT, RIGHT)
    assert child(child(ROOT, 1), 0) == "c0.1.0"
    assert [depth(cohort) for cohort in (ROOT, LEFT, "c0.1.0", "c0.1.0.1")] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("cohort", "ancestor", "expected"),
    [
        (ROOT, ROOT, True),
        ("c0.1.0", ROOT, True),
        ("c0.1.0", RIGHT, True),
        ("c0.1.0", LEFT, False),
        (RIGHT, "c0.1.0", False),
        ("c0.10", RIGHT, False),  # not by its letters
    ],
)
def test_within(cohort: str, ancestor: str, expected: bool) -> None:
    assert is_within(cohort, ancestor) is expected


@pytest.mark.parametrize(
    ("one", "other", "ancestor", "hops", "hops_back"),
    [
        ("c0.0.1", "c0.0.1", "c0.0.1", 0, 0),
        ("c0.0.1", "c0.0.0", "c0.0", 1, 1),  # a sibling
        ("c0.0.1", "c0.1.0", "c0", 2, 2),  # a cousin
        ("c0.0.1", "c0.1", "c0", 2, 1),  # counted from the first one up
        ("c0.0.1", "c0", "c0", 2, 0),
        ("c0.1.1.0", "c0.1.0", "c0.1", 2, 1),
    ],
)
def test_the_common_ancestor_and_the_hops_up_to_it(
    one: str, other: str, ancestor: str, hops: int, hops_back: int
) -> None:
    assert common_ancestor(one, other) == common_ancestor(other, one) == ancestor
    assert hops_up(one, other) == hops
    assert hops_up(other, one) == hops_back


# --- splits ---------------------------------------------------------------------------------------


def test_children_train_in_place_of_what_has_split() -> None:
    tree = Tree()
    assert tree.leaves == [ROOT]
    assert tree.split(ROOT) == (LEFT, RIGHT)
    assert tree.split(LEFT) == ("c0.0.0", "c0.0.1")
    assert tree.leaves == ["c0.0.0", "c0.0.1", RIGHT]


# --- which leaf a client is sent to ---------------------------------------------------------------


@pytest.mark.parametrize("side", [None, 0, 1])
@pytest.mark.parametrize("draw", [0.01, 0.99])
def test_a_leaf_is_given_as_asked(side: int | None, draw: float) -> None:
    tree = grown(ROOT, RIGHT)
    for leaf in tree.leaves:
        assert tree.match(leaf, side, draw) == leaf


@pytest.mark.parametrize("draw", [0.01, 0.49, 0.51, 0.99])
def test_what_has_split_is_replaced_by_the_side_that_the_client_was_on(draw: float) -> None:
    tree = grown(ROOT)
    assert tree.match(ROOT, 0, draw) == LEFT
    assert tree.match(ROOT, 1, draw) == RIGHT


@pytest.mark.parametrize(("draw", "expected"), [(0.01, LEFT), (0.49, LEFT), (0.51, RIGHT)])
def test_without_a_side_the_draw_decides_between_both(draw: float, expected: str) -> None:
    assert grown(ROOT).match(ROOT, None, draw) == expected


def test_without_a_side_the_closest_leaf_below_is_taken() -> None:
    """c0.1 has split further: c0.0 is one step below the root, and the others are two."""
    tree = grown(ROOT, RIGHT)
    assert {tree.match(ROOT, None, draw) for draw in (0.01, 0.5, 0.99)} == {LEFT}


@pytest.mark.parametrize(("draw", "expected"), [(0.49, "c0.1.0"), (0.51, "c0.1.1")])
def test_of_a_side_that_has_split_further_the_draw_decides_between_equals(
    draw: float, expected: str
) -> None:
    assert grown(ROOT, RIGHT).match(ROOT, 1, draw) == expected


@pytest.mark.parametrize("draw", [0.01, 0.51, 0.99])
def test_of_a_side_that_has_split_further_the_least_deep_leaf_is_taken(draw: float) -> None:
    tree = grown(ROOT, RIGHT, "c0.1.0")
    assert tree.match(ROOT, 1, draw) == "c0.1.1"
    assert tree.match(ROOT, 0, draw) == LEFT
    assert tree.match(RIGHT, None, draw) == "c0.1.1"
    assert tree.match(RIGHT, 0, draw) == ("c0.1.0.0" if draw < 0.5 else "c0.1.0.1")


def test_who_asks_for_none_is_sent_to_any_leaf() -> None:
    tree = grown(ROOT, RIGHT)
    found = [tree.match(None, None, draw) for draw in (0.01, 0.32, 0.34, 0.66, 0.67, 0.99)]
    assert found == [LEFT, LEFT, "c0.1.0", "c0.1.0", "c0.1.1", "c0.1.1"]


# --- laws -----------------------------------------------------------------------------------------

draws = st.floats(0, 1, exclude_min=True, exclude_max=True)
splits = st.lists(st.integers(0, 1000), max_size=12)
ways = st.lists(st.integers(0, 1), max_size=15).map(lambda way: ".".join(["c0", *map(str, way)]))


def tree_of(picks: list[int]) -> tuple[Tree, list[str]]:
    """A tree in which these leaves have split, by their place, and all cohorts that ever were."""
    tree, cohorts = Tree(), [ROOT]
    for pick in picks:
        cohorts += tree.split(tree.leaves[pick % len(tree.leaves)])
    return tree, cohorts


@given(splits, ways)
def test_leaves_are_disjoint_and_cover_the_root(picks: list[int], way: str) -> None:
    tree, _ = tree_of(picks)
    assert len(tree.leaves) == len(picks) + 1
    assert tree.leaves == sorted(set(tree.leaves))
    above = [leaf for leaf in tree.leaves if is_within(way, leaf)]
    below = [leaf for leaf in tree.leaves if is_within(leaf, way) and leaf != way]
    # A place in the tree is in one leaf, or above some.
    assert len(above) == (0 if below else 1)


@given(splits, st.integers(0, 1000), st.sampled_from([None, 0, 1]), draws)
def test_a_client_is_sent_to_the_closest_leaf_of_what_it_asks_for(
    picks: list[int], pick: int, side: int | None, draw: float
) -> None:
    tree, cohorts = tree_of(picks)
    requested = cohorts[pick % len(cohorts)]
    found = tree.match(requested, side, draw)
    assert found in tree.leaves
    within = requested
    if requested not in tree.leaves and side is not None:
        within = child(requested, side)
    assert is_within(found, within)
    assert depth(found) == min(depth(leaf) for leaf in tree.leaves if is_within(leaf, within))


@given(splits, draws)
def test_any_leaf_may_be_a_newcomers(picks: list[int], draw: float) -> None:
    tree, _ = tree_of(picks)
    n = len(tree.leaves)
    assert tree.match(None, None, draw) in tree.leaves
    assert [tree.match(None, None, (i + 0.5) / n) for i in range(n)] == tree.leaves


@given(splits, st.integers(0, 1000), st.integers(0, 1000))
def test_hops_are_those_to_the_lowest_ancestor_of_both(
    picks: list[int], one: int, other: int
) -> None:
    _, cohorts = tree_of(picks)
    a, b = cohorts[one % len(cohorts)], cohorts[other % len(cohorts)]
    shared = common_ancestor(a, b)
    both = [cohort for cohort in cohorts if is_within(a, cohort) and is_within(b, cohort)]
    assert shared == max(both, key=depth)
    assert depth(a) == depth(shared) + hops_up(a, b)
    assert depth(b) == depth(shared) + hops_up(b, a)
