"""The virtual-time link on its own: no clock, no latency, times passed in."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from emulator.simulation.fair_sharing import FairLink, Meter

EXACT = 1e-9
NOBODY = (math.inf, -1)


def drain(link: FairLink) -> list[tuple[float, list[int]]]:
    """Every completion still to come, by instant."""
    batches = []
    while link.due != NOBODY:
        time_s = link.due[0]
        done = link.complete(time_s)
        assert done, "the flow that is due must be done at that instant"
        batches.append((time_s, done))
    return batches


def level(caps: list[float], capacity: float) -> float:
    """λ with Σ min(c_i, λ) = C, or infinity, by bisection."""
    array = np.array(caps)
    if array.sum() <= capacity:
        return math.inf
    low, high = 0.0, capacity
    for _ in range(200):
        middle = (low + high) / 2
        if np.minimum(array, middle).sum() < capacity:
            low = middle
        else:
            high = middle
    return high


def test_an_idle_link_has_nothing_due() -> None:
    link = FairLink(1.0)
    assert link.due == NOBODY
    assert link.complete(5.0) == []


def test_due_names_the_first_completion() -> None:
    link = FairLink(8.0)
    link.join(0.0, 7, 2.0, 4.0)
    assert link.due == (2.0, 7)
    link.join(0.0, 3, 100.0, 6.0)
    assert link.due == (1.0, 3), "it is served at 8 - 2"
    link.join(0.5, 4, 100.0, 300.0)
    assert link.due == (1.5, 3), "two of them share 8 - 2"
    assert link.complete(1.0) == [], "nobody is done yet"
    assert link.due == (1.5, 3), "and asking changes nothing"
    assert link.complete(1.5) == [3]


def test_the_level_passes_several_classes_at_once() -> None:
    """Caps 1 … 5 on 15: all capped. One more flow of cap 100 takes the level to 15/6 = 2.5…"""
    link = FairLink(15.0)
    for cap in range(1, 6):
        link.join(0.0, cap, float(cap), 1000.0)
    link.join(1.0, 9, 100.0, 1000.0)
    # … then caps 1, 2 are met, and (15 - 3) / 4 = 3 meets cap 3 as well: λ = (15 - 6) / 3 = 3.
    got = [1000.0 - link.remaining_bytes(2.0, client) for client in (1, 2, 3, 4, 5, 9)]
    assert got == pytest.approx([2, 4, 6, 7, 8, 3], rel=EXACT)
    assert link.leave(2.0, 9) == pytest.approx(997.0, rel=EXACT)
    got = [1000.0 - link.remaining_bytes(3.0, client) for client in (1, 2, 3, 4, 5)]
    assert got == pytest.approx([3, 6, 9, 11, 13], rel=EXACT)


def test_equal_marks_leave_together_in_client_order_across_classes() -> None:
    link = FairLink(3.0)
    for client, cap in ((5, 50.0), (2, 20.0), (8, 50.0), (1, 30.0)):
        link.join(0.0, client, cap, 0.1)
    assert drain(link) == [(pytest.approx(0.4 / 3), [1, 2, 5, 8])]


def test_a_capped_and_a_sharing_flow_of_one_instant_leave_in_client_order() -> None:
    link = FairLink(10.0)
    link.join(0.0, 5, 100.0, 8.0)
    link.join(0.0, 1, 2.0, 2.0)
    assert link.complete(1.0) == [1, 5]


def test_a_flow_too_small_for_the_clock_is_done_at_once() -> None:
    """At t = 10⁹ s the clock's next instant is 10⁻⁷ s away: no zero-length steps in a loop."""
    link = FairLink(1e6)
    for client in range(50):
        link.join(1e9, client, 1e5 + client, 1e-4 * (client + 1))
    batches = drain(link)
    assert len(batches) == 1
    assert batches[0][1] == list(range(50))


def test_a_class_starts_anew_when_it_was_empty() -> None:
    """After long service of others a flow of the class still gets its own bytes exactly."""
    link = FairLink(1e9)
    link.join(0.0, 0, 1e8, 1e15)
    assert drain(link) == [(1e7, [0])]
    link.join(1e7, 1, 1e8, 1.0)
    assert link.remaining_bytes(1e7, 1) == 1.0


def test_rates_are_max_min_after_every_change() -> None:
    """A random walk of joins and leaves with many caps against a level found by bisection."""
    draws = random.Random(5)
    link = FairLink(40.0)
    caps: dict[int, float] = {}
    time_s = 0.0
    some_caps = [draws.uniform(0.5, 9.0) for _ in range(12)]
    for step in range(400):
        time_s += 0.01
        if caps and draws.random() < 0.45:
            client = draws.choice(sorted(caps))
            link.leave(time_s, client)
            del caps[client]
        else:
            cap = draws.choice(some_caps) if draws.random() < 0.7 else draws.uniform(0.5, 9.0)
            caps[step] = cap
            link.join(time_s, step, cap, 1e6)
        water = level(list(caps.values()), 40.0)
        for client, cap in caps.items():
            before = link.remaining_bytes(time_s, client)
            rate = (before - link.remaining_bytes(time_s + 0.005, client)) / 0.005
            assert rate == pytest.approx(min(cap, water), rel=1e-6)


@pytest.mark.parametrize("distinct_caps", [1, 30, 2000])
def test_nothing_is_lost_in_a_long_busy_period(distinct_caps: int) -> None:
    """Joins, leaves and returns for many flows: bytes in = bytes carried; heaps stay small."""
    draws = random.Random(distinct_caps)
    cap_of = [2.0 + 8.0 * (client % distinct_caps) / distinct_caps for client in range(2000)]
    link = FairLink(300.0)
    inside: set[int] = set()
    paused: dict[int, float] = {}
    asked = time_s = 0.0
    ended = 0
    for step in range(20_000):
        time_s += draws.expovariate(40.0)
        while link.due[0] <= time_s:
            done = link.complete(link.due[0])
            assert done
            ended += len(done)
            inside.difference_update(done)
        client = draws.randrange(2000)
        if client in inside:
            if draws.random() < 0.5:
                inside.remove(client)
                paused[client] = link.leave(time_s, client)
        else:
            size = paused.pop(client, None)
            if size is None:
                size = draws.expovariate(1 / 12.0)
                asked += size
            inside.add(client)
            link.join(time_s, client, cap_of[client], size)
        if step % 100:
            continue
        marks = sum(len(cap_class.marks) for cap_class in link._classes.values())
        assert marks <= 2 * len(inside) + 65 * len(link._classes)
        heads = len(link._heads_in_time) + len(link._heads_in_virtual_time)
        assert heads <= 2 * (65 + 2 * 2000)
    left = sum(link.remaining_bytes(time_s, client) for client in inside) + sum(paused.values())
    assert ended > 5000
    assert link.meter.carried_bytes(time_s) == pytest.approx(asked - left, rel=EXACT)


def test_a_class_keeps_no_marks_of_flows_that_left() -> None:
    """One large flow keeps the class busy while another comes and goes."""
    link = FairLink(10.0)
    link.join(0.0, 0, 5.0, 1e9)
    for number in range(2000):
        link.join(number * 1e-3, 1, 5.0, 2e9)
        link.leave(number * 1e-3, 1)
    assert len(link._classes[5.0].marks) < 150
    assert len(link._heads_in_time) < 150


def test_a_meter_integrates_a_piecewise_constant_rate() -> None:
    meter = Meter()
    meter.set_rate(1.0, 4.0)
    meter.set_rate(3.0, 0.5)
    assert meter.carried_bytes(3.0) == 8.0
    assert meter.carried_bytes(5.0) == 9.0


def test_a_class_that_crosses_the_level_is_done_when_its_bytes_are() -> None:
    """Its head as a capped class, 10 s, is the same number as its head in virtual time, 10 bytes;
    from then on it shares, and takes twice as long."""
    link = FairLink(1.0)
    link.join(0.0, 0, 1.0, 10.0)
    link.join(0.0, 1, 2.0, 100.0)
    assert link.due == (20.0, 0)


def test_a_flow_that_pauses_again_and_again_leaves_no_marks_behind() -> None:
    link = FairLink(4.0)
    link.join(0.0, 0, 1.0, 10.0)
    for _ in range(1000):
        link.join(0.0, 1, 1.0, 20.0)
        assert link.leave(0.0, 1) == 20.0
    (cap_class,) = link._classes.values()
    assert len(cap_class.marks) < 100
    assert link.due == (10.0, 0)
