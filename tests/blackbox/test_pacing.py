"""FedAsync, deadlines that change, target ratios: to the second, where every time is scripted."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from commandline import Config, Lab, RunFiles, buffered, digits, links, synchronous, timed
from safetensors.torch import load_file


def asynchronous(in_flight: int, **options: Any) -> Config:
    return {"kind": "asynchronous", "in_flight": in_flight, **options}


# --- asynchronous pacing ------------------------------------------------------------------------


def test_every_upload_makes_a_version_at_its_instant(lab: Lab) -> None:
    # Client 1 uploads at 1, 2 and 3 s, client 0 at 3 s, where its update (from version 0) is
    # merged first: it missed versions 1 and 2. Client 1's third, from version 2, missed version 3.
    run = lab.run(timed(2, [3, 1], asynchronous(2), stop={"versions": 4}))
    assert run.times("versions") == [1.0, 2.0, 3.0, 3.0]
    assert [event["tasks"] for event in run.of("aggregate")] == [[1], [2], [0], [3]]
    assert run.column("versions", "updates") == ["1"] * 4
    assert run.column("versions", "staleness_max") == ["0", "0", "2", "1"]
    assert [(e["t"], e["version"]) for e in run.of("evaluate")] == [
        (0.0, 0), (1.0, 1), (2.0, 2), (3.0, 3), (3.0, 4),
    ]  # fmt: skip


def test_a_slot_is_filled_when_its_upload_is_complete(lab: Lab) -> None:
    run = lab.run(timed(2, [2, 5], asynchronous(2), stop={"sim_time": 5.5}))
    assert [(event["t"], event["entity"]) for event in run.of("dispatch")] == [
        (0.0, "client/0"), (0.0, "client/1"), (2.0, "client/0"), (4.0, "client/0"),
        (5.0, "client/1"),
    ]  # fmt: skip
    assert run.column("updates", "outcome").count("in_flight") == 2


def test_what_is_too_stale_makes_no_version(lab: Lab) -> None:
    # As with a buffer of one: client 1 uploads at 5.5 s, after versions 1 to 5.
    pacing = asynchronous(2, max_staleness=4)
    run = lab.run(timed(2, [1, 5.5], pacing, stop={"versions": 7}))
    assert run.times("versions") == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert [run.tasks(1)[0][key] for key in ("outcome", "uploaded_s")] == ["discarded", "5.5"]
    assert run.tasks(1)[1]["dispatched_s"] == "5.5"


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
    sessions = [[[0, 900]], [[0, 5]], [[6, 900]]]
    run = lab.run(timed(3, 20, asynchronous(2), sessions=sessions, stop={"versions": 2}, **notice))
    assert run.tasks(2)[0]["dispatched_s"] == repr(refilled_s)
    assert run.times("versions") == [20.0, refilled_s + 20]


def test_a_run_in_which_nothing_is_left_to_happen_says_who_waits(lab: Lab) -> None:
    config = timed(1, 1, asynchronous(1), sessions=[[[0, 5]]], at_end="end")
    said = lab.failed_run(config, exit_code=1)
    assert "nothing is left to happen at simulated time 5.0 s" in said
    assert "waits for an upload, 0 of 1 clients in flight" in said


def _without_ids(run: RunFiles) -> list[Config]:
    """The events, without the handles' ids: what is computed differs, and nothing else."""
    events = run.events
    for event in events:
        event.pop("update", None)
        event.pop("state", None)
    return events


def test_the_same_happens_as_with_a_buffer_of_one(lab: Lab) -> None:
    def run(pacing: Config, out: str) -> RunFiles:
        config = timed(
            60,
            {"dist": "lognormal", "median": "2 min", "sigma": 1.0},
            pacing,
            network=links(down="20 kB/s", up="10 kB/s", latency="50 ms", server="300 kB/s"),
            stop={"versions": 300},
            task_failure=0.2,
            drop_notice="timeout",
            drop_timeout="30 s",
        )
        config["system"]["availability"] = {
            "kind": "renewal",
            "on": {"dist": "exponential", "mean": "10 min"},
            "off": {"dist": "exponential", "mean": "20 min"},
            "horizon": "1 d",
            "at_end": "wrap",
        }
        return lab.run(config, out=out)

    common = {"staleness": {"kind": "constant"}, "max_staleness": 12}
    one = run(asynchronous(15, **common), "asynchronous")
    other = run(buffered(15, 1, **common), "buffered")
    assert _without_ids(one) == _without_ids(other)
    assert one.events != other.events
    for table in ("versions.csv", "updates.csv", "clients.csv"):
        assert one.lines(table) == other.lines(table)
    outcomes = set(one.column("updates", "outcome"))
    assert {"reported", "discarded", "dropped_training", "in_flight"} <= outcomes


# --- what FedAsync computes ---------------------------------------------------------------------


def _model(lab: Lab, training: list[float], versions: int, **options: Any) -> torch.Tensor:
    """The last model of a run in which two clients learn digits, as one vector [P]."""
    config = digits(2, asynchronous(2, **options), versions=versions, training=training)
    lab.run(config, "--restart")
    tensors = load_file(lab.folder / "run" / "model.safetensors")
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)]).double()


@pytest.mark.parametrize(
    ("staleness", "discount"),
    [
        ({"kind": "constant"}, 1.0),
        ({"kind": "polynomial", "exponent": 2.0}, 1 / 4),  # (1 + 1)^-2
        ({"kind": "polynomial"}, 2**-0.5),
        ({"kind": "hinge", "a": 4.0, "b": 0.0}, 1 / 5),  # 1 / (4 · (1 - 0) + 1)
        ({"kind": "hinge", "a": 4.0, "b": 0.5}, 1 / 3),
        ({"kind": "hinge"}, 1.0),  # up to b = 4
    ],
)
def test_the_server_mixes_models_by_their_staleness(
    lab: Lab, staleness: Config, discount: float
) -> None:
    # Client 0 uploads at 2 s, client 1 at 3 s, from version 0 too: w_2 = (1 - αs) w_1 + αs b,
    # where client 1's model b is what a run in which it comes first takes over whole.
    alpha = 0.6
    w_1 = _model(lab, [2, 3], 1, mixing=alpha, staleness=staleness)
    b = _model(lab, [3, 2], 1, mixing=1.0)
    w_2 = _model(lab, [2, 3], 2, mixing=alpha, staleness=staleness)
    alpha_s = alpha * discount
    assert not torch.allclose(w_1, b, rtol=0, atol=1e-3)
    assert torch.allclose(w_2, (1 - alpha_s) * w_1 + alpha_s * b, rtol=0, atol=1e-6)


def test_nobody_in_between_and_mixing_is_a_server_rate(lab: Lab) -> None:
    # One client at a time: (1 - α) w + α (w + Δ) = w + α Δ, a buffer of one with lr α.
    def metrics(pacing: Config, out: str, **federation: Config) -> list[float]:
        config = digits(5, pacing, versions=6)
        config["federation"] |= federation
        return [float(value) for value in lab.run(config, out=out).column("metrics", "value")]

    mixed = metrics(asynchronous(1, mixing=0.3), "mixed")
    added = metrics(buffered(1, 1), "added", server_optimizer={"kind": "average", "lr": 0.3})
    assert mixed == pytest.approx(added, rel=1e-5)
    assert len(set(mixed)) > 6


@pytest.mark.parametrize(
    ("federation", "reason"),
    [
        ({"server_optimizer": {"kind": "fedyogi"}}, "'fedyogi' has no place in asynchronous"),
        ({"server_optimizer": {"kind": "average", "lr": 0.5}}, "'average' with lr 0.5 has no"),
        ({"objective": {"kind": "scaffold"}}, "'scaffold' has a server step of its own"),
    ],
)
def test_fedasync_is_a_server_step_and_takes_no_other(
    lab: Lab, federation: Config, reason: str
) -> None:
    config = timed(5, 1, asynchronous(2))
    config["federation"] |= federation
    assert reason in lab.failed_run(config)


def test_asynchronous_pacing_needs_clients_for_its_slots(lab: Lab) -> None:
    assert "in_flight is 6, more than the 5 clients" in lab.failed_run(timed(5, 1, asynchronous(6)))
    config = timed(5, 1, asynchronous(4))
    config["federation"]["selection"] = {"kind": "all"}
    assert "in_flight must be 5, not 4" in lab.failed_run(config)
    said = lab.failed_run(timed(2, 1, asynchronous(2), drop_notice="at_deadline"))
    assert "at_deadline needs synchronous pacing with a deadline" in said
    # A client that works off a queue has room for more than one task.
    config = timed(1, 1, asynchronous(3), stop={"versions": 3})
    config["federation"]["selection"] = {"kind": "random", "busy": "queue"}
    assert lab.run(config).times("versions") == [1.0, 2.0, 3.0]


# --- deadlines by a schedule --------------------------------------------------------------------


def _schedule(*steps: tuple[int, float | str]) -> Config:
    return {
        "kind": "schedule",
        "steps": [{"from_round": number, "deadline": said} for number, said in steps],
    }


def test_a_schedule_changes_the_deadline_at_its_rounds(lab: Lab) -> None:
    # Client 1 never reports in time. The third step needs no time: client 1 is done after 90 s.
    deadline = _schedule((0, "10 s"), (2, "20 s"), (3, "none"))
    run = lab.run(timed(2, [5, 90], synchronous(2, deadline=deadline), stop={"versions": 5}))
    assert run.times("versions") == [10.0, 20.0, 40.0, 130.0, 220.0]
    assert [event["deadline_s"] for event in run.of("round")] == [10.0, 10.0, 20.0, None, None]
    assert run.column("versions", "updates") == ["1", "1", "1", "2", "2"]
    assert [task["outcome"] for task in run.tasks(1)] == ["late"] * 3 + ["reported"] * 2


def test_rounds_that_failed_count_too(lab: Lab) -> None:
    deadline = _schedule((0, 4), (2, 8))
    pacing = synchronous(2, deadline=deadline, min_updates=2)
    run = lab.run(timed(2, [5, 7], pacing, stop={"versions": 1}))
    assert [event["t"] for event in run.of("round_failed")] == [4.0, 8.0]
    assert run.times("versions") == [15.0]


def test_a_constant_deadline_is_not_logged_with_every_round(lab: Lab) -> None:
    run = lab.run(timed(1, 5, synchronous(1, deadline="10 s"), stop={"versions": 1}))
    assert set(run.of("round")[0]) == {"t", "type", "entity", "version", "asked"}


@pytest.mark.parametrize(
    ("notice", "closes_s"),
    [
        # Client 1 is gone at 5 s, and the second round has nobody but client 0.
        ({"drop_notice": "at_deadline"}, [30.0, 33.0]),
        ({"drop_notice": "timeout", "drop_timeout": "7 s"}, [12.0, 15.0]),
        ({"drop_notice": "at_once"}, [5.0, 8.0]),
    ],
)
def test_a_lost_client_is_noticed_at_the_deadline_of_its_round(
    lab: Lab, notice: Config, closes_s: list[float]
) -> None:
    pacing = synchronous(2, deadline=_schedule((0, 30), (1, 60)), too_few="proceed")
    sessions = [[[0, 900]], [[0, 5]]]
    run = lab.run(timed(2, [3, 10], pacing, sessions=sessions, stop={"versions": 2}, **notice))
    assert run.times("versions") == closes_s


def test_a_loss_that_is_noticed_after_its_round_changes_no_other(lab: Lab) -> None:
    # Client 1 is gone at 5 s, which the server hears of at 305 s, in the 83rd of client 0's rounds.
    pacing = synchronous(2, deadline=_schedule((0, 60), (1, 10)), too_few="proceed")
    run = lab.run(
        timed(
            2,
            [3, 10],
            pacing,
            sessions=[[[0, 900]], [[0, 5]]],
            drop_notice="timeout",
            drop_timeout="5 min",
            stop={"versions": 100},
        )
    )
    assert run.times("versions") == [60.0 + 3.0 * n for n in range(100)]


@pytest.mark.parametrize(
    ("deadline", "reason"),
    [
        (_schedule((1, 10)), "begin with from_round: 0"),
        (_schedule((0, 10), (3, 5), (3, 6)), "round 3 comes after round 3"),
        (_schedule(), "steps"),
    ],
)
def test_a_schedule_must_say_what_holds_when(lab: Lab, deadline: Config, reason: str) -> None:
    said = lab.failed_run(timed(2, 1, synchronous(2, deadline=deadline)))
    assert "federation.pacing.deadline" in said
    assert reason in said


@pytest.mark.parametrize(
    "deadline",
    [
        _schedule((0, 10), (5, "none")),
        {"kind": "quantile", "q": 0.5, "of_last": 5, "initial": "none"},
    ],
)
def test_a_lost_client_needs_a_deadline_in_every_round(lab: Lab, deadline: Config) -> None:
    config = timed(2, 1, synchronous(2, deadline=deadline), drop_notice="at_deadline")
    assert "at_deadline needs synchronous pacing with a deadline in every" in lab.failed_run(config)


def test_a_deadline_that_no_clock_can_tell_is_an_error(lab: Lab) -> None:
    # 10^6 s + 10^-12 s are 10^6 s, and a round of no time would come again for ever.
    deadline = _schedule((0, 1e6), (1, 1e-12))
    config = timed(1, 2e6, synchronous(1, deadline=deadline), stop={"sim_time": 1e9})
    said = lab.failed_run(config, exit_code=1)
    assert "the deadline of round 1, 1e-12 s, does not move the clock" in said


# --- deadlines by a quantile --------------------------------------------------------------------


def _quantile(q: float, of_last: int, initial: float | str, **bounds: Any) -> Config:
    return {"kind": "quantile", "q": q, "of_last": of_last, "initial": initial, **bounds}


def _deadlines(run: RunFiles) -> list[float]:
    return [event["deadline_s"] for event in run.of("round")]


def test_a_quantile_is_one_of_the_last_uploads_durations(lab: Lab) -> None:
    # Round 1 takes 1, 2 and 3 s; the second shortest of these, 2 s, is the deadline of round 2. An
    # upload at the deadline counts: the last three are now 3, 1 and 2 s, so 2 s it is again.
    pacing = synchronous(4, deadline=_quantile(0.5, 3, 5))
    run = lab.run(timed(4, [1, 2, 3, 10], pacing, stop={"versions": 3}))
    assert _deadlines(run) == [5.0, 2.0, 2.0]
    assert run.times("versions") == [5.0, 7.0, 9.0]
    assert run.column("versions", "updates") == ["3", "2", "2"]


@pytest.mark.parametrize(
    ("stragglers", "deadlines", "versions_s"),
    [
        # Client 1, told to stop at each deadline, has no duration: three times 2 s.
        ("cancel", [3.0, 3.0, 3.0, 2.0], [3.0, 6.0, 9.0, 11.0]),
        # It uploads at 7 s, too late for round 1, and at the instant at which round 3 is over: the
        # last three are 2, 2 and 7 s. In round 4, which both may take part in, 7 s are just enough.
        ("finish", [3.0, 3.0, 3.0, 7.0], [3.0, 5.0, 7.0, 14.0]),
    ],
)
def test_late_uploads_count_where_stragglers_finish(
    lab: Lab, stragglers: str, deadlines: list[float], versions_s: list[float]
) -> None:
    pacing = synchronous(2, deadline=_quantile(1, 3, 3), stragglers=stragglers, too_few="proceed")
    run = lab.run(timed(2, [2, 7], pacing, stop={"versions": 4}))
    assert _deadlines(run) == deadlines
    assert run.times("versions") == versions_s


@pytest.mark.parametrize(
    ("bounds", "third"),
    [
        ({}, 2.0),
        ({"times": 1.5}, 3.0),
        ({"at_least": "2500 ms"}, 2.5),
        ({"at_least": 1}, 2.0),
        ({"at_most": 1.5}, 1.5),
        ({"at_most": "1 min"}, 2.0),
        ({"times": 10, "at_least": 1, "at_most": "4 s"}, 4.0),
    ],
)
def test_a_quantile_is_stretched_and_held_within_bounds(
    lab: Lab, bounds: Config, third: float
) -> None:
    # Uploads after 2 s: two before round 3. Bounds are for the quantile, not for what comes before.
    pacing = synchronous(2, deadline=_quantile(1, 2, 5, **bounds))
    run = lab.run(timed(2, [2, 100], pacing, stop={"sim_time": 11}))
    assert _deadlines(run)[:3] == [5.0, 5.0, third]


def test_uploads_of_a_round_that_failed_are_known_too(lab: Lab) -> None:
    # 4 s are too short for client 1; its 6 s, known when it finishes, make round 3 long enough.
    pacing = synchronous(
        2, deadline=_quantile(1, 2, 4), min_updates=2, stragglers="finish", too_few="wait"
    )
    run = lab.run(timed(2, [1, 6], pacing, stop={"versions": 1}))
    assert [(event["t"], event["updates"]) for event in run.of("round_failed")] == [(4.0, 1)]
    assert [(event["t"], event["deadline_s"]) for event in run.of("round")] == [(0, 4), (6, 6)]
    assert run.times("versions") == [12.0]


def test_the_rank_of_a_quantile_is_the_ceiling_of_the_decimal_product(lab: Lab) -> None:
    # 0.07 × 100 is 7.000000000000001 in binary: the 7th shortest of 1 to 100 s, not the 8th.
    pacing = synchronous(100, deadline=_quantile(0.07, 100, "none"))
    run = lab.run(timed(100, list(range(1, 101)), pacing, stop={"versions": 2}))
    assert _deadlines(run) == [None, 7.0]
    assert run.column("versions", "updates") == ["100", "7"]


def test_a_transfer_belongs_to_the_duration(lab: Lab) -> None:
    # 0.5 + 1/4 s down, 1 s, 0.5 + 1/2 s up.
    network = links(down="4 MB/s", up="2 MB/s", latency="500 ms")
    pacing = synchronous(1, deadline=_quantile(0.5, 1, "1 min", times=2))
    run = lab.run(timed(1, 1, pacing, network=network, stop={"versions": 2}))
    assert _deadlines(run) == [60.0, 5.5]


def test_a_quantile_that_can_only_shrink_is_pointed_out(lab: Lab) -> None:
    def notes(**options: Any) -> str:
        deadline = _quantile(0.8, 4, 60, **options.pop("bounds", {}))
        config = timed(2, 1, synchronous(2, deadline=deadline, **options), stop={"versions": 1})
        return json.dumps(lab.run(config, "--restart").manifest)

    warning = "none takes longer than its deadline did"
    assert warning in notes()
    assert warning not in notes(bounds={"at_least": 30})
    assert warning not in notes(stragglers="finish")


def test_a_learning_run_meets_the_same_deadlines(lab: Lab) -> None:
    pacing = synchronous(8, deadline=_quantile(0.5, 10, "20 s"), over_commitment=1.25)
    config = digits(10, pacing, versions=4, training=[float(s) for s in range(1, 11)])
    learned = lab.run(config, out="learned")
    timing = lab.run(config, "--timing-only", out="timing")
    assert learned.lines("events.jsonl") == timing.lines("events.jsonl")
    assert len(set(_deadlines(learned))) > 1


# --- the target ratio ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("participants", "ratio", "in_time", "succeeds"),
    [
        (5, 0.8, 4, True),
        (5, 0.8, 3, False),
        # 0.14 × 50 is 7.000000000000001 in binary.
        (50, 0.14, 7, True),
        (50, 0.14, 6, False),
        # 3.5 are 4.
        (5, 0.7, 4, True),
        (5, 0.7, 3, False),
        (5, 1.0, 5, True),
        (5, 1.0, 4, False),
        (5, 0.01, 1, True),
        (5, 0.01, 0, False),
    ],
)
def test_a_round_succeeds_with_its_target_ratio(
    lab: Lab, participants: int, ratio: float, in_time: int, succeeds: bool
) -> None:
    training = [1.0] * in_time + [100.0] * (participants - in_time)
    pacing = synchronous(participants, deadline="10 s", target_ratio=ratio)
    run = lab.run(timed(participants, training, pacing, stop={"sim_time": 10}))
    closes_s = 1.0 if in_time == participants else 10.0
    made = list(zip(run.times("versions"), run.column("versions", "updates"), strict=True))
    failed = [(event["t"], event["updates"]) for event in run.of("round_failed")]
    assert made[:1] == ([(closes_s, str(in_time))] if succeeds else [])
    assert failed[:1] == ([] if succeeds else [(10.0, in_time)])
    outcome = "reported" if succeeds else "discarded"
    assert run.column("updates", "outcome").count(outcome) >= in_time


def test_the_ratio_is_one_of_the_participants_and_not_of_all_who_were_asked(lab: Lab) -> None:
    # 7 are asked, 5 are wanted, 4 = 0.8 × 5 arrive: 0.8 × 7 would be 6, which no round waits for.
    pacing = synchronous(5, over_commitment=1.4, deadline="10 s", target_ratio=0.8)
    run = lab.run(timed(7, [1, 2, 3, 4, 50, 50, 50], pacing, stop={"versions": 1}))
    assert [event["asked"] for event in run.of("round")] == [7]
    assert run.times("versions") == [10.0]
    assert run.column("versions", "updates") == ["4"]


@pytest.mark.parametrize(("in_time", "succeeds"), [(2, True), (1, False)])
def test_a_round_that_went_ahead_with_few_needs_its_share_of_these(
    lab: Lab, in_time: int, succeeds: bool
) -> None:
    # 3 of 10 are there: ceil(0.6 × 3) = 2.
    sessions = [[[0, 900]]] * 3 + [[[500, 900]]] * 7
    pacing = synchronous(10, deadline="10 s", target_ratio=0.6, too_few="proceed")
    training = [1.0] * in_time + [100.0] * (10 - in_time)
    run = lab.run(timed(10, training, pacing, sessions=sessions, stop={"sim_time": 15}))
    assert run.times("versions") == ([10.0] if succeeds else [])
    assert len(run.of("round_failed")) == (0 if succeeds else 1)


def test_a_round_fails_as_soon_as_nobody_is_left_to_reach_the_ratio(lab: Lab) -> None:
    # Two of four report by 2 s, the others are lost at 5 s; 3 = ceil(0.75 × 4) would be needed.
    sessions = [[[0, 900]], [[0, 900]], [[0, 5]], [[0, 5]]]
    pacing = synchronous(4, deadline="60 s", target_ratio=0.75)
    run = lab.run(timed(4, [1, 2, 50, 50], pacing, sessions=sessions, stop={"sim_time": 50}))
    assert [(event["t"], event["updates"]) for event in run.of("round_failed")] == [(5.0, 2)]


def test_one_quorum_is_enough(lab: Lab) -> None:
    said = lab.failed_run(timed(5, 1, synchronous(5, min_updates=2, target_ratio=0.8)))
    assert "min_updates and target_ratio both say when a round fails" in said
    for ratio in (0.0, 1.1):
        assert "target_ratio" in lab.failed_run(timed(5, 1, synchronous(5, target_ratio=ratio)))


def test_a_resolved_scenario_runs_again(lab: Lab) -> None:
    deadline = _quantile(0.8, 4, "1 min", at_most="5 min")
    config = timed(
        5, [1, 2, 3, 4, 5], synchronous(5, deadline=deadline, target_ratio=0.8),
        stop={"versions": 3},
    )  # fmt: skip
    first = lab.run(config, out="first")
    again = lab.run(first.path / "resolved.yaml", out="again")
    assert first.lines("events.jsonl") == again.lines("events.jsonl")
    assert again.resolved["federation"] == first.resolved["federation"]
