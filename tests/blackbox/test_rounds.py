"""When versions are made and of what, to the second, where every time is scripted."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from commandline import Config, Lab, RunFiles, buffered, digits, links, synchronous, timed

# --- buffered pacing ----------------------------------------------------------------------------


def test_versions_come_when_their_uploads_do(lab: Lab) -> None:
    # Each client has the time for one task: client 1 is done at 1 s, client 0 at 3 s.
    run = lab.run(
        timed(
            2,
            [3, 1],
            buffered(2, 1),
            sessions=[[[0, 3]], [[0, 1]]],
            at_end="end",
            stop={"versions": 2},
        )
    )
    assert run.times("versions") == [1.0, 3.0]
    assert [event["tasks"] for event in run.of("aggregate")] == [[1], [0]]
    assert [event["t"] for event in run.of("upload")] == [1.0, 3.0]
    # Client 0 downloaded version 0, and version 1 came before its upload.
    assert run.column("versions", "staleness_max") == ["0", "1"]
    assert [run.tasks(client)[0]["staleness"] for client in (0, 1)] == ["1", "0"]


def test_the_log_does_not_know_the_future(lab: Lab) -> None:
    pacing, stop = buffered(2, 1), {"sim_time": 10}
    soon = lab.run(timed(2, [3, 1], pacing, stop=stop), out="soon")
    later = lab.run(timed(2, [300, 1], pacing, stop=stop), out="later")
    before_3_s = [line for line in soon.lines("events.jsonl") if _t(line) < 3]
    assert len(before_3_s) > 6
    assert before_3_s == [line for line in later.lines("events.jsonl") if _t(line) < 3]


def _t(line: str) -> float:
    return float(line.removeprefix('{"t":').partition(",")[0])


def test_uploads_of_one_instant_are_taken_in_client_order(lab: Lab) -> None:
    # Client 1 uploads at 1, 2 and 3 s, client 0 at 3 s: there versions 3 (client 0's, which
    # downloaded version 0 and missed versions 1 and 2) and 4 (client 1's, version 2, missed 3).
    run = lab.run(timed(2, [3, 1], buffered(2, 1), stop={"versions": 4}))
    assert run.times("versions") == [1.0, 2.0, 3.0, 3.0]
    assert [event["tasks"] for event in run.of("aggregate")] == [[1], [2], [0], [3]]
    assert run.column("versions", "staleness_max") == ["0", "0", "2", "1"]


def test_a_buffer_that_can_never_fill_is_refused(lab: Lab) -> None:
    said = lab.failed_run(timed(8, 1, buffered(4, 8, refill="at_aggregation")))
    assert "can never fill" in said
    assert "buffer of 8" in said
    assert "4 clients are in flight" in said
    assert not (lab.folder / "run").exists()


def test_a_buffer_larger_than_what_is_in_flight_fills_when_slots_are_refilled_at_once(
    lab: Lab,
) -> None:
    # 4 uploads at 1 s and 4 at 2 s: the buffer of 6 fills at 2 s, and the two uploads left over
    # meet the next 4 at 3 s; those two downloaded version 0, the 4 downloaded version 1.
    run = lab.run(timed(4, 1, buffered(4, 6), stop={"versions": 2}))
    assert run.times("versions") == [2.0, 3.0]
    assert run.column("versions", "updates") == ["6", "6"]
    assert [float(cell) for cell in run.column("versions", "staleness_mean")] == [0.0, 2 / 6]


def test_refill_at_aggregation_waits_for_the_version(lab: Lab) -> None:
    # Uploads at 1 and 3 s make version 1; only then both start again.
    run = lab.run(timed(2, [1, 3], buffered(2, 2, refill="at_aggregation"), stop={"versions": 2}))
    assert run.times("versions") == [3.0, 6.0]
    assert [event["t"] for event in run.of("dispatch")] == [0.0, 0.0, 3.0, 3.0]
    assert run.column("updates", "staleness") == ["0"] * 4


def test_staleness_is_counted_in_versions_from_the_download(lab: Lab) -> None:
    # Client c comes at c + 1 s, and a task takes 4 s: from then on an upload a second, each one
    # a version. Whoever starts at version v uploads after 3 others have been merged.
    run = lab.run(
        timed(
            4,
            4,
            buffered(4, 1),
            sessions=[[[c + 1, 1000]] for c in range(4)],
            stop={"versions": 24},
        )
    )
    assert run.times("versions") == [5.0 + n for n in range(24)]
    staleness = [int(cell) for cell in run.column("versions", "staleness_max")]
    # The first three started before there was any version.
    assert staleness == [0, 1, 2] + [3] * 21
    reported = [row for row in run.table("updates") if row["outcome"] == "reported"]
    histogram = Counter(int(row["staleness"]) for row in reported)
    assert sum(histogram.values()) == 24
    assert min(histogram) == 0


def test_an_upload_that_is_too_stale_is_discarded(lab: Lab) -> None:
    # Client 0 makes a version a second; client 1 uploads at 5.5 s, after versions 1 to 5.
    run = lab.run(timed(2, [1, 5.5], buffered(2, 1, max_staleness=4), stop={"versions": 7}))
    assert run.times("versions") == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    stale = run.tasks(1)[0]
    assert (stale["outcome"], stale["uploaded_s"], stale["wasted_s"]) == ("discarded", "5.5", "5.5")
    assert run.tasks(1)[1]["dispatched_s"] == "5.5"
    kept = lab.run(
        timed(2, [1, 5.5], buffered(2, 1, max_staleness=5), stop={"versions": 7}), out="kept"
    )
    assert kept.times("versions") == [1.0, 2.0, 3.0, 4.0, 5.0, 5.5, 6.0]


def test_a_free_slot_is_filled_when_a_client_checks_in(lab: Lab) -> None:
    # Two clients are there for three slots; the third comes at 50 s. Nobody is asked in between.
    sessions = [[[0, 1000]], [[0, 1000]], [[50, 1000]]]
    config = timed(3, 40, buffered(3, 3), sessions=sessions, stop={"versions": 1})
    run = lab.run(config)
    assert [(e["t"], e["entity"]) for e in run.of("dispatch")] == [
        (0.0, "client/0"),
        (0.0, "client/1"),
        (40.0, "client/0"),
        (40.0, "client/1"),
        (50.0, "client/2"),
    ]
    assert run.times("versions") == [80.0]


def test_every_version_is_evaluated_once(lab: Lab) -> None:
    # Two uploads at 10 s make versions 1 and 2, each measured before the next one takes its place.
    run = lab.run(timed(2, 10, buffered(2, 1), stop={"versions": 4}))
    assert run.times("versions") == [10.0, 10.0, 20.0, 20.0]
    evaluated = [(event["t"], event["version"]) for event in run.of("evaluate")]
    assert evaluated == [(0.0, 0), (10.0, 1), (10.0, 2), (20.0, 3), (20.0, 4)]


def test_queued_tasks_wait_their_turn(lab: Lab) -> None:
    # One device, three tasks at a time: it works them off one after the other.
    config = timed(1, 1, buffered(3, 3, refill="at_aggregation"), stop={"versions": 2})
    config["federation"]["selection"] = {"kind": "random", "busy": "queue"}
    run = lab.run(config)
    assert run.times("versions") == [3.0, 6.0]
    assert run.times("updates", "uploaded_s") == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_who_has_uploaded_rests_before_it_is_asked_again(lab: Lab) -> None:
    # Client 0 trains for 1 s and client 1 for 2 s, then each rests for 10 s: versions come with
    # every upload. Client 1 goes offline at 13 s, drops its task, and rests no more at 15 s.
    sessions = [[[0, 1000]], [[0, 13], [15, 1000]]]
    config = timed(2, [1, 2], buffered(2, 1), sessions=sessions, stop={"versions": 5})
    config["federation"]["selection"] = {"kind": "random", "rest": "10 s"}
    run = lab.run(config)
    asked = [(event["t"], event["entity"]) for event in run.of("dispatch")]
    assert asked == [
        (0.0, "client/0"), (0.0, "client/1"), (11.0, "client/0"), (12.0, "client/1"),
        (15.0, "client/1"), (22.0, "client/0"),
    ]  # fmt: skip
    assert run.times("versions") == [1.0, 2.0, 12.0, 17.0, 23.0]


def test_rounds_wait_for_those_who_rest(lab: Lab) -> None:
    # Both report by 2 s; client 1 has rested at 12 s, and only then there are two.
    config = timed(2, [1, 2], synchronous(2), stop={"versions": 3})
    config["federation"]["selection"] = {"kind": "random", "rest": "10 s"}
    run = lab.run(config)
    assert run.times("versions") == [2.0, 14.0, 26.0]
    assert [(event["t"], event["online"]) for event in run.of("wait")] == [
        (2.0, 0), (11.0, 1), (14.0, 0), (23.0, 1),
    ]  # fmt: skip


def test_rests_that_end_at_one_instant_end_for_all(lab: Lab) -> None:
    # Four train for 1 s and rest for 10 s: whoever may be asked is asked, all four each time.
    config = timed(4, [1, 1, 1, 1], synchronous(4, too_few="proceed"), stop={"versions": 4})
    config["federation"]["selection"] = {"kind": "random", "rest": "10 s"}
    run = lab.run(config)
    asked = [(event["t"], event["entity"]) for event in run.of("dispatch")]
    assert asked == [(t, f"client/{c}") for t in (0.0, 11.0, 22.0, 33.0) for c in range(4)]


def test_those_who_have_rested_are_chosen_alike(lab: Lab) -> None:
    # Ten of 16 are asked and two counted; the other eight are cancelled at one instant.
    pacing = synchronous(2, over_commitment=5.0)
    config = timed(16, [1] * 16, pacing, stop={"versions": 300})
    config["federation"]["selection"] = {"kind": "random", "rest": "10 s"}
    run = lab.run(config)
    often = Counter(event["entity"] for event in run.of("dispatch"))
    assert len(often) == 16
    assert max(often.values()) < 1.3 * min(often.values())


@pytest.mark.parametrize("structure", ["cohorts", "superclients"])
def test_rest_goes_with_clients_that_the_server_asks(lab: Lab, structure: str) -> None:
    config = timed(8, 1, synchronous(2))
    config["federation"]["selection"] = {"kind": "random", "rest": "10 s"}
    config["federation"]["structure"] = {"kind": structure} | (
        {"clustering": {"kind": "auxo", "max_cohorts": 1}} if structure == "cohorts" else
        {"grouping": {"kind": "random", "min_samples": 1, "max_clients": 2}, "hop": "relay",
         "absent": {"kind": "wait"}}
    )  # fmt: skip
    assert f"federation.selection.rest with structure '{structure}'" in lab.failed_run(config)


def test_a_run_in_which_nothing_is_left_to_happen_says_who_waits(lab: Lab) -> None:
    # Uploads at 1 to 5 s, and then the only client is gone for good.
    config = timed(1, 1, buffered(1, 10), sessions=[[[0, 5]]], at_end="end")
    said = lab.failed_run(config, exit_code=1)
    assert "nothing is left to happen at simulated time 5.0 s" in said
    assert "5 more uploads for its buffer of 10, 0 of 1 clients in flight" in said
    run = RunFiles(lab.folder / "run")
    assert run.manifest["status"] == "failed"
    assert [event["t"] for event in run.of("upload")] == [1.0, 2.0, 3.0, 4.0, 5.0]


# --- rounds -------------------------------------------------------------------------------------

NINE_AND_A_STRAGGLER = [1, 2, 3, 4, 5, 6, 7, 8, 9, 100]


def test_a_round_closes_at_its_deadline_and_not_at_the_next_arrival(lab: Lab) -> None:
    run = lab.run(
        timed(
            10,
            [*range(1, 10), 1e9],
            synchronous(10, deadline="60 s", min_updates=9),
            stop={"versions": 2},
        )
    )
    assert run.times("versions") == [60.0, 120.0]
    assert run.column("versions", "updates") == ["9", "9"]
    assert run.times("versions", "round_duration_s") == [60.0, 60.0]
    # Told to stop at the deadline, after 60 s of work for nothing; so again in the next round.
    assert [(row["outcome"], row["wasted_s"]) for row in run.tasks(9)] == [("late", "60.0")] * 2
    assert [event["t"] for event in run.of("end")] == [60.0, 120.0]


def test_an_upload_at_the_very_deadline_counts(lab: Lab) -> None:
    run = lab.run(timed(3, [1, 60, 60.5], synchronous(3, deadline="60 s"), stop={"versions": 1}))
    assert run.times("versions") == [60.0]
    assert [run.tasks(c)[0]["outcome"] for c in range(3)] == ["reported", "reported", "late"]


@pytest.mark.parametrize(
    ("too_few", "starts", "ends"),
    [
        # 9 are idle at 60 s, and the round asks for 10: it waits until the straggler is done ...
        ("wait", [0.0, 100.0], [60.0, 160.0]),
        # ... or goes ahead without it, and is over when the last of the 9 has reported.
        ("proceed", [0.0, 60.0], [60.0, 69.0]),
    ],
)
def test_a_straggler_that_may_finish_is_busy_until_then(
    lab: Lab, too_few: str, starts: list[float], ends: list[float]
) -> None:
    pacing = synchronous(10, deadline="60 s", stragglers="finish", too_few=too_few)
    run = lab.run(timed(10, NINE_AND_A_STRAGGLER, pacing, stop={"versions": 2, "sim_time": 200}))
    assert [event["t"] for event in run.of("round")][:2] == starts
    assert run.times("versions") == ends
    straggler = run.tasks(9)[0]
    if too_few == "wait":
        assert (straggler["outcome"], straggler["uploaded_s"]) == ("late", "100.0")
        assert straggler["wasted_s"] == "100.0"
    else:
        assert (straggler["outcome"], straggler["uploaded_s"]) == ("in_flight", "")


@pytest.mark.parametrize(
    ("stragglers", "outcome", "uploaded_s", "wasted_s"),
    [("cancel", "cancelled", "", "2.0"), ("finish", "late", "3.0", "3.0")],
)
def test_a_round_closes_with_the_upload_it_wanted(
    lab: Lab, stragglers: str, outcome: str, uploaded_s: str, wasted_s: str
) -> None:
    # floor(2 × 1.5) = 3 are asked and two are wanted: the round closes at 2 s. The second one
    # begins at 2 s where the third client was told to stop, and at 3 s where it was not.
    pacing = synchronous(2, over_commitment=1.5, stragglers=stragglers)
    run = lab.run(timed(3, [1, 2, 3], pacing, stop={"versions": 2}))
    assert run.times("versions") == ([2.0, 4.0] if stragglers == "cancel" else [2.0, 5.0])
    third = run.tasks(2)[0]
    assert (third["outcome"], third["uploaded_s"]) == (outcome, uploaded_s)
    assert third["wasted_s"] == wasted_s


def test_with_the_last_upload_come_others_of_the_same_instant(lab: Lab) -> None:
    # All three upload at 4 s; the round takes the two it wanted, the third comes too late.
    pacing = synchronous(2, over_commitment=1.5)
    run = lab.run(timed(3, 4, pacing, stop={"versions": 1}))
    assert run.column("versions", "updates") == ["2"]
    assert [run.tasks(c)[0]["outcome"] for c in range(3)] == ["reported", "reported", "late"]


def test_a_round_below_its_quorum_fails_and_the_model_stays(lab: Lab) -> None:
    # Eight arrive in time and nine are needed: round 1 fails at 60 s, and so does round 2.
    pacing = synchronous(10, deadline="60 s", min_updates=9)
    run = lab.run(timed(10, [*range(1, 9), 1e9, 1e9], pacing, stop={"sim_time": 130}))
    failed = run.of("round_failed")
    assert [(event["t"], event["updates"], event["version"]) for event in failed] == [
        (60.0, 8, 0),
        (120.0, 8, 0),
    ]
    assert run.table("versions") == []
    assert [run.tasks(c)[0]["outcome"] for c in range(10)] == ["discarded"] * 8 + ["late"] * 2
    assert run.tasks(3)[0]["wasted_s"] == "4.0"


@pytest.mark.parametrize(
    ("participants", "over_commitment", "asked"),
    [(50, 1.3, 65), (3, 1.3, 3), (100, 1.15, 115), (10, 1.0, 10)],
)
def test_over_commitment_asks_the_floor_of_the_decimal_product(
    lab: Lab, participants: int, over_commitment: float, asked: int
) -> None:
    # 1.15 × 100 is 114.99999999999999 in binary.
    pacing = synchronous(participants, over_commitment=over_commitment)
    run = lab.run(timed(120, 1, pacing, stop={"versions": 1}))
    assert [event["asked"] for event in run.of("round")] == [asked]
    assert len(run.of("dispatch")) == asked
    assert run.column("versions", "updates") == [str(participants)]


def _fifty_wanted(too_few: str) -> Config:
    """20 of 60 clients are there from the start, the others from 100 s on; a task takes 1 s."""
    sessions = [[[0, 1000]]] * 20 + [[[100, 1000]]] * 40
    pacing = synchronous(50, too_few=too_few)
    return timed(60, 1, pacing, sessions=sessions, stop={"versions": 1})


def test_a_round_with_too_few_clients_waits(lab: Lab) -> None:
    run = lab.run(_fifty_wanted("wait"))
    assert [(event["t"], event["asked"]) for event in run.of("round")] == [(100.0, 50)]
    # It looks again when somebody comes, which nobody does before 100 s.
    waits = [(event["t"], event["online"], event["needed"]) for event in run.of("wait")]
    assert waits == [(0.0, 20, 50)]
    assert run.times("versions") == [101.0]
    assert run.column("versions", "updates") == ["50"]


def test_a_round_with_too_few_clients_proceeds(lab: Lab) -> None:
    run = lab.run(_fifty_wanted("proceed"))
    assert [(event["t"], event["asked"]) for event in run.of("round")] == [(0.0, 20)]
    assert run.times("versions") == [1.0]
    assert run.column("versions", "updates") == ["20"]


def test_a_round_with_too_few_clients_fails(lab: Lab) -> None:
    said = lab.failed_run(_fifty_wanted("fail"), exit_code=1)
    assert "too few clients at simulated time 0.0 s" in said
    assert "20 are online and idle, the round asks 50" in said
    assert RunFiles(lab.folder / "run").manifest["status"] == "failed"


def test_more_participants_than_clients_are_refused(lab: Lab) -> None:
    said = lab.failed_run(timed(20, 1, synchronous(50)))
    assert "participants is 50, more than 20 clients" in said
    said = lab.failed_run(timed(20, 1, synchronous(20, over_commitment=1.3)))
    assert "= 26 clients" in said


def test_selection_all_asks_everyone_who_is_there(lab: Lab) -> None:
    # Client 2 comes at 4 s, during round 1, and takes part from round 2 on.
    config = timed(
        3,
        [5, 3, 2],
        synchronous(3, too_few="proceed"),
        sessions=[[[0, 1000]], [[0, 1000]], [[4, 1000]]],
        stop={"versions": 2},
    )
    config["federation"]["selection"] = {"kind": "all"}
    run = lab.run(config)
    assert [event["asked"] for event in run.of("round")] == [2, 3]
    assert run.times("versions") == [5.0, 10.0]


# --- links --------------------------------------------------------------------------------------


def test_flows_share_the_servers_link(lab: Lab) -> None:
    # 10 MB at 0 s and 10 MB at 0.5 s over 10 MB/s: 5 MB alone, then both at 5 MB/s for 1 s until
    # the first is through at 1.5 s; the second has 5 MB left, and the link for itself: 2.0 s.
    config = timed(
        2,
        100,
        buffered(2, 2),
        sessions=[[[0, 1000]], [[0.5, 1000]]],
        network=links(down="100 MB/s", up="100 MB/s", server="10 MB/s"),
        size="10 MB",
        stop={"versions": 1},
    )
    run = lab.run(config)
    tasks = [run.tasks(client)[0] for client in (0, 1)]
    assert [task["downloaded_s"] for task in tasks] == ["1.5", "2.0"]
    assert [task["trained_s"] for task in tasks] == ["101.5", "102.0"]
    # And the same on the way up: at 102 s half of the first is through; 103 and 103.5 s if they
    # went on alone, but both share until the first is done at 103, and the second at 103.5.
    assert [task["uploaded_s"] for task in tasks] == ["103.0", "103.5"]
    assert run.times("versions") == [103.5]


def test_unshared_links_take_latency_and_size_over_rate(lab: Lab) -> None:
    # Down 0.5 + 1/4, training 1, up 0.5 + 1/2 s.
    network = links(down="4 MB/s", up="2 MB/s", latency="500 ms")
    run = lab.run(timed(1, 1, buffered(1, 1), network=network, stop={"versions": 1}))
    task = run.tasks(0)[0]
    assert (task["downloaded_s"], task["trained_s"], task["uploaded_s"]) == ("0.75", "1.75", "2.75")


def test_a_client_is_no_faster_than_its_own_link(lab: Lab) -> None:
    # The server's 8 MB/s for three clients of 1, 5 and 5 MB/s: 1, 3.5 and 3.5 MB/s. 7 MB at
    # 3.5 MB/s are through at 2 s; then client 0, which always had its 1 MB/s, at 7 s.
    network = links(down="1 MB/s", up="100 MB/s", server="8 MB/s")
    network["client"]["down"] = ["1 MB/s", "5 MB/s", "5 MB/s"]
    run = lab.run(timed(3, 10, buffered(3, 3), network=network, size="7 MB", stop={"versions": 1}))
    assert [run.tasks(c)[0]["downloaded_s"] for c in range(3)] == ["7.0", "2.0", "2.0"]


# --- the books ----------------------------------------------------------------------------------


def test_every_version_says_what_was_carried_for_it(lab: Lab) -> None:
    # 3 are asked and 2 wanted: both report at 2 s (0.25 + 1.5 + 0.25), and the third, which has
    # downloaded 2 s × 250 kB/s, is told to stop. So in each round.
    network = links(down="1 MB/s", up="1 MB/s")
    network["client"]["down"] = ["4 MB/s", "4 MB/s", "250 kB/s"]
    network["client"]["up"] = ["4 MB/s", "4 MB/s", "250 kB/s"]
    pacing = synchronous(2, over_commitment=1.5)
    run = lab.run(timed(3, [1.5, 1.5, 1.5], pacing, network=network, stop={"versions": 2}))
    assert run.times("versions") == [2.0, 4.0]
    assert run.column("versions", "bytes_down") == ["2500000", "2500000"]
    assert run.column("versions", "bytes_up") == ["2000000", "2000000"]


def test_what_was_dispatched_is_accounted_for(lab: Lab) -> None:
    config = timed(
        1000,
        {"dist": "lognormal", "median": "2 min", "sigma": 1.0},
        buffered(100, 20, max_staleness=8),
        network=links(down="20 kB/s", up="10 kB/s", latency="50 ms", server="300 kB/s"),
        stop={"versions": 40},
        task_failure=0.3,
    )
    config["system"]["availability"] = {
        "kind": "renewal",
        "on": {"dist": "exponential", "mean": "10 min"},
        "off": {"dist": "exponential", "mean": "20 min"},
        "horizon": "1 d",
        "at_end": "wrap",
    }
    run = lab.run(config)
    updates, outcomes = run.table("updates"), Counter(run.column("updates", "outcome"))
    assert len(outcomes) >= 5, "the scenario is to show all kinds of ends"
    assert len(run.of("dispatch")) == len(updates) == sum(outcomes.values())
    ended = Counter(event["outcome"] for event in run.of("end"))
    assert all(ended[o] == n for o, n in outcomes.items() if o not in ("reported", "in_flight"))
    merged = [task for event in run.of("aggregate") for task in event["tasks"]]
    assert len(merged) == len(set(merged)) == 40 * 20
    clients = run.table("clients")
    assert sum(int(row["participations"]) for row in clients) == len(updates)
    assert sum(int(row["reported"]) for row in clients) == outcomes["reported"]
    moved = sum(int(row["bytes_down"]) + int(row["bytes_up"]) for row in updates)
    assert sum(int(row["bytes"]) for row in clients) == moved
    for row in updates:
        assert int(row["bytes_down"]) <= 1_000_000
        if row["outcome"] == "reported":
            assert (row["bytes_down"], row["bytes_up"]) == ("1000000", "1000000")
        if row["outcome"] == "dropped_download":
            assert row["bytes_up"] == "0"
    # Busy seconds are useful or wasted, or are those of tasks that are still going on.
    end_s = run.manifest["sim_time_s"]
    useful_s = sum(
        float(row["uploaded_s"]) - float(row["dispatched_s"])
        for row in updates
        if row["outcome"] == "reported"
    )
    open_s = sum(
        end_s - float(row["dispatched_s"]) for row in updates if row["outcome"] == "in_flight"
    )
    wasted_s = sum(float(row["wasted_s"]) for row in updates)
    busy_s = sum(float(row["busy_s"]) for row in clients)
    assert math.isclose(busy_s, useful_s + wasted_s + open_s, rel_tol=1e-9)


def test_clients_are_accounted_for_one_by_one(lab: Lab) -> None:
    # Client 0 reports at 3 s; client 1 is lost at 2 s, comes again at 6 s and reports at 9 s.
    # A task takes 0.25 + 2.5 + 0.25 s.
    run = lab.run(
        timed(
            2,
            2.5,
            buffered(2, 2),
            sessions=[[[0, 3]], [[0, 2], [6, 9]]],
            network=links(down="4 MB/s", up="4 MB/s"),
            stop={"versions": 1},
        )
    )
    assert run.times("versions") == [9.0]
    rows = run.table("clients")
    assert [row["participations"] for row in rows] == ["1", "2"]
    assert [row["reported"] for row in rows] == ["1", "1"]
    assert [row["online_s"] for row in rows] == ["3.0", "5.0"]
    assert [row["busy_s"] for row in rows] == ["3.0", "5.0"]
    assert [row["bytes"] for row in rows] == ["2000000", "3000000"]


def test_a_target_ends_the_run(lab: Lab) -> None:
    config = digits(10, synchronous(10), versions=50)
    config["local"]["epochs"] = 3
    config["stop"]["target"] = {"metric": "accuracy", "value": 0.5, "sustain": 2}
    run = lab.run(config)
    accuracy = [float(r["value"]) for r in run.table("metrics") if r["metric"] == "accuracy"]
    assert run.manifest["stop_reason"] == "target"
    assert [a >= 0.5 for a in accuracy[-3:]] == [False, True, True]
    # A version every 5 s, and the first evaluation at 0 s.
    assert run.times("versions") == [5.0 * (n + 1) for n in range(len(accuracy) - 1)]
    assert lab.try_run(config, "--timing-only", out="timing").exit_code == 2
