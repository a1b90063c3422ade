"""FedSeq on real data, in miniature: digits, 40 clients of one class each.

The study behind it is in scenarios/studies/fedseq.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from analysis.curves import curve
from analysis.run_reader import Run, read_run
from emulator.run import Options, run
from emulator.scenario import load_scenario

STRUCTURE = {
    "kind": "superclients", "hop": "p2p", "absent": {"kind": "abort"},
    "grouping": {"kind": "greedy", "metric": "kl", "min_samples": 280},
    "approximator": {"kind": "conf"}, "pretraining": {"epochs": 5, "absent": "free"},
}  # fmt: skip
STAR = {"kind": "star"}


def learn(
    out: Path, pacing: Any, structure: Any, *, seed: int = 1, versions: int, **more: Any
) -> Run:
    config = {
        "schema": 1, "name": "miniature", "seed": seed,
        "stop": {"sim_time": "100 d", "versions": versions},
        "task": {"dataset": {"kind": "digits"}, "clients": 40, "partition": {"kind": "shards"},
                 "model": {"kind": "mlp", "hidden": [32]}, "exemplars": 5},
        "system": {
            "devices": {"kind": "scripted", "training": "1 s",
                        "noise": {"dist": "lognormal", "median": 1.0, "sigma": 0.6}},
            "availability": {"kind": "always"}, "network": {"kind": "none"},
        },
        "local": {"epochs": 1, "batch_size": 10, "optimizer": {"kind": "sgd", "lr": 0.1}},
        "federation": {"pacing": pacing, "structure": structure, **more.pop("federation", {})},
        "evaluation": {"every": {"versions": 1}}, **more,
    }  # fmt: skip
    path = out.with_suffix(".yaml")
    path.write_text(json.dumps(config))  # JSON is YAML
    scenario, source = load_scenario(path)
    run(scenario, source, Options(out), lambda server, accuracy: None)
    return read_run(out)


def synchronous(participants: int) -> Any:
    return {"kind": "synchronous", "participants": participants, "deadline": "none"}


def rounds_to(target: float, found: Run) -> int:
    return int(np.flatnonzero(curve(found).value >= target)[0])


def test_fedseq_takes_a_third_of_the_rounds(tmp_path: Path) -> None:
    """Two superclients of 8 a round against 16 clients, which is the same work."""
    stars, chains = [], []
    for seed in (1, 2):
        star = learn(tmp_path / f"star{seed}", synchronous(16), STAR, seed=seed, versions=70)
        chain = learn(tmp_path / f"seq{seed}", synchronous(2), STRUCTURE, seed=seed, versions=16)
        stars.append(rounds_to(0.65, star))
        chains.append(rounds_to(0.65, chain))
    assert sum(stars) > 3 * sum(chains), (stars, chains)


def test_walkers_learn_what_the_centralized_model_does(tmp_path: Path) -> None:
    pacing = {"kind": "fedseqinter", "mode": "free_hops", "walkers": 2}
    found = learn(tmp_path / "inter", pacing, STRUCTURE, versions=8,
                  evaluation={"every": {"hops": 2}})  # fmt: skip
    assert curve(found).value[-1] > 0.9


@pytest.mark.parametrize("mode", ["lockstep", "free_hops"])
def test_the_average_is_that_of_the_walkers_by_samples(tmp_path: Path, mode: str) -> None:
    """One hop of two walkers over superclients of unequal size is a round of FedSeq: the same
    chains, weighed by their samples."""
    structure = {**STRUCTURE, "grouping": {"kind": "random", "min_samples": 280}}
    del structure["approximator"], structure["pretraining"]
    pacing = {"kind": "fedseqinter", "mode": mode, "walkers": 2, "hops": 1}
    found = learn(tmp_path / "walkers", pacing, structure, versions=1)
    model = load_file(tmp_path / "walkers" / "model.safetensors")
    assert found.chains is not None
    assert len(found.chains["chain"]) == 2
    # By hand, from the log: no other run draws the same batches, so each chain is walked again.
    singles = []
    for walker in (0, 1):
        alone = walked_again(tmp_path, structure, found, walker)
        singles.append((float(found.chains["samples"][found.chains["walker"] == walker][0]), alone))
    total = sum(samples for samples, _ in singles)
    for name, tensor in model.items():
        expected = sum(samples / total * alone[name] for samples, alone in singles)
        np.testing.assert_allclose(tensor, expected, rtol=1e-4, atol=1e-6)


def walked_again(folder: Path, structure: Any, found: Run, walker: int) -> dict[str, Any]:
    """The model of one walker, trained client after client as the log says, without the engine."""
    import torch

    from emulator.learning import setting as learning_setting
    from emulator.learning.lineage import Tensors
    from emulator.learning.operations import TrainConfig, one_thread
    from emulator.learning.training import state_dict

    scenario, _ = load_scenario(folder / "walkers.yaml")
    setting = learning_setting.build(scenario)
    bench = learning_setting.workbench(setting, torch.device("cpu"))
    events = [json.loads(line) for line in (folder / "walkers" / "events.jsonl").open()]
    order = next(
        e["provenance"] for e in events if e["type"] == "chain_end" and e["walker"] == walker
    )
    server: Tensors = {"model": bench.layout.flatten()}
    recipe = learning_setting.recipe(scenario.local)
    with one_thread():
        for client in order:
            config = TrainConfig(
                client, (walker, 0, 0), scenario.seed, recipe, {"kind": "plain"}, ("model",)
            )
            server = bench.run("train", config, [server, None]).outputs["update"]
    assert setting.model is not None
    return {name: t.numpy() for name, t in state_dict(setting.model, server).items()}
