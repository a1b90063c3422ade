"""Walkers on the clock: who goes where when, what is averaged, and what it weighs."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from commandline import Config, Lab, RunFiles, digits, timed

NOISE = {"dist": "lognormal", "median": 1.0, "sigma": 1.0}


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def fedseqinter(mode: str, walkers: int = 2, **options: Any) -> Config:
    if mode == "merge":
        options.setdefault("mixing", 0.5)
    return {"kind": "fedseqinter", "mode": mode, "walkers": walkers, **options}


def structure(size: int, **options: Any) -> Config:
    return {
        "kind": "superclients", "grouping": {"kind": "random", "min_samples": 10 * size},
        "hop": "p2p", "absent": {"kind": "swap", "timeout": "1 min"}, **options,
    }  # fmt: skip


def walks(
    mode: str, *, superclients: int = 6, size: int = 2, walkers: int = 2, training: Any = 10.0,
    noisy: bool = True, versions: int = 3, **options: Any,
) -> Config:  # fmt: skip
    devices = {"kind": "scripted", "training": training}
    if noisy:
        devices["noise"] = NOISE
    pacing = fedseqinter(mode, walkers, **options.pop("pacing", {}))
    config = timed(superclients * size, training, pacing, stop={"versions": versions}, **{
        "on_offline": "drop", "drop_notice": "at_once", **options})  # fmt: skip
    config["system"]["devices"] = devices
    config["federation"]["structure"] = structure(size)
    return config


def chains(run: RunFiles) -> list[dict[str, str]]:
    return run.table("chains")


def spans(run: RunFiles, walker: int) -> list[tuple[float, float]]:
    """When a walker was in a superclient, by what has been recorded."""
    ends = {event["chain"]: event["t"] for event in run.of("chain_end")}
    found = []
    for event in run.of("chain"):
        if event["walker"] == walker:
            found.append((event["t"], ends.get(event["chain"], math.inf)))
    return found


MODES = ("lockstep", "free_hops", "free_quota", "merge")


@pytest.mark.parametrize("mode", MODES)
def test_no_superclient_hosts_two_walkers(lab: Lab, mode: str) -> None:
    run = lab.run(walks(mode, walkers=4))
    hosts: dict[str, list[tuple[float, float]]] = {}
    ends = {event["chain"]: event["t"] for event in run.of("chain_end")}
    for event in run.of("chain"):
        hosts.setdefault(event["entity"], []).append(
            (event["t"], ends.get(event["chain"], math.inf))
        )
    for visits in hosts.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(visits)))
    for walker in range(4):
        assert all(before[1] <= after[0] for before, after in pairwise(spans(run, walker)))


@pytest.mark.parametrize("mode", ["lockstep", "free_hops"])
def test_every_walker_makes_as_many_hops_as_there_are_superclients(lab: Lab, mode: str) -> None:
    run = lab.run(walks(mode))
    assert run.column("versions", "updates") == ["12"] * 3
    for version in range(3):
        hops = [row["walker"] for row in chains(run) if row["version"] == str(version)]
        assert sorted(hops) == ["0"] * 6 + ["1"] * 6


def test_lockstep_hops_together(lab: Lab) -> None:
    run = lab.run(walks("lockstep"))
    begun = [event["t"] for event in run.of("chain")]
    assert begun[0::2] == begun[1::2]


def test_lockstep_lasts_the_sum_of_the_slower_chains(lab: Lab) -> None:
    """Superclients of one client, which trains as many seconds as it is written: what a round
    lasts is the longer of its two, whoever was drawn."""
    training = [float(3 + 2 * client) for client in range(6)]
    run = lab.run(walks("lockstep", size=1, training=training, noisy=False, versions=1))
    rounds: dict[float, list[int]] = {}
    for event in run.of("dispatch"):
        rounds.setdefault(event["t"], []).append(int(event["entity"].removeprefix("client/")))
    longest = [max(training[client] for client in clients) for clients in rounds.values()]
    assert run.times("versions") == pytest.approx([sum(longest)])


def test_free_hops_wait_only_for_the_last_hop(lab: Lab) -> None:
    """A walker's next chain begins at the instant at which its last ended; the average comes when
    the slower of the two has made its hops."""
    run = lab.run(walks("free_hops", versions=1))
    for walker in (0, 1):
        assert all(before[1] == after[0] for before, after in pairwise(spans(run, walker)))
    assert run.times("versions") == [max(spans(run, walker)[-1][1] for walker in (0, 1))]


@pytest.mark.parametrize("mode", ["free_hops", "free_quota", "merge"])
def test_walkers_go_out_of_sync(lab: Lab, mode: str) -> None:
    """At sigma = 1 there is an instant at which one has made more hops than the other."""
    run = lab.run(walks(mode, versions=1))
    hops, seen = {0: 0, 1: 0}, set()
    for event in run.of("chain_end"):
        hops[event["walker"]] += event["how"] == "uploaded"
        seen.add(hops[0] - hops[1])
    assert max(map(abs, seen)) >= 2


def test_free_quota_counts_all_hops_and_cuts_the_rest(lab: Lab) -> None:
    run = lab.run(walks("free_quota", superclients=9, walkers=3))
    assert run.column("versions", "updates") == ["27"] * 3
    cut = [row for row in chains(run) if row["outcome"] == "cancelled"]
    assert len(cut) == 6  # the two others, each time
    shares = [
        sum(row["walker"] == str(walker) and row["version"] == "0" for row in chains(run)
            if row["outcome"] == "reported")
        for walker in range(3)
    ]  # fmt: skip
    assert sum(shares) == 27
    assert len(set(shares)) > 1  # faster walkers get more weight
    for walker in range(3):  # all set out again at the instant of the average
        assert run.times("versions")[0] in [begun for begun, _ in spans(run, walker)]


def test_merge_never_finds_all_parked(lab: Lab) -> None:
    """No barrier: at any instant between the first and the last, somebody is in a superclient."""
    run = lab.run(walks("merge", versions=12))
    for walker in (0, 1):
        assert all(before[1] == after[0] for before, after in pairwise(spans(run, walker)))
    assert run.column("versions", "updates") == ["6"] * 12
    # Staleness is counted in merges since the walker set out; the two overtake each other.
    staleness = list(map(float, run.column("versions", "staleness_max")))
    assert staleness[0] == 0
    assert max(staleness) >= 1


def test_one_that_finds_nobody_free_is_parked(lab: Lab) -> None:
    """Two superclients of one client each. Client 1 trains 4 s and is offline from 5 s to 100 s;
    its second chain waits for it for a minute after the loss at 5 s, and is given up at 65 s. Then
    client 0 has another walker until 70 s, so that there is nobody to go to."""
    sessions = [[[0.0, 1000.0]], [[0.0, 5.0], [100.0, 1000.0]]]
    config = walks("free_hops", superclients=2, size=1, noisy=False, versions=1, sessions=sessions,
                   training=[10.0, 4.0], pacing={"hops": 20})  # fmt: skip
    run = lab.run(config)
    given_up = next(event for event in run.of("chain_end") if event["how"] == "given_up")
    assert given_up["t"] == 65.0
    assert run.of("parked")[0]["t"] == 65.0
    # Whoever waits and whoever comes are both sent on at 70 s, and one of them stays parked.
    assert next(event["t"] for event in run.of("chain") if event["t"] > 60) == 70.0


def test_virtual_average_between_two_averages(lab: Lab) -> None:
    """Evaluated after every second hop; the server's version stays while the accuracy moves."""
    config = digits(12, fedseqinter("free_hops"), versions=1)
    config["federation"]["structure"] = structure(2)
    config["federation"]["structure"]["grouping"]["min_samples"] = 200
    config["evaluation"] = {"every": {"hops": 2}}
    run = lab.run(config)
    accuracy = [row for row in run.table("metrics") if row["metric"] == "accuracy"]
    assert len(accuracy) > 4
    assert {row["version"] for row in accuracy[:-1]} == {"0"}
    values = [float(row["value"]) for row in accuracy]
    assert len(set(values)) == len(values)
    assert values[-1] > 0.5
    assert accuracy[-1]["version"] == "1"


POLICIES = (
    {"kind": "swap", "timeout": "2 min"}, {"kind": "skip", "timeout": "2 min"},
    {"kind": "wait", "timeout": "5 min"}, {"kind": "abort"},
)  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: str(policy["kind"]))
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("hop", ["p2p", "relay"])
def test_phones_that_come_and_go(lab: Lab, mode: str, policy: Config, hop: str) -> None:
    """A chain ends once, also one that is cut while it waits for somebody."""
    config = walks(mode, superclients=20, size=3, walkers=6, versions=6, pacing={"hops": 4})
    config["system"]["availability"] = {"kind": "phones", "duty": 0.5}
    config["federation"]["structure"] |= {"absent": policy, "hop": hop}
    run = lab.run(config)
    ended = [event["chain"] for event in run.of("chain_end")]
    assert len(ended) == len(set(ended))
    assert len(run.of("absent")) + len(run.of("chain_end")) > 0


@pytest.mark.parametrize("mode", MODES)
def test_chains_that_are_given_up_send_their_walker_back(lab: Lab, mode: str) -> None:
    """Nothing gets lost from the books, and walkers go on."""
    config = walks(mode, versions=4, task_failure=0.1)
    config["federation"]["structure"]["absent"] = {"kind": "abort"}
    run = lab.run(config)
    given_up = [row for row in chains(run) if row["outcome"] == "discarded"]
    assert given_up
    assert len(run.table("versions")) == 4
