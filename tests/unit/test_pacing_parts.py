"""Discounts, deadlines and quorums by themselves, with values worked out by hand."""

from __future__ import annotations

import pytest

from emulator.federation.pacing import staleness_function
from emulator.federation.pacing.deadline import deadline
from emulator.scenario.schema import (
    ConstantStaleness,
    HingeStaleness,
    PolynomialStaleness,
    QuantileDeadline,
    Staleness,
    Synchronous,
)


@pytest.mark.parametrize(
    ("section", "values"),
    [
        (ConstantStaleness(kind="constant"), [1, 1, 1, 1, 1]),
        (PolynomialStaleness(kind="polynomial"), [1, 2**-0.5, 5**-0.5, 6**-0.5, 0.1]),
        (PolynomialStaleness(kind="polynomial", exponent=1.0), [1, 1 / 2, 1 / 5, 1 / 6, 0.01]),
        # 1 up to τ = 4 and 1/(10·1 + 1) at τ = 5; without the + 1 that would be 1/10.
        (HingeStaleness(kind="hinge"), [1, 1, 1, 1 / 11, 1 / 951]),
        (HingeStaleness(kind="hinge", a=0.5, b=0.0), [1, 2 / 3, 1 / 3, 2 / 7, 2 / 101]),
    ],
)
def test_staleness_functions(section: Staleness, values: list[float]) -> None:
    discount = staleness_function(section)
    assert [discount(tau) for tau in (0, 1, 4, 5, 99)] == pytest.approx(values, rel=1e-15)


@pytest.mark.parametrize(
    ("q", "of_last", "rank"),
    [
        (0.5, 1, 1), (0.5, 4, 2), (0.5, 5, 3), (0.8, 5, 4), (1.0, 7, 7), (0.01, 7, 1),
        # 7.000000000000001 and 55.00000000000001 in binary.
        (0.07, 100, 7), (0.55, 100, 55),
    ],
)  # fmt: skip
def test_the_rank_of_a_quantile(q: float, of_last: int, rank: int) -> None:
    section = QuantileDeadline(kind="quantile", q=q, of_last=of_last, initial=1.0)
    assert section.rank == rank


def test_a_quantile_looks_at_the_last_uploads_only() -> None:
    section = QuantileDeadline(kind="quantile", q=0.5, of_last=3, initial="none")
    rule = deadline(Synchronous(kind="synchronous", participants=1, deadline=section))
    said = []
    for number, duration_s in enumerate([9.0, 8.0, 7.0, 1.0, 2.0, 3.0]):
        said.append(rule.of_round(number))
        rule.upload_took(duration_s)
    assert said == [None, None, None, 8.0, 7.0, 2.0]
    assert rule.of_round(6) == 2.0


@pytest.mark.parametrize(
    ("participants", "ratio", "asked", "quorum"),
    [
        (5, 0.8, 5, 4), (5, 0.8, 7, 4), (5, 0.8, 3, 3), (5, 0.8, 2, 2), (10, 0.8, 5, 4),
        (100, 0.07, 130, 7), (50, 0.14, 65, 7), (3, 1.0, 3, 3), (3, 0.001, 3, 1),
    ],
)  # fmt: skip
def test_the_quorum_is_the_ceiling_of_the_decimal_product(
    participants: int, ratio: float, asked: int, quorum: int
) -> None:
    pacing = Synchronous(
        kind="synchronous", participants=participants, deadline="none", target_ratio=ratio
    )
    assert pacing.quorum(participants, asked) == quorum
    counted = Synchronous(
        kind="synchronous", participants=participants, deadline="none", min_updates=2
    )
    assert counted.quorum(participants, asked) == 2
