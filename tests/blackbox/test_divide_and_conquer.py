"""What travels in Divide-and-Conquer, to the byte, and when (T20); what is refused, and why.

The model is an MLP of 4-6-3 values: 30 parameters (120 bytes) in its first layer, part A, and 21
(84 bytes) in its second, part B. Headers are 10 bytes, control messages 5.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from commandline import Config, Lab, RunFiles, buffered, digits, links, synchronous, timed
from safetensors.numpy import load_file

from emulator.federation.server import Server
from emulator.learning.learner import Learner

A, B, HEADER, CONTROL = 120, 84, 10, 5
PARTS = ("a", "b", "ab")


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def divided(
    clients: int = 4, pacing: Config | None = None, *, training: Any = 10.0, versions: int = 10,
    payload: Config | None = None, **system: Any,
) -> Config:  # fmt: skip
    """All clients in every round, unless said otherwise; a phase is an epoch, as ``local`` is."""
    config = timed(
        clients, training, pacing or synchronous(clients), stop={"versions": versions}, **system
    )
    config["task"]["dataset"].update(input_shape=[4], classes=3)
    config["task"]["model"] = {"kind": "mlp", "hidden": [6]}
    config["federation"]["payload"] = {
        "kind": "divide_and_conquer", "split": {"kind": "fixed", "layer": 1},
        "feature_learning": {"epochs": 1, "lr": 0.1}, "fine_tuning": {"epochs": 1, "lr": 0.1},
        "header": f"{HEADER} B", "control": f"{CONTROL} B", **(payload or {}),
    }  # fmt: skip
    return config


def rows_of(run: RunFiles) -> list[list[Config]]:
    """The tasks by round, in order of dispatch."""
    tasks = sorted(run.table("updates"), key=lambda row: float(row["dispatched_s"]))
    starts = sorted({float(row["dispatched_s"]) for row in tasks})
    return [[row for row in tasks if float(row["dispatched_s"]) == start] for start in starts]


def by_part(row: Config, direction: str) -> tuple[int, int, int]:
    a, b, ab = (int(row[f"{part}_bytes_{direction}"]) for part in PARTS)
    return a, b, ab


PREPASS = {"deadline": "none", "epochs": 3}
# (pre-pass, parameter bytes (a, b, both) of a client down, the same up, by round)
T20: dict[str, tuple[Config | None, list[tuple[int, int, int]], list[tuple[int, int, int]]]] = {
    "none": (
        None,
        [(A, B, 0), (A, 0, 0), (0, B, 0), (A, 0, 0), (0, B, 0)],
        [(A, 0, 0), (0, B, 0), (A, 0, 0), (0, B, 0), (A, 0, 0)],
    ),
    # It leaves the model as it was, which all clients have then.
    "discarded": (
        PREPASS,
        [(0, 0, A + B), (0, 0, 0), (A, 0, 0), (0, B, 0), (A, 0, 0)],
        [(0, 0, A + B), (A, 0, 0), (0, B, 0), (A, 0, 0), (0, B, 0)],
    ),
    "counts": (
        {**PREPASS, "counts": True},
        [(0, 0, A + B), (A, B, 0), (A, 0, 0), (0, B, 0), (A, 0, 0)],
        [(0, 0, A + B), (A, 0, 0), (0, B, 0), (A, 0, 0), (0, B, 0)],
    ),
}


@pytest.mark.parametrize("case", list(T20))
def test_t20_ten_rounds_by_hand(lab: Lab, case: str) -> None:
    prepass, down, up = T20[case]
    rounds = rows_of(lab.run(divided(payload={"prepass": prepass} if prepass else {})))
    assert len(rounds) == 10 + (case == "discarded")
    for number, tasks in enumerate(rounds):
        # The pattern goes on with the rounds two before.
        at = number if number < len(down) else 3 + (number - 3) % 2
        assert len(tasks) == 4
        for row in tasks:
            assert by_part(row, "down") == down[at], (case, number)
            assert by_part(row, "up") == up[at], (case, number)
            assert int(row["header_bytes"]) == 2 * HEADER
            assert int(row["control_bytes"]) == CONTROL
            assert int(row["bytes_down"]) == sum(down[at]) + HEADER + CONTROL
            assert int(row["bytes_up"]) == sum(up[at]) + HEADER


def test_any_two_consecutive_rounds_are_half_of_fedavg_each_way(lab: Lab) -> None:
    rounds = rows_of(lab.run(divided(versions=12)))
    for before, after in pairwise(rounds[1:]):
        for direction in ("down", "up"):
            parameters = sum(sum(by_part(row, direction)) for row in (*before, *after))
            assert parameters == (A + B) * len(before)  # FedAvg: twice that


@pytest.mark.parametrize(
    ("participants", "share", "versions"),
    [(100, 0.5, 40), (50, 0.625, 200), (20, 0.70, 800), (10, 0.725, 1200), (5, 0.74, 2000)],
)
def test_sampling_leaves_0_75_less_a_quarter_of_the_share(
    lab: Lab, participants: int, share: float, versions: int
) -> None:
    """(1 − C/2) down and 1/2 up of the model; measured where every client has been asked."""
    run = lab.run(divided(100, synchronous(participants), versions=versions))
    tasks = [row for row in run.table("updates") if int(row["version"]) >= versions // 4]
    moved = sum(sum(by_part(row, "down")) + sum(by_part(row, "up")) for row in tasks)
    assert moved / (2 * (A + B) * len(tasks)) == pytest.approx(share, rel=0.01)
    assert 0.75 - 0.25 * participants / 100 == pytest.approx(share, abs=0.003)


def test_the_papers_accounting_charges_the_trained_part_each_way(lab: Lab) -> None:
    run = lab.run(divided(8, synchronous(2), payload={"naive_half": True}))
    for row in run.table("updates"):
        expected = (A, 0, 0) if row["part"] == "A" else (0, B, 0)
        assert by_part(row, "down") == by_part(row, "up") == expected


def test_who_was_away_gets_both_parts(lab: Lab) -> None:
    """Client 1 misses round 1 (20 s to 30 s) and lacks both parts in the next."""
    sessions = [[[0.0, 1000.0]], [[0.0, 15.0], [25.0, 1000.0]]]
    run = lab.run(
        divided(2, synchronous(2, too_few="proceed"), training=[10.0, 10.0], versions=5,
                payload={"split": {"kind": "fixed", "layer": 1}, "schedule": ["A", "A", "B"]},
                sessions=sessions, on_offline="drop", drop_notice="at_once")
    )  # fmt: skip
    assert [row["part"] for row in run.tasks(0)] == ["A", "A", "B", "A", "A"]
    first, second = run.tasks(1)[:2]
    assert first["outcome"] == "reported"
    assert second["outcome"] == "dropped_training"  # 10.4 s of training, from 9.x s to 15 s
    again = run.tasks(1)[2]
    assert float(again["dispatched_s"]) > 25.0
    # It holds version 1 of part A and the first B; both have changed since.
    assert by_part(again, "down") == (A, B, 0)


def test_a_lost_download_leaves_nothing_and_a_finished_one_all(lab: Lab) -> None:
    """Client 0 is lost 1 s into a download of 219 bytes at 100 B/s, client 1 after it."""
    sessions = [[[0.0, 1.0], [50.0, 1000.0]], [[0.0, 5.0], [50.0, 1000.0]]]
    run = lab.run(
        divided(2, synchronous(2), versions=1, sessions=sessions, on_offline="drop",
                drop_notice="at_once", network=links(down="100 B/s", up="100 B/s"))
    )  # fmt: skip
    lost, again = run.tasks(0)
    assert lost["outcome"] == "dropped_download"
    assert by_part(lost, "down") == (85, 0, 0)  # of 100 bytes 15 are header and control
    assert int(lost["header_bytes"]) + int(lost["control_bytes"]) == 15
    assert by_part(again, "down") == (A, B, 0)
    trained, again = run.tasks(1)
    assert trained["outcome"] == "dropped_training"
    assert by_part(trained, "down") == (A, B, 0)
    assert by_part(again, "down") == (0, 0, 0)


def test_a_round_lasts_as_long_as_its_operations(lab: Lab) -> None:
    """Multiply-accumulates of a sample: forward 24 + 18, all gradients 24 + 18 + 18; of part A
    alone as many (the way back leads through B), of part B alone 18."""
    run = lab.run(divided(1, versions=3, payload={"feature_learning": {"epochs": 4, "lr": 0.1}}))
    times = [float(row["trained_s"]) - float(row["downloaded_s"]) for row in run.tasks(0)]
    a, b, whole = 42 + 24 + 18, 42 + 18, 42 + 60
    assert times == pytest.approx([40 * a / whole, 10 * b / whole, 40 * a / whole])


@pytest.mark.parametrize(
    ("devices", "per_sample"),
    [({"kind": "fedscale", "path": "devices.csv"}, 3 * 0.1),
     ({"kind": "macs", "path": "devices.csv", "reference_macs": 42}, 0.1 * 102 / 42)],
)  # fmt: skip
def test_devices_of_a_trace_are_charged_the_same_share(
    lab: Lab, devices: Config, per_sample: float
) -> None:
    """100 ms for a sample's inference, 10 samples: FedScale's three inferences shrink with the
    operations; ``macs`` counts them."""
    (lab.folder / "devices.csv").write_text(
        "client_id,computation_ms_per_sample,communication_kbps\n1,100.0,1000.0\n"
    )
    config = divided(1, versions=2)
    config["system"]["devices"] = devices
    times = [float(r["trained_s"]) - float(r["downloaded_s"]) for r in lab.run(config).tasks(0)]
    expected = [10 * per_sample * 84 / 102, 10 * per_sample * 60 / 102]
    assert times == pytest.approx(expected)


# --- asynchronous ---------------------------------------------------------------------------------


def test_global_phase_changes_with_every_version(lab: Lab) -> None:
    """Two in flight of a buffer of one; client 1 takes twice as long as client 0."""
    run = lab.run(divided(2, buffered(2, 1, weights="uniform"), training=[10.0, 25.0], versions=6))
    changed = {e["version"]: e["tasks"] for e in run.of("aggregate")}
    part = {e["task"]: e["part"] for e in run.of("dispatch")}
    began = {e["task"]: e["version"] for e in run.of("dispatch")}
    assert all(part[task] == "AB"[began[task] % 2] for task in part)
    assert [part[task] for tasks in changed.values() for task in tasks] != ["A", "B"] * 3
    # Staleness counts the versions of the own part, cross_staleness those of the other.
    order = [changed[v][0] for v in sorted(changed)]
    for row in run.table("updates"):
        if row["outcome"] != "reported" or not row["staleness"]:
            continue
        task = next(e["task"] for e in run.of("dispatch")
                    if e["entity"] == f"client/{row['client']}"
                    and e["t"] == float(row["dispatched_s"]))  # fmt: skip
        if task not in order:
            continue
        since = [part[t] for t in order[began[task] : order.index(task)]]
        assert int(row["staleness"]) == since.count(row["part"])
        assert int(row["cross_staleness"]) == len(since) - since.count(row["part"])


def test_a_version_takes_updates_of_one_part_only(lab: Lab) -> None:
    run = lab.run(
        divided(8, buffered(8, 3, weights="uniform"), training=[3.0 + c for c in range(8)],
                versions=12, payload={"alternate": "client_phase"})
    )  # fmt: skip
    part = {event["task"]: event["part"] for event in run.of("dispatch")}
    for event in run.of("aggregate"):
        assert len(event["tasks"]) == 3
        assert len({part[task] for task in event["tasks"]}) == 1
    for client in range(8):
        parts = [row["part"] for row in run.tasks(client)]
        assert parts == ["A", "B"] * (len(parts) // 2) + ["A"] * (len(parts) % 2)


def test_a_round_of_client_phases_changes_both_parts(lab: Lab) -> None:
    """With two of four clients a round, and every client alternating by its own reports."""
    run = lab.run(divided(4, synchronous(2), versions=20, payload={"alternate": "client_phase"}))
    part = {event["task"]: event["part"] for event in run.of("dispatch")}
    kinds = [{part[task] for task in event["tasks"]} for event in run.of("aggregate")]
    assert {"A", "B"} in kinds
    for client in range(4):
        parts = [row["part"] for row in run.tasks(client)]
        assert parts == (["A", "B"] * 20)[: len(parts)]


def test_stale_parts_are_discarded_by_their_own_versions(lab: Lab) -> None:
    pacing = buffered(2, 1, weights="uniform", max_staleness=1)
    run = lab.run(divided(2, pacing, training=[10.0, 45.0], versions=14))
    outcomes = {row["outcome"] for row in run.tasks(1)}
    assert "discarded" in outcomes
    for row in run.table("updates"):
        if row["outcome"] == "reported":
            assert int(row["staleness"]) <= 1


# --- in superclients ------------------------------------------------------------------------------


@pytest.mark.parametrize("hop", ["p2p", "relay"])
def test_a_hop_carries_what_the_next_client_lacks(lab: Lab, hop: str) -> None:
    """One superclient of three, two passes: the part that is trained comes with every hop, the
    frozen one once, where it has changed since."""
    config = divided(3, synchronous(1), versions=3)
    config["system"].update(on_offline="drop", drop_notice="at_once")
    config["federation"]["structure"] = {
        "kind": "superclients", "grouping": {"kind": "random", "min_samples": 30},
        "hop": hop, "absent": {"kind": "abort"}, "passes": 2,
    }  # fmt: skip
    run = lab.run(config)
    for chain, (trained, frozen) in enumerate((("A", "B"), ("B", "A"), ("A", "B"))):
        tasks = [r for r in run.table("updates") if r["chain"] == str(chain)]
        tasks.sort(key=lambda row: (float(row["dispatched_s"]), float(row["uploaded_s"] or "inf")))
        assert [row["part"] for row in tasks] == [trained] * 6
        first_time: set[str] = set()
        holder = None
        for row in tasks:
            new = row["client"] not in first_time
            first_time.add(row["client"])
            own = holder == row["client"] and hop == "p2p"
            size = {"A": A, "B": B}
            # After its own round a client holds the part that was frozen then, which is what is
            # trained now: the first to begin has it. It holds no version of the other.
            has = own or (chain > 0 and row is tasks[0])
            expected = {trained: 0 if has else size[trained], frozen: size[frozen] if new else 0}
            assert by_part(row, "down") == (expected["A"], expected["B"], 0), (chain, row)
            holder = row["client"]
        lent = [row for row in tasks[:-1] if hop == "p2p"]
        for row, after in zip(lent, tasks[1:], strict=False):
            if after["client"] != row["client"]:
                assert by_part(row, "up") == by_part(after, "down")
        assert by_part(tasks[-1], "up") == ((A, 0, 0) if trained == "A" else (0, B, 0))


def test_a_superclient_of_one_moves_what_a_client_does(lab: Lab) -> None:
    """Asked twice from every version: the second time it has all of it."""
    config = divided(1, buffered(1, 2, weights="uniform"), versions=4)
    star = lab.run(config, out="star")
    config["system"].update(on_offline="drop", drop_notice="at_once")
    config["federation"]["structure"] = {
        "kind": "superclients", "grouping": {"kind": "random", "min_samples": 10}, "hop": "p2p",
        "absent": {"kind": "abort"},
    }  # fmt: skip
    chain = lab.run(config, out="chain")
    columns = ["part", "bytes_down", "bytes_up", *(f"{part}_bytes_down" for part in PARTS)]
    found = [[[row[c] for c in columns] for row in run.tasks(0)] for run in (star, chain)]
    assert found[0] == found[1]
    assert [int(row[1]) - HEADER - CONTROL for row in found[0][:4]] == [A + B, 0, A, 0]


def test_pre_training_moves_whole_models(lab: Lab) -> None:
    """FedSeq's, before there are parts: what is no header is the model's."""
    config = divided(6, synchronous(1), versions=1)
    config["system"].update(on_offline="drop", drop_notice="at_once")
    config["federation"]["structure"] = {
        "kind": "superclients", "grouping": {"kind": "kmeans", "min_samples": 20}, "hop": "p2p",
        "absent": {"kind": "abort"}, "approximator": {"kind": "clf"},
        "pretraining": {"epochs": 1, "absent": "wait_all"}, "stand_in": "random",
    }  # fmt: skip
    rows = [r for r in lab.run(config).table("updates") if r["phase"] == "pretraining"]
    assert len(rows) == 6
    for row in rows:
        assert by_part(row, "down") == (0, 0, A + B)
        assert int(row["header_bytes"]) == 2 * HEADER
        assert int(row["control_bytes"]) == 0
        assert sum(by_part(row, "up")) == int(row["bytes_up"]) - HEADER


# --- degenerate and refused -----------------------------------------------------------------------


@pytest.mark.parametrize(("layer", "empty"), [(0, "A"), (2, "B")])
def test_an_empty_part_is_fedavg_every_other_round(lab: Lab, layer: int, empty: str) -> None:
    """s = 0 and s = L, with links, so that the empty rounds take time."""
    network = links(down="1 kB/s", up="1 kB/s")
    payload = {"split": {"kind": "fixed", "layer": layer}}
    said = lab.try_run(divided(payload=payload, network=network, versions=6))
    assert said.exit_code == 0, said
    phase = {"A": "feature-learning", "B": "fine-tuning"}[empty]
    assert f"part {empty} has no layer: in {phase} rounds nothing is trained" in said.err
    for row in RunFiles(lab.folder / "run").table("updates"):
        trained_s = float(row["trained_s"]) - float(row["downloaded_s"])
        if row["part"] == empty:
            assert sum(by_part(row, "up")) == 0
            assert trained_s == 0.0
        else:
            assert sum(by_part(row, "up")) == A + B
            assert trained_s == pytest.approx(10.0)


def test_an_empty_part_learns_as_fedavg_does_in_the_other_rounds(lab: Lab) -> None:
    """Digits: six rounds with s = L against three of FedAvg, to the bit in the same draws' place:
    a client's second visit of a version has other draws, so versions are compared by hand."""
    config = digits(4, synchronous(4), versions=2)
    network = links(down="1 MB/s", up="1 MB/s")
    config["system"]["network"] = network
    config["task"]["model"] = {"kind": "mlp", "hidden": [8]}
    config["federation"]["payload"] = {"kind": "full"}
    config["stop"]["versions"] = 1
    lab.run(config, out="fedavg")
    config["federation"]["payload"] = {
        "kind": "divide_and_conquer", "split": {"kind": "fixed", "layer": 2},
        "feature_learning": {"epochs": 1, "lr": 0.05}, "fine_tuning": {"epochs": 1, "lr": 0.05},
    }  # fmt: skip
    config["stop"]["versions"] = 2
    lab.run(config, out="divided")
    fedavg = load_file(lab.folder / "fedavg" / "model.safetensors")
    divided_ = load_file(lab.folder / "divided" / "model.safetensors")
    assert all((fedavg[name] == divided_[name]).all() for name in fedavg)


def test_an_empty_part_that_takes_no_time_is_refused_by_the_clock(lab: Lab) -> None:
    message = lab.failed_run(divided(payload={"split": {"kind": "fixed", "layer": 0}}), exit_code=1)
    assert "every task must move the clock" in message


@pytest.mark.parametrize(("schedule", "never"), [(["A"], "B"), (["B", "B"], "A")])
def test_a_part_that_nobody_trains_stays_as_it_was(
    lab: Lab, schedule: list[str], never: str
) -> None:
    config = digits(4, synchronous(4), versions=3)
    config["task"]["model"] = {"kind": "mlp", "hidden": [8]}
    config["federation"]["payload"] = {
        "kind": "divide_and_conquer", "split": {"kind": "fixed", "layer": 1}, "schedule": schedule,
        "feature_learning": {"epochs": 1, "lr": 0.05}, "fine_tuning": {"epochs": 1, "lr": 0.05},
    }  # fmt: skip
    said = lab.try_run(config)
    assert said.exit_code == 0, said
    assert f"schedule never trains part {never}" in said.err
    trained = load_file(lab.folder / "run" / "model.safetensors")
    config["stop"]["versions"] = 1
    config["local"]["optimizer"]["lr"] = 1e-300  # as good as not trained
    config["federation"]["payload"] = {"kind": "full"}
    lab.run(config, out="start")
    start = load_file(lab.folder / "start" / "model.safetensors")
    names = list(start)  # of the first layer, then of the second
    layer_of = {name: "A" if name.startswith(names[0].split(".")[0]) else "B" for name in names}
    for name in names:
        assert (trained[name] == start[name]).all() == (layer_of[name] == never), name


REFUSED = {
    "names no layer, and part A would be empty": {"split": {"kind": "fixed", "layers": []}},
    "the model has no layer 'hidden9'": {"split": {"kind": "fixed", "layers": ["hidden9"]}},
    "is 3, and the model has 2 layers": {"split": {"kind": "fixed", "layer": 3}},
    "goes by what clients have learned": {"split": {"kind": "threshold"}, "prepass": PREPASS},
    "prepass is missing": {"split": {"kind": "largest_jump"}},
    "at most 1 can be in part A": {
        "split": {"kind": "dynamic", "by": "accuracy", "every": 2, "layer": 2}, "stand_in": 1,
    },
    "must be at least 2, found 1": {"prepass": {**PREPASS, "participants": 1}},
    "participants is 5, more than 4 clients": {"prepass": {**PREPASS, "participants": 5}},
}  # fmt: skip


@pytest.mark.parametrize("reason", list(REFUSED))
def test_refused_with_the_reason(lab: Lab, reason: str) -> None:
    assert reason in lab.failed_run(divided(payload=REFUSED[reason]))


NOT_WITH: dict[str, tuple[Config, Config]] = {
    "its step takes one model at a time": (
        {"kind": "asynchronous", "in_flight": 4}, {"prepass": {**PREPASS, "counts": True}},
    ),
    "makes versions of one": (
        buffered(4, 1),
        {"split": {"kind": "dynamic", "by": "divergence", "every": 2}, "prepass": PREPASS,
         "stand_in": 1},
    ),
    "begin at different weights": (
        buffered(4, 2),
        {"split": {"kind": "dynamic", "by": "divergence", "every": 2},
         "prepass": {**PREPASS, "on": "weights"}, "stand_in": 1},
    ),
    "may come to fewer of each": (buffered(4, 3, refill="at_aggregation"), {}),
}  # fmt: skip


@pytest.mark.parametrize("reason", list(NOT_WITH))
def test_refused_with_a_pacing(lab: Lab, reason: str) -> None:
    pacing, payload = NOT_WITH[reason]
    assert reason in lab.failed_run(divided(4, pacing, payload=payload))


@pytest.mark.parametrize("schedule", [["A"], ["B", "B"]])
def test_slots_may_be_refilled_at_the_aggregation_of_the_only_part(
    lab: Lab, schedule: list[str]
) -> None:
    """Four in flight fill a buffer of three, where all of them train the same part."""
    pacing = buffered(4, 3, refill="at_aggregation")
    times = [10.0, 11.0, 12.0, 13.0]
    run = lab.run(divided(4, pacing, training=times, versions=6, payload={"schedule": schedule}))
    assert [len(event["tasks"]) for event in run.of("aggregate")] == [3] * 6
    assert {event["part"] for event in run.of("dispatch")} == {schedule[0]}


def test_a_pre_pass_of_all_superclients_waits_for_one_member_of_each(lab: Lab) -> None:
    """Of four clients in two superclients never more than two are online, and from 100 s on one of
    each; a star would wait for all four for ever, and is refused."""
    config = divided(4, synchronous(2), versions=2, payload={"prepass": PREPASS})
    config["system"].update(on_offline="drop", drop_notice="at_once")
    config["federation"]["structure"] = {
        "kind": "superclients", "grouping": {"kind": "random", "min_samples": 20}, "hop": "p2p",
        "absent": {"kind": "swap", "timeout": 0.0},
    }  # fmt: skip
    groups = lab.run(config, out="groups").of("superclients")[0]["groups"]
    assert [len(group) for group in groups] == [2, 2]
    early = {*groups[0]}
    away = {groups[0][1], groups[1][1]}
    config["system"]["availability"] = {
        "kind": "scripted", "period": 1000.0, "at_end": "wrap",
        "sessions": [
            [[0.0, 50.0]] * (client in early) + [[100.0, 900.0]] * (client not in away)
            for client in range(4)
        ],
    }  # fmt: skip
    run = lab.run(config, out="waits")
    first = run.of("round")[0]
    assert (first["t"], first["phase"], first["asked"]) == (100.0, "prepass", 2)
    assert len(run.table("versions")) == 2
    del config["federation"]["structure"]
    message = lab.failed_run(config, out="star")
    assert "would wait for an instant at which all 4 clients are online" in message


def test_one_layer_is_nothing_to_divide(lab: Lab) -> None:
    config = divided()
    config["task"]["model"] = {"kind": "logistic"}
    assert "one layer only, and nothing to divide" in lab.failed_run(config)


# --- splits that go by values ---------------------------------------------------------------------


def learning(split: Config, versions: int = 4, **payload: Any) -> Config:
    config = digits(5, synchronous(5), versions=versions)
    config["task"]["partition"] = {"kind": "dirichlet", "alpha": 0.3}
    config["task"]["model"] = {"kind": "mlp", "hidden": [12, 10, 8]}
    config["federation"]["payload"] = {
        "kind": "divide_and_conquer", "split": split, "prepass": {"deadline": "none", "epochs": 1},
        "feature_learning": {"epochs": 2, "lr": 0.05}, "fine_tuning": {"epochs": 1, "lr": 0.05},
        **payload,
    }  # fmt: skip
    return config


@pytest.mark.parametrize("counts", [False, True])
def test_the_split_is_explained_and_its_divergence_on_file(lab: Lab, counts: bool) -> None:
    prepass = {"deadline": "none", "epochs": 1, "counts": counts}
    run = lab.run(learning({"kind": "largest_jump"}, prepass=prepass))
    (split,) = run.of("split")
    assert split["rule"] == "largest_jump"
    assert split["why"] == "behind it the divergence rises most"
    layers = run.table("layers")
    values = [float(row["divergence"]) for row in layers]
    assert all(0 <= value <= 2 for value in values)
    jumps = [after - before for before, after in pairwise(values)]
    assert len(split["A"]) == jumps.index(max(jumps)) + 1
    assert [row["part"] for row in layers] == ["A"] * len(split["A"]) + ["B"] * len(split["B"])
    assert split["A_bytes"] == sum(int(r["size_bytes"]) for r in layers if r["part"] == "A")
    assert not any(isinstance(value, float) for value in split.values() if value != split["t"])
    versions = run.times("versions", "version")
    assert len(versions) == 4
    assert len(run.table("updates")) == 5 * (4 if counts else 5)


def test_the_pre_pass_is_trained_and_measured_as_it_says(lab: Lab) -> None:
    """Its rate, its metric, its weights: each gives other divergences."""
    found = []
    for number, more in enumerate(({}, {"lr": 0.01}, {"metric": "to_mean"}, {"on": "weights"})):
        prepass = {"deadline": "none", "epochs": 1, **more}
        run = lab.run(learning({"kind": "threshold"}, 1, prepass=prepass), out=f"run{number}")
        found.append(tuple(run.column("layers", "divergence")))
    assert len(set(found)) == 4
    # To the mean the largest client is nearest: counted alike, it would be another number.
    config = learning({"kind": "threshold"}, 1, prepass={**PREPASS, "metric": "to_mean"})
    original = Learner.divergence

    def alike(self: Learner, server: Any, updates: Any, weights: Any, *rest: Any) -> Any:
        assert len(set(weights)) > 1
        return original(self, server, updates, [1.0] * len(weights), *rest)

    weighed = tuple(lab.run(config, out="weighed").column("layers", "divergence"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "divergence", alike)
        assert tuple(lab.run(config, out="alike").column("layers", "divergence")) != weighed


def test_what_is_not_finite_in_a_pre_pass_is_named(lab: Lab) -> None:
    """With drop all are left out, so that there is nothing to go by; with stop the run ends."""
    prepass = {"deadline": "none", "epochs": 1, "lr": 1e38}
    config = learning({"kind": "fixed", "layer": 1}, 1, prepass=prepass)
    run = lab.run(config, out="drop")
    assert len(run.of("nonfinite")) == 5
    assert {row["divergence"] for row in run.table("layers")} == {""}
    config["federation"]["on_nonfinite"] = "stop"
    assert "is not finite" in lab.failed_run(config, exit_code=3, out="stop")
    config = learning({"kind": "threshold"}, 1, prepass=prepass)
    message = lab.failed_run(config, exit_code=1, out="by-value")
    assert "the divergence needs finite updates of two clients with samples or more" in message
    assert "of the 5 of the pre-pass, 5 are not finite and 0 come from who has no sample" in message


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("federation.payload.feature_learning.lr", {"feature_learning": {"epochs": 1, "lr": 1e38}}),
        ("federation.payload.fine_tuning.lr", {"fine_tuning": {"epochs": 1, "lr": 1e38}}),
        ("federation.payload.prepass.lr", {"prepass": {**PREPASS, "lr": 1e38}}),
        ("local.optimizer.lr", {"prepass": PREPASS}),
    ],
)  # fmt: skip
def test_the_rate_that_is_too_large_is_named(lab: Lab, key: str, options: Config) -> None:
    config = learning({"kind": "fixed", "layer": 3}, 4, **{"prepass": None, **options})
    config["federation"]["on_nonfinite"] = "stop"
    if key == "local.optimizer.lr":
        config["local"]["optimizer"]["lr"] = 1e38
    assert f"a smaller {key} helps" in lab.failed_run(config, exit_code=3)
    if "prepass" in options:  # that nothing finite comes of it ends a run by divergence anyway
        config["federation"]["payload"]["split"] = {"kind": "threshold"}
        config["federation"]["on_nonfinite"] = "drop"
        assert f"or say a smaller {key}" in lab.failed_run(config, exit_code=1, out="threshold")


@pytest.mark.parametrize("metric", ["pairwise", "to_mean"])
def test_clients_without_samples_have_no_part_in_the_divergence(lab: Lab, metric: str) -> None:
    """Two of five hold all data: the divergence is that of the two, where they are alone."""
    prepass = {**PREPASS, "metric": metric}
    found = []
    for clients in (5, 2):
        config = learning({"kind": "threshold"}, 1, prepass=prepass)
        config["task"]["clients"] = clients
        config["task"]["partition"] = {"kind": "iid", "holders": 2}
        config["federation"]["pacing"] = synchronous(clients)
        run = lab.run(config, out=f"of-{clients}")
        found.append([float(value) for value in run.column("layers", "divergence")])
    assert found[0] == found[1]
    config["task"]["clients"] = 3
    config["task"]["partition"]["holders"] = 1
    config["federation"]["pacing"] = synchronous(3)
    message = lab.failed_run(config, exit_code=1, out="one")
    assert "of the 3 of the pre-pass, 0 are not finite and 2 come from who has no sample" in message


def test_layers_that_several_splits_have_trained_take_one_step(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A buffer of updates of two splits: each layer is merged once, of all that have trained it."""
    merges: list[list[tuple[tuple[str, ...] | None, int]]] = []
    merge, aggregate = Server.merge, Learner.aggregate

    def merging(self: Server, *args: Any) -> None:
        merges.append([])
        merge(self, *args)

    def aggregating(self: Learner, *args: Any) -> Any:
        merges[-1].append((args[5], len(args[1])))
        return aggregate(self, *args)

    monkeypatch.setattr(Server, "merge", merging)
    monkeypatch.setattr(Learner, "aggregate", aggregating)
    config = learning({"kind": "dynamic", "by": "accuracy", "every": 1, "layer": 1}, 20,
                      alternate="client_phase")  # fmt: skip
    config["federation"]["pacing"] = buffered(5, 3, weights="uniform")
    config["system"]["devices"]["training"] = [3.0, 5.0, 7.0, 11.0, 13.0]
    run = lab.run(config)
    assert len({len(event["A"]) for event in run.of("split")}) > 1
    # The pre-pass has no merge: it does not count.
    assert len(merges) == 20
    for of_version in merges:
        layers = [name for named, _ in of_version for name in named or ()]
        assert len(set(layers)) == len(layers)
        assert max(count for _, count in of_version) <= 3
    assert any(len(of_version) > 1 for of_version in merges)


def test_a_dynamic_split_by_divergence_follows_it(lab: Lab) -> None:
    run = lab.run(
        learning({"kind": "dynamic", "by": "divergence", "every": 4, "rho": 0.9}, versions=9)
    )
    splits = run.of("split")
    assert [event["version"] for event in splits] == [0, 4, 8]
    table = run.table("layers")
    for event in splits:
        rows = [row for row in table if row["version"] == str(event["version"])]
        values = [float(row["divergence"]) for row in rows]
        below = [s for s, v in enumerate(values, start=1) if v <= 0.9 * max(values)]
        assert len(event["A"]) == min(max(below, default=1), 3)
    assert len({row["divergence"] for row in table if row["layer"] == "1"}) == 3  # measured anew


def test_a_dynamic_split_by_accuracy_climbs(lab: Lab) -> None:
    run = lab.run(
        learning({"kind": "dynamic", "by": "accuracy", "every": 2, "layer": 1}, versions=9)
    )
    sizes = [len(event["A"]) for event in run.of("split")]
    assert [event["version"] for event in run.of("split")] == [0, 2, 4, 6, 8]
    assert sizes[:2] == [1, 2]
    assert all(abs(after - before) == 1 for before, after in pairwise(sizes))


def test_the_clock_does_not_depend_on_what_is_learned(lab: Lab) -> None:
    """With a stand-in for the split, the log without learning is the log with it."""
    config = learning({"kind": "threshold", "rho": 0.9})
    real = lab.run(config, out="real")
    layer = len(real.of("split")[0]["A"])
    config["federation"]["payload"]["stand_in"] = layer
    timing = lab.run(config, "--timing-only", out="timing")
    named = ("rule", "why")
    strip = [
        [{k: v for k, v in e.items() if k not in named} for e in run.events]
        for run in (real, timing)
    ]
    assert strip[0] == strip[1]


def test_lanes_and_processes_learn_the_parts_as_one_by_one(lab: Lab) -> None:
    """What is frozen is frozen in every executor."""
    found = {}
    for executor in ("inline", "batched", "processes"):
        config = learning({"kind": "fixed", "layer": 2}, versions=3)
        config["execution"] = {"executor": executor}
        lab.run(config, out=executor)
        found[executor] = load_file(lab.folder / executor / "model.safetensors")
    for name, value in found["inline"].items():
        assert (found["processes"][name] == value).all()
        assert abs(found["batched"][name] - value).max() < 1e-5


def test_fedmax_in_lanes_as_one_by_one(lab: Lab) -> None:
    found = {}
    for out, executor, beta in (("a", "inline", 10.0), ("b", "batched", 10.0), ("c", "batched", 0)):
        config = digits(5, synchronous(5), versions=3)
        config["task"]["model"] = {"kind": "mlp", "hidden": [12]}
        config["federation"]["objective"] = {"kind": "fedmax", "beta": float(beta)}
        config["execution"] = {"executor": executor}
        lab.run(config, out=out)
        found[out] = load_file(lab.folder / out / "model.safetensors")
    for name, value in found["a"].items():
        assert abs(found["b"][name] - value).max() < 1e-5
        assert abs(found["c"][name] - value).max() > 1e-3


@pytest.mark.parametrize("executor", ["inline", "batched"])
def test_fedmax_needs_a_linear_layer_at_the_end(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    """What is behind the head may do nothing but in training."""
    (lab.folder / f"ends_{executor}.py").write_text(
        "from torch import nn\n\n"
        "def ends(input_shape, classes, behind):\n"
        "    layers = [nn.Flatten(), nn.Linear(64, classes), getattr(nn, behind)()]\n"
        "    return nn.Sequential(*layers)\n"
    )
    monkeypatch.syspath_prepend(str(lab.folder))
    config = digits(4, synchronous(4), versions=1)
    config["execution"] = {"executor": executor}
    config["federation"]["objective"] = {"kind": "fedmax", "beta": 2.0}
    for behind in ("ReLU", "Dropout"):
        config["task"]["model"] = {
            "kind": "custom", "callable": f"ends_{executor}:ends", "options": {"behind": behind},
        }  # fmt: skip
        message = lab.failed_run(config)
        assert "the logits of task.model do not come from one" in message
        assert not (lab.folder / "run").exists()
    if executor == "inline":
        config["task"]["model"]["options"]["behind"] = "Identity"
        lab.run(config)


# --- what goes with it ----------------------------------------------------------------------------


def test_running_statistics_travel_and_are_merged_with_their_part(lab: Lab) -> None:
    """ResNet8: a batch normalization of C channels has 2·C statistics (4 bytes), a count (8)."""
    config = digits(3, synchronous(3), versions=2)
    config["task"]["model"] = {"kind": "resnet8"}
    config["system"]["devices"]["training"] = 5.0
    config["federation"]["batch_norm"] = "average"
    config["federation"]["payload"] = {
        "kind": "divide_and_conquer", "split": {"kind": "fixed", "layer": 4}, "schedule": ["A"],
        "feature_learning": {"epochs": 1, "lr": 0.05}, "fine_tuning": {"epochs": 1, "lr": 0.05},
    }  # fmt: skip
    run = lab.run(config, "--timing-only", out="average")
    config["federation"]["batch_norm"] = "freeze"
    frozen = lab.run(config, "--timing-only", out="freeze")
    sizes = zip(run.table("layers"), frozen.table("layers"), strict=True)
    beside = {
        row["name"]: int(row["size_bytes"]) - int(other["size_bytes"]) for row, other in sizes
    }
    parameters = {row["name"]: int(row["parameters"]) for row in run.table("layers")}
    for name, extra in beside.items():
        # Scale and shift are 2·C parameters.
        assert extra in (0, 4 * parameters[name] + 8), name
    assert sum(extra > 0 for extra in beside.values()) >= 7
    part_a = sum(int(row["size_bytes"]) for row in run.table("layers") if row["part"] == "A")
    assert {by_part(row, "up")[0] for row in run.table("updates")} == {part_a}
    config["federation"]["batch_norm"] = "average"
    config["task"]["dataset"] = {"kind": "digits"}
    learned = lab.run(config, out="learned")
    state = load_file(learned.path / "model.safetensors")
    names = {row["name"]: row["part"] for row in learned.table("layers")}
    for name, part in names.items():
        count = state.get(f"{name}.num_batches_tracked")
        if count is not None:
            assert (int(count) > 0) == (part == "A"), name
            moved = bool(abs(state[f"{name}.running_mean"]).max() > 0)
            assert moved == (part == "A"), name


def test_qfedavg_beside_it_is_charged(lab: Lab) -> None:
    """A forward pass over the 10 samples, a third of a step each, and 4 bytes up."""
    config = divided(1, versions=2)
    config["federation"]["server_optimizer"] = {"kind": "qfedavg"}
    config["local"]["optimizer"]["lr"] = 0.1
    run = lab.run(config)
    times = [float(row["trained_s"]) - float(row["downloaded_s"]) for row in run.tasks(0)]
    assert times == pytest.approx([10 * (84 / 102 + 1 / 3), 10 * (60 / 102 + 1 / 3)])
    assert {int(row["control_bytes"]) for row in run.table("updates")} == {CONTROL + 4}
    assert int(run.tasks(0)[0]["bytes_up"]) == HEADER + 4 + A


@pytest.mark.parametrize(
    ("devices", "forward_s"),
    [({"kind": "scripted", "training": [10.0]}, 10 / 3),
     ({"kind": "fedscale", "path": "devices.csv"}, 10 * 0.1),
     ({"kind": "macs", "path": "devices.csv", "reference_macs": 42}, 10 * 0.1)],
)  # fmt: skip
def test_the_pass_before_a_training_of_nothing_is_charged(
    lab: Lab, devices: Config, forward_s: float
) -> None:
    """q-FedAvg's forward pass is over the whole model, and comes with an empty part too."""
    (lab.folder / "devices.csv").write_text(
        "client_id,computation_ms_per_sample,communication_kbps\n1,100.0,1000.0\n"
    )
    config = divided(1, versions=2, payload={"split": {"kind": "fixed", "layer": 2}})
    config["system"]["devices"] = devices
    config["federation"]["server_optimizer"] = {"kind": "qfedavg"}
    config["local"]["optimizer"]["lr"] = 0.1
    whole, empty = lab.run(config).tasks(0)
    took = [float(row["trained_s"]) - float(row["downloaded_s"]) for row in (whole, empty)]
    training_s = took[0] - forward_s
    assert took[1] == pytest.approx(forward_s)
    assert training_s > 2 * forward_s


def test_a_client_without_samples_takes_the_share_of_the_part(lab: Lab) -> None:
    """Of the time that is scripted for it, as with the whole model."""
    config = divided(1, versions=2, payload={"feature_learning": {"epochs": 4, "lr": 0.1}})
    config["task"]["dataset"]["samples_per_client"] = 0
    took = [float(r["trained_s"]) - float(r["downloaded_s"]) for r in lab.run(config).tasks(0)]
    assert took == pytest.approx([10 * 84 / 102, 10 * 60 / 102])
    config["federation"]["payload"] = {"kind": "full"}
    whole = lab.run(config, out="whole").tasks(0)[0]
    assert float(whole["trained_s"]) == 10.0


def test_updates_are_discounted_by_the_staleness_of_their_part(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[float]] = []
    original = Learner.aggregate

    def aggregate(self: Learner, *args: Any, **kwargs: Any) -> Any:
        seen.append(list(args[3]))
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Learner, "aggregate", aggregate)
    run = lab.run(divided(2, buffered(2, 1, weights="uniform"), training=[10.0, 45.0], versions=14))
    part_of = {e["task"]: e for e in run.of("dispatch")}
    rows = {(row["client"], float(row["dispatched_s"])): row for row in run.table("updates")}
    stale = []
    for event, discounts in zip(run.of("aggregate"), seen, strict=True):
        task = part_of[event["tasks"][0]]
        row = rows[task["entity"].partition("/")[2], task["t"]]
        stale.append(int(row["staleness"]))
        assert discounts == [pytest.approx((1 + stale[-1]) ** -0.5)]
        # Versions of both parts have come since, and only its own count.
        assert int(row["staleness"]) + int(row["cross_staleness"]) == (
            event["version"] - 1 - task["version"]
        )
    assert max(stale) >= 1
