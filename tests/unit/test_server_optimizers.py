"""The server's steps, in float64, against numbers worked by hand from the papers' equations.

``run`` hands two updates to the operation as a version does; where both are the same, their mean
is the Δ̄ of the equation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from emulator import assembly
from emulator.federation.cost import Cost
from emulator.federation.payload.full import full
from emulator.learning.learner import Learner
from emulator.learning.lineage import Tensors
from emulator.learning.method import Method
from emulator.learning.methods.qfedavg import qfedavg
from emulator.learning.models import build_model
from emulator.learning.operations import (
    AggregateConfig,
    Result,
    TrainConfig,
    Workbench,
    one_thread,
)
from emulator.learning.training import Layout, Recipe
from emulator.scenario import schema
from emulator.simulation.devices import FedScaleSpeed, MacsSpeed, ScriptedSpeed, Work

NAN = float("nan")


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def assert_close(got: Tensor, expected: Sequence[float] | Tensor, rtol: float = 1e-12) -> None:
    wanted = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(got, wanted, rtol=rtol, atol=1e-14)


@pytest.fixture(autouse=True)
def one_thread_each() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture
def bench() -> Workbench:
    """Client 0 holds (x = 1, class 0), client 1 (x = 2, class 1), client 2 both, client 3 none;
    logistic regression with two classes on one feature."""
    x, y = vector(1.0, 2.0).reshape(2, 1), torch.tensor([0, 1])
    parts = [np.array(p, dtype=np.int64) for p in ([0], [1], [0, 1], [])]
    layout = Layout(build_model("logistic", (1,), 2).double(), torch.device("cpu"))
    return Workbench(layout, x, y, x, y, parts)


def aggregate(
    bench: Workbench,
    server: Tensors,
    updates: Sequence[Tensors],
    step: dict[str, Any],
    *,
    weights: Sequence[float] | None = None,
    discounts: Sequence[float] | None = None,
    normalise: str = "weights",
) -> Result:
    ones = [1.0] * len(updates)
    config = AggregateConfig(
        tuple(weights or ones), tuple(discounts or ones), normalise, step, clients=10
    )
    return bench.run("aggregate", config, [server, *updates])


def run(bench: Workbench, step: dict[str, Any], deltas: Sequence[Tensor]) -> list[Tensors]:
    """The server's states from ones, after each Δ̄."""
    server: Tensors = {"model": torch.ones_like(deltas[0])}
    states = []
    for delta in deltas:
        server = aggregate(bench, server, [{"delta": delta}] * 2, step).outputs["server"]
        states.append(server)
    return states


def test_fedavgm_two_steps_by_hand(bench: Workbench) -> None:
    """Hsu et al. 2019, section 4.3: m ← β m + Δ̄, w ← w + η m, with β = ½, η = 2."""
    # m = (1, −2); w = (1, 1) + 2 m = (3, −3).
    # m = ½ (1, −2) + (½, ½) = (1, −½); w = (3, −3) + 2 m = (5, −4).
    step = {"kind": "fedavgm", "lr": 2.0, "beta": 0.5}
    first, second = run(bench, step, [vector(1.0, -2.0), vector(0.5, 0.5)])
    assert_close(first["model"], (3.0, -3.0))
    assert_close(first["m"], (1.0, -2.0))
    assert_close(second["model"], (5.0, -4.0))
    assert_close(second["m"], (1.0, -0.5))


def test_fedadagrad_two_steps_by_hand(bench: Workbench) -> None:
    """Reddi et al. 2021, Algorithm 2: v ← v + Δ̄²; β1 = ¼, η = τ = 1, v0 = 9."""
    # Δ̄ = (4, −4): m = (3, −3); v = 9 + 16 = 25; w = 1 ± 3/(5 + 1).
    # Δ̄ = (12, 0): m = (¾ + 9, −¾); v = (25 + 144, 25); w = 1.5 + 9.75/(13 + 1), ½ − ¾/(5 + 1).
    step = {"kind": "fedadagrad", "lr": 1.0, "beta1": 0.25, "tau": 1.0, "v0": 9.0}
    first, second = run(bench, step, [vector(4.0, -4.0), vector(12.0, 0.0)])
    assert_close(first["model"], (1.5, 0.5))
    assert_close(first["v"], (25.0, 25.0))
    assert_close(second["m"], (9.75, -0.75))
    assert_close(second["v"], (169.0, 25.0))
    assert_close(second["model"], (1.5 + 9.75 / 14, 0.375))


def test_fedadam_two_steps_by_hand(bench: Workbench) -> None:
    """Reddi et al. 2021, Algorithm 2: v ← β2 v + (1 − β2) Δ̄², no bias correction; β1 = ¼, β2 = ¾,
    η = 8, τ = 1, v0 = 9."""
    # Δ̄ = (13, −3): m = ¾ Δ̄ = (39/4, −9/4); v = ¾ · 9 + ¼ (169, 9) = (49, 9);
    #   w = 1 + 8 · 39/4 / (7 + 1), 1 − 8 · 9/4 / (3 + 1) = (43/4, −7/2).
    # Δ̄ = (23, 13): m = ¼ (39/4, −9/4) + ¾ (23, 13) = (315/16, 147/16); v = ¾ (49, 9) + ¼ (529, 169)
    #   = (169, 49); w = 43/4 + 8 · 315/16 / (13 + 1), −7/2 + 8 · 147/16 / (7 + 1) = (22, 91/16).
    step = {"kind": "fedadam", "lr": 8.0, "beta1": 0.25, "beta2": 0.75, "tau": 1.0, "v0": 9.0}
    first, second = run(bench, step, [vector(13.0, -3.0), vector(23.0, 13.0)])
    assert_close(first["model"], (43 / 4, -7 / 2))
    assert_close(first["v"], (49.0, 9.0))
    assert_close(second["m"], (315 / 16, 147 / 16))
    assert_close(second["v"], (169.0, 49.0))
    assert_close(second["model"], (22.0, 91 / 16))


STEPS: list[dict[str, Any]] = [
    {"kind": "average", "lr": 1.0},
    {"kind": "fedavgm", "lr": 1.0, "beta": 0.5},
    {"kind": "fedadagrad", "lr": 1.0, "beta1": 0.5, "tau": 1.0, "v0": 1.0},
    {"kind": "fedadam", "lr": 1.0, "beta1": 0.5, "beta2": 0.5, "tau": 1.0, "v0": 1.0},
    {"kind": "fedyogi", "lr": 1.0, "beta1": 0.5, "beta2": 0.5, "tau": 1.0, "v0": 1.0},
    {"kind": "qfedavg", "q": 1.0, "lipschitz": 1.0},
    {"kind": "feddyn", "alpha": 0.5},
]


def update_of(value: float, loss: float = 1.0) -> Tensors:
    return {"delta": vector(value, -value), "base_loss": vector(loss)}


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step["kind"])
def test_what_is_not_finite_is_left_out(bench: Workbench, step: dict[str, Any]) -> None:
    server = {"model": vector(1.0, 2.0)}
    good = [update_of(0.5), update_of(-2.0, 3.0)]
    bad = update_of(NAN) if step["kind"] != "qfedavg" else update_of(1.0, NAN)
    with_bad = aggregate(bench, server, [good[0], bad, good[1]], step, weights=[1.0, 5.0, 1.0])
    without = aggregate(bench, server, good, step)
    assert with_bad.values["nonfinite"] == [1]
    got, wanted = with_bad.outputs["server"], without.outputs["server"]
    assert got.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(got[name], tensor)
    # None finite: the model stays, and so does what the step keeps.
    for before in (server, wanted):
        after = aggregate(bench, before, [bad, bad], step).outputs["server"]
        assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
        assert after.keys() == before.keys()


# --- q-FedAvg -----------------------------------------------------------------------------------

# L = 2, q = 2, w = 0. Client 1: F = 1, w_1 = (1, 0); client 2: F = 3, w_2 = (0, −2).
#   Δw = L (w − w_k) = (−2, 0) and (0, 4), of squared length 4 and 16.
#   Δ_1 = 1² (−2, 0); Δ_2 = 3² (0, 4) = (0, 36).
#   h_1 = 2 · 1 · 4 + 2 · 1² = 10; h_2 = 2 · 3 · 16 + 2 · 3² = 114.
#   w − ΣΔ/Σh = (2, −36)/124.
Q_STEP = {"kind": "qfedavg", "q": 2.0, "lipschitz": 2.0}
Q_UPDATES = [
    {"delta": vector(1.0, 0.0), "base_loss": vector(1.0)},
    {"delta": vector(0.0, -2.0), "base_loss": vector(3.0)},
]


@pytest.mark.parametrize(
    ("weights", "discounts", "normalise", "expected"),
    [
        ((1.0, 1.0), (1.0, 1.0), "weights", (2 / 124, -36 / 124)),
        # p = (3, 1): (3 · 2, −36) / (3 · 10 + 114).
        ((3.0, 1.0), (1.0, 1.0), "weights", (6 / 144, -36 / 144)),
        # s = (1, ½): (2, −18), over the same, or over 10 + ½ · 114.
        ((1.0, 1.0), (1.0, 0.5), "weights", (2 / 124, -18 / 124)),
        ((1.0, 1.0), (1.0, 0.5), "discounted", (2 / 67, -18 / 67)),
    ],
)
def test_qfedavg_by_hand(
    bench: Workbench,
    weights: Sequence[float],
    discounts: Sequence[float],
    normalise: str,
    expected: Sequence[float],
) -> None:
    """Li et al. 2020, Algorithm 2."""
    after = aggregate(
        bench,
        {"model": vector(0.0, 0.0)},
        Q_UPDATES,
        Q_STEP,
        weights=weights,
        discounts=discounts,
        normalise=normalise,
    ).outputs["server"]
    assert_close(after["model"], expected, rtol=1e-9)  # the 1e-10 that is added to the losses


@pytest.mark.parametrize("normalise", ["weights", "discounted"])
def test_qfedavg_with_q_0_is_averaging(bench: Workbench, normalise: str) -> None:
    # Whatever L is: h_k = L, Δ_k = L (w − w_k).
    models = []
    for step in ({"kind": "qfedavg", "q": 0.0, "lipschitz": 7.0}, {"kind": "average", "lr": 1.0}):
        result = aggregate(
            bench,
            {"model": vector(1.0, -1.0)},
            [update_of(0.5, 4.0), update_of(-2.0, 0.0), update_of(1.0, 9.0)],
            step,
            weights=[1.0, 3.0, 2.0],
            discounts=[1.0, 0.25, 0.5],
            normalise=normalise,
        )
        models.append(result.outputs["server"]["model"])
    assert_close(models[0], models[1])


def test_qfedavg_takes_losses_whose_power_is_no_float() -> None:
    # q = 400 and F = 10, 9: F^q is 1e400; client 1 counts (0.9)^400 as much as client 0.
    # w = Δ_0 L / (q ‖L Δ_0‖²/F_0 + L), and the other's share is far below the tolerance.
    deltas = [vector(0.5), vector(-0.5)]
    w = qfedavg(vector(0.0), deltas, [10.0, 9.0], [1.0, 1.0], [1.0, 1.0], q=400.0, lipschitz=2.0)
    assert_close(w, (1.0 / (400 * 1.0 / 10 + 2.0),), rtol=1e-8)


def test_qfedavg_gets_the_loss_of_the_received_model(bench: Workbench) -> None:
    recipe = Recipe(3, None, 1, 0.5, 0.0, 0.0, False)
    server = {"model": vector(1.0, -1.0, 0.0, 0.0)}
    # u = 2x: ln(1 + e^−2) for x = 1 of class 0, ln(1 + e^4) for x = 2 of class 1; their mean.
    losses = {0: 0.1269280110429725, 1: 4.0181499279178094, 2: 2.0725389694803910, 3: 0.0}
    for client, expected in losses.items():
        config = TrainConfig(
            client, (0, 0), 1, recipe, {"kind": "plain"}, uploads=("delta", "base_loss")
        )
        update = bench.run("train", config, [server, None]).outputs["update"]
        assert_close(update["base_loss"], (expected,))
        plain = TrainConfig(client, (0, 0), 1, recipe, {"kind": "plain"})
        alone = bench.run("train", plain, [server, None]).outputs["update"]
        assert set(alone) == {"delta"}
        assert torch.equal(alone["delta"], update["delta"])


# --- FedAsync -----------------------------------------------------------------------------------


def test_fedasync_mixes_models_and_never_compounds_alpha(bench: Workbench) -> None:
    """Xie et al. 2019, Algorithm 1: w ← (1 − α s) w + α s w_k, with α = ½."""
    step = {"kind": "fedasync", "mixing": 0.5}
    server: Tensors = {"model": vector(1.0, -2.0)}
    received = {"model": vector(3.0, 2.0)}
    # s = ½: ¾ (1, −2) + ¼ (3, 2) = (1.5, −1).
    server = aggregate(bench, server, [received], step, discounts=[0.5]).outputs["server"]
    assert_close(server["model"], (1.5, -1.0))
    # s = 1, twice: ½ each time, (2.25, ½), then (2.625, 1.25).
    for expected in ((2.25, 0.5), (2.625, 1.25)):
        server = aggregate(bench, server, [received], step).outputs["server"]
        assert_close(server["model"], expected)
    # The number of samples does not count, but for none.
    for weight, expected in ((7.0, (2.8125, 1.625)), (0.0, (2.625, 1.25))):
        config = AggregateConfig((weight,), (1.0,), "weights", step, 10)
        after = bench.run("aggregate", config, [server, received]).outputs["server"]
        assert_close(after["model"], expected)
    lost = aggregate(bench, server, [{"model": vector(NAN, 0.0)}], step)
    assert lost.values["nonfinite"] == [0]
    assert torch.equal(lost.outputs["server"]["model"], server["model"])


def test_fedasync_gets_the_trained_model(bench: Workbench) -> None:
    recipe = Recipe(1, None, 1, 1.0, 0.0, 0.0, False)
    server = {"model": vector(0.3, 0.3, -0.1, -0.1)}
    for objective in ({"kind": "plain"}, {"kind": "fedprox", "mu": 0.1}):
        config = TrainConfig(0, (0, 0), 1, recipe, objective, uploads=("model",))
        update = bench.run("train", config, [server, None]).outputs["update"]
        assert set(update) == {"model"}
        # One step from equal logits: w + ½ (1, −1, 1, −1).
        assert_close(update["model"], (0.8, -0.2, 0.4, -0.6))


# --- what it costs ------------------------------------------------------------------------------

LOCAL = schema.Local(epochs=1, batch_size=10, optimizer=schema.Sgd(kind="sgd", lr=0.05))


def test_qfedavg_costs_a_forward_pass_and_four_bytes() -> None:
    section = schema.QFedAvg(kind="qfedavg", q=2.0)
    options, cost = assembly.SERVER_OPTIMIZERS["qfedavg"](section, LOCAL)
    assert options == {"kind": "qfedavg", "q": 2.0, "lipschitz": 20.0}
    assert cost == Cost(values_up=1, forward_passes=1)
    # 1,000 bytes of header, 400 of model, 4 of the loss.
    sizes = full(1000, cost, 400, 0)
    assert (sizes.down_bytes, sizes.up_bytes) == (1400, 1404)
    # SCAFFOLD's option I under it: both costs.
    _, scaffold = assembly.OBJECTIVES["scaffold"](schema.Scaffold(kind="scaffold", option="I"))
    both = scaffold + cost
    assert both == Cost(
        vectors_down=1, vectors_up=1, values_up=1, training_passes=1, forward_passes=1
    )
    sizes = full(1000, both, 400, 0)
    assert (sizes.down_bytes, sizes.up_bytes) == (1800, 1804)
    # Running statistics travel once, whatever else does.
    sizes = full(1000, scaffold, 400, 50)
    assert (sizes.down_bytes, sizes.up_bytes) == (1850, 1850)


def test_a_forward_pass_takes_less_time_than_training() -> None:
    # 100 samples trained, 20 forward only; forward 1 and backward 2, in units of one inference.
    work = Work(100, 0, 3000, forward_samples=20, forward_macs=1200, usual_samples=100)
    assert FedScaleSpeed(np.array([10.0])).seconds(0, work) == pytest.approx(3.2, rel=1e-12)
    # 10 ms for 1,000 MACs: 100 · 3,000 + 20 · 1,200 = 324,000 MACs.
    assert MacsSpeed(np.array([10.0]), 1000).seconds(0, work) == pytest.approx(3.24, rel=1e-12)
    # 30 s for 100 samples: a forward pass of one takes a third of its 0.3 s.
    assert ScriptedSpeed([30.0]).seconds(0, work) == pytest.approx(32.0, rel=1e-12)


# --- identity -----------------------------------------------------------------------------------


def test_what_the_server_asks_for_is_part_of_a_trainings_identity() -> None:
    def train_id(step: dict[str, Any]) -> str:
        recipe = Recipe(1, None, 1, 1.0, 0.0, 0.0, False)
        method = Method("root", 1, 4, 0, recipe, {"kind": "plain"}, step, "weights")
        learner = Learner(method, None, lambda: 0)
        return str(learner.train(learner.initial(), None, 0, (0, 0))[0].id)

    ids = {step["kind"]: train_id(step) for step in [*STEPS, {"kind": "fedasync", "mixing": 0.5}]}
    same = {ids[kind] for kind in ("average", "fedavgm", "fedadagrad", "fedadam", "fedyogi")}
    assert len(same) == 1  # these reuse each other's first round
    assert len({*same, ids["qfedavg"], ids["fedasync"]}) == 3
