"""The methods on two clients, in float64, against numbers worked by hand from the papers.

Where a model is trained it is logistic regression with two classes on one feature x, from equal
logits: its parameters are (w0, w1, b0, b1), the logits differ by u = (w0 − w1) x + b0 − b1, and the
gradient of the cross-entropy for a sample of class 0 is (σ(u) − 1) · (x, −x, 1, −1), for one of
class 1 it is σ(u) · (x, −x, 1, −1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from emulator.federation.cost import Cost
from emulator.federation.pacing import constant, polynomial
from emulator.federation.server_optimizer.fedyogi import fedyogi as fedyogi_options
from emulator.learning.lineage import Tensors
from emulator.learning.methods.average import average, coefficients, mean_delta
from emulator.learning.methods.fedprox import fedprox
from emulator.learning.methods.fedyogi import fedyogi
from emulator.learning.methods.scaffold import control_option_2, scaffold, server_control
from emulator.learning.models import build_model
from emulator.learning.operations import (
    AggregateConfig,
    Options,
    Result,
    TrainConfig,
    Workbench,
    one_thread,
)
from emulator.learning.training import Layout, Recipe, mean_gradient, train
from emulator.scenario import schema

AVERAGE: Options = {"kind": "average", "lr": 1.0}
SIGMOID_2 = 0.8807970779778823
SIGMOID_HALF_DOWN = 0.3775406687981454  # σ(−1/2)


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def assert_close(got: Tensor, expected: Sequence[float] | Tensor) -> None:
    wanted = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-14)


def recipe(**changes: Any) -> Recipe:
    given: dict[str, Any] = {
        "epochs": 1,
        "steps": None,
        "batch_size": 1,
        "lr": 1.0,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "pad": False,
    }
    return Recipe(**{**given, **changes})


def logistic_layout() -> Layout:
    return Layout(build_model("logistic", (1,), 2).double(), torch.device("cpu"))


@pytest.fixture(autouse=True)
def one_thread_each() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture
def bench() -> Workbench:
    """Client 0 holds (x = 1, class 0), client 1 holds (x = 2, class 1), client 2 both."""
    x, y = vector(1.0, 2.0).reshape(2, 1), torch.tensor([0, 1])
    partition = [np.array(p, dtype=np.int64) for p in ([0], [1], [0, 1])]
    return Workbench(logistic_layout(), x, y, x, y, partition)


def run_train(
    bench: Workbench, server: Tensors, state: Tensors | None, client: int, **options: Any
) -> Result:
    how = options.pop("recipe", recipe())
    return bench.run("train", TrainConfig(client, (0, 0), 1, how, options), [server, state])


def run_aggregate(
    bench: Workbench,
    server: Tensors,
    updates: Sequence[Tensors],
    *,
    weights: Sequence[float] = (1.0, 1.0),
    discounts: Sequence[float] = (1.0, 1.0),
    normalise: str = "weights",
    optimizer: Options | None = None,
    clients: int = 2,
) -> Tensors:
    config = AggregateConfig(
        tuple(weights), tuple(discounts), normalise, optimizer or AVERAGE, clients
    )
    return bench.run("aggregate", config, [server, *updates]).outputs["server"]


# --- FedAvg and FedBuff -------------------------------------------------------------------------

# From w = (1, −2), client models (2, −2) and (1, 2): deltas (1, 0) and (0, 4).
SERVER = vector(1.0, -2.0)
MODELS = (vector(2.0, -2.0), vector(1.0, 2.0))
DELTAS = tuple(model - SERVER for model in MODELS)


@pytest.mark.parametrize(
    ("weights", "discounts", "normalise", "expected"),
    [
        # FedAvg with 1 and 3 samples: (1·(2, −2) + 3·(1, 2)) / 4.
        ((1.0, 3.0), (1.0, 1.0), "weights", (1.25, 1.0)),
        ((1.0, 3.0), (1.0, 1.0), "discounted", (1.25, 1.0)),
        # FedAvg, uniform: the middle of the two models.
        ((1.0, 1.0), (1.0, 1.0), "weights", (1.5, 0.0)),
        # FedBuff, τ = 0 and 3, so s = 1 and 1/2; 1/K: Δ̄ = (1·(1, 0) + ½·(0, 4)) / 2 = (½, 1).
        ((1.0, 1.0), (1.0, 0.5), "weights", (1.5, -1.0)),
        # By the discounted sum: Δ̄ = (1, 2) / 1.5 = (2/3, 4/3).
        ((1.0, 1.0), (1.0, 0.5), "discounted", (5 / 3, -2 / 3)),
        # Samples and discounts: Δ̄ = (1·1·(1, 0) + 3·½·(0, 4)) / 4 = (¼, 3/2), or / 2.5 = (.4, 2.4).
        ((1.0, 3.0), (1.0, 0.5), "weights", (1.25, -0.5)),
        ((1.0, 3.0), (1.0, 0.5), "discounted", (1.4, 0.4)),
        # Who has no sample adds nothing; where nobody has one, the model stays.
        ((0.0, 3.0), (1.0, 1.0), "weights", (1.0, 2.0)),
        ((0.0, 0.0), (1.0, 1.0), "weights", (1.0, -2.0)),
        ((0.0, 0.0), (1.0, 1.0), "discounted", (1.0, -2.0)),
    ],
)
def test_averaging(
    bench: Workbench,
    weights: Sequence[float],
    discounts: Sequence[float],
    normalise: str,
    expected: Sequence[float],
) -> None:
    factors = coefficients(weights, discounts, normalise)
    assert_close(average(SERVER, mean_delta(DELTAS, factors), 1.0), expected)

    after = run_aggregate(
        bench,
        {"model": SERVER},
        [{"delta": delta} for delta in DELTAS],
        weights=weights,
        discounts=discounts,
        normalise=normalise,
    )
    assert_close(after["model"], expected)
    assert_close(SERVER, (1.0, -2.0))  # the old version is still what it was


def test_server_learning_rate_scales_the_mean_update(bench: Workbench) -> None:
    # Samples 1 and 3: Δ̄ = (¼, 3); w + ½ Δ̄ = (1.125, −½).
    after = run_aggregate(
        bench,
        {"model": SERVER},
        [{"delta": delta} for delta in DELTAS],
        weights=(1.0, 3.0),
        optimizer={"kind": "average", "lr": 0.5},
    )
    assert_close(after["model"], (1.125, -0.5))


def test_updates_are_summed_in_the_given_order() -> None:
    # In float32 1e8 + 3 + 3 is 1e8 + 0 + 8 or 1e8 + 6 → 1e8 + 8, by the order of the sum.
    parts = [torch.tensor([value]) for value in (1e8, 3.0, 3.0)]
    assert mean_delta(parts, (1.0, 1.0, 1.0)).item() == 1e8
    assert mean_delta(parts[::-1], (1.0, 1.0, 1.0)).item() == 1e8 + 8


def test_staleness_weights() -> None:
    # FedBuff: 1/√(1 + τ).
    fedbuff = polynomial(0.5)
    assert [fedbuff(tau) for tau in (0, 1, 3)] == pytest.approx([1.0, 0.5**0.5, 0.5], rel=1e-15)
    assert [polynomial(2.0)(tau) for tau in (0, 1, 3)] == [1.0, 0.25, 0.0625]
    assert [polynomial(0.0)(tau) for tau in (0, 7)] == [1.0, 1.0]
    assert [constant(tau) for tau in (0, 1, 3)] == [1.0, 1.0, 1.0]


# --- FedProx ------------------------------------------------------------------------------------


def test_fedprox_adds_the_proximal_gradient() -> None:
    # g + μ (w − w_t) = (½, −1) + 0.1 · ((3, 4) − (1, 6)) = (0.7, −1.2); and −2 + 0.1 · (0 − 5).
    gradients = [vector(0.5, -1.0), vector(-2.0)]
    parameters, anchor = [vector(3.0, 4.0), vector(0.0)], [vector(1.0, 6.0), vector(5.0)]
    fedprox(0.1)(gradients, parameters, anchor)
    assert_close(gradients[0], (0.7, -1.2))
    assert_close(gradients[1], (-2.5,))
    assert_close(parameters[0], (3.0, 4.0))
    assert_close(anchor[0], (1.0, 6.0))


def test_fedprox_two_steps_by_hand() -> None:
    # x = 1, class 0, lr 1, μ 0.1; the base has equal logits, so u = 0 at first.
    # Step 1: g = (σ(0) − 1)·(1, −1, 1, −1) = −½·(…); the drift is 0: w − w_t = ½·(1, −1, 1, −1).
    # Step 2: u = 2, g = (σ(2) − 1)·(…) = −0.1192·(…), plus μ · ½: the step is σ-part − 0.05.
    change = 0.5 + (1 - SIGMOID_2) - 0.1 * 0.5
    base = vector(0.3, 0.3, -0.1, -0.1)
    x, y = vector(1.0).reshape(1, 1), torch.tensor([0])
    delta, loss, steps = train(
        logistic_layout(),
        base,
        x,
        y,
        recipe(epochs=2),
        np.random.default_rng(0),
        fedprox(0.1),
    )
    assert_close(delta, (change, -change, change, -change))
    assert steps == 2
    # ln 2 and ln(1 + e⁻²); the proximal term is no part of the loss that is told.
    assert loss == pytest.approx(0.41003759580145893, rel=1e-12)


def test_fedprox_as_an_operation(bench: Workbench) -> None:
    change = 0.5 + (1 - SIGMOID_2) - 0.1 * 0.5
    server = {"model": vector(0.3, 0.3, -0.1, -0.1)}
    result = run_train(bench, server, None, 0, kind="fedprox", mu=0.1, recipe=recipe(epochs=2))
    assert_close(result.outputs["update"]["delta"], (change, -change, change, -change))
    assert set(result.outputs) == {"update"}


# --- SCAFFOLD -----------------------------------------------------------------------------------


def test_scaffold_adds_the_correction() -> None:
    gradients = [vector(0.5, -1.0), vector(2.0)]
    scaffold([vector(1.0, 2.0), vector(-3.0)])(gradients, [], [])
    assert_close(gradients[0], (1.5, 1.0))
    assert_close(gradients[1], (-1.0,))


def test_scaffold_client_control_of_option_2() -> None:
    # c_k − c + (w_t − y)/(η·steps): (1, 2) − (½, ½) + (−3, 4)/(½ · 4) with y − w_t = (3, −4).
    new = control_option_2(vector(0.5, 0.5), vector(1.0, 2.0), vector(3.0, -4.0), 0.5, 4)
    assert_close(new, (0.5 - 1.5, 1.5 + 2.0))
    untouched = control_option_2(vector(0.5), vector(1.0), vector(0.0), 0.5, 0)
    assert_close(untouched, (1.0,))


def test_scaffold_server_control_divides_by_the_whole_population() -> None:
    # c + (1/N) Σ (c_k⁺ − c_k) with two participants: N = 2 (everyone), then N = 10.
    changes = [vector(1.0, -2.0), vector(3.0, 2.0)]
    control = vector(0.5, 0.5)
    assert_close(server_control(control, changes, 2), (2.5, 0.5))
    assert_close(server_control(control, changes, 10), (0.9, 0.5))
    assert_close(control, (0.5, 0.5))


def test_scaffold_option_1_is_the_gradient_over_all_samples_at_the_server_model() -> None:
    # From zero: (−½)·(1, −1, 1, −1) for x = 1 of class 0, ½·(2, −2, 1, −1) for x = 2 of class 1.
    x, y = vector(1.0, 2.0).reshape(2, 1), torch.tensor([0, 1])
    for batch_size in (1, 2, 5):
        gradient = mean_gradient(
            logistic_layout(), torch.zeros(4).double(), x, y, recipe(batch_size=batch_size)
        )
        assert_close(gradient, (0.25, -0.25, 0.0, 0.0))
    # Three samples in batches of two: the mean is over samples, not over batches.
    x, y = vector(1.0, 2.0, 2.0).reshape(3, 1), torch.tensor([0, 1, 1])
    gradient = mean_gradient(logistic_layout(), torch.zeros(4).double(), x, y, recipe(batch_size=2))
    assert_close(gradient, (0.5, -0.5, 1 / 6, -1 / 6))
    # Weight decay 0.1 is part of what the client minimizes: at w = (1, 1, 1, 1) it adds 0.1 each;
    # equal logits leave the loss's own part as it is at zero.
    ones = torch.ones(4).double()
    gradient = mean_gradient(logistic_layout(), ones, x, y, recipe(batch_size=2, weight_decay=0.1))
    assert_close(gradient, (0.6, -0.4, 1 / 6 + 0.1, -1 / 6 + 0.1))


# One step from zero with lr 1: y − w_t is minus the gradient.
G_0 = vector(-0.5, 0.5, -0.5, 0.5)
G_1 = vector(1.0, -1.0, 0.5, -0.5)


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_two_rounds_by_hand(bench: Workbench, option: str) -> None:
    """Two of N = 4 clients take part, then client 0 alone again."""
    zero = {"model": torch.zeros(4).double()}
    first = run_train(bench, zero, None, 0, kind="scaffold", option=option).outputs
    second = run_train(bench, zero, None, 1, kind="scaffold", option=option).outputs
    # Both options: c_k⁺ is the gradient of the only sample at the server's model.
    for outputs, gradient in ((first, G_0), (second, G_1)):
        assert_close(outputs["update"]["delta"], -gradient)
        assert_close(outputs["state"]["control"], gradient)
        assert_close(outputs["update"]["control_change"], gradient)

    server = run_aggregate(bench, zero, [first["update"], second["update"]], clients=4)
    assert_close(server["model"], (-0.25, 0.25, 0.0, 0.0))  # −(G_0 + G_1) / 2
    assert_close(server["control"], (0.125, -0.125, 0.0, 0.0))  # (G_0 + G_1) / 4

    third = run_train(bench, server, first["state"], 0, kind="scaffold", option=option).outputs
    # u = −¼ − ¼ = −½: g = (σ(−½) − 1)·(1, −1, 1, −1). The step is −(g − c_k + c).
    g = SIGMOID_HALF_DOWN - 1
    step = (-(g + 0.5 + 0.125), g + 0.5 + 0.125, -(g + 0.5), g + 0.5)
    assert_close(third["update"]["delta"], step)
    # II: c_k − c − step = g·(…), which is what I computes with one sample and one step.
    gradient = vector(g, -g, g, -g)
    assert_close(third["state"]["control"], gradient)
    assert_close(third["update"]["control_change"], gradient - G_0)

    after = run_aggregate(
        bench, server, [third["update"]], weights=(1.0,), discounts=(1.0,), clients=4
    )
    assert_close(after["model"], server["model"] + vector(*step))
    assert_close(after["control"], server["control"] + (gradient - G_0) / 4)


def test_scaffold_options_differ_after_two_steps(bench: Workbench) -> None:
    # Client 0, two steps from zero, lr 1: gradients −½ and σ(2) − 1 times (1, −1, 1, −1).
    # Option I: the first of them, at the server's model; option II: their mean.
    zero = {"model": torch.zeros(4).double()}
    signs = vector(1.0, -1.0, 1.0, -1.0)
    for option, control in (("I", -0.5), ("II", (-0.5 + SIGMOID_2 - 1) / 2)):
        result = run_train(
            bench, zero, None, 0, kind="scaffold", option=option, recipe=recipe(epochs=2)
        )
        assert_close(result.outputs["update"]["delta"], (0.5 + 1 - SIGMOID_2) * signs)
        assert_close(result.outputs["state"]["control"], control * signs)


def test_scaffold_of_the_whole_population_keeps_c_at_the_mean_control(bench: Workbench) -> None:
    # With N participants of N and c = c_k = 0 before, c becomes the mean of the c_k.
    zero = {"model": torch.zeros(4).double()}
    outputs = [
        run_train(bench, zero, None, client, kind="scaffold", option="I").outputs
        for client in (0, 1)
    ]
    server = run_aggregate(bench, zero, [o["update"] for o in outputs], clients=2)
    assert_close(server["control"], (outputs[0]["state"]["control"] + G_1) / 2)
    assert_close(server["control"], (0.25, -0.25, 0.0, 0.0))


# --- FedYogi ------------------------------------------------------------------------------------

YOGI = {"lr": 1.0, "beta1": 0.5, "beta2": 0.75, "tau": 0.5, "v0": 0.25}
# Step 1, Δ = (1, ¼, ½), Δ² = (1, 1/16, ¼), v = ¼:
#   m = Δ / 2
#   v: ¼ < 1, so it grows by Δ²/4 to ½; ¼ > 1/16, so it shrinks by 1/64; ¼ = ¼, so it stays
#   w = 1 + m/(√v + ½) = 1 + ½/(√½ + ½), 1 + ⅛/(√0.234375 + ½), 1 + ¼/1
M_1, V_1 = (0.5, 0.125, 0.25), (0.5, 0.234375, 0.25)
W_1 = (1.4142135623730951, 1.1270166537925831, 1.25)
# Step 2, Δ = (½, −1, 0), Δ² = (¼, 1, 0):
#   m = m/2 + Δ/2
#   v: ½ > ¼, so − ¼·¼; 0.234375 < 1, so + ¼·1; Δ² = 0 leaves it
#   w + ½/(√0.4375 + ½), w − 0.4375/(√0.484375 + ½), w + ⅛/1
M_2, V_2 = (0.5, -0.4375, 0.125), (0.4375, 0.484375, 0.25)
W_2 = (W_1[0] + 0.43050087404306037, W_1[1] - 0.3658116846603384, 1.375)
YOGI_DELTAS = (vector(1.0, 0.25, 0.5), vector(0.5, -1.0, 0.0))


def test_fedyogi_two_steps_by_hand() -> None:
    w, m, v = fedyogi(vector(1.0, 1.0, 1.0), YOGI_DELTAS[0], None, None, **YOGI)
    assert_close(m, M_1)
    assert_close(v, V_1)
    assert_close(w, W_1)
    w, m, v = fedyogi(w, YOGI_DELTAS[1], m, v, **YOGI)
    assert_close(m, M_2)
    assert_close(v, V_2)
    assert_close(w, W_2)


def test_fedyogi_as_operations_carries_its_state(bench: Workbench) -> None:
    # Two equal updates: their mean is the Δ above.
    server: Tensors = {"model": vector(1.0, 1.0, 1.0)}
    for delta, expected in zip(YOGI_DELTAS, (W_1, W_2), strict=True):
        server = run_aggregate(
            bench,
            server,
            [{"delta": delta}, {"delta": delta}],
            optimizer={"kind": "fedyogi", **YOGI},
        )
        assert_close(server["model"], expected)
    assert_close(server["m"], M_2)
    assert_close(server["v"], V_2)


def test_fedyogi_keeps_its_state_where_nothing_arrived(bench: Workbench) -> None:
    server = {"model": vector(1.0), "m": vector(0.5), "v": vector(0.25)}
    after = run_aggregate(
        bench,
        server,
        [{"delta": vector(float("nan"))}],
        weights=(1.0,),
        discounts=(1.0,),
        optimizer={"kind": "fedyogi", **YOGI},
    )
    assert {name: tensor.item() for name, tensor in after.items()} == {
        "model": 1.0,
        "m": 0.5,
        "v": 0.25,
    }


def test_fedyogi_starts_at_tau_squared_unless_told() -> None:
    local = schema.Local(epochs=1, batch_size=1, optimizer=schema.Sgd(kind="sgd", lr=1.0))
    options, cost = fedyogi_options(schema.FedYogi(kind="fedyogi", tau=0.25), local)
    assert options["v0"] == 0.0625
    assert cost == Cost()
    options, _ = fedyogi_options(schema.FedYogi(kind="fedyogi", tau=0.25, v0=0.25), local)
    assert options["v0"] == 0.25


def test_scaffold_under_fedyogi_has_both_states(bench: Workbench) -> None:
    zero = {"model": torch.zeros(4).double()}
    update = run_train(bench, zero, None, 0, kind="scaffold", option="II").outputs["update"]
    server = run_aggregate(
        bench,
        zero,
        [update],
        weights=(1.0,),
        discounts=(1.0,),
        optimizer={"kind": "fedyogi", **YOGI},
        clients=2,
    )
    assert set(server) == {"model", "m", "v", "control"}
    assert_close(server["m"], -G_0 / 2)
    assert_close(server["control"], G_0 / 2)
