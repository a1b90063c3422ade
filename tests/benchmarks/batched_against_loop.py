"""Clients trained in lanes against a plain loop on one thread, side by side in turn.

    python tests/benchmarks/batched_against_loop.py [--turns 3] [--models mlp logistic …]

Fashion-MNIST (Debian's dataset-fashion-mnist): 1,000 clients of 60 samples, batch 10, one epoch,
100 clients a round; the model is evaluated on 1,000 images before the first round and after the
last. Prints for each model the seconds of each turn, and the ratios of the plain loop and of the
executor ``inline`` to ``batched``.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from emulator.learning.datasets import load_dataset
from emulator.run import Options, run
from emulator.scenario import load_scenario

SCENARIO = """
schema: 1
name: lanes
seed: 1
stop: {sim_time: 1000 h, versions: ROUNDS}
task:
  dataset: {kind: fashion_mnist, test_samples: 1000}
  clients: 1000
  partition: {kind: iid}
  model: {kind: MODEL}
system:
  devices: {kind: phones}
  availability: {kind: always}
  network: {client: {down: 35 Mbps, up: 8 Mbps, latency: 55 ms}}
local: {epochs: 1, batch_size: 10, optimizer: {kind: sgd, lr: 0.05}}
federation:
  pacing: {kind: synchronous, participants: 100, deadline: none}
evaluation: {every: {versions: ROUNDS}}
execution: {executor: EXECUTOR}
"""

ROUNDS = {"logistic": 20, "mlp": 20, "lenet5": 2, "mcmahan_cnn": 1}


def plain(kind: str) -> nn.Module:
    """The network as anybody would write it."""
    if kind == "logistic":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    if kind == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    if kind == "lenet5":
        return nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
        )  # fmt: skip
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


def plain_loop(kind: str, rounds: int, data: list[torch.Tensor]) -> float:
    """Host seconds of a hand-written FedAvg on one thread."""
    train_x, train_y, test_x, test_y = data
    torch.set_num_threads(1)
    rng = np.random.default_rng(1)
    parts = np.array_split(rng.permutation(len(train_y)), 1000)
    server = plain(kind)

    def evaluate() -> float:
        server.eval()
        with torch.no_grad():
            right = sum(
                int((server(test_x[i : i + 500]).argmax(1) == test_y[i : i + 500]).sum())
                for i in range(0, len(test_y), 500)
            )
        return right / len(test_y)

    started = time.perf_counter()
    evaluate()
    for _ in range(rounds):
        total = {name: torch.zeros_like(p) for name, p in server.state_dict().items()}
        for client in rng.choice(1000, 100, replace=False):
            model = copy.deepcopy(server)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            model.train()
            for batch in np.array_split(rng.permutation(parts[client]), 6):
                chosen = torch.from_numpy(batch)
                optimizer.zero_grad()
                cross_entropy(model(train_x[chosen]), train_y[chosen]).backward()
                optimizer.step()
            for name, p in model.state_dict().items():
                total[name] += p / 100
        server.load_state_dict(total)
    evaluate()
    return time.perf_counter() - started


def emulated(kind: str, rounds: int, executor: str, folder: Path) -> float:
    """Host seconds of learning."""
    text = SCENARIO.replace("ROUNDS", str(rounds)).replace("MODEL", kind)
    path = folder / f"{executor}.yaml"
    path.write_text(text.replace("EXECUTOR", executor))
    scenario, source = load_scenario(path)
    options = Options(folder / f"{executor}-run", restart=True)
    host = run(scenario, source, options, lambda server, accuracy: None)["host"]
    return float(host["simulation_s"] + host["finish_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--models", nargs="*", default=list(ROUNDS), choices=list(ROUNDS))
    given = parser.parse_args()
    loaded = load_dataset("fashion_mnist", test_samples=1000)
    data = [
        torch.from_numpy(a) for a in (loaded.train_x, loaded.train_y, loaded.test_x, loaded.test_y)
    ]
    with tempfile.TemporaryDirectory() as folder:
        for kind in given.models:
            rounds = ROUNDS[kind]
            against_loop, against_inline = [], []
            for turn in range(given.turns):
                loop_s = plain_loop(kind, rounds, data)
                batched_s = emulated(kind, rounds, "batched", Path(folder))
                inline_s = emulated(kind, rounds, "inline", Path(folder))
                against_loop.append(loop_s / batched_s)
                against_inline.append(inline_s / batched_s)
                print(
                    f"{kind}, turn {turn + 1}: loop {loop_s:.2f} s, batched {batched_s:.2f} s, "
                    f"inline {inline_s:.2f} s; loop/batched {against_loop[-1]:.2f}, "
                    f"inline/batched {against_inline[-1]:.2f}",
                    flush=True,
                )
            print(
                f"{kind}, median: loop/batched {np.median(against_loop):.2f}, inline/batched "
                f"{np.median(against_inline):.2f}"
            )


if __name__ == "__main__":
    main()
