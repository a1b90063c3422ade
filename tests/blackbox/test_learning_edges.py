"""Clients with next to no data, cohorts with none, and training that blows up."""

from __future__ import annotations

import math

import pytest
from commandline import Config, Lab, RunFiles, buffered, digits, links, synchronous

CLIENTS = 40


def _uneven(short_clients: str, *, min_samples: int = 0) -> Config:
    """40 clients, among them some with 0, 1 and fewer than 10 samples; a sample costs 3 s."""
    config = digits(CLIENTS, synchronous(CLIENTS, too_few="proceed"), versions=2)
    config["seed"] = 3
    config["task"]["partition"] = {
        "kind": "dirichlet",
        "alpha": 0.1,
        "min_samples": min_samples,
        "attempts": 1000,
    }
    config["system"]["network"] = links(down="1 MB/s", up="1 MB/s", latency="100 ms")
    config["local"]["short_clients"] = short_clients
    return config


def _with_slow_phones(lab: Lab, config: Config) -> Config:
    """FedScale's formula: 3 × samples × 1000 ms."""
    table = lab.folder / "devices.csv"
    rows = "".join(f"{c},1000,500\n" for c in range(CLIENTS))
    table.write_text(f"client_id,computation_ms_per_sample,communication_kbps\n{rows}")
    config["system"]["devices"] = {"kind": "fedscale", "path": str(table)}
    return config


def _finite_metrics(run: RunFiles) -> None:
    values = [float(row["value"]) for row in run.table("metrics")]
    assert values
    assert all(math.isfinite(value) for value in values)


def _trained_s(run: RunFiles) -> dict[int, float]:
    """Seconds of training by number of samples."""
    return {
        int(row["samples"]): float(row["trained_s"]) - float(row["downloaded_s"])
        for row in run.table("updates")
    }


def test_short_clients_train_on_what_they_have(lab: Lab) -> None:
    run = lab.run(_with_slow_phones(lab, _uneven("train")))
    seconds = _trained_s(run)
    assert {0, 1}.issubset(seconds)
    assert any(1 < n < 10 for n in seconds)
    assert all(s == pytest.approx(3.0 * n) for n, s in seconds.items())
    assert run.column("versions", "updates") == ["40", "40"]
    assert run.of("nonfinite") == []
    _finite_metrics(run)


def test_short_clients_are_padded_to_a_batch(lab: Lab) -> None:
    run = lab.run(_with_slow_phones(lab, _uneven("pad", min_samples=1)))
    seconds = _trained_s(run)
    assert min(seconds) < 10 < max(seconds)
    # They train on a whole batch of 10, and that takes the time of one.
    assert all(s == pytest.approx(3.0 * max(n, 10)) for n, s in seconds.items())
    _finite_metrics(run)


def test_a_client_without_a_sample_cannot_be_padded(lab: Lab) -> None:
    assert "pad cannot pad client" in lab.failed_run(_uneven("pad"))


def test_short_clients_are_never_asked(lab: Lab) -> None:
    everyone = lab.run(_uneven("train"), out="everyone")
    whole = {r["client"] for r in everyone.table("updates") if int(r["samples"]) >= 10}
    assert 0 < len(whole) < CLIENTS
    run = lab.run(_uneven("skip"), out="skip")
    assert {row["client"] for row in run.table("updates")} == whole
    assert run.column("versions", "updates") == [str(len(whole))] * 2
    _finite_metrics(run)


def test_nobody_left_to_ask_is_refused(lab: Lab) -> None:
    config = _uneven("skip")
    config["local"]["batch_size"] = 1000
    assert "skip leaves no client: none has 1000 samples" in lab.failed_run(config)


def test_too_few_clients_with_a_batch_do_not_hang(lab: Lab) -> None:
    # Only one of five holds data; the round wants three.
    config = digits(5, synchronous(3), versions=1)
    config["task"]["partition"] = {"kind": "iid", "holders": 1}
    config["local"]["short_clients"] = "skip"
    said = lab.failed_run(config, exit_code=1)
    assert "nothing is left to happen" in said
    assert "3 clients online and idle (1 are)" in said


@pytest.mark.parametrize("pacing", [synchronous(3), buffered(3, 3)])
@pytest.mark.parametrize("optimizer", ["average", "fedyogi"])
def test_a_cohort_without_a_sample_leaves_the_model_as_it_is(
    lab: Lab, pacing: Config, optimizer: str
) -> None:
    # Client 0 holds everything, and is never there.
    config = digits(4, pacing, versions=3)
    config["task"]["partition"] = {"kind": "iid", "holders": 1}
    config["federation"]["server_optimizer"] = {"kind": optimizer}
    config["system"]["availability"] = {
        "kind": "scripted",
        "sessions": [[], *[[[0, 1000]]] * 3],
        "period": 1000,
        "at_end": "wrap",
    }
    run = lab.run(config)
    assert set(run.column("updates", "samples")) == {"0"}
    _finite_metrics(run)
    for metric in ("accuracy", "loss"):
        values = [row["value"] for row in run.table("metrics") if row["metric"] == metric]
        assert len(values) == 4
        assert len(set(values)) == 1


# --- updates that are not finite ----------------------------------------------------------------


def _diverging(partition: Config, **federation: object) -> Config:
    """w is multiplied by 1 − 10^6 in every step: beyond any float32 after 7 of them."""
    config = digits(10, synchronous(3), versions=3)
    config["task"]["partition"] = partition
    config["local"]["optimizer"] = {"kind": "sgd", "lr": 1e6, "weight_decay": 1.0}
    config["federation"].update(federation)
    return config


def test_updates_that_are_not_finite_are_left_out(lab: Lab) -> None:
    # 14 steps for each of the 10 clients: every update is lost, and the model stays.
    run = lab.run(_diverging({"kind": "iid"}, on_nonfinite="drop"))
    assert run.times("versions") == [5.0, 10.0, 15.0]
    _finite_metrics(run)
    losses = [row["value"] for row in run.table("metrics") if row["metric"] == "loss"]
    assert len(losses) == 4
    assert len(set(losses)) == 1
    # Each with the client, the version and the instant of its own download.
    expected = [
        (float(task["uploaded_s"]), f"client/{task['client']}", int(task["version"]))
        for task in run.table("updates")
    ]
    found = [(event["t"], event["entity"], event["version"]) for event in run.of("nonfinite")]
    assert found == expected
    assert [event["dispatched_s"] for event in run.of("nonfinite")] == run.times(
        "updates", "dispatched_s"
    )


def test_the_finite_updates_of_a_cohort_still_count(lab: Lab) -> None:
    # Up to 5 steps of 10 samples end below 10^31; 8 and more end beyond 10^41.
    config = _uneven("train")
    config["local"]["optimizer"] = {"kind": "sgd", "lr": 1e6, "weight_decay": 1.0}
    config["stop"]["versions"] = 1
    run = lab.run(config)
    samples = {f"client/{r['client']}": int(r["samples"]) for r in run.table("updates")}
    lost = {event["entity"] for event in run.of("nonfinite")}
    assert {client for client, n in samples.items() if n > 70} <= lost
    assert not lost & {client for client, n in samples.items() if n <= 50}
    assert 0 < len(lost) < CLIENTS
    _finite_metrics(run)
    losses = [row["value"] for row in run.table("metrics") if row["metric"] == "loss"]
    assert losses[0] != losses[1]


def test_an_update_that_is_not_finite_stops_the_run_where_that_is_asked(lab: Lab) -> None:
    config = _diverging({"kind": "iid"}, on_nonfinite="stop")
    config["evaluation"] = {"every": {"versions": 2}}
    said = lab.failed_run(config, exit_code=3)
    run = RunFiles(lab.folder / "run")
    # Known at the evaluation of version 2; the first one to blame is of version 0 nevertheless.
    first = min(int(row["client"]) for row in run.table("updates") if row["version"] == "0")
    assert (
        f"the update of client {first}, trained from version 0 and dispatched at simulated time "
        "0.0 s, is not finite, and federation.on_nonfinite is 'stop' (allowed: drop, stop); a "
        "smaller local.optimizer.lr helps"
    ) in said
    (event,) = run.of("nonfinite")
    assert (event["t"], event["entity"], event["version"], event["dispatched_s"]) == (
        10.0,
        f"client/{first}",
        0,
        0.0,
    )
    assert run.manifest["status"] == "stopped"
    # The same command comes to the same end.
    before = run.lines("events.jsonl")
    assert lab.failed_run(config, exit_code=3) == said
    assert run.lines("events.jsonl") == before
