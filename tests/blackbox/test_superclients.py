"""Chains on the clock, to the second and to the byte: who trains, from whom, and what it carries.

Every client trains 10 s and every link carries the model, 1 MB, in 1 s, so that a chain of three
that nothing comes between is over after 34 s from client to client, and after 36 s by the server.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from commandline import Config, Lab, RunFiles, buffered, links, synchronous, timed

SIZE = 1_000_000


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def superclients(
    *, size: int = 3, hop: str = "p2p", absent: Config | None = None, **options: Any
) -> Config:
    """Groups of so many clients of 10 samples each."""
    return {
        "kind": "superclients",
        "grouping": {"kind": "random", "min_samples": 10 * size},
        "hop": hop,
        "absent": absent or {"kind": "abort"},
        **options,
    }


def chained(clients: int = 3, pacing: Config | None = None, **options: Any) -> Config:
    """One superclient a round, one round, unless said otherwise."""
    structure = options.pop("structure", superclients())
    stop = options.pop("stop", {"versions": 1})
    network = options.pop("network", links(down="1 MB/s", up="1 MB/s"))
    config = timed(
        clients, options.pop("training", 10.0), pacing or synchronous(1), network=network,
        stop=stop, **{"on_offline": "drop", "drop_notice": "at_once", **options},
    )  # fmt: skip
    config["federation"]["structure"] = structure
    return config


def ends(run: RunFiles) -> list[Config]:
    return run.of("chain_end")


def order_of(lab: Lab, **options: Any) -> list[int]:
    """The members in the order of the first chain's first pass."""
    run = lab.run(chained(**options), out="order")
    found: list[int] = ends(run)[0]["provenance"]
    return found


def sessions(order: list[int], **of_member: list[list[float]]) -> list[list[list[float]]]:
    """When the members a, b and c of the first pass are online; always, if not said."""
    found: list[list[list[float]]] = [[[0.0, 1000.0]] for _ in order]
    for letter, own in of_member.items():
        found[order["abc".index(letter)]] = own
    return found


AWAY = [[0.0, 15.0], [40.0, 1000.0]]
"""Goes offline while it trains on the model, and is back at 40 s."""
LATE = [[0.0, 5.0], [40.0, 1000.0]]
"""Is not online when its turn comes."""

# (hop, absent, who is online when, uploaded at or None, provenance, members left out)
T22: dict[str, tuple[str, Config, Config, float | None, str, int]] = {
    "nothing comes between": ("p2p", {"kind": "abort"}, {}, 34, "abc", 0),
    "nothing comes between, relay": ("relay", {"kind": "abort"}, {}, 36, "abc", 0),
    # Lost at 15 s, waited for until 20 s; then a, who still has its model, sends it to c.
    "skip": ("p2p", {"kind": "skip", "timeout": 5.0}, {"b": AWAY}, 32, "ac", 1),
    "skip, relay": ("relay", {"kind": "skip", "timeout": 5.0}, {"b": AWAY}, 32, "ac", 1),
    # Back at 40 s, in time, with the model that it had received: 50 s, and c as always.
    "skip, back in time": ("p2p", {"kind": "skip", "timeout": 25.0}, {"b": AWAY}, 62, "abc", 0),
    "skip, back too late": ("p2p", {"kind": "skip", "timeout": 24.9}, {"b": AWAY}, 51.9, "ac", 1),
    # By the server it must be downloaded again: 41, 51, up at 52; c is over at 64.
    "skip, back in time, relay": (
        "relay", {"kind": "skip", "timeout": 25.0}, {"b": AWAY}, 64, "abc", 0,
    ),
    "wait": ("p2p", {"kind": "wait"}, {"b": AWAY}, 62, "abc", 0),
    "wait, given up": ("p2p", {"kind": "wait", "timeout": 5.0}, {"b": AWAY}, None, "a", 0),
    "abort": ("p2p", {"kind": "abort"}, {"b": AWAY}, None, "a", 0),
    # c takes the turn at 15 s, from a; at 26 s only b is left, and comes at 40 s: c sends to it.
    "swap": ("p2p", {"kind": "swap", "timeout": 14.0}, {"b": AWAY}, 52, "acb", 0),
    # b is left out at 31 s, and c brings home what it did not know to be the last.
    "swap, then out": ("p2p", {"kind": "swap", "timeout": 5.0}, {"b": AWAY}, 32, "ac", 1),
    "skip at its turn": ("p2p", {"kind": "skip", "timeout": 0.0}, {"b": LATE}, 23, "ac", 1),
    # The server begins with b, which is there; then it is the turn of a, which is still away.
    "abort, the first is late": ("p2p", {"kind": "abort"}, {"a": [[40.0, 1000.0]]}, None, "b", 0),
    "wait at its turn": ("p2p", {"kind": "wait"}, {"b": LATE}, 63, "abc", 0),
    "abort at its turn": ("p2p", {"kind": "abort"}, {"b": LATE}, None, "a", 0),
    "swap at its turn": ("p2p", {"kind": "swap", "timeout": 18.0}, {"b": LATE}, 52, "acb", 0),
    # The first is not there: the others go before it, as it comes only at 40 s.
    "the first is late": (
        "p2p", {"kind": "swap", "timeout": 60.0}, {"a": [[40.0, 1000.0]]}, 52, "bca", 0,
    ),
    # a goes offline in the middle of its transfer to b, at 11.5 s. Nobody else has the model.
    "the sender goes": (
        "p2p", {"kind": "skip", "timeout": 5.0}, {"a": [[0.0, 11.5], [30.0, 1000.0]]}, None, "a", 0,
    ),
    # It is back at 30 s and sends again: 31, 41, 42, 52, 53.
    "the sender is waited for": (
        "p2p", {"kind": "wait"}, {"a": [[0.0, 11.5], [30.0, 1000.0]]}, 53, "abc", 0,
    ),
    # Nobody needs a any more once b has the model.
    "who has handed on may go": (
        "p2p", {"kind": "abort"}, {"a": [[0.0, 12.0]]}, 34, "abc", 0,
    ),
    # c, the last, goes offline while it uploads, at 33.5 s: what it has trained is gone, what it
    # received it still has. Back at 40 s: 50, 51.
    "lost while uploading": (
        "p2p", {"kind": "wait"}, {"c": [[0.0, 33.5], [40.0, 1000.0]]}, 51, "abc", 0,
    ),
    # a goes twice while it sends to b, which was there all the time and is not to blame: 61, 71.
    "the sender goes twice": (
        "p2p", {"kind": "wait"}, {"a": [[0.0, 11.5], [30.0, 30.5], [60.0, 1000.0]]}, 83, "abc", 0,
    ),
    # b is never there together with a, who has the model; nor with anybody else.
    "two that never meet": (
        "p2p", {"kind": "skip", "timeout": 5.0}, {"a": [[0.0, 12.0]], "b": [[50.0, 90.0]]}, None,
        "a", 0,
    ),
    # a is lost at 5 s and trains anew from 6 s to 16 s; b, lost at 20 s, is left out at 25 s, and c
    # at 30 s. a brings its model home, is lost on the way at 30.5 s, and tries again at 33 s.
    "lost while bringing home": (
        "p2p", {"kind": "skip", "timeout": 5.0},
        {"a": [[0.0, 5.0], [6.0, 30.5], [33.0, 1000.0]], "b": [[0.0, 20.0]], "c": [[0.0, 5.0]]},
        34, "a", 2,
    ),
    # b is lost twice, at 15 s and at 45 s, and then left out for good: a sends to c.
    "lost twice": (
        "p2p", {"kind": "wait"}, {"b": [[0.0, 15.0], [40.0, 45.0], [60.0, 1000.0]]}, 57, "ac", 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", T22)
def test_a_member_is_absent(lab: Lab, case: str) -> None:
    """T22: each policy, with exact times; the log says whose model went on."""
    hop, absent, online, uploaded_s, provenance, left_out = T22[case]
    order = order_of(lab)
    structure = superclients(hop=hop, absent=absent)
    # A chain that is given up ends its round, which fails; no other is begun before 100 s.
    stop = {"sim_time": 95.0, "versions": 1}
    config = chained(structure=structure, sessions=sessions(order, **online), stop=stop)
    run = lab.run(config)
    first = ends(run)[0]
    assert first["provenance"] == [order["abc".index(letter)] for letter in provenance]
    assert len(run.of("left_out")) == left_out or uploaded_s is None
    if uploaded_s is None:
        assert first["how"] == "given_up"
        assert run.table("chains")[0]["outcome"] == "discarded"
        trained = [row for row in run.table("updates") if row["chain"] == "0"]
        assert "discarded" in [row["outcome"] for row in trained]
    else:
        assert first["how"] == "uploaded"
        assert first["t"] == pytest.approx(uploaded_s, abs=1e-9)
        assert run.times("versions") == [first["t"]]
        assert run.table("chains")[0]["left_out"] == str(left_out)


def test_whose_model_a_member_got(lab: Lab) -> None:
    order = order_of(lab)
    structure = superclients(absent={"kind": "swap", "timeout": 14.0})
    run = lab.run(chained(structure=structure, sessions=sessions(order, b=AWAY)))
    a, b, c = order
    tasks = [event for event in run.of("dispatch") if event.get("chain") == 0]
    said = [(task["entity"], task["source"]) for task in tasks]
    assert said == [
        (f"client/{a}", "server"), (f"client/{b}", f"client/{a}"),
        (f"client/{c}", f"client/{a}"), (f"client/{b}", f"client/{c}"),
    ]  # fmt: skip
    # What was trained last is what the chain brought.
    assert ends(run)[0]["model"] == tasks[-1]["update"]


def test_a_pause_stretches_a_turn(lab: Lab) -> None:
    """b has trained 3 s of 10 when it goes offline at 15 s, and goes on at 40 s."""
    order = order_of(lab)
    structure = superclients(absent={"kind": "abort"})
    config = chained(structure=structure, sessions=sessions(order, b=AWAY), on_offline="pause")
    run = lab.run(config)
    assert run.times("versions") == pytest.approx([47 + 12])


def test_a_pause_of_the_sender_stretches_a_hop(lab: Lab) -> None:
    """Half of a's model has come to b when a goes offline; the rest comes from 30 s on."""
    order = order_of(lab)
    structure = superclients(absent={"kind": "abort"})
    online = sessions(order, a=[[0.0, 11.5], [30.0, 1000.0]])
    run = lab.run(chained(structure=structure, sessions=online, on_offline="pause"))
    b = run.tasks(order[1])[0]
    assert float(b["downloaded_s"]) == pytest.approx(30.5)
    assert run.times("versions") == pytest.approx([30.5 + 10 + 11 + 1])


def test_a_hop_takes_both_latencies_and_the_slower_link(lab: Lab) -> None:
    """1 MB from an uplink of 0.5 MB/s to a downlink of 0.25 MB/s or 2 MB/s, latencies 0.25 s."""
    order = order_of(lab)
    a, b, c = order
    down, up = [""] * 3, [""] * 3
    down[a], up[a] = "1 MB/s", "0.5 MB/s"
    down[b], up[b] = "0.25 MB/s", "1 MB/s"
    down[c], up[c] = "2 MB/s", "4 MB/s"
    network = {"client": {"down": down, "up": up, "latency": "250 ms"}}
    run = lab.run(chained(network=network))
    at = [float(run.tasks(client)[0]["downloaded_s"]) for client in order]
    to_b, to_c = 0.5 + 1 / 0.25, 0.5 + 1 / 1
    assert at == pytest.approx([1.25, 11.25 + to_b, 21.25 + to_b + to_c])
    assert run.times("versions") == pytest.approx([31.25 + to_b + to_c + 0.25 + 0.25])


def test_hops_leave_the_shared_server_link_alone(lab: Lab) -> None:
    """Two chains at once: only their first downloads and last uploads share 1 MB/s."""
    network = links(down="1 MB/s", up="1 MB/s", server="1 MB/s")
    run = lab.run(chained(6, synchronous(2), network=network))
    assert run.times("versions") == pytest.approx([2 + 10 + 11 + 11 + 2])


def bytes_of(run: RunFiles) -> tuple[int, int, int, int]:
    """(server down, server up, devices down, devices up)."""
    updates = run.table("updates")
    totals = [sum(int(row[way]) for row in updates) for way in ("bytes_down", "bytes_up")]
    versions = run.table("versions")
    server = [sum(int(row[way]) for row in versions) for way in ("bytes_down", "bytes_up")]
    return server[0], server[1], totals[0], totals[1]


@pytest.mark.parametrize("passes", [1, 2, 3])
@pytest.mark.parametrize("size", [2, 5])
def test_bytes_from_client_to_client(lab: Lab, size: int, passes: int) -> None:
    """1 down from the server, 1 up to it, and K_S · E_S − 1 between clients, less those where the
    last of a pass is the first of the next and has the model already."""
    structure = superclients(size=size, passes=passes)
    run = lab.run(chained(size, structure=structure))
    clients = ends(run)[0]["provenance"]
    assert len(clients) == size * passes
    assert all(sorted(clients[i : i + size]) == list(range(size))
               for i in range(0, size * passes, size))  # fmt: skip
    hops = sum(one != other for one, other in pairwise(clients))
    assert bytes_of(run) == (SIZE, SIZE, (1 + hops) * SIZE, (1 + hops) * SIZE)
    assert run.times("versions") == pytest.approx([2 + 10 * size * passes + hops])


@pytest.mark.parametrize("passes", [1, 2])
def test_bytes_by_the_server(lab: Lab, passes: int) -> None:
    """Each of K_S · E_S turns is a download and an upload of the server."""
    turns = 5 * passes
    structure = superclients(size=5, hop="relay", passes=passes)
    run = lab.run(chained(5, structure=structure))
    assert bytes_of(run) == (turns * SIZE,) * 4
    assert run.times("versions") == pytest.approx([12 * turns])


def test_headers_travel_with_every_hop(lab: Lab) -> None:
    config = chained()
    config["federation"]["payload"] = {"kind": "full", "header": "500 B"}
    assert bytes_of(lab.run(config)) == (SIZE + 500, SIZE + 500, 3 * SIZE + 1500, 3 * SIZE + 1500)


def test_a_transfer_that_breaks_is_charged_to_both(lab: Lab) -> None:
    """a goes offline when half of its model has come to b."""
    order = order_of(lab)
    structure = superclients(absent={"kind": "wait"})
    online = sessions(order, a=[[0.0, 11.5], [30.0, 1000.0]])
    run = lab.run(chained(structure=structure, sessions=online))
    a, b = run.tasks(order[0])[0], run.tasks(order[1])[0]
    assert b["outcome"] == "dropped_download"
    assert (int(b["bytes_down"]), int(a["bytes_up"])) == (SIZE // 2, SIZE + SIZE // 2)
    busy = dict(zip(run.column("clients", "client"), run.times("clients", "busy_s"), strict=True))
    assert busy[str(order[0])] == pytest.approx(1 + 10 + 0.5 + 1)
    assert busy[str(order[1])] == pytest.approx(0.5 + 1 + 10 + 1)


def test_over_commitment_of_superclients(lab: Lab) -> None:
    """Of 4 asked the 2 first count; the others' members hear at once that they may stop."""
    training = [10.0 + client for client in range(12)]
    pacing = synchronous(2, over_commitment=2.0)
    run = lab.run(chained(12, pacing, training=training))
    assert (
        sorted(row["outcome"] for row in run.table("chains"))
        == ["cancelled"] * 2 + ["reported"] * 2
    )
    by_chain = {row["chain"]: row["outcome"] for row in run.table("chains")}
    assert all(row["outcome"] == by_chain[row["chain"]] for row in run.table("updates"))
    done = sorted(float(end["t"]) for end in ends(run))
    assert run.times("versions") == [done[1]] == [done[2]] == [done[3]]


def test_buffered_pacing_counts_superclients(lab: Lab) -> None:
    training = [10.0 + client for client in range(12)]
    run = lab.run(chained(12, buffered(3, 2), training=training, stop={"versions": 6}))
    assert set(run.column("versions", "updates")) == {"2"}
    assert max(map(float, run.column("versions", "staleness_max"))) >= 1


@pytest.mark.parametrize(("fraction", "asked"), [(0.2, 2), (0.29, 2), (0.3, 3), (0.01, 1)])
def test_a_fraction_of_the_superclients(lab: Lab, fraction: float, asked: int) -> None:
    """max(floor(C · N_S), 1), of the decimal product: 0.29 of 10 are 2."""
    pacing = {"kind": "synchronous", "fraction": fraction, "deadline": "none"}
    run = lab.run(chained(30, pacing))
    assert run.of("round")[0]["asked"] == asked


def test_the_papers_setting_makes_62_superclients(lab: Lab) -> None:
    """K = 500 clients of 100 images: groups of 8, 4 clients left over; 12 of 62 a round."""
    structure = superclients(size=80)
    pacing = {"kind": "synchronous", "fraction": 0.2, "deadline": "none"}
    config = chained(500, pacing, structure=structure)
    config["task"]["dataset"]["samples_per_client"] = 100
    run = lab.run(config)
    sizes = [int(size) for size in run.column("superclients", "clients")]
    assert (len(sizes), sizes.count(8), sizes.count(9)) == (62, 58, 4)
    assert run.of("round")[0]["asked"] == 12


def test_more_superclients_than_there_are(lab: Lab) -> None:
    said = lab.failed_run(chained(12, synchronous(5)))
    assert "5" in said
    assert "4 superclients" in said


@pytest.mark.parametrize(("hop", "last_s"), [("p2p", 34.0), ("relay", 36.0)])
def test_a_chain_that_is_over_at_the_deadline_counts(lab: Lab, hop: str, last_s: float) -> None:
    """At one instant an upload comes before the deadline, also the last of a chain."""
    structure = superclients(hop=hop)
    pacing = synchronous(1, deadline=f"{last_s} s")
    run = lab.run(chained(structure=structure, pacing=pacing))
    assert [(row["outcome"], float(row["uploaded_s"])) for row in run.table("chains")] == [
        ("reported", last_s)
    ]
    assert run.times("versions") == [last_s]


@pytest.mark.parametrize("hop", ["p2p", "relay"])
def test_chains_that_end_together(lab: Lab, hop: str) -> None:
    """Two end at one instant and one is wanted: the other was not told to stop, but comes late."""
    pacing = synchronous(1, over_commitment=2.0)
    run = lab.run(chained(6, pacing, structure=superclients(hop=hop)))
    assert sorted(row["outcome"] for row in run.table("chains")) == ["late", "reported"]


def test_a_delivery_does_not_fail_like_a_training(lab: Lab) -> None:
    """Tasks that fail do so while they train; one that only hands on has nothing to fail in."""
    structure = superclients(absent={"kind": "skip", "timeout": 0.0})
    seeds = range(1, 40)
    deliveries = []
    for seed in seeds:
        config = {**chained(structure=structure, task_failure=0.4), "seed": seed}
        run = lab.run(config, "--restart")
        deliveries += [row for row in run.table("updates") if row["phase"] == "delivery"]
    assert len(deliveries) > 3
    assert {row["outcome"] for row in deliveries} == {"reported"}


def test_a_given_up_chain_shifts_nobodys_draws(lab: Lab) -> None:
    """The next chain from the same version begins like the first: with the same member."""
    order = order_of(lab)
    online = sessions(order, b=AWAY)
    run = lab.run(chained(pacing=buffered(1, 1), sessions=online))
    assert [end["how"] for end in ends(run)] == ["given_up"] * 3 + ["uploaded"]
    begun = {event["chain"]: event["entity"] for event in reversed(run.of("dispatch"))}
    assert list(begun.values()) == [f"client/{order[0]}"] * 4


def test_a_member_without_samples_hands_on_to_itself(lab: Lab) -> None:
    """With several passes the last of one may be the first of the next: nothing has to move."""
    structure = superclients(size=1, passes=3)
    config = chained(1, structure=structure, training=1e-9)
    assert len(ends(lab.run(config))[0]["provenance"]) == 3


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_phones_that_are_never_online_together(lab: Lab, seed: int) -> None:
    """The search for an instant at which two are there comes to an end; who waits for them without
    a timeout waits for ever, and the run says so."""
    for absent in ({"kind": "skip", "timeout": 600.0}, {"kind": "wait"}):
        structure = superclients(size=6, absent=absent)
        config = chained(60, buffered(2, 1), structure=structure, stop={"sim_time": "3 d"})
        config["system"]["availability"] = {"kind": "phones"}
        said = lab.try_run({**config, "seed": seed}, "--restart")
        if absent["kind"] == "skip":
            assert said.exit_code == 0, said
        else:
            assert said.exit_code == 0 or "nothing is left to happen" in said.err, said


def test_failures_while_holding_the_model(lab: Lab) -> None:
    """Tasks that fail at random are begun again, once; nothing is lost from the books."""
    structure = superclients(absent={"kind": "swap", "timeout": 5.0})
    run = lab.run(
        chained(30, synchronous(3), structure=structure, stop={"versions": 20}, task_failure=0.3)
    )
    outcomes = run.column("updates", "outcome")
    assert outcomes.count("dropped_training") > 20
    assert len(run.of("left_out")) > 0
