"""Two worker processes against a plain loop on one thread, side by side in turn.

    python tests/benchmarks/processes_against_loop.py [--rounds 24] [--turns 3]

McMahan et al.'s CNN on Fashion-MNIST (Debian's dataset-fashion-mnist): 1,000 clients of 60 samples,
batch 10, one epoch, 20 clients a round; the model is evaluated on 1,000 images before the first
round and after the last. Starting the workers, some seconds, counts. Prints the seconds of each
turn, the ratio, and the share of host time outside operations.
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
name: mcmahan
seed: 1
stop: {sim_time: 1000 h, versions: ROUNDS}
task:
  dataset: {kind: fashion_mnist, test_samples: 1000}
  clients: 1000
  partition: {kind: iid}
  model: {kind: mcmahan_cnn}
system:
  devices: {kind: phones}
  availability: {kind: always}
  network: {client: {down: 35 Mbps, up: 8 Mbps, latency: 55 ms}}
local: {epochs: 1, batch_size: 10, optimizer: {kind: sgd, lr: 0.05}}
federation:
  pacing: {kind: synchronous, participants: 20, deadline: none}
evaluation: {every: {versions: ROUNDS}}
execution: {executor: EXECUTOR}
"""


class Plain(nn.Module):
    """The network as anybody would write it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.fc1 = nn.Linear(3136, 512)
        self.fc2 = nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


def plain_loop(rounds: int, data: list[torch.Tensor]) -> float:
    """Host seconds of a hand-written FedAvg on one thread."""
    train_x, train_y, test_x, test_y = data
    torch.set_num_threads(1)
    rng = np.random.default_rng(1)
    parts = np.array_split(rng.permutation(len(train_y)), 1000)
    server = Plain()

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
        for client in rng.choice(1000, 20, replace=False):
            model = copy.deepcopy(server)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            model.train()
            for batch in np.array_split(rng.permutation(parts[client]), 6):
                chosen = torch.from_numpy(batch)
                optimizer.zero_grad()
                cross_entropy(model(train_x[chosen]), train_y[chosen]).backward()
                optimizer.step()
            for name, p in model.state_dict().items():
                total[name] += p / 20
        server.load_state_dict(total)
    evaluate()
    return time.perf_counter() - started


def emulated(rounds: int, executor: str, folder: Path) -> tuple[float, float]:
    """(host seconds of learning, share of the simulation's host time outside operations)."""
    path = folder / f"{executor}.yaml"
    path.write_text(SCENARIO.replace("ROUNDS", str(rounds)).replace("EXECUTOR", executor))
    scenario, source = load_scenario(path)
    options = Options(folder / f"{executor}-run", workers=2, restart=True)
    host = run(scenario, source, options, lambda server, accuracy: None)["host"]
    took_s = host["simulation_s"] + host["finish_s"]
    return took_s, 1 - host["inside_operations_s"] / took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    loaded = load_dataset("fashion_mnist", test_samples=1000)
    data = [
        torch.from_numpy(a) for a in (loaded.train_x, loaded.train_y, loaded.test_x, loaded.test_y)
    ]
    ratios, shares = [], []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(given.turns):
            loop_s = plain_loop(given.rounds, data)
            processes_s, _ = emulated(given.rounds, "processes", Path(folder))
            inline_s, outside = emulated(given.rounds, "inline", Path(folder))
            ratios.append(loop_s / processes_s)
            shares.append(outside)
            print(
                f"turn {turn + 1}: loop {loop_s:.2f} s, processes {processes_s:.2f} s, inline "
                f"{inline_s:.2f} s; loop/processes {ratios[-1]:.2f}, inline outside operations "
                f"{outside:.1%}",
                flush=True,
            )
    print(
        f"median: loop/processes {np.median(ratios):.2f}, outside operations "
        f"{np.median(shares):.1%}"
    )


if __name__ == "__main__":
    main()
