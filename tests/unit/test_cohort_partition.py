"""When a cohort splits: each condition by itself, and what a cohort has learned of itself."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from emulator.federation.structure.cohorts.partition import (
    Conditions,
    Progress,
    Quality,
    agreeing,
    missing,
)
from emulator.federation.structure.cohorts.stand_in import PlantedStandIn

CONDITIONS = Conditions(
    min_rounds=4, settled=0.3, window=2, known_share=0.1, most_uneven=2.0, agreement=0.75,
    min_participants=5, gain=1.9, max_cohorts=4, at=None,
)  # fmt: skip

SETTLING = (4.0, 2.0, 1.5, 1.0)
"""Losses that fall by 2 at first, and by 1/2, a quarter of it, now."""

STATE: dict[str, Any] = {
    "cohorts": 1, "clients": 100, "asked_by_child": 13, "participants": (20, 10), "online": 40.0,
    "learns": True,
}  # fmt: skip
"""10 clients of each side are a tenth of 100; half of 40 online are more than 13."""


def progress(
    *, sizes: tuple[int, int] = (10, 10), losses: tuple[float | None, ...] = SETTLING,
    spreads: tuple[tuple[float | None, float | None], ...] = ((1.0, 0.8),) * 4,
    claims: tuple[tuple[int, int], ...] = ((4, 3),) * 4,
) -> Progress:  # fmt: skip
    """That of a cohort with as many versions as there are losses."""
    found = Progress(2)
    for loss, of_spreads, of_claims in zip(losses, spreads, claims, strict=True):
        found.add(Quality(*of_spreads, loss, *of_claims))
    found.sides = {client: int(client >= sizes[0]) for client in range(sum(sizes))}
    return found


def test_all_conditions_hold() -> None:
    assert missing(CONDITIONS, progress(), **STATE) == []


@pytest.mark.parametrize(
    ("conditions", "state", "unmet"),
    [
        ({"max_cohorts": 2}, {}, []),
        ({"max_cohorts": 1}, {}, ["max_cohorts"]),
        ({}, {"cohorts": 3}, []),
        ({}, {"cohorts": 4}, ["max_cohorts"]),
        ({"min_rounds": 5}, {}, ["maturity"]),
        ({"settled": 0.26}, {}, []),
        ({"settled": 0.24}, {}, ["maturity"]),
        # Known sides: 10 are wanted, and each further cohort makes it 0.9 times as many.
        ({"known_share": 0.101}, {}, ["knowledge"]),
        ({"known_share": 0.11}, {"cohorts": 2}, []),
        ({"known_share": 0.112}, {"cohorts": 2}, ["knowledge"]),
        ({}, {"clients": 101}, ["knowledge"]),
        ({"min_participants": 10}, {}, []),
        ({"min_participants": 11}, {}, ["feasibility"]),
        ({}, {"online": 26.0}, []),
        ({}, {"online": 25.9}, ["feasibility"]),
        ({}, {"asked_by_child": 20}, []),
        ({}, {"asked_by_child": 21}, ["feasibility"]),
        # J² falls to 0.8, and the resources to a half: 1.6.
        ({"gain": 1.6}, {}, []),
        ({"gain": 1.59}, {}, ["gain"]),
        # Three of four were found where they said that they are.
        ({"agreement": 0.76}, {}, ["agreement"]),
        # To a third of them: 2.4. Half is the most that is left, whatever the budget says.
        ({"gain": 2.41}, {"participants": (30, 10)}, []),
        ({"gain": 2.39}, {"participants": (30, 10)}, ["gain"]),
        ({"gain": 1.61}, {"participants": (10, 10)}, []),
        ({"gain": 1.59}, {"participants": (10, 10)}, ["gain"]),
        (
            {"max_cohorts": 1, "min_rounds": 5, "known_share": 0.2, "min_participants": 11,
             "gain": 1.0},
            {}, ["max_cohorts", "maturity", "knowledge", "feasibility", "gain"],
        ),
    ],
)  # fmt: skip
def test_a_condition_that_does_not_hold(
    conditions: dict[str, Any], state: dict[str, Any], unmet: list[str]
) -> None:
    assert missing(replace(CONDITIONS, **conditions), progress(), **(STATE | state)) == unmet


@pytest.mark.parametrize(
    ("of", "state", "unmet"),
    [
        # Sides of unequal sizes: the first split may be as uneven as it comes.
        ({"sizes": (10, 20)}, {"cohorts": 2}, []),
        ({"sizes": (10, 21)}, {"cohorts": 2}, ["knowledge"]),
        ({"sizes": (21, 10)}, {"cohorts": 2}, ["knowledge"]),
        ({"sizes": (10, 21)}, {"cohorts": 1}, []),
        ({"sizes": (9, 10)}, {}, ["knowledge"]),
        # The smaller side is a fifth of the known ones, so that a fifth of those online is its.
        ({"sizes": (10, 40)}, {"online": 65.0}, []),
        ({"sizes": (10, 40)}, {"online": 64.0}, ["feasibility"]),
        # Versions that tell of heterogeneity; while too few do, the gain is not asked for.
        ({"spreads": ((None, None), (None, None), (1.0, 0.8), (1.0, 0.8))}, {}, []),
        ({"spreads": ((1.0, 0.8), (None, None), (1.0, 0.8), (None, None))}, {}, []),
        ({"spreads": ((None, None), (None, None), (None, None), (1.0, 5.0))}, {}, ["knowledge"]),
        ({"spreads": ((1.0, 0.96),) * 4}, {}, ["gain"]),
        ({"spreads": ((1.0, 0.95),) * 4}, {}, []),
        # Of the last two versions together: 6 of 8 claims, or 5; a version that does not tell of
        # heterogeneity does not count, and without any claim there is none to be wrong.
        ({"claims": ((9, 0), (9, 0), (1, 0), (7, 6))}, {}, []),
        ({"claims": ((9, 9), (9, 9), (4, 3), (4, 2))}, {}, ["agreement"]),
        (
            {
                "claims": ((9, 0), (4, 3), (4, 3), (9, 0)),
                "spreads": ((1.0, 0.8), (1.0, 0.8), (1.0, 0.8), (None, None)),
            },
            {},
            [],
        ),
        ({"claims": ((0, 0),) * 4}, {}, []),
        # Losses.
        ({"losses": (4.0, 2.0, 2.0, 1.0)}, {}, ["maturity"]),
        ({"losses": (4.0, 2.0, 1.5, None)}, {}, ["maturity"]),
        ({"losses": (4.0, 2.0, 1.5, math.nan)}, {}, ["maturity"]),
        ({"losses": (1.0, 2.0, 3.0, 1.0)}, {}, []),  # it never fell
        ({"losses": (4.0, 2.0, 2.0, 5.0)}, {}, []),  # it rises
        ({"losses": (None,) * 4}, {}, ["maturity"]),
        ({"losses": (None,) * 4}, {"learns": False}, []),
        ({"losses": (4.0, 2.0, 2.0, 1.0)}, {"learns": False}, []),
    ],
)
def test_what_the_cohort_has_learned_of_itself_decides(
    of: dict[str, Any], state: dict[str, Any], unmet: list[str]
) -> None:
    assert missing(CONDITIONS, progress(**of), **({**STATE, "online": 100.0} | state)) == unmet


def test_nobody_splits_off() -> None:
    """However few are wanted, a side without a client is none."""
    conditions = replace(CONDITIONS, known_share=0.0)
    assert missing(conditions, progress(sizes=(1, 1)), **STATE) == []
    found = missing(conditions, progress(sizes=(20, 0)), **STATE)
    assert found == ["knowledge", "feasibility"]
    nobody = missing(conditions, progress(sizes=(0, 0)), **STATE)
    assert nobody == ["knowledge", "feasibility"]


def test_where_losses_are_private_versions_are_enough() -> None:
    conditions = replace(CONDITIONS, settled=None)
    private = progress(losses=(None,) * 4)
    assert missing(conditions, private, **STATE) == []
    assert missing(replace(conditions, min_rounds=5), private, **STATE) == ["maturity"]


def test_versions_are_needed_without_learning_too() -> None:
    conditions = replace(CONDITIONS, min_rounds=5)
    assert missing(conditions, progress(), **(STATE | {"learns": False})) == ["maturity"]


# --- at these versions ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "sizes", "cohorts", "unmet"),
    [
        ((4,), (1, 1), 1, []),
        ((2, 4), (1, 30), 3, []),
        ((2, 5), (1, 1), 1, ["at"]),
        ((4,), (0, 9), 1, ["knowledge"]),
        ((5,), (9, 0), 1, ["at", "knowledge"]),
        ((4,), (1, 1), 4, ["max_cohorts"]),
    ],
)
def test_at_given_versions_whatever_else_holds(
    at: tuple[int, ...], sizes: tuple[int, int], cohorts: int, unmet: list[str]
) -> None:
    conditions = replace(CONDITIONS, at=at, min_rounds=99, known_share=1.0, gain=0.1)
    found = progress(sizes=sizes, losses=(None,) * 4, spreads=((None, None),) * 4)
    state = STATE | {"cohorts": cohorts, "online": 0.0, "participants": (1, 1)}
    assert missing(conditions, found, **state) == unmet


# --- progress -------------------------------------------------------------------------------------


def test_how_fast_the_loss_falls_by_hand() -> None:
    """Straight lines through three losses: they fall by (6 − 2)/2 and by (1 − 1/2)/2 a version,
    whatever lies in their middle."""
    found = Progress(3)
    for loss in (6.0, 5.0, 2.0, 1.0, 0.75):
        found.add(Quality(None, None, loss))
        assert found.slope_ratio() is None
    found.add(Quality(None, None, 0.5))
    assert found.slope_ratio() == pytest.approx(0.25 / 2.0)
    # Now 0.75, 0.5 and 0.25, against the same first ones.
    found.add(Quality(None, None, 0.25))
    assert found.slope_ratio() == pytest.approx(0.25 / 2.0)
    found.add(Quality(None, None, 9.0))
    assert found.slope_ratio() == 0.0


def test_a_loss_that_never_fell_has_settled() -> None:
    assert progress(losses=(1.0, 2.0, 3.0, 2.0)).slope_ratio() == 0.0


@pytest.mark.parametrize("loss", [1.0, 0.1, 2.3])
def test_a_loss_that_was_the_same_at_first_has_settled(loss: float) -> None:
    for window in (2, 3, 10):
        found = Progress(window)
        for value in [loss] * window + [9.0 - version for version in range(window)]:
            found.add(Quality(None, None, value))
        assert found.slope_ratio() == 0.0


def test_heterogeneity_is_that_of_the_last_versions_together() -> None:
    """(0.2 + 1) of (1 + 3): not the mean of 1/5 and 1/3."""
    found = Progress(2)
    for whole, of_sides in ((10.0, 10.0), (1.0, 0.2), (None, None), (3.0, 1.0)):
        found.add(Quality(whole, of_sides, None))
    assert found.spread_ratio() == pytest.approx(1.2 / 4.0)
    assert found.rounds == 4


def test_who_is_found_where_it_has_said_that_it_is() -> None:
    assert agreeing([0, 1, 1, -1, 0], [0, 1, 0, 1, -1]) == (3, 2)
    assert agreeing([-1, -1], [0, 1]) == (0, 0)
    assert Quality(None, None, None, 3, 2).agreement == pytest.approx(2 / 3)
    assert Quality(None, None, None).agreement is None


def test_updates_that_are_all_the_same_tell_nothing() -> None:
    assert progress(spreads=((0.0, 0.0),) * 4).spread_ratio() is None


def test_sides_are_counted() -> None:
    found = Progress(2)
    assert found.side_sizes() == (0, 0)
    found.sides = {7: 1, 3: 0, 4: 1}
    assert found.side_sizes() == (1, 2)


def test_a_child_goes_on_with_the_rounds_and_losses_of_its_model() -> None:
    parent = progress()
    child = Progress(2, parent)
    assert child.rounds == 4
    assert child.slope_ratio() == parent.slope_ratio() == pytest.approx(0.25)
    # Whom it knows and how they differ it has to find out by itself.
    assert child.side_sizes() == (0, 0)
    assert child.spread_ratio() is None
    child.add(Quality(1.0, 0.5, 0.0))
    child.sides[0] = 1
    assert (child.rounds, parent.rounds) == (5, 4)
    assert child.slope_ratio() == pytest.approx(0.5)
    assert parent.slope_ratio() == pytest.approx(0.25)
    assert parent.side_sizes() == (10, 10)


# --- planted clusters instead of learning ---------------------------------------------------------


def test_planted_clusters_stand_in() -> None:
    """Clusters 0, 1 | 2; the clients 0 … 3 are of clusters 0, 1, 2 and 2."""
    stand_in = PlantedStandIn([0, 1, 2, 2], 4.0)
    clients, known = [0, 1, 2, 3], [True] * 4
    found = stand_in.found("c0", clients, known)
    assert found["sides"] == [0, 0, 1, 1]
    assert found["rewards"] == [2.0] * 4
    assert found["spread_of_sides"] < found["spread"]
    stand_in.split("c0")
    found = stand_in.found("c0.0", clients, known)
    assert found["sides"] == [0, 1, -1, -1]
    assert found["rewards"] == [2.0, 2.0, -2.0, -2.0]
    # A cohort of one cluster has nothing to gain by a split.
    found = stand_in.found("c0.1", [3, 0], known[:2])
    assert found["sides"] == [0, -1]
    assert found["rewards"] == [2.0, -2.0]
    assert found["spread_of_sides"] == found["spread"]
