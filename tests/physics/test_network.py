"""Transfers over shared links against closed forms and against a naive simulator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import InternalError, ScenarioError
from emulator.simulation.clock import Clock, Rank
from emulator.simulation.network import (
    AccessLinks,
    Direction,
    Flow,
    Network,
    NoNetwork,
    SharedNetwork,
    SharedServerLink,
)
from emulator.simulation.topology import Topology

EXACT = 1e-9
MB = 1e6


def access_links(
    clients: int, rate_Bps: float = 1e12, latency_s: float = 0.0, caps: list[float] | None = None
) -> AccessLinks:
    rates = np.full(clients, rate_Bps) if caps is None else np.array(caps)
    return AccessLinks(rates, rates, np.full(clients, latency_s))


def single_link(
    clock: Clock, access: AccessLinks, down_Bps: float, up_Bps: float
) -> SharedServerLink:
    return SharedServerLink(clock, access, down_Bps, up_Bps)


def star(clock: Clock, access: AccessLinks, down_Bps: float, up_Bps: float) -> Topology:
    graph = nx.DiGraph()
    graph.add_edge("server", "hub", rate_Bps=down_Bps, latency_s=0.0)
    graph.add_edge("hub", "server", rate_Bps=up_Bps, latency_s=0.0)
    return Topology(clock, access, graph, "server", ["hub"] * len(access.latency_s))


Maker = Callable[[Clock, AccessLinks, float, float], SharedNetwork]


@pytest.fixture(params=[single_link, star], ids=["single link", "star"])
def make(request: pytest.FixtureRequest) -> Maker:
    maker: Maker = request.param
    return maker


def run(clock: Clock, until_s: float = 1e9) -> None:
    clock.run_until(until_s, lambda: False)


class World:
    """A network, the flows that it was asked for, and when they ended."""

    def __init__(self, network: SharedNetwork, clock: Clock) -> None:
        self.network = network
        self.clock = clock
        self.flows: dict[int, Flow] = {}
        self.ends: dict[int, float] = {}
        self.order: list[int] = []

    def at(self, time_s: float, action: Callable[[], object]) -> None:
        self.clock.at(time_s, Rank.DISPATCH, 0, lambda: (action(), None)[1])

    def start(self, time_s: float, client: int, size: float, direction: Direction = "down") -> None:
        def done() -> None:
            self.ends[client] = self.clock.now
            self.order.append(client)

        def begin() -> None:
            self.flows[client] = self.network.start(client, direction, size, done)

        self.at(time_s, begin)


def world(
    make: Maker, access: AccessLinks, down_Bps: float = 10 * MB, up_Bps: float = 10 * MB
) -> World:
    clock = Clock()
    return World(make(clock, access, down_Bps, up_Bps), clock)


# Closed forms


def test_unshared_transfers_take_latency_plus_size_over_rate() -> None:
    links = AccessLinks([4 * MB, 1 * MB], [2 * MB, 1 * MB], [0.25, 0.0])
    assert links.durations_s(0, 8 * MB, 8 * MB) == (2.25, 4.25)
    assert links.durations_s(1, 0, 0) == (0.0, 0.0)
    assert NoNetwork().durations_s(0, 8 * MB, 8 * MB) == (0.0, 0.0)


def test_shared_tells_the_two_kinds_apart() -> None:
    clock = Clock()
    links = access_links(1)
    networks: list[Network] = [NoNetwork(), links, single_link(clock, links, MB, MB)]
    assert [network.shared for network in networks] == [False, False, True]


@pytest.mark.parametrize(("cap", "expected_s"), [(4 * MB, 0.5 + 2.5), (40 * MB, 0.5 + 1.0)])
def test_a_single_flow_takes_latency_plus_size_over_the_smaller_rate(
    make: Maker, cap: float, expected_s: float
) -> None:
    w = world(make, access_links(1, cap, latency_s=0.5))
    w.start(1.0, 0, 10 * MB)
    run(w.clock)
    assert w.ends[0] == pytest.approx(1.0 + expected_s, rel=EXACT)


@pytest.mark.parametrize("direction", ["down", "up"])
def test_n_equal_flows_all_end_at_n_sizes_over_the_capacity(
    make: Maker, direction: Direction
) -> None:
    w = world(make, access_links(50, latency_s=0.125), 7 * MB, 7 * MB)
    for client in reversed(range(50)):
        w.start(0.0, client, 3 * MB, direction)
    run(w.clock)
    assert set(w.ends.values()) == {w.ends[0]}, "equal flows end at one and the same instant"
    assert w.ends[0] == pytest.approx(0.125 + 50 * 3 / 7, rel=EXACT)
    assert w.order == list(range(50)), "in client order, not in that of their starts"


def test_equal_flows_below_their_common_cap_are_not_slowed_down(make: Maker) -> None:
    w = world(make, access_links(4, 2 * MB), 10 * MB)
    for client in range(4):
        w.start(0.0, client, 3 * MB)
    run(w.clock)
    assert w.ends == dict.fromkeys(range(4), 1.5)


def test_two_flows_half_a_second_apart(make: Maker) -> None:
    w = world(make, access_links(2))
    w.start(0.0, 0, 10 * MB)
    w.start(0.5, 1, 10 * MB)
    run(w.clock)
    assert w.ends[0] == pytest.approx(1.5, rel=EXACT)
    assert w.ends[1] == pytest.approx(2.0, rel=EXACT)


def test_the_staircase_of_processor_sharing(make: Maker) -> None:
    """Sizes b_1 ≤ … ≤ b_n at one instant: the j-th ends at Σ_{i≤j} (n-i+1)(b_i - b_{i-1}) / C."""
    sizes, capacity = [1.0, 2.0, 2.0, 5.0, 9.0], 3.0
    w = world(make, access_links(5), capacity)
    for client, size in enumerate(sizes):
        w.start(0.0, client, size)
    run(w.clock)
    end = 0.0
    previous = 0.0
    for client, size in enumerate(sizes):
        end += (5 - client) * (size - previous) / capacity
        previous = size
        assert w.ends[client] == pytest.approx(end, rel=EXACT)


def test_what_a_capped_flow_leaves_goes_to_the_other_one(make: Maker) -> None:
    """c1 < S/2 < c2: rates c1 and S - c1; when the first is gone, the other gets min(c2, S)."""
    w = world(make, access_links(2, caps=[2 * MB, 9 * MB]), 10 * MB)
    w.start(0.0, 0, 4 * MB)  # 2 s at 2 MB/s
    w.start(0.0, 1, 34 * MB)  # 16 MB by then, at 8 MB/s; 18 MB left at 9 MB/s
    seen: list[float] = []
    w.at(1.0, lambda: seen.extend(flow.delivered_bytes for flow in w.flows.values()))
    run(w.clock)
    assert seen == pytest.approx([2 * MB, 8 * MB], rel=EXACT)
    assert w.ends[0] == pytest.approx(2.0, rel=EXACT)
    assert w.ends[1] == pytest.approx(4.0, rel=EXACT)


def test_a_paused_flow_leaves_its_share_and_goes_on_later(make: Maker) -> None:
    w = world(make, access_links(2))
    w.start(0.0, 0, 10 * MB)
    w.start(0.0, 1, 10 * MB)
    w.at(1.0, lambda: w.network.pause(w.flows[0]))
    seen: list[float] = []
    w.at(3.0, lambda: seen.append(w.flows[0].delivered_bytes))
    w.at(4.0, lambda: w.network.resume(w.flows[0]))
    run(w.clock)
    assert w.ends[1] == pytest.approx(1.5, rel=EXACT)
    assert seen == pytest.approx([5 * MB], rel=EXACT)
    assert w.ends[0] == pytest.approx(4.5, rel=EXACT)


def test_latency_loads_no_link_and_pauses_too(make: Maker) -> None:
    w = world(make, AccessLinks([1e9, 1e9], [1e9, 1e9], [0.0, 2.0]))
    w.start(0.0, 0, 10 * MB)
    w.start(0.0, 1, 10 * MB)
    w.at(0.5, lambda: w.network.pause(w.flows[1]))
    seen: list[float] = []
    w.at(0.9, lambda: seen.append(w.flows[1].delivered_bytes))
    w.at(10.5, lambda: w.network.resume(w.flows[1]))
    run(w.clock)
    assert seen == [0.0]
    assert w.ends[0] == pytest.approx(1.0, rel=EXACT), "alone on the link"
    assert w.ends[1] == pytest.approx(10.5 + 1.5 + 1.0, rel=EXACT)


def test_an_abandoned_flow_keeps_what_was_delivered_and_frees_its_share(make: Maker) -> None:
    w = world(make, access_links(3))
    w.start(0.0, 0, 10 * MB)
    w.start(0.0, 1, 10 * MB)
    w.at(0.5, lambda: w.network.abandon(w.flows[0]))
    w.start(5.0, 0, 1 * MB)  # the client is free for another
    gone: list[Flow] = []
    w.at(0.75, lambda: gone.append(w.flows[0]))
    run(w.clock)
    assert gone[0].delivered_bytes == pytest.approx(2.5 * MB, rel=EXACT)
    assert w.ends[1] == pytest.approx(1.25, rel=EXACT)
    assert w.ends[0] == pytest.approx(5.1, rel=EXACT)
    assert w.network.delivered_bytes("down") == pytest.approx(13.5 * MB, rel=EXACT)


def test_an_empty_transfer_takes_the_latency(make: Maker) -> None:
    w = world(make, access_links(2, latency_s=0.25))
    w.start(1.0, 0, 0.0)
    w.start(1.0, 1, 0.0, "up")
    run(w.clock)
    assert w.ends == {0: 1.25, 1: 1.25}
    assert w.flows[0].delivered_bytes == 0.0


def test_directions_do_not_share(make: Maker) -> None:
    w = world(make, access_links(2), 10 * MB, 5 * MB)
    w.start(0.0, 0, 10 * MB, "down")
    w.start(0.0, 1, 10 * MB, "up")
    run(w.clock)
    assert w.ends == {0: pytest.approx(1.0, rel=EXACT), 1: pytest.approx(2.0, rel=EXACT)}
    assert w.network.delivered_bytes("down") == pytest.approx(10 * MB, rel=EXACT)
    assert w.network.delivered_bytes("up") == pytest.approx(10 * MB, rel=EXACT)


def test_delivered_is_exact_at_the_end_and_grows_on_the_way(make: Maker) -> None:
    w = world(make, access_links(1, latency_s=1.0), 3.0)
    w.start(0.0, 0, 10.1)
    seen: list[float] = []
    for time_s in (0.5, 1.0, 2.0, 3.0):
        w.at(time_s, lambda: seen.append(w.flows[0].delivered_bytes))
    run(w.clock)
    assert seen == pytest.approx([0.0, 0.0, 3.0, 6.0], rel=EXACT, abs=1e-12)
    assert w.flows[0].delivered_bytes == 10.1


# Same instants


def test_uploads_come_before_downloads_and_before_going_offline(make: Maker) -> None:
    w = world(make, access_links(4))
    w.start(0.0, 0, 5 * MB, "down")
    w.start(0.0, 1, 5 * MB, "down")
    w.start(0.0, 2, 5 * MB, "up")
    w.start(0.0, 3, 5 * MB, "up")
    w.clock.at(1.0, Rank.OFFLINE, 0, lambda: w.order.append(-1))
    run(w.clock)
    assert w.order == [2, 3, 0, 1, -1]
    assert set(w.ends.values()) == {1.0}


def test_a_completion_may_stop_another_one_of_its_own_instant(make: Maker) -> None:
    clock = Clock()
    network = make(clock, access_links(4), 4 * MB, 4 * MB)
    flows: list[Flow] = []
    log: list[tuple[int, float]] = []

    def done(client: int) -> None:
        log.append((client, clock.now))
        if client == 0:
            network.abandon(flows[1])
            network.pause(flows[2])
            network.start(0, "down", MB, lambda: done(10))
            clock.at(3.0, Rank.DISPATCH, 2, lambda: network.resume(flows[2]))

    for client in range(4):
        flows.append(network.start(client, "down", MB, lambda client=client: done(client)))
    run(clock)
    assert log == [(0, 1.0), (3, 1.0), (10, 1.25), (2, 3.0)]
    assert [flow.delivered_bytes for flow in flows] == [MB] * 4


def test_a_completion_may_start_the_next_flow_of_its_client(make: Maker) -> None:
    clock = Clock()
    network = make(clock, access_links(2), 2 * MB, 2 * MB)
    log: list[tuple[int, float]] = []

    def again(client: int) -> None:
        log.append((client, clock.now))
        if clock.now < 3:
            network.start(client, "down", MB, lambda: again(client))

    for client in range(2):
        network.start(client, "down", MB, lambda client=client: again(client))
    run(clock)
    assert log == [(0, 1.0), (1, 1.0), (0, 2.0), (1, 2.0), (0, 3.0), (1, 3.0)]


def test_an_abandoned_network_leaves_no_timer_behind(make: Maker) -> None:
    w = world(make, access_links(2, latency_s=0.0))
    w.start(0.0, 0, 10 * MB)
    w.start(0.0, 1, 20 * MB)
    for client in (0, 1):
        w.at(0.5, lambda client=client: w.network.abandon(w.flows[client]))
    run(w.clock)
    assert w.clock.now == 0.5, "a timer that lost its flow does not move the clock"
    assert w.ends == {}


def test_re_rating_leaves_few_timers_in_the_schedule(make: Maker) -> None:
    """Every join of this run moves the completion of the long flow."""
    w = world(make, access_links(2))
    w.start(0.0, 0, 1e9)
    longest = 0

    def next_one(number: int) -> None:
        nonlocal longest
        longest = max(longest, len(w.clock._queue))
        if number < 300:
            w.network.start(1, "down", 1000.0, lambda: next_one(number + 1))

    w.at(0.0, lambda: next_one(0))
    run(w.clock)
    assert w.ends[0] == pytest.approx(100.03, rel=EXACT)
    assert longest < 150


# Topology


def tree(edge_rates: dict[tuple[str, str], float], latency_s: float = 0.0) -> nx.Graph:
    graph = nx.Graph()
    for (a, b), rate_Bps in edge_rates.items():
        graph.add_edge(a, b, rate_Bps=rate_Bps, latency_s=latency_s)
    return graph


def test_the_textbook_example_of_two_bottlenecks() -> None:
    """West (2 MB/s) is full with two flows at 1 each; the one in the east takes the 7 left of 9."""
    clock = Clock()
    graph = tree({("core", "west"): 2 * MB, ("core", "east"): 50 * MB, ("s", "core"): 9 * MB})
    w = World(Topology(clock, access_links(3), graph, "s", ["west", "west", "east"]), clock)
    for client, size in enumerate([10 * MB, 10 * MB, 7 * MB]):
        w.start(0.0, client, size)
    run(clock)
    assert w.ends[2] == pytest.approx(1.0, rel=EXACT)
    assert w.ends[0] == w.ends[1] == pytest.approx(10.0, rel=EXACT)


def test_a_path_pays_its_latency_and_takes_the_fewest_edges() -> None:
    clock = Clock()
    graph = tree({("s", "a"): MB, ("a", "b"): MB}, latency_s=0.01)
    graph.add_edge("s", "b", rate_Bps=4 * MB, latency_s=5.0)
    w = World(Topology(clock, access_links(3, latency_s=1.0), graph, "s", ["s", "a", "b"]), clock)
    for client in range(3):
        w.start(0.0, client, 4 * MB, "up")
    run(clock)
    assert w.ends[0] == pytest.approx(1.0 + 4 * MB / 1e12, rel=EXACT), "at the server's own node"
    assert w.ends[1] == pytest.approx(1.01 + 4.0, rel=EXACT)
    assert w.ends[2] == pytest.approx(6.0 + 1.0, rel=EXACT)


def one_way_ring() -> World:
    """s → a → b → s: down to b (client 0) and up from a (client 1) share a → b."""
    clock = Clock()
    graph = nx.DiGraph()
    for edge in (("s", "a"), ("a", "b"), ("b", "s")):
        graph.add_edge(*edge, rate_Bps=2 * MB, latency_s=0.0)
    return World(Topology(clock, access_links(2), graph, "s", ["b", "a"]), clock)


def test_an_upload_that_is_gone_hastens_the_download_beside_it() -> None:
    w = one_way_ring()
    w.start(0.0, 1, 20 * MB, "up")
    w.start(0.0, 0, 4 * MB, "down")
    w.at(1.0, lambda: w.network.abandon(w.flows[1]))
    run(w.clock)
    assert w.ends == {0: pytest.approx(1.0 + 1.5, rel=EXACT)}


def test_directions_share_where_their_paths_do() -> None:
    w = one_way_ring()
    w.start(0.0, 0, 4 * MB, "down")
    w.start(0.0, 1, 2 * MB, "up")
    run(w.clock)
    assert w.ends[1] == pytest.approx(2.0, rel=EXACT)
    assert w.ends[0] == pytest.approx(3.0, rel=EXACT)
    assert w.network.delivered_bytes("down") == pytest.approx(4 * MB, rel=EXACT)
    assert w.network.delivered_bytes("up") == pytest.approx(2 * MB, rel=EXACT)


# Against a naive simulator


@dataclass
class Script:
    """One client: what it transfers, and when it is interrupted."""

    start_s: float
    size: float
    cap: float
    latency_s: float
    pauses: list[tuple[float, float]] = field(default_factory=list)
    abandon_s: float = math.inf

    def operations(self) -> Iterator[tuple[float, str]]:
        yield self.start_s, "start"
        for from_s, to_s in self.pauses:
            yield from_s, "pause"
            yield to_s, "resume"
        if self.abandon_s < math.inf:
            yield self.abandon_s, "abandon"


def water_fill(caps: np.ndarray, capacity: float) -> np.ndarray:
    """min(c_i, λ) by raising λ one cap after the other."""
    rates = np.empty(len(caps))
    left, flows = capacity, len(caps)
    for i in np.argsort(caps):
        rates[i] = min(caps[i], left / flows)
        left -= rates[i]
        flows -= 1
    return rates


def naive(scripts: list[Script], capacity: float) -> tuple[dict[int, float], list[float], float]:
    """Ends by client, bytes delivered by client, and the integral of the rates: O(n) an event."""
    operations = sorted(
        (time_s, client, what)
        for client, script in enumerate(scripts)
        for time_s, what in script.operations()
    )
    n = len(scripts)
    caps = np.array([script.cap for script in scripts])
    latency = np.array([script.latency_s for script in scripts])
    left = np.array([script.size for script in scripts])
    active = np.zeros(n, dtype=bool)
    over = np.zeros(n, dtype=bool)
    ends: dict[int, float] = {}
    carried, now = 0.0, 0.0
    while operations or active.any():
        served = active & (latency <= 0)
        rates = np.zeros(n)
        rates[served] = water_fill(caps[served], capacity)
        waiting = active & ~served
        steps = np.full(n, math.inf)
        steps[served] = left[served] / rates[served]
        steps[waiting] = latency[waiting]
        first = int(steps.argmin()) if n else 0
        step = steps[first]
        operation = bool(operations) and operations[0][0] <= now + step
        if operation:
            step = operations[0][0] - now
        left -= rates * step
        latency[waiting] -= step
        carried += rates.sum() * step
        now += step
        if operation:
            _, client, what = operations.pop(0)
            if not over[client]:
                active[client] = what in ("start", "resume")
                over[client] = what == "abandon"
        elif waiting[first]:
            latency[first] = 0.0
        else:
            left[first], active[first], over[first] = 0.0, False, True
            ends[first] = now
    delivered = [script.size - bytes_left for script, bytes_left in zip(scripts, left, strict=True)]
    return ends, delivered, carried


def emulated(
    make: Maker, scripts: list[Script], capacity: float, direction: Direction
) -> tuple[dict[int, float], list[float], float]:
    clock = Clock()
    caps = [script.cap for script in scripts]
    access = AccessLinks(caps, caps, [script.latency_s for script in scripts])
    w = World(make(clock, access, capacity, capacity), clock)

    def apply(client: int, what: str) -> None:
        if client not in w.ends:
            getattr(w.network, what)(w.flows[client])

    for client, script in enumerate(scripts):
        for time_s, what in script.operations():
            if what == "start":
                w.start(time_s, client, script.size, direction)
            else:
                w.at(time_s, lambda client=client, what=what: apply(client, what))
    run(clock)
    delivered = [w.flows[client].delivered_bytes for client in range(len(scripts))]
    return w.ends, delivered, w.network.delivered_bytes(direction)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Script], float]:
    """Scripts with few or many distinct caps.

    Every time has its own irrational offset: an operation that falls on the very instant of a
    completion would be decided by rounding, in one simulator before it and in the other after.
    """
    some_caps = draw(st.lists(st.floats(0.1, 20), min_size=1, max_size=5))
    cap = st.sampled_from(some_caps) if draw(st.booleans()) else st.floats(0.1, 20)
    number = 0

    def offset() -> float:
        nonlocal number
        number += 1
        return math.sqrt(number + 0.5) / 1000

    scripts = []
    for _ in range(draw(st.integers(1, 14))):
        times = sorted(draw(st.lists(st.integers(0, 60), min_size=1, max_size=5)))
        start_s, *later = [time_s / 4 + offset() for time_s in times]
        later.sort()
        abandon_s = later.pop() if len(later) % 2 else math.inf
        pauses = [(a, b) for a, b in zip(later[::2], later[1::2], strict=True) if start_s < a < b]
        scripts.append(
            Script(
                start_s,
                draw(st.integers(1, 50)) + offset(),
                draw(cap),
                draw(st.sampled_from([0.0, 0.0, 0.3, 2.0])),
                pauses,
                abandon_s if start_s < abandon_s else math.inf,
            )
        )
    return scripts, draw(st.floats(0.5, 60))


@settings(max_examples=100, deadline=None)
@given(worlds(), st.sampled_from(["down", "up"]))
def test_both_engines_agree_with_the_naive_simulator(
    example: tuple[list[Script], float], direction: Direction
) -> None:
    scripts, capacity = example
    ends, delivered, carried = naive(scripts, capacity)
    for make in (single_link, star):
        ends_here, delivered_here, carried_here = emulated(make, scripts, capacity, direction)
        assert ends_here.keys() == ends.keys()
        for client, end_s in ends.items():
            assert ends_here[client] == pytest.approx(end_s, rel=EXACT)
            assert delivered_here[client] == scripts[client].size
        assert delivered_here == pytest.approx(delivered, rel=EXACT, abs=1e-8)
        assert carried_here == pytest.approx(carried, rel=EXACT, abs=1e-8)
        # Work is conserved: the link's own integral is what all flows got.
        assert carried_here == pytest.approx(sum(delivered_here), rel=EXACT, abs=1e-8)


@settings(max_examples=50, deadline=None)
@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_of_the_clients_changes_nothing(
    example: tuple[list[Script], float], random: object
) -> None:
    scripts, capacity = example
    order = list(range(len(scripts)))
    random.shuffle(order)  # type: ignore[attr-defined]
    ends, delivered, _ = emulated(single_link, scripts, capacity, "up")
    shuffled = emulated(single_link, [scripts[i] for i in order], capacity, "up")
    for place, client in enumerate(order):
        assert shuffled[0].get(place) == (
            pytest.approx(ends[client], rel=EXACT) if client in ends else None
        )
        assert shuffled[1][place] == pytest.approx(delivered[client], rel=EXACT, abs=1e-8)


# Errors


@pytest.mark.parametrize(
    ("down", "up", "latency", "text"),
    [
        ([1.0, 0.0], [1.0, 1.0], [0.0, 0.0], "down rate of client 1 is 0.0 B/s"),
        ([1.0, 1.0], [-3.0, 1.0], [0.0, 0.0], "up rate of client 0 is -3.0 B/s"),
        ([1.0, 1.0], [1.0, math.inf], [0.0, 0.0], "up rate of client 1 is inf B/s"),
        ([1.0, 1.0], [1.0, 1.0], [0.0, math.nan], "latency of client 1 is nan s"),
        ([1.0, 1.0], [1.0, 1.0], [0.0, -1.0], "latency of client 1 is -1.0 s"),
        ([1.0, 1.0], [1.0], [0.0, 0.0], "for 2, 1 and 2 clients"),
        ([[1.0]], [1.0], [0.0], "down rate has shape"),
    ],
)
def test_bad_access_links_are_named(down: list, up: list, latency: list, text: str) -> None:
    with pytest.raises(ScenarioError, match=text.replace(".", r"\.")):
        AccessLinks(down, up, latency)


@pytest.mark.parametrize("rate_Bps", [0.0, -1.0, math.inf, math.nan])
def test_bad_server_rates_are_named(rate_Bps: float) -> None:
    with pytest.raises(ScenarioError, match="server up rate"):
        SharedServerLink(Clock(), access_links(1), 1.0, rate_Bps)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rate_Bps": 0.0}, "edge 's' - 'a': rate_Bps is 0.0"),
        ({"rate_Bps": "fast"}, "rate_Bps is 'fast'"),
        ({"rate_Bps": None}, "rate_Bps is None"),
        ({"latency_s": -1.0}, "latency_s is -1.0; it must be finite and at least 0"),
        ({"latency_s": math.inf}, "latency_s is inf"),
    ],
)
def test_bad_edges_are_named(change: dict, text: str) -> None:
    graph = tree({("s", "a"): MB})
    graph.edges["s", "a"].update(change)
    with pytest.raises(ScenarioError, match=text.replace(".", r"\.")):
        Topology(Clock(), access_links(1), graph, "s", ["a"])


def test_nodes_that_the_server_does_not_reach_are_named() -> None:
    graph = tree({("s", "a"): MB, ("x", "y"): MB})
    for server, attachment, text in [
        ("s", ["a", "x"], "node 'x', to which client 1 is attached, has no path"),
        ("s", ["a", "q"], "node 'q', to which client 1 is attached, is not in it"),
        ("t", ["a", "a"], "the server's node 't' is not in the graph"),
        ("s", ["a"], "1 clients are attached to nodes, but 2 have access links"),
    ]:
        with pytest.raises(ScenarioError, match=text):
            Topology(Clock(), access_links(2), graph, server, attachment)


def test_misuse_is_an_internal_error() -> None:
    clock = Clock()
    network = single_link(clock, access_links(2), MB, MB)
    flow = network.start(0, "up", MB, lambda: None)
    with pytest.raises(InternalError, match="client 0 starts a transfer down at"):
        network.start(0, "down", MB, lambda: None)
    with pytest.raises(InternalError, match="client 1 has nan bytes"):
        network.start(1, "down", math.nan, lambda: None)
    with pytest.raises(InternalError, match="cannot be resumed: it is being served"):
        network.resume(flow)
    network.pause(flow)
    with pytest.raises(InternalError, match="cannot be stopped: it is paused"):
        network.pause(flow)
    network.abandon(flow)
    with pytest.raises(InternalError, match="cannot be stopped: it is over"):
        network.abandon(flow)
