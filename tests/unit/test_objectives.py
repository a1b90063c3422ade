"""FedDyn by hand, what clients keep, and which objectives and server optimizers go together.

The two clients are those of ``test_methods``: logistic regression with two classes on one feature,
from equal logits; the gradient for a sample of class 0 is (σ(u) − 1) · (x, −x, 1, −1), of class 1
σ(u) · (x, −x, 1, −1), where u = (w0 − w1) x + b0 − b1.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from emulator import assembly
from emulator.errors import ScenarioError
from emulator.federation.cost import Cost
from emulator.learning.datasets import load_dataset
from emulator.learning.learner import Learner
from emulator.learning.lineage import Tensors
from emulator.learning.method import Method
from emulator.learning.methods.feddyn import feddyn, feddyn_step, next_gradient
from emulator.learning.models import build_model
from emulator.learning.operations import (
    AggregateConfig,
    EvaluateConfig,
    Options,
    Result,
    TrainConfig,
    Workbench,
    one_thread,
    torch_stream,
)
from emulator.learning.server_steps import uploads
from emulator.learning.training import Layout, Recipe
from emulator.scenario import load_scenario, schema

SIGMOID_3_4_DOWN = 0.32082130082460703  # σ(−3/4)
FEDDYN = {"kind": "feddyn", "alpha": 0.5}


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def assert_close(got: Tensor, expected: Sequence[float] | Tensor) -> None:
    wanted = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-14)


@pytest.fixture(autouse=True)
def one_thread_each() -> Iterator[None]:
    with one_thread():
        yield


def logistic_bench(x: Tensor) -> Workbench:
    """Client 0 holds the first sample, of class 0, client 1 the second, of class 1."""
    layout = Layout(build_model("logistic", (1,), 2).double(), torch.device("cpu"))
    y = torch.tensor([0, 1])
    return Workbench(layout, x.reshape(2, 1), y, x.reshape(2, 1), y, [np.array([0]), np.array([1])])


@pytest.fixture
def bench() -> Workbench:
    return logistic_bench(vector(1.0, 2.0))


def train(bench: Workbench, server: Tensors, state: Tensors | None, client: int) -> Result:
    recipe = Recipe(1, None, 1, 1.0, 0.0, 0.0, False)
    return bench.run("train", TrainConfig(client, (0, 0), 1, recipe, FEDDYN), [server, state])


def aggregate(bench: Workbench, server: Tensors, updates: Sequence[Tensors]) -> Tensors:
    ones = (1.0,) * len(updates)
    config = AggregateConfig(ones, ones, "weights", FEDDYN, clients=4)
    return bench.run("aggregate", config, [server, *updates]).outputs["server"]


# --- FedDyn -------------------------------------------------------------------------------------


def test_feddyn_adds_the_dynamic_gradient() -> None:
    """Acar et al. 2021, eq. (1): the gradient of −⟨∇_k, w⟩ + (α/2)·‖w − w_t‖²."""
    # (½, −1) − (1, −2) + 0.1 · ((3, 4) − (1, 6)) = (−0.3, 0.8); −2 + 4 + 0.1 · (0 − 5) = 1.5.
    gradients = [vector(0.5, -1.0), vector(-2.0)]
    parameters, anchor = [vector(3.0, 4.0), vector(0.0)], [vector(1.0, 6.0), vector(5.0)]
    kept = [vector(1.0, -2.0), vector(-4.0)]
    feddyn(0.1, kept)(gradients, parameters, anchor)
    assert_close(gradients[0], (-0.3, 0.8))
    assert_close(gradients[1], (1.5,))
    assert_close(parameters[0], (3.0, 4.0))
    assert_close(kept[0], (1.0, -2.0))


def test_feddyn_two_rounds_by_hand(bench: Workbench) -> None:
    """Acar et al. 2021, Algorithm 1: two of N = 4 clients take part, then client 0 alone; α = ½."""
    zero = {"model": torch.zeros(4).double()}
    first, second = train(bench, zero, None, 0).outputs, train(bench, zero, None, 1).outputs
    # One step of rate 1 from zero, where ∇_k = 0 and the drift is 0: minus the gradient.
    assert_close(first["update"]["delta"], (0.5, -0.5, 0.5, -0.5))
    assert_close(second["update"]["delta"], (-1.0, 1.0, -0.5, 0.5))
    # ∇_k = −½ Δ_k. Nothing else travels.
    assert_close(first["state"]["gradient"], (-0.25, 0.25, -0.25, 0.25))
    assert_close(second["state"]["gradient"], (0.5, -0.5, 0.25, -0.25))
    assert set(first["update"]) == {"delta"}

    server = aggregate(bench, zero, [first["update"], second["update"]])
    # h = −(½/4) (Δ_0 + Δ_1) = −⅛ (−½, ½, 0, 0), the mean of the four ∇_k.
    assert_close(server["h"], (0.0625, -0.0625, 0.0, 0.0))
    # w = (w_0 + w_1)/2 − h/½ = (−¼, ¼, 0, 0) − (⅛, −⅛, 0, 0).
    assert_close(server["model"], (-0.375, 0.375, 0.0, 0.0))

    third = train(bench, server, first["state"], 0).outputs
    # u = −¾: g = (σ(−¾) − 1)·(1, −1, 1, −1), and the step is −(g − ∇_0), ∇_0 = −¼ (1, −1, 1, −1).
    step = 1 - SIGMOID_3_4_DOWN - 0.25
    assert_close(third["update"]["delta"], (step, -step, step, -step))
    kept = -0.25 - 0.5 * step
    assert_close(third["state"]["gradient"], (kept, -kept, kept, -kept))

    after = aggregate(bench, server, [third["update"]])
    h = (0.0625 - step / 8, -0.0625 + step / 8, -step / 8, step / 8)
    assert_close(after["h"], h)
    model = [w + d - 2 * each for w, d, each in zip(
        (-0.375, 0.375, 0.0, 0.0), (step, -step, step, -step), h, strict=True
    )]  # fmt: skip
    assert_close(after["model"], model)
    # h is the mean of what the four clients keep.
    assert_close(after["h"], (third["state"]["gradient"] + second["state"]["gradient"]) / 4)


def test_feddyn_finds_the_common_minimum_of_unlike_clients() -> None:
    """Clients ½ a_k (w − b_k)², solved exactly: FedDyn's fixed point is that of their sum, where
    what each client keeps is its own gradient; averaging would stop elsewhere."""
    curvature, centre, alpha = (1.0, 4.0), (0.0, 1.0), 0.5
    w, h, kept = vector(3.0), None, [vector(0.0), vector(0.0)]
    for _ in range(200):
        deltas = []
        for k, (a, b) in enumerate(zip(curvature, centre, strict=True)):
            # a (y − b) − ∇_k + α (y − w) = 0
            delta = (a * b + kept[k] + alpha * w) / (a + alpha) - w
            kept[k] = next_gradient(kept[k], delta, alpha)
            deltas.append(delta)
        w, h = feddyn_step(w, h, deltas, alpha=alpha, clients=2)
    assert_close(w, (0.8,))  # Σ a b / Σ a
    assert_close(kept[0], (0.8,))  # 1 · (0.8 − 0)
    assert_close(kept[1], (-0.8,))  # 4 · (0.8 − 1)


def test_a_client_keeps_its_gradient_when_its_update_is_not_finite() -> None:
    bench = logistic_bench(vector(float("inf"), 1.0))
    zero = {"model": torch.zeros(4).double()}
    lost = train(bench, zero, None, 0)
    assert lost.values["finite"] is False
    assert_close(lost.outputs["state"]["gradient"], (0.0, 0.0, 0.0, 0.0))
    kept = {"gradient": vector(1.0, 2.0, 3.0, 4.0)}
    assert_close(train(bench, zero, kept, 0).outputs["state"]["gradient"], kept["gradient"])


@pytest.mark.parametrize(
    ("objective", "keeps"),
    [
        ({"kind": "plain"}, False),
        ({"kind": "fedprox", "mu": 0.1}, False),
        ({"kind": "scaffold", "option": "II"}, True),
        (FEDDYN, True),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
def test_the_learner_gives_a_state_where_the_training_gives_one(
    objective: Options, keeps: bool, bench: Workbench
) -> None:
    recipe = Recipe(1, None, 1, 1.0, 0.0, 0.0, False)
    method = Method("root", 1, 4, 0, recipe, objective, {"kind": "average", "lr": 1.0}, "weights")
    learner = Learner(method, None, lambda: 0)
    assert (learner.train(learner.initial(), None, 0, (0, 0))[1] is not None) is keeps
    zero = {"model": torch.zeros(4).double()}
    config = TrainConfig(0, (0, 0), 1, recipe, objective)
    assert ("state" in bench.run("train", config, [zero, None]).outputs) is keeps


def test_feddyn_costs_what_fedavg_costs() -> None:
    options, cost = assembly.OBJECTIVES["feddyn"](schema.FedDyn(kind="feddyn", alpha=0.1))
    assert options == {"kind": "feddyn", "alpha": 0.1}
    assert cost == Cost()


# --- what goes together -------------------------------------------------------------------------

SCENARIO: dict[str, Any] = {
    "schema": 1,
    "name": "together",
    "seed": 1,
    "stop": {"sim_time": "1 h", "versions": 2},
    "task": {
        "dataset": {"kind": "digits"},
        "clients": 4,
        "partition": {"kind": "iid"},
        "model": {"kind": "logistic"},
    },
    "system": {
        "devices": {"kind": "scripted", "training": "10 s"},
        "availability": {"kind": "always"},
        "network": {"kind": "none"},
    },
    "local": {"epochs": 1, "batch_size": 50, "optimizer": {"kind": "sgd", "lr": 0.1}},
    "evaluation": {"every": {"versions": 1}},
}
ROUNDS = {"kind": "synchronous", "participants": 4, "deadline": "none", "weights": "uniform"}
BUFFERED = {"kind": "buffered", "in_flight": 4, "buffer": 2, "staleness": {"kind": "constant"}}
ASYNCHRONOUS = {"kind": "asynchronous", "in_flight": 4}
OBJECTIVES: dict[str, Options] = {
    "plain": {"kind": "plain"},
    "fedprox": {"kind": "fedprox", "mu": 0.1},
    "scaffold-I": {"kind": "scaffold", "option": "I"},
    "scaffold-II": {"kind": "scaffold"},
    "feddyn": {"kind": "feddyn", "alpha": 0.1},
}
OPTIMIZERS = ("average", "fedavgm", "fedadagrad", "fedadam", "fedyogi", "qfedavg")
NONSENSE = {
    *(("feddyn", optimizer) for optimizer in OPTIMIZERS if optimizer != "average"),
    ("scaffold-I", "qfedavg"),
    ("scaffold-II", "qfedavg"),
}


def scenario_of(folder: Path, federation: Options, **task: Any) -> schema.Scenario:
    path = folder / "scenario.yaml"
    written = {**SCENARIO, "task": {**SCENARIO["task"], **task}, "federation": federation}
    path.write_text(json.dumps(written))
    return load_scenario(path)[0]


@pytest.fixture(scope="module")
def digits() -> Workbench:
    data = load_dataset("digits")
    with torch_stream(3, "initialization"):
        layout = Layout(
            build_model("logistic", data.input_shape, data.classes), torch.device("cpu")
        )
    tensors = (data.train_x, data.train_y, data.test_x, data.test_y)
    parts = np.array_split(np.arange(len(data.train_y)), 4)
    return Workbench(layout, *map(torch.from_numpy, tensors), parts)


@pytest.mark.parametrize(
    ("objective", "optimizer"), sorted({*itertools.product(OBJECTIVES, OPTIMIZERS)} - NONSENSE)
)
def test_objectives_and_server_optimizers_train_together(
    objective: str, optimizer: str, digits: Workbench, tmp_path: Path
) -> None:
    """Four clients, three versions: the loss on the test set falls."""
    federation = {
        "pacing": ROUNDS,
        "objective": OBJECTIVES[objective],
        "server_optimizer": {"kind": optimizer},
    }
    minimized, step, _ = assembly.build_method(scenario_of(tmp_path, federation))
    recipe = Recipe(1, None, 50, 0.1, 0.0, 0.0, False)
    server: Tensors = digits.run("initial", digits.layout.flatten() * 0, []).outputs["server"]
    states: dict[int, Tensors | None] = {}
    losses = []
    for version in range(3):
        updates = []
        for client in range(4):
            config = TrainConfig(client, (version, 0), 1, recipe, minimized, uploads(step))
            result = digits.run("train", config, [server, states.get(client)])
            states[client] = result.outputs.get("state")
            updates.append(result.outputs["update"])
        merge = AggregateConfig((1.0,) * 4, (1.0,) * 4, "weights", step, clients=4)
        server = digits.run("aggregate", merge, [server, *updates]).outputs["server"]
        values = digits.run("evaluate", EvaluateConfig(0, 360), [server]).values
        losses.append(values["loss"] / 360)
    assert losses[0] < np.log(10)
    assert losses == sorted(losses, reverse=True)


FEDDYN_SECTION = OBJECTIVES["feddyn"]


@pytest.mark.parametrize(
    ("federation", "reason"),
    [
        (
            {"pacing": ROUNDS, "objective": {"kind": "feddyn", "alpha": 0.1},
             "server_optimizer": {"kind": "fedadam"}},
            r"'fedadam' has no place beside objective 'feddyn'.*its own",
        ),
        (
            {"pacing": ROUNDS, "objective": FEDDYN_SECTION,
             "server_optimizer": {"kind": "average", "lr": 0.5}},
            r"'average' with lr 0.5 has no place beside objective 'feddyn'",
        ),
        (
            {"pacing": {**ROUNDS, "weights": "samples"}, "objective": FEDDYN_SECTION},
            r"'samples' with objective 'feddyn'.*plain mean.*weights: uniform",
        ),
        (
            {"pacing": {**BUFFERED, "staleness": {"kind": "polynomial"}},
             "objective": FEDDYN_SECTION},
            r"staleness: 'polynomial' with objective 'feddyn'.*constant",
        ),
        (
            {"pacing": ASYNCHRONOUS, "objective": FEDDYN_SECTION},
            r"'feddyn' has a server step of its own",
        ),
        (
            {"pacing": ASYNCHRONOUS, "server_optimizer": {"kind": "qfedavg"}},
            r"'qfedavg' has no place in asynchronous pacing",
        ),
        (
            {"pacing": ROUNDS, "objective": {"kind": "scaffold"},
             "server_optimizer": {"kind": "qfedavg"}},
            r"'qfedavg'.*'scaffold'",
        ),
        (
            {"pacing": BUFFERED, "objective": FEDDYN_SECTION,
             "selection": {"kind": "random", "busy": "queue"}},
            r"queue with objective 'feddyn'.*out of date",
        ),
        (
            {"pacing": ROUNDS, "objective": {"kind": "feddyn", "alpha": 0.0}},
            r"alpha.*greater than 0|alpha.*above 0",
        ),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(federation: Options, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=f"(?s){reason}"):
        scenario_of(tmp_path, federation)


def test_feddyn_goes_with_an_undiscounted_buffer(tmp_path: Path) -> None:
    scenario = scenario_of(tmp_path, {"pacing": BUFFERED, "objective": FEDDYN_SECTION})
    objective, step, _ = assembly.build_method(scenario)
    assert objective == step == {"kind": "feddyn", "alpha": 0.1}
