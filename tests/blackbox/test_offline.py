"""Clients that go offline, fail, and are noticed: exact instants, outcomes, bytes and seconds.

Unless said otherwise a task is 1 s of download (1 MB at 1 MB/s), 4 s of training and 2 s of upload
(at 0.5 MB/s), over links that nobody shares and, once more, over a server's link that is wide.
"""

from __future__ import annotations

import math
from collections import Counter

import pytest
from commandline import Config, Lab, buffered, links, synchronous, timed

SERVER_LINK = pytest.mark.parametrize("server", [None, "64 MB/s"], ids=["unshared", "shared"])


def _one_client(
    sessions: list[list[float]], server: str | None, on_offline: str, latency: str = "0 s"
) -> Config:
    return timed(
        1,
        4,
        buffered(1, 1),
        sessions=[sessions],
        network=links(down="1 MB/s", up="0.5 MB/s", latency=latency, server=server),
        on_offline=on_offline,
        stop={"sim_time": 900},
    )


@SERVER_LINK
@pytest.mark.parametrize(
    ("ends_s", "outcome", "downloaded_s", "trained_s", "bytes_down", "bytes_up"),
    [
        (0.25, "dropped_download", "", "", 250_000, 0),
        # The download is complete at the instant at which the client goes.
        (1, "dropped_training", "1.0", "", 1_000_000, 0),
        (3, "dropped_training", "1.0", "", 1_000_000, 0),
        (5, "dropped_upload", "1.0", "5.0", 1_000_000, 0),
        (6, "dropped_upload", "1.0", "5.0", 1_000_000, 500_000),
        (6.75, "dropped_upload", "1.0", "5.0", 1_000_000, 875_000),
    ],
)
def test_a_task_is_dropped_where_it_stands(
    lab: Lab,
    server: str | None,
    ends_s: float,
    outcome: str,
    downloaded_s: str,
    trained_s: str,
    bytes_down: int,
    bytes_up: int,
) -> None:
    run = lab.run(_one_client([[0, ends_s]], server, "drop"))
    (row,) = run.table("updates")
    assert row["outcome"] == outcome
    assert (row["downloaded_s"], row["trained_s"]) == (downloaded_s, trained_s)
    assert row["uploaded_s"] == ""
    assert (int(row["bytes_down"]), int(row["bytes_up"])) == (bytes_down, bytes_up)
    assert float(row["wasted_s"]) == ends_s
    assert [event["t"] for event in run.of("end")] == [ends_s]
    assert run.times("clients", "busy_s") == run.times("clients", "online_s") == [ends_s]


@SERVER_LINK
def test_an_upload_complete_at_the_end_of_the_session_counts(lab: Lab, server: str | None) -> None:
    run = lab.run(_one_client([[0, 7]], server, "drop"))
    (row,) = run.table("updates")
    assert (row["outcome"], row["uploaded_s"]) == ("reported", "7.0")


@SERVER_LINK
def test_nobody_is_asked_at_the_end_of_a_session(lab: Lab, server: str | None) -> None:
    # Done at 7 s, when the session ends; asked again when the next one begins.
    run = lab.run(_one_client([[0, 7], [10, 17]], server, "drop"))
    assert [event["t"] for event in run.of("dispatch")] == [0.0, 10.0]
    assert run.times("versions") == [7.0, 17.0]


@SERVER_LINK
@pytest.mark.parametrize(
    ("sessions", "downloaded_s", "trained_s", "uploaded_s"),
    [
        # Never away.
        ([[0, 500]], 1.0, 5.0, 7.0),
        # 2 s of training in the first session, 2 s in the second, which ends with it; the upload
        # has to wait for the third.
        ([[0, 3], [10, 12], [20, 30]], 1.0, 12.0, 22.0),
        # In the middle of the download: 0.75 s are left.
        ([[0, 0.25], [10, 30]], 10.75, 14.75, 16.75),
        # In the middle of the upload, twice: 0.5 s of it, 1 s, and the rest.
        ([[0, 5.5], [8, 9], [9.5, 30]], 1.0, 5.0, 10.0),
        # At the very ends of the download and of the upload.
        ([[0, 1], [2, 8]], 1.0, 6.0, 8.0),
    ],
)
def test_a_pause_lasts_until_the_next_session(
    lab: Lab,
    server: str | None,
    sessions: list[list[float]],
    downloaded_s: float,
    trained_s: float,
    uploaded_s: float,
) -> None:
    config = _one_client(sessions, server, "pause")
    config["stop"]["versions"] = 1
    run = lab.run(config)
    (row,) = run.table("updates")
    assert float(row["downloaded_s"]) == downloaded_s
    assert float(row["trained_s"]) == trained_s
    assert float(row["uploaded_s"]) == uploaded_s
    assert run.times("versions") == [uploaded_s]
    # 7 s of work, and the rest was sleep.
    assert run.times("clients", "busy_s") == [7.0]
    assert row["wasted_s"] == "0.0"


@SERVER_LINK
def test_latency_that_was_paid_before_a_pause_is_not_paid_again(
    lab: Lab, server: str | None
) -> None:
    # 0.25 of 0.5 s of latency in the first session; at 10.25 s the bytes begin to flow.
    config = _one_client([[0, 0.25], [10, 30]], server, "pause", latency="500 ms")
    config["stop"]["versions"] = 1
    (row,) = lab.run(config).table("updates")
    assert (row["downloaded_s"], row["trained_s"]) == ("11.25", "15.25")
    assert row["uploaded_s"] == "17.75"


def test_a_paused_flow_leaves_its_share_to_the_others(lab: Lab) -> None:
    # Both download over 1 MB/s, 0.5 MB/s each. At 1 s client 1 goes, and client 0 has the link
    # for itself: done at 1.5 s. Client 1 comes back at 5 s with 0.5 MB to go: 5.5 s.
    # 10 s of training, and 1 MB up at the client's own 4 MB/s: 0.25 s.
    network = links(down="8 MB/s", up="4 MB/s")
    network["server"] = {"down": "1 MB/s", "up": "64 MB/s"}
    run = lab.run(
        timed(
            2,
            10,
            buffered(2, 2),
            sessions=[[[0, 900]], [[0, 1], [5, 900]]],
            network=network,
            on_offline="pause",
            stop={"versions": 1},
        )
    )
    first, second = run.tasks(0)[0], run.tasks(1)[0]
    assert (first["downloaded_s"], first["uploaded_s"]) == ("1.5", "11.75")
    assert (second["downloaded_s"], second["uploaded_s"]) == ("5.5", "15.75")
    assert run.times("versions") == [15.75]


@SERVER_LINK
def test_a_client_that_never_comes_back_stays_in_flight(lab: Lab, server: str | None) -> None:
    config = _one_client([[0, 3]], server, "pause")
    config["system"]["availability"]["at_end"] = "end"
    # Round 1 gives up on it at its deadline; until then it has been at work for 3 s.
    config["federation"]["pacing"] = synchronous(1, deadline="60 s")
    said = lab.failed_run(config, exit_code=1)
    assert "nothing is left to happen at simulated time 60.0 s" in said
    assert "1 clients online and idle (0 are)" in said


@SERVER_LINK
def test_a_straggler_cancelled_in_its_pause_has_worked_until_then(
    lab: Lab, server: str | None
) -> None:
    config = _one_client([[0, 3], [500, 900]], server, "pause")
    config["federation"]["pacing"] = synchronous(1, deadline="60 s", too_few="wait")
    run = lab.run(config)
    row = run.table("updates")[0]
    assert (row["outcome"], row["downloaded_s"], row["wasted_s"]) == ("late", "1.0", "3.0")
    assert int(row["bytes_down"]) == 1_000_000
    assert [event["t"] for event in run.of("round")][:2] == [0.0, 500.0]
    assert run.times("versions")[0] == 507.0


@SERVER_LINK
def test_who_continues_does_not_stop(lab: Lab, server: str | None) -> None:
    # Offline from 3 s on, done at 7 s; asked again when back at 10 s.
    run = lab.run(_one_client([[0, 3], [10, 13]], server, "continue"))
    assert run.times("versions") == [7.0, 17.0]
    assert [event["t"] for event in run.of("dispatch")] == [0.0, 10.0]
    assert run.column("updates", "outcome") == ["reported"] * 2


# --- when the server notices --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("notice", "closes_s"),
    [
        ({"drop_notice": "at_once"}, 5.0),
        ({"drop_notice": "timeout", "drop_timeout": "7 s"}, 12.0),
        ({"drop_notice": "at_deadline"}, 60.0),
        # What the timeout would tell, the deadline tells before.
        ({"drop_notice": "timeout", "drop_timeout": "5 min"}, 60.0),
    ],
)
def test_a_round_waits_for_a_lost_client_until_it_is_noticed(
    lab: Lab, notice: Config, closes_s: float
) -> None:
    # Client 0 reports at 3 s; client 1 needs 10 s and is gone at 5 s.
    run = lab.run(
        timed(
            2,
            [3, 10],
            synchronous(2, deadline="60 s"),
            sessions=[[[0, 900]], [[0, 5]]],
            stop={"versions": 1},
            **notice,
        )
    )
    assert run.times("versions") == [closes_s]
    assert run.column("versions", "updates") == ["1"]
    lost = run.tasks(1)[0]
    assert (lost["outcome"], lost["wasted_s"]) == ("dropped_training", "5.0")
    assert [event["t"] for event in run.of("end")] == [5.0]


@pytest.mark.parametrize(
    ("notice", "refilled_s"),
    [
        ({"drop_notice": "at_once"}, 6.0),
        ({"drop_notice": "timeout", "drop_timeout": "7 s"}, 12.0),
    ],
)
def test_a_lost_clients_slot_is_free_when_the_loss_is_noticed(
    lab: Lab, notice: Config, refilled_s: float
) -> None:
    # Client 1 is lost at 5 s, client 2 is there from 6 s on.
    run = lab.run(
        timed(
            3,
            [20, 20, 20],
            buffered(2, 2),
            sessions=[[[0, 900]], [[0, 5]], [[6, 900]]],
            stop={"versions": 1},
            **notice,
        )
    )
    assert run.tasks(2)[0]["dispatched_s"] == repr(refilled_s)
    # Client 0 uploads at 20 s, client 2 20 s after it was asked.
    assert run.times("versions") == [refilled_s + 20]


def test_a_notice_needs_what_it_waits_for(lab: Lab) -> None:
    said = lab.failed_run(timed(2, 1, synchronous(2), drop_notice="at_deadline"))
    assert "at_deadline needs synchronous pacing with a deadline" in said
    said = lab.failed_run(timed(2, 1, buffered(2, 2), drop_notice="at_deadline"))
    assert "at_deadline needs synchronous pacing with a deadline" in said
    said = lab.failed_run(timed(2, 1, buffered(2, 2), drop_notice="timeout"))
    assert "timeout needs system.drop_timeout" in said
    said = lab.failed_run(timed(2, 1, buffered(2, 2), drop_timeout="1 s"))
    assert "system.drop_timeout goes with" in said


# --- tasks that fail ----------------------------------------------------------------------------


@SERVER_LINK
def test_a_task_fails_at_a_point_of_its_training(lab: Lab, server: str | None) -> None:
    config = timed(
        500,
        4,
        buffered(50, 50),
        network=links(down="1 MB/s", up="0.5 MB/s", server=server and "1000 MB/s"),
        task_failure=0.3,
        stop={"versions": 20},
    )
    run = lab.run(config)
    over = [row for row in run.table("updates") if row["outcome"] != "in_flight"]
    failed = [row for row in over if row["outcome"] == "dropped_training"]
    assert set(Counter(row["outcome"] for row in over)) == {"reported", "dropped_training"}
    # A share of 0.3, within 4 standard deviations.
    deviation = math.sqrt(0.3 * 0.7 / len(over))
    assert abs(len(failed) / len(over) - 0.3) < 4 * deviation
    # At a point uniform in the 4 s of training, after 1 s of download: 3 s on average.
    ended_s = {event["task"]: event["t"] for event in run.of("end")}
    dispatched_s = {event["task"]: event["t"] for event in run.of("dispatch")}
    lives_s = [ended_s[task] - dispatched_s[task] for task in ended_s]
    assert min(lives_s) > 1.0
    assert max(lives_s) < 5.0
    assert abs(sum(lives_s) / len(lives_s) - 3.0) < 4 * 4 / math.sqrt(12 * len(lives_s))
    for row in failed:
        assert float(row["downloaded_s"]) == pytest.approx(float(row["dispatched_s"]) + 1.0)
        assert row["trained_s"] == row["uploaded_s"] == ""
        assert (row["bytes_down"], row["bytes_up"]) == ("1000000", "0")
    assert sorted(float(row["wasted_s"]) for row in failed) == pytest.approx(sorted(lives_s))


def test_failures_are_drawn_for_each_task_alone(lab: Lab) -> None:
    # The same tasks fail at the same points where links are shared and where they are not.
    def run(server: str | None, out: str) -> list[list[tuple[str, str]]]:
        config = timed(
            5,
            4,
            synchronous(5),
            network=links(down="1 MB/s", up="0.5 MB/s", server=server),
            task_failure=0.4,
            stop={"versions": 10},
        )
        found = lab.run(config, out=out)
        return [[(t["outcome"], t["wasted_s"]) for t in found.tasks(c)] for c in range(5)]

    shared = run("1000 MB/s", "shared")
    assert any(outcome == "dropped_training" for tasks in shared for outcome, _ in tasks)
    for alone, together in zip(run(None, "alone"), shared, strict=True):
        assert [outcome for outcome, _ in alone] == [outcome for outcome, _ in together]
        assert [float(s) for _, s in alone] == pytest.approx([float(s) for _, s in together])
