"""How superclients come about: what pre-training takes, who is waited for, how they are grouped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commandline import Config, Lab, RunFiles, buffered, digits, links, synchronous

CLASSIFIER_BYTES = 4 * 640
"""The weights of digits' logistic regression, 64 × 10; with the biases the model has 650."""
MODEL_BYTES = 4 * 650


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def formed(grouping: Config, approximator: Config, clients: int = 12, **pretraining: Any) -> Config:
    """Clients of one class each (but for two that have two), which train 5 s."""
    sessions = pretraining.pop("sessions", None)
    config = digits(clients, synchronous(1), versions=1)
    config["task"]["partition"] = {"kind": "shards"}
    config["task"]["exemplars"] = 3
    config["system"]["network"] = links(down="1 MB/s", up="1 MB/s")
    config["system"].update(on_offline="drop", drop_notice="at_once")
    if sessions is not None:
        config["system"]["availability"] = {
            "kind": "scripted", "sessions": sessions, "period": 1000.0, "at_end": "wrap",
        }  # fmt: skip
    config["federation"]["structure"] = {
        "kind": "superclients", "hop": "p2p", "absent": {"kind": "wait"},
        "grouping": {"min_samples": 200, **grouping}, "approximator": approximator,
        "pretraining": {"epochs": 2, "absent": "wait_all", **pretraining},
    }  # fmt: skip
    return config


def pretrained(run: RunFiles) -> list[dict[str, str]]:
    return [row for row in run.table("updates") if row["phase"] == "pretraining"]


KL = {"kind": "greedy", "metric": "kl"}
CONF = {"kind": "conf"}


def test_what_pretraining_takes(lab: Lab) -> None:
    """Everyone trains at once: down, 5 s, up; then the first round begins. Scripted times are those
    of a task, whatever its epochs."""
    run = lab.run(formed(KL, CONF))
    rows = pretrained(run)
    assert len(rows) == 12
    assert {row["outcome"] for row in rows} == {"reported"}
    assert {(row["bytes_down"], row["bytes_up"]) for row in rows} == {
        (str(MODEL_BYTES), str(MODEL_BYTES))
    }
    took_s = 5.0 + 2 * MODEL_BYTES / 1e6
    assert run.of("round")[0]["t"] == pytest.approx(took_s)
    # The first version pays for it: 12 transfers of its own each way, and one of the round's.
    versions = run.table("versions")[0]
    assert (versions["bytes_down"], versions["bytes_up"]) == (str(13 * MODEL_BYTES),) * 2
    assert float(versions["sim_time_s"]) > took_s
    assert float(versions["round_duration_s"]) == pytest.approx(
        float(versions["sim_time_s"]) - took_s
    )


def test_the_classifier_is_all_that_clf_sends(lab: Lab) -> None:
    run = lab.run(formed({"kind": "greedy", "metric": "cosine"}, {"kind": "clf", "layers": 1}))
    assert {row["bytes_up"] for row in pretrained(run)} == {str(CLASSIFIER_BYTES)}


def test_who_is_not_there_is_waited_for(lab: Lab) -> None:
    sessions: list[Any] = [[[0.0, 1000.0]]] * 11 + [[[100.0, 1000.0]]]
    run = lab.run(formed(KL, CONF, sessions=sessions))
    assert run.of("round")[0]["t"] == pytest.approx(105 + 2 * MODEL_BYTES / 1e6)


def test_who_is_lost_is_asked_again(lab: Lab) -> None:
    sessions: list[Any] = [[[0.0, 1000.0]]] * 11 + [[[0.0, 3.0], [50.0, 1000.0]]]
    run = lab.run(formed(KL, CONF, sessions=sessions))
    outcomes = [row["outcome"] for row in pretrained(run)]
    assert (outcomes.count("reported"), outcomes.count("dropped_training")) == (12, 1)
    assert run.of("round")[0]["t"] == pytest.approx(55 + 2 * MODEL_BYTES / 1e6)


def test_after_the_deadline_the_unseen_are_placed_at_random(lab: Lab) -> None:
    sessions: list[Any] = [[[0.0, 1000.0]]] * 10 + [[[100.0, 1000.0]], [[18.0, 1000.0]]]
    config = formed(KL, CONF, sessions=sessions, absent="deadline", deadline=20.0)
    run = lab.run(config)
    formation = run.of("superclients")[0]
    assert (formation["t"], formation["unseen"]) == (20.0, 2)
    assert sorted(client for group in formation["groups"] for client in group) == list(range(12))
    # Who was at work at the deadline was told to stop.
    assert [row["client"] for row in pretrained(run) if row["outcome"] == "cancelled"] == ["11"]


def test_free_pretraining_is_not_charged(lab: Lab) -> None:
    """As the paper counts; the superclients are those of a run that pays."""
    paid = lab.run(formed(KL, CONF), out="paid")
    free = lab.run(formed(KL, CONF, absent="free"), out="free")
    assert pretrained(free) == []
    assert free.of("round")[0]["t"] == 0.0
    assert free.of("superclients")[0]["groups"] == paid.of("superclients")[0]["groups"]


@pytest.mark.parametrize(
    ("grouping", "approximator"),
    [
        (KL, CONF), ({"kind": "greedy", "metric": "gini"}, CONF),
        ({"kind": "greedy", "metric": "cosine"}, CONF),
        ({"kind": "greedy", "metric": "euclidean"}, {"kind": "clf", "layers": 1}),
        ({"kind": "kmeans"}, CONF), ({"kind": "kmeans"}, {"kind": "clf", "layers": 1}),
    ],
)  # fmt: skip
def test_groups_are_more_diverse_than_by_chance(
    lab: Lab, grouping: Config, approximator: Config
) -> None:
    """Clients of one class each, 8 a superclient: by what their models tell, more classes come
    together than at random."""

    def covered(config: Config, out: str) -> float:
        shares = lab.run(config, out=out).column("superclients", "covered_classes")
        return sum(map(float, shares)) / len(shares)

    config = formed(grouping, approximator, clients=48)
    config["federation"]["structure"]["pretraining"]["epochs"] = 10
    by_models = covered(config, "models")
    config["federation"]["structure"]["grouping"] = {"kind": "random", "min_samples": 200}
    del config["federation"]["structure"]["approximator"]
    del config["federation"]["structure"]["pretraining"]
    by_chance = [covered({**config, "seed": seed}, f"chance{seed}") for seed in range(5)]
    assert by_models > sum(by_chance) / len(by_chance) + 0.08


def test_pretraining_is_shared_through_the_memo(lab: Lab) -> None:
    first = lab.run(formed(KL, CONF), out="first")
    config = formed({"kind": "greedy", "metric": "gini"}, CONF)
    second = lab.run(config, "--memo", first.path, out="second")
    assert first.manifest["host"]["by_operation_s"]["pretrain"] > 0
    assert "pretrain" not in second.manifest["host"]["by_operation_s"]


def test_nobody_is_evaluated_on_exemplars(lab: Lab) -> None:
    """Digits' 359 test samples, less 3 of each of 10 classes; for a method without superclients
    too."""
    run = lab.run(formed(KL, CONF), out="superclients")
    config = digits(12, synchronous(2), versions=1)
    config["task"]["exemplars"] = 3
    star = lab.run(config, out="star")
    assert {*run.column("metrics", "n"), *star.column("metrics", "n")} == {"329"}


def test_similarity_of_pretrained_models(lab: Lab) -> None:
    """Models of clients of one class become less alike as they train; own classes stay closer."""
    config = formed(KL, CONF, clients=20, epochs=8, similarity=[1, 8])
    run = lab.run(config)
    rows = run.table("similarity")
    pairs = 20 * 19 // 2
    assert len(rows) == 2 * pairs
    early = [float(row["cosine"]) for row in rows if row["epoch"] == "1"]
    late = [float(row["cosine"]) for row in rows if row["epoch"] == "8"]
    assert sum(late) < sum(early)


def test_timing_only_needs_a_stand_in(lab: Lab) -> None:
    config = formed(KL, CONF)
    said = lab.failed_run(config, "--timing-only")
    assert "stand_in: random" in said
    config["federation"]["structure"]["stand_in"] = "random"
    run = lab.run(config, "--timing-only", out="stand-in")
    # The clock is the same, and so are the bytes, as long as the groups are of the same sizes.
    learned = lab.run(formed(KL, CONF), out="learned")
    assert run.of("round")[0]["t"] == learned.of("round")[0]["t"]
    assert len(pretrained(run)) == 12


IMPOSSIBLE: dict[str, Config] = {
    "federation.pacing.in_flight asks for 8": {"pacing": buffered(8, 2)},
    "federation.pacing.participants asks for 8": {"pacing": synchronous(8)},
    "federation.pacing.walkers asks for 8": {
        "pacing": {"kind": "fedseqinter", "mode": "free_hops", "walkers": 8}
    },
    "federation.payload.prepass asks for 8": {
        "payload": {
            "kind": "divide_and_conquer", "split": {"kind": "fixed", "layer": 1},
            "prepass": {"deadline": "none", "participants": 8},
        }
    },
}  # fmt: skip


@pytest.mark.parametrize("reason", list(IMPOSSIBLE))
def test_more_superclients_than_there_can_be_are_refused_before_pre_training(
    lab: Lab, reason: str
) -> None:
    """12 clients of some 120 samples; of 200 samples or more they make 6 at most."""
    config = formed(KL, CONF)
    config["task"]["model"] = {"kind": "mlp", "hidden": [8]}
    config["federation"].update(IMPOSSIBLE[reason])
    message = lab.failed_run(config)
    assert f"{reason} superclients, and 12 clients with 1438 samples make at most 6" in message
    assert not (lab.folder / "run").exists()


def test_too_few_samples_for_one_superclient_are_refused_before_pre_training(lab: Lab) -> None:
    config = formed({**KL, "min_samples": 2000, "max_clients": 20}, CONF)
    message = lab.failed_run(config)
    assert "federation.structure.grouping asks for 1 superclient, and 12 clients" in message
    assert not (lab.folder / "run").exists()


def test_too_few_linear_layers(lab: Lab) -> None:
    said = lab.failed_run(formed({"kind": "kmeans"}, {"kind": "clf", "layers": 2}))
    assert "layers is 2, and task.model has 1 Linear layers" in said


def test_a_model_that_diverged_tells_nothing(lab: Lab) -> None:
    """Its client is placed as one that was not seen, or the run stops, as the scenario says."""
    sgd = {"kind": "sgd", "lr": 1e38}
    for number, approximator in enumerate((CONF, {"kind": "clf", "layers": 1})):
        grouping = {"kind": "greedy", "metric": "cosine"}
        config = formed(grouping, approximator, optimizer=sgd, similarity=[1])
        run = lab.run(config, out=f"drop{number}")
        assert len(run.of("nonfinite")) == 12
        assert run.of("superclients")[0]["unseen"] == 12
        config["federation"]["on_nonfinite"] = "stop"
        said = lab.failed_run(config, exit_code=3, out=f"stop{number}")
        assert "the pre-trained model of client 0 is not finite" in said
        assert "a smaller federation.structure.pretraining.optimizer.lr helps" in said
        del config["federation"]["structure"]["pretraining"]["optimizer"]
        config["local"]["optimizer"]["lr"] = 1e38
        said = lab.failed_run(config, exit_code=3, out=f"local{number}")
        assert "a smaller local.optimizer.lr helps" in said


def test_nobody_is_seen_before_the_deadline(lab: Lab) -> None:
    config = formed(KL, CONF, absent="deadline", deadline=1.0, similarity=[1, 2])
    run = lab.run(config)
    assert run.of("superclients")[0]["unseen"] == 12
    assert run.table("similarity") == []


def test_who_never_comes_is_named(lab: Lab) -> None:
    sessions: list[Any] = [[[0.0, 1000.0]]] * 11 + [[]]
    said = lab.failed_run(formed(KL, CONF, sessions=sessions), exit_code=1)
    assert "waits for the pre-training of 1 clients (11)" in said


@pytest.mark.parametrize("pacing", [synchronous(1), buffered(1, 1)])
def test_a_round_does_not_last_since_before_pretraining(lab: Lab, pacing: Config) -> None:
    config = formed(KL, CONF)
    config["federation"]["pacing"] = pacing
    run = lab.run(config)
    began_s = run.of("superclients")[0]["t"]
    version = run.table("versions")[0]
    assert float(version["round_duration_s"]) == pytest.approx(
        float(version["sim_time_s"]) - began_s
    )


def test_declared_data_with_a_stand_in(lab: Lab) -> None:
    """Without data there is nothing to learn from, and nothing to hold exemplars out of."""
    config = formed(KL, CONF)
    config["task"] = {
        "dataset": {"kind": "declared", "samples_per_client": 40}, "clients": 12,
        "model": {"kind": "declared", "size": "1 MB", "forward_macs": 1, "backward_macs": 2},
    }  # fmt: skip
    config["federation"]["structure"]["stand_in"] = "random"
    run = lab.run(config)
    assert {row["bytes_up"] for row in pretrained(run)} == {"1000000"}
