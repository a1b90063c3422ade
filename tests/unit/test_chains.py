"""A model that goes from client to client, against a loop written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_learner import PLAIN, make_bench
from torch import Tensor

from emulator import random_streams
from emulator.learning.executors.inline import Inline
from emulator.learning.executors.processes import Processes
from emulator.learning.learner import Learner, Learning
from emulator.learning.memo import Memo
from emulator.learning.operations import Workbench, one_thread
from emulator.learning.training import batches

CHAINS = replace(PLAIN, chains=True)
ORDER = (3, 0, 3)
"""Client 3 comes twice, in two ring passes."""


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    with one_thread():
        yield


def learner(folder: Path, method: Any, bench: Workbench, executor: Any = None) -> Learner:
    memo = Memo(folder, {}, None, 1e9)
    learning = Learning(executor or Inline(bench), memo, bench.layout.flatten(), False)
    return Learner(method, learning, lambda: 0)


def by_hand(bench: Workbench, mu: float = 0.0, alpha: float = 0.0) -> list[Tensor]:
    """The model [P] after each client of ORDER, by torch's own optimizer; the proximal term and
    FedDyn's are taken from the model that the client before has sent."""
    model, found = bench.layout.model, list[Tensor]()
    kept: dict[int, Tensor] = {}
    bench.layout.load(bench.layout.flatten())
    for number, client in enumerate(ORDER):
        x, y = bench.samples_of(client)
        received = bench.layout.flatten()
        memory = kept.get(client, torch.zeros_like(received))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rng = random_streams.generator(3, "training", client, 0, 0, number // 2)
        for chosen in batches(len(y), CHAINS.recipe, rng):
            flat = torch.cat([p.reshape(-1) for p in model.parameters()])
            loss = torch.nn.functional.cross_entropy(model(x[chosen]), y[chosen])
            loss = loss + (mu + alpha) / 2 * (flat - received).square().sum()
            loss = loss - (memory * flat).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found.append(bench.layout.flatten())
        if alpha:
            kept[client] = memory - alpha * (found[-1] - received)
    return found


def walk(learner: Learner) -> list[Any]:
    """The handles of a chain over ORDER; each client's state goes along."""
    at, states, found = learner.initial(), dict[int, Any](), []
    for number, client in enumerate(ORDER):
        at, state = learner.train(at, states.get(client), client, (0, 0, number // 2))
        states[client] = state
        found.append(at)
    return found


def merge_chains(chains: Learner, *orders: list[int]) -> tuple[Any, list[Any]]:
    """The state that chains of these clients, of equal weight, make; the last update of each."""
    start, ends = chains.initial(), []
    for number, order in enumerate(orders):
        at = start
        for client in order:
            at, _ = chains.train(at, None, client, (0, number, 0))
        ends.append(at)
    updates = [chains.chain_update(start, last) for last in ends]
    ones = [1.0] * len(updates)
    return chains.aggregate(start, updates, ones, ones), ends


@pytest.mark.parametrize(
    ("objective", "options"),
    [
        ({"kind": "plain"}, {}),
        ({"kind": "fedprox", "mu": 0.5}, {"mu": 0.5}),
        ({"kind": "feddyn", "alpha": 0.5}, {"alpha": 0.5}),
        # As released, FedDyn's client is a proximal term and no more.
        ({"kind": "feddyn", "alpha": 0.5, "legacy": True}, {"mu": 0.5}),
    ],
)
def test_a_chain_is_the_loop(
    tmp_path: Path, objective: dict[str, Any], options: dict[str, float]
) -> None:
    bench = make_bench()
    walked = walk(learner(tmp_path, replace(CHAINS, objective=objective), bench))
    chain = learner(tmp_path / "again", replace(CHAINS, objective=objective), bench)
    chain_handles = walk(chain)
    last = chain.tensors(chain_handles[-1])["model"]
    expected = by_hand(make_bench(), **options)
    assert torch.allclose(last, expected[-1], rtol=1e-5, atol=1e-6)
    assert [h.id for h in walked] == [h.id for h in chain_handles]
    # Who asks for the last has the others computed on the way.
    assert chain.host.count["train"] == len(ORDER)


def test_what_a_chain_brings_is_merged(tmp_path: Path) -> None:
    """Two chains of equal weight: w + (Δ_1 + Δ_2)/2, the mean of their last models."""
    chains = learner(tmp_path, CHAINS, make_bench())
    merged, (first, second) = merge_chains(chains, [1, 2], [4])
    got = chains.tensors(merged)["model"]
    mean = (chains.tensors(first)["model"] + chains.tensors(second)["model"]) / 2
    assert torch.allclose(got, mean, rtol=1e-6, atol=1e-7)
    assert chains.host.count == {"initial": 1, "train": 3, "chain_update": 2, "aggregate": 1}


def test_a_spoiled_chain_is_left_out(tmp_path: Path) -> None:
    """Whoever comes after a client whose model is not finite cannot mend it."""
    chains = learner(tmp_path, CHAINS, make_bench(spoiled=[2]))
    merged, (_, good) = merge_chains(chains, [2, 0], [1])
    got = chains.tensors(merged)["model"]
    assert torch.allclose(got, chains.tensors(good)["model"], rtol=1e-6, atol=1e-7)
    assert chains.values(merged.id.partition(".")[0])["nonfinite"] == [0]


def test_worker_processes_give_the_same_bits(tmp_path: Path) -> None:
    inline = learner(tmp_path / "inline", CHAINS, make_bench())
    expected = inline.tensors(walk(inline)[-1])["model"]
    executor = Processes(make_bench(), 2)
    try:
        workers = learner(tmp_path / "workers", CHAINS, make_bench(), executor)
        got = workers.tensors(walk(workers)[-1])["model"]
    finally:
        executor.close()
    assert torch.equal(got, expected)
