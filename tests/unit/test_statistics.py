"""Censored medians and intervals against cases worked by hand, and against what they promise."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from analysis import statistics
from analysis.statistics import (
    Floats,
    Median,
    censored_median,
    expanded_level,
    mean_interval,
    resampled,
)


@pytest.mark.parametrize(
    ("amounts", "reached", "expected"),
    [
        ([3, 1, 2], "yyy", Median(2, False)),
        ([4, 1, 3, 2], "yyyy", Median(2.5, False)),  # as of whole samples
        ([5], "y", Median(5, False)),
        ([5], "n", Median(5, True)),
        ([2, 2, 2], "yyy", Median(2, False)),
        # Survival 2/3 after 1; at 2 nothing ends but one leaves; 0 after 3.
        ([1, 2, 3], "yny", Median(3, False)),
        # 4/5, 3/5, then one of two at risk: 3/10.
        ([1, 2, 3, 4, 5], "yynyy", Median(4, False)),
        # 2/3, then never lower: the median is beyond all that is known.
        ([1, 10, 10], "ynn", Median(10, True)),
        # One half after 2, and nothing is known after it: not before 2.
        ([1, 2, 9, 9], "yynn", Median(2, True)),
        # A miss at the very instant of a crossing was still at risk then: 3/4, 2/4, then 0.
        ([1, 2, 2, 6], "yyny", Median(4, False)),
        ([7, 9, 8], "nnn", Median(9, True)),  # all missed
    ],
)
def test_censored_median(amounts: list[float], reached: str, expected: Median) -> None:
    assert censored_median(amounts, [letter == "y" for letter in reached]) == expected


def test_a_miss_is_neither_dropped_nor_set_to_the_horizon() -> None:
    # Dropped: median 1.5. Set to the horizon of 4 s: 2.
    found = censored_median([1, 2, 4, 4, 4], [True, True, False, False, False])
    assert found == Median(4, True)


def test_an_interval_needs_two_values() -> None:
    assert mean_interval([]) is None
    assert mean_interval([1.0]) is None


def test_few_values_have_students_interval() -> None:
    # Mean 2, standard deviation 1, t(0.975, 2) = 4.302653: 2 -+ 4.302653 / sqrt(3).
    found = mean_interval([1.0, 2.0, 3.0])
    assert found is not None
    assert found.method == "Student's t"
    assert (found.low, found.high) == pytest.approx((2 - 2.484138, 2 + 2.484138), abs=1e-5)


def test_equal_values_have_an_interval_of_no_length() -> None:
    found = mean_interval([0.7] * 6)
    assert found is not None
    assert (found.low, found.high, found.method) == (0.7, 0.7, "all equal")


def test_six_values_are_resampled_and_give_the_same_interval_again() -> None:
    values = [0.1, 0.4, 0.2, 0.9, 0.3, 0.5]
    found = mean_interval(values)
    assert found is not None
    assert found.method == "BCa bootstrap"
    assert found.low < np.mean(values) < found.high
    assert mean_interval(values) == found


def test_where_bca_is_degenerate_percentiles_are_taken() -> None:
    # They differ by one rounding, so that all means without one of them are the same.
    values = [1.0, 1.0, 1.0, 1.0, 1.0, math.nextafter(1.0, 2.0)]
    found = mean_interval(values)
    assert found is not None
    assert found.method == "percentile bootstrap"
    assert 1.0 <= found.low <= found.high <= values[-1]


@pytest.mark.parametrize("n", [5, 30])
def test_the_level_makes_normal_percentiles_as_long_as_students(n: int) -> None:
    students = {5: 2.776445, 30: 2.045230}[n]
    reach = NormalDist().inv_cdf(0.5 + expanded_level(n, 0.95) / 2)
    assert reach * math.sqrt((n - 1) / n) == pytest.approx(students, abs=1e-4)


def share_covered(low: Floats, high: Floats) -> float:
    return float(np.mean((low <= math.log(2)) & (math.log(2) <= high)))


# 500 studies of n seeds whose true speed-up is 2; 95 % of them should say so. Of 500, a coverage of
# 95 % shows as 92.1 % to 97.9 % with a probability of 99.7 %.
LOGS = np.random.default_rng(20).normal(math.log(2), 0.3, size=(500, 12))


def test_a_speed_up_is_in_its_bootstrap_interval_as_often_as_promised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 999)
    covered = share_covered(*resampled(LOGS))
    assert 0.921 <= covered <= 0.979
    # What a single study is told is just that.
    found = mean_interval(list(LOGS[0]))
    assert found is not None
    assert (found.low, found.high) == pytest.approx([end.item() for end in resampled(LOGS[0])])


def test_a_speed_up_of_three_seeds_is_in_its_interval_as_often_as_promised() -> None:
    found = [mean_interval(list(logs)) for logs in LOGS[:, :3]]
    ends = np.array([(i.low, i.high) for i in found if i is not None])
    assert ends.shape == (500, 2)
    assert 0.921 <= share_covered(*ends.T) <= 0.979
