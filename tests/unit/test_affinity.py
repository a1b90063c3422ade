"""What a client remembers of cohorts, and which it asks for next, worked by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.federation.structure.cohorts.affinity import (
    Affinity,
    Exploration,
    Record,
    Request,
)

NEVER, ALWAYS = Exploration(0.0, 1.0, 0.0), Exploration(1.0, 1.0, 1.0)
TWO = ("c0.0", "c0.1")
THREE = ("c0.0.0", "c0.0.1", "c0.1")


def remembering(**records: Record) -> Affinity:
    """A client with these records; c0_1 stands for c0.1."""
    affinity = Affinity()
    affinity.records = {name.replace("_", "."): record for name, record in records.items()}
    return affinity


def rewards_of(affinity: Affinity) -> dict[str, float]:
    return {cohort: record.reward for cohort, record in affinity.records.items()}


# --- records --------------------------------------------------------------------------------------


def test_rewards_add_up() -> None:
    record = Record()
    found = []
    for reward in (4.0, -1.0, 0.5):
        record.add(reward, None)
        found.append(record.reward)
    assert found == [4.0, 3.0, 3.5]
    assert record.given == 3


def test_an_average_of_all_while_they_are_few_then_a_moving_one() -> None:
    """With a = 0.3: of one, two and three rewards the mean; the fourth counts 0.3."""
    record = Record()
    found = []
    for reward in (4.0, 2.0, 0.0, 1.0):
        record.add(reward, 0.3)
        found.append(record.reward)
    assert found == pytest.approx([4.0, 3.0, 2.0, 2.0 + 0.3 * (1.0 - 2.0)])


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30), st.floats(0.01, 1))
def test_an_average_lies_between_what_it_is_made_of(rewards: list[float], share: float) -> None:
    record = Record()
    for reward in rewards:
        record.add(reward, share)
    assert min(rewards) - 1e-9 <= record.reward <= max(rewards) + 1e-9


def test_the_side_is_that_of_most_feedbacks() -> None:
    affinity, sides = Affinity(), []
    for side in (None, 1, 0, 0, None, 1, 1):
        affinity.feedback("c0", 0.0, side, ("c0",))
        sides.append(affinity.records["c0"].side)
    assert sides == [None, 1, None, 0, 0, None, 1]


@pytest.mark.parametrize(
    ("reward", "trained", "known"),
    [(0.5, 1, True), (0.0, 1, False), (-1.0, 3, False), (2.0, 0, False)],
)
def test_known_is_who_has_trained_there_with_a_reward_above_zero(
    reward: float, trained: int, known: bool
) -> None:
    assert Record(reward=reward, trained=trained).known is known


# --- feedback -------------------------------------------------------------------------------------


def test_everyone_belongs_to_the_only_cohort() -> None:
    affinity = Affinity()
    for _ in range(2):
        affinity.feedback("c0", -2.0, 1, ("c0",), averaging=0.3)
    record = affinity.records["c0"]
    assert (record.reward, record.trained, record.side, record.known) == (1.0, 2, 1, True)
    assert affinity.request(ALWAYS, 0.5, 0.5) == Request("c0", 1, known=True, explores=False)


@pytest.mark.parametrize("averaging", [None, 0.3])
def test_a_bad_experience_makes_the_sibling_less_likely_than_the_cousin(
    averaging: float | None,
) -> None:
    """-3 at c0.0.1: one hop up to c0.0 is shared with c0.0.0, two to c0 with c0.1."""
    affinity = Affinity()
    affinity.feedback("c0.0.1", -3.0, None, THREE, averaging=averaging)
    assert rewards_of(affinity) == {"c0.0.1": -3.0, "c0.0.0": -1.5, "c0.1": -1.0}
    assert affinity.best(0.5) == "c0.1"


@pytest.mark.parametrize(
    ("predict", "expected"),
    [
        ("unexplored", {"c0.0.0": 2.0, "c0.0.1": -3.0, "c0.1": -1.0}),
        ("all", {"c0.0.0": 2.0 - 1.5, "c0.0.1": -3.0, "c0.1": -1.0}),
        ("none", {"c0.0.0": 2.0, "c0.0.1": -3.0, "c0.1": 0.0}),
    ],
)
def test_whose_rewards_are_predicted(predict: str, expected: dict[str, float]) -> None:
    """The client has trained in c0.0.0 before, and never in c0.1."""
    affinity = remembering(c0_0_0=Record(2.0, trained=1, given=1), c0_0_1=Record(), c0_1=Record())
    affinity.feedback("c0.0.1", -3.0, None, THREE, predict=predict)  # type: ignore[arg-type]
    assert rewards_of(affinity) == expected


def test_hops_are_counted_from_where_the_client_has_trained() -> None:
    """From c0.1 one hop up leads to the root, and so to both of the others."""
    affinity = Affinity()
    affinity.feedback("c0.1", -3.0, None, THREE)
    assert rewards_of(affinity) == {"c0.0.0": -1.5, "c0.0.1": -1.5, "c0.1": -3.0}


def test_predictions_add_up_and_the_first_reward_adds_to_them() -> None:
    affinity = Affinity()
    affinity.feedback("c0.0", -4.0, None, TWO)
    affinity.feedback("c0.0", 1.0, None, TWO)
    assert rewards_of(affinity) == {"c0.0": -3.0, "c0.1": -1.5}
    affinity.feedback("c0.1", 5.0, None, TWO)
    assert rewards_of(affinity) == {"c0.0": -3.0, "c0.1": 3.5}  # c0.0 is not predicted any more


def test_predictions_average_and_the_first_reward_takes_their_place() -> None:
    affinity = Affinity()
    affinity.feedback("c0.0", -4.0, None, TWO, averaging=0.3)
    affinity.feedback("c0.0", 1.0, None, TWO, averaging=0.3)
    assert rewards_of(affinity) == {"c0.0": -1.5, "c0.1": -0.75}
    affinity.feedback("c0.1", 5.0, None, TWO, averaging=0.3)
    assert rewards_of(affinity) == {"c0.0": -1.5, "c0.1": 5.0}
    affinity.feedback("c0.1", 2.0, None, TWO, averaging=0.3)
    assert affinity.records["c0.1"].reward == 3.5


def test_a_negative_reward_resets_where_the_code_does() -> None:
    for resets, trained, side in ((False, 3, 1), (True, 0, None)):
        affinity = remembering(c0_0=Record(3.0, trained=2, leaning=2, given=2), c0_1=Record())
        affinity.feedback("c0.0", -1.0, 1, TWO, predict="none", resets=resets)
        record = affinity.records["c0.0"]
        assert (record.reward, record.trained, record.side) == (2.0, trained, side)
        assert record.known is not resets


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_no_other_reward_resets(reward: float) -> None:
    affinity = remembering(c0_0=Record(3.0, trained=2, leaning=2, given=2), c0_1=Record())
    affinity.feedback("c0.0", reward, 0, TWO, resets=True)
    assert affinity.records["c0.0"].trained == 3
    assert affinity.records["c0.0"].leaning == 1


# --- what a client learns of a split --------------------------------------------------------------


@pytest.mark.parametrize(("leaning", "preferred", "other"), [(-2, 0, 1), (1, 1, 0)])
def test_the_child_on_its_side_gets_one_more_and_the_trainings(
    leaning: int, preferred: int, other: int
) -> None:
    affinity = remembering(
        c0_0=Record(2.5, trained=4, leaning=leaning, given=4), c0_1=Record(-1.0, trained=1)
    )
    affinity.feedback("c0.1", 0.0, None, THREE, predict="none")
    assert list(affinity.records) == list(THREE)  # c0.0 itself is forgotten
    mine, theirs = (affinity.records[f"c0.0.{side}"] for side in (preferred, other))
    assert (mine.reward, mine.trained, mine.given, mine.side) == (3.5, 4, 4, None)
    assert (theirs.reward, theirs.trained, theirs.given, theirs.side) == (2.5, 0, 0, None)
    assert affinity.records["c0.1"].trained == 2


def test_without_a_side_neither_child_is_preferred() -> None:
    affinity = remembering(c0_0=Record(2.5, trained=4, leaning=0, given=4), c0_1=Record())
    affinity.feedback("c0.1", 0.0, None, THREE, predict="none")
    for child in THREE[:2]:
        record = affinity.records[child]
        assert (record.reward, record.trained) == (2.5, 0)


def test_two_splits_at_once() -> None:
    """Of c0 into c0.0 and c0.1, and of that in two: both lie on the client's side 1, and in
    neither of them it has trained."""
    affinity = remembering(c0=Record(1.0, trained=2, leaning=1))
    affinity.feedback("c0.0", 0.0, None, ("c0.0", "c0.1.0", "c0.1.1"), predict="none")
    assert rewards_of(affinity) == {"c0.0": 1.0, "c0.1.0": 2.0, "c0.1.1": 2.0}
    assert [record.trained for record in affinity.records.values()] == [1, 0, 0]


def test_after_two_splits_the_leaf_that_it_has_not_seen_stays_behind_its_own() -> None:
    """3 from c0.1.0, of which half is predicted for its sibling: what both have inherited, 2 of
    five rewards, moves towards it by 0.3."""
    affinity = remembering(c0=Record(1.0, trained=5, leaning=1, given=5))
    affinity.feedback("c0.1.0", 3.0, None, ("c0.0", "c0.1.0", "c0.1.1"), averaging=0.3)
    assert rewards_of(affinity) == {"c0.0": 1.0, "c0.1.0": 3.0, "c0.1.1": 1.85}


def test_the_reward_comes_after_what_is_inherited() -> None:
    """The first feedback of a child: 1 from its parent, 1 for the side, and its own reward."""
    affinity = Affinity()
    affinity.feedback("c0", 0.0, 0, ("c0",))
    affinity.feedback("c0.0", 3.0, None, TWO)
    assert rewards_of(affinity) == {"c0.0": 5.0, "c0.1": 1.0 + 3.0 / 2}
    assert affinity.records["c0.0"].trained == 2


def test_cohorts_that_nobody_told_of_begin_at_zero() -> None:
    affinity = Affinity()
    affinity.feedback("c0.1", 0.0, None, THREE)
    assert rewards_of(affinity) == dict.fromkeys(THREE, 0.0)


# --- knows ----------------------------------------------------------------------------------------


def test_a_client_is_known_where_it_was_before_a_split() -> None:
    affinity = remembering(
        c0_0=Record(2.0, trained=1), c0_1=Record(-1.0, trained=5), c0_1_1=Record(2.0, trained=1)
    )
    assert affinity.knows("c0.0")
    assert affinity.knows("c0.0.1")
    assert not affinity.knows("c0.1")
    assert not affinity.knows("c0.1.0")
    assert affinity.knows("c0.1.1.0")  # the closest record above counts
    assert not affinity.knows("c0")
    assert not Affinity().knows("c0")


# --- requests -------------------------------------------------------------------------------------


def test_the_rate_decays_with_every_choice_down_to_the_floor() -> None:
    exploration = Exploration(0.2, 0.5, 0.03)
    assert [exploration.rate(n) for n in range(5)] == pytest.approx([0.2, 0.1, 0.05, 0.03, 0.03])


def test_only_check_ins_with_a_choice_count() -> None:
    affinity = Affinity()
    assert affinity.request(ALWAYS, 0.5, 0.5) == Request(None, None, known=False, explores=False)
    affinity.feedback("c0", 1.0, None, ("c0",))
    assert not affinity.request(ALWAYS, 0.5, 0.5).explores
    assert affinity.choices == 0
    affinity.feedback("c0.0", 1.0, None, TWO)
    exploration = Exploration(0.2, 0.5, 0.0)
    # 0.2, 0.1 and 0.05 are the rates.
    found = [affinity.request(exploration, 0.07, 0.5).explores for _ in range(3)]
    assert found == [True, True, False]
    assert affinity.choices == 3


def test_a_request_says_what_the_client_knows_of_its_cohort() -> None:
    affinity = remembering(c0_0=Record(-1.0, trained=2), c0_1=Record(2.0, trained=1, leaning=-3))
    assert affinity.request(NEVER, 0.5, 0.5) == Request("c0.1", 0, known=True, explores=False)
    # The other one, where it trains without being one of its own.
    assert affinity.request(ALWAYS, 0.5, 0.5) == Request("c0.0", None, known=False, explores=True)


def test_the_best_among_equals_by_the_draw() -> None:
    affinity = remembering(c0_1=Record(1.0), c0_0_1=Record(0.5), c0_0_0=Record(1.0))
    assert [affinity.best(which) for which in (0.01, 0.49, 0.51, 0.99)] == (
        ["c0.0.0", "c0.0.0", "c0.1", "c0.1"]
    )
    assert affinity.request(NEVER, 0.5, 0.7).cohort == "c0.1"
    assert Affinity().best(0.5) is None


@pytest.mark.parametrize("which", [0.01, 0.5, 0.99])
def test_exploring_tries_the_unseen_cohort_with_the_highest_prediction(which: float) -> None:
    """c0.1.1 has a higher reward, but the client has trained there."""
    affinity = remembering(
        c0_0_0=Record(3.0, trained=2), c0_0_1=Record(-1.5), c0_1_0=Record(-1.0),
        c0_1_1=Record(2.0, trained=1),
    )  # fmt: skip
    assert affinity.request(ALWAYS, 0.5, which) == Request("c0.1.0", explores=True)


@pytest.mark.parametrize(("which", "expected"), [(0.3, "c0.0.1"), (0.7, "c0.1")])
def test_exploring_among_equal_predictions_goes_by_the_draw(which: float, expected: str) -> None:
    affinity = remembering(c0_0_0=Record(3.0, trained=2), c0_0_1=Record(-1.0), c0_1=Record(-1.0))
    assert affinity.request(ALWAYS, 0.5, which).cohort == expected


@pytest.mark.parametrize(("which", "expected"), [(0.3, "c0.0.1"), (0.7, "c0.1")])
def test_who_has_seen_all_explores_any_other(which: float, expected: str) -> None:
    affinity = remembering(
        c0_0_0=Record(3.0, trained=2), c0_0_1=Record(-9.0, trained=1), c0_1=Record(2.0, trained=1)
    )
    assert affinity.request(ALWAYS, 0.5, which).cohort == expected


def test_a_best_cohort_that_is_only_predicted_is_no_exploration() -> None:
    affinity = remembering(c0_0=Record(-2.0, trained=1), c0_1=Record(-1.0))
    assert affinity.request(ALWAYS, 0.5, 0.5) == Request("c0.0", explores=True)
    assert affinity.request(NEVER, 0.5, 0.5) == Request("c0.1", explores=False)


draws = st.floats(0, 1, exclude_min=True, exclude_max=True)


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 2)), min_size=1, max_size=6),
    st.floats(0, 1), draws, draws,
)  # fmt: skip
def test_a_request_is_the_best_or_explores_another(
    records: list[tuple[float, int]], epsilon: float, draw: float, which: float
) -> None:
    affinity = Affinity()
    affinity.records = {
        f"c0.{i}": Record(reward, trained) for i, (reward, trained) in enumerate(records)
    }
    highest = max(reward for reward, _ in records)
    found = affinity.request(Exploration(epsilon, 0.9, 0.0), draw, which)
    assert found.cohort is not None
    assert found.explores == (len(records) > 1 and draw < epsilon)
    if found.explores:
        assert found.cohort != affinity.best(which)
    else:
        assert affinity.records[found.cohort].reward == highest


@given(
    st.lists(
        st.tuples(st.sampled_from(THREE), st.floats(-5, 5), st.sampled_from([None, 0, 1])),
        min_size=1, max_size=20,
    ),
    st.sampled_from(["unexplored", "none"]), st.sampled_from([None, 0.3]),
)  # fmt: skip
def test_a_record_of_a_cohort_is_made_of_its_own_rewards(
    heard: list[tuple[str, float, int | None]], predict: str, averaging: float | None
) -> None:
    """What was predicted before the first training is in a sum, and not in an average."""
    affinity = Affinity()
    own: dict[str, Record] = {cohort: Record() for cohort in THREE}
    for cohort, reward, side in heard:
        before = affinity.records.get(cohort, Record())
        if averaging is None and before.trained == 0:
            own[cohort].reward = before.reward
        own[cohort].add(reward, averaging)
        affinity.feedback(
            cohort, reward, side, THREE, averaging=averaging,
            predict=predict,  # type: ignore[arg-type]
        )  # fmt: skip
    for cohort in {cohort for cohort, _, _ in heard}:
        record = affinity.records[cohort]
        assert record.reward == pytest.approx(own[cohort].reward, abs=1e-9)
        assert record.trained == sum(where == cohort for where, _, _ in heard)
