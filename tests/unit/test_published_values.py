"""Values that FedScale's files and formulas are known to give, through the product's own parts."""

from __future__ import annotations

import numpy as np
import pytest

from emulator.federation.pacing import polynomial
from emulator.scenario.schema import Synchronous
from emulator.simulation.devices import Devices, FedScaleSpeed, Work
from emulator.simulation.network import AccessLinks
from traces import Availability, Sessions
from traces.fedscale_cursor import FedScaleCursor

ACTIVE = [12788, 100044, 188992, 271372, 276663, 352625, 356267, 441193]
INACTIVE = [65881, 133574, 208292, 276575, 295006, 356236, 400906, 475099]
FINISH = 518400


def key_3834() -> Availability:
    """One client of FedScale's behaviour trace."""
    rows = [list(zip(map(float, ACTIVE), map(float, INACTIVE), strict=True))]
    return Availability(Sessions.from_rows(rows, float(FINISH)), [0], "wrap")


def test_completion_time_of_fedscale() -> None:
    # B 20, S 5, 153 ms a sample, 2209.616 kbit/s, 65,536 kbit each way:
    # 3 · 20 · 5 · 153 / 1000 = 45.9 s; 2 · 65,536 / 2209.616 = 59.319... s.
    devices = Devices(FedScaleSpeed(np.array([153.0])), None, root_seed=1)
    compute_s = devices.training_s(0, Work(20 * 5, 0, 1), 0)
    assert compute_s == pytest.approx(45.9, rel=1e-12)
    rate_Bps = np.array([2209.616 * 125])
    links = AccessLinks(rate_Bps, rate_Bps, np.zeros(1))
    size_bytes = 65_536 * 125
    transfer_s = sum(links.durations_s(0, size_bytes, size_bytes))
    assert transfer_s == pytest.approx(59.32, abs=0.005)
    assert compute_s + transfer_s == pytest.approx(105.22, abs=0.005)


@pytest.mark.parametrize(
    ("participants", "over_commitment", "asked"),
    [(3, 1.3, 3), (10, 1.3, 13), (50, 1.3, 65), (200, 1.3, 260), (100, 1.15, 115), (7, 1.0, 7)],
)
def test_over_commitment_is_the_floor_of_the_decimal_product(
    participants: int, over_commitment: float, asked: int
) -> None:
    pacing = Synchronous(
        kind="synchronous", participants=participants, over_commitment=over_commitment,
        deadline="none",
    )  # fmt: skip
    assert pacing.asked(1_000_000) == asked


def test_stateful_cursor_and_stateless_answers() -> None:
    cursor, availability = FedScaleCursor(ACTIVE, INACTIVE, FINISH), key_3834()
    times = (60_000, 67_000, 60_000)
    assert [cursor.online(t) for t in times] == [True, False, False]
    assert [availability.online(0, t) for t in times] == [True, False, True]


@pytest.mark.parametrize(("look_ahead_s", "wrong_share"), [(0, 0.229), (150, 0.069)])
def test_every_error_of_the_cursor_is_a_false_offline(
    look_ahead_s: int, wrong_share: float
) -> None:
    cursor, availability = FedScaleCursor(ACTIVE, INACTIVE, FINISH), key_3834()
    times = range(0, 3 * FINISH, 120)
    wrong = 0
    for t in times:
        said, truth = cursor.online(t), availability.online(0, t)
        if look_ahead_s and said:
            cursor.online(t + look_ahead_s)
        if said != truth:
            assert truth
            wrong += 1
    assert wrong / len(times) == pytest.approx(wrong_share, abs=0.0005)


def test_duty_cycle_over_whole_laps() -> None:
    availability = key_3834()
    assert availability.online_seconds(0, 0.0, 3.0 * FINISH) == 3 * 211_625
    assert pytest.approx(0.408, abs=0.0005) == 211_625 / FINISH


def test_staleness_discount() -> None:
    discount = polynomial(0.5)
    assert [discount(0), discount(1), discount(3)] == pytest.approx([1, 2**-0.5, 0.5], rel=1e-15)
