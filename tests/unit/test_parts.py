"""The parts of Divide-and-Conquer, by hand: where a model is split, how far clients diverge, what a
part's training costs, and that the other part stays as it is."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from emulator.federation.payload.split import Climber, balanced_bytes, largest_jump, threshold
from emulator.learning.learner import Learner
from emulator.learning.method import Method
from emulator.learning.methods.divide_and_conquer import divergence
from emulator.learning.methods.fedmax import fedmax
from emulator.learning.models import build_model, parameter_count
from emulator.learning.objectives import penalty
from emulator.learning.operations import (
    AggregateConfig,
    DivergenceConfig,
    Workbench,
    one_thread,
    torch_stream,
)
from emulator.learning.profile import backward_macs_of, profile_model
from emulator.learning.training import Layout, Recipe, train, with_activations
from emulator.learning_interface import Part
from emulator.simulation.participation import Message

CPU = torch.device("cpu")


# --- where to split -------------------------------------------------------------------------------


def test_the_published_profile_is_split_as_read() -> None:
    """VGG9's divergence of updates at Dirichlet 0.5 (reference measurement), and of raw weights."""
    updates = [0.28, 0.48, 0.63, 0.76, 0.89, 0.98, 1.08, 1.12, 1.18]
    weights = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0001, 0.0004, 0.1245]
    assert largest_jump(updates) == 1  # 0.20 between the first two
    assert threshold(updates, 0.5) == 2  # 0.48 <= 0.59 < 0.63
    assert threshold(updates, 0.9) == 6  # 0.98 <= 1.062 < 1.08
    assert largest_jump(weights) == 8
    assert threshold(weights, 0.5) == 8


def test_ties_go_to_the_smaller_part_and_no_part_is_empty() -> None:
    assert largest_jump([0.1, 0.2, 0.3]) == 1
    assert largest_jump([0.5, 0.5]) == 1
    assert threshold([0.9, 0.8, 1.0], 0.5) == 1  # none is below
    assert threshold([0.1, 1.0, 0.2], 0.5) == 2  # the last one would leave nothing
    assert threshold([0.0, 0.0, 0.0], 0.5) == 2
    assert balanced_bytes([1, 1, 1, 1]) == 2
    assert balanced_bytes([1, 2, 1]) == 1  # 1/4 and 3/4 are as far from half


def test_vgg9_is_balanced_behind_its_first_linear_layer() -> None:
    sizes = [896, 18_496, 73_856, 147_584, 295_168, 590_080, 2_097_664, 262_656, 5_130]
    # 0.3225 before it, 0.9233 behind: the first is nearer to half.
    assert balanced_bytes(sizes) == 6


@given(st.lists(st.floats(0, 2), min_size=2, max_size=12), st.floats(0.01, 0.99))
def test_rules_leave_both_parts_a_layer(values: list[float], rho: float) -> None:
    sizes = [1 + round(100 * value) for value in values]
    for layer in (largest_jump(values), threshold(values, rho), balanced_bytes(sizes)):
        assert 1 <= layer < len(values)


def test_the_climber_turns_around_where_it_gets_worse() -> None:
    climber = Climber(2, 5)
    # Nothing to compare with, then it rises by 0.1, 0.2, 0.05 (less than before), 0.1.
    found = [climber.next(a) for a in (0.1, 0.2, 0.4, 0.45, 0.55)]
    assert found == [3, 4, 3, 4, 3]  # at 4 of 5 layers it turns, and again for the small rise
    assert Climber(1, 2).next(0.5) == 1  # two layers have one split only


# --- divergence -----------------------------------------------------------------------------------


def test_cosine_distances_by_hand() -> None:
    vectors = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]], dtype=torch.float64)
    half = 1 - math.sqrt(0.5)
    assert divergence(vectors, "pairwise", [1, 1, 1]) == pytest.approx((1 + 2 * half) / 3)
    # The mean of the three is (4/3, 5/3).
    mean = np.array([4.0, 5.0]) / math.sqrt(41)
    expected = np.mean([1 - mean[0], 1 - mean[1], 1 - (mean[0] + mean[1]) * math.sqrt(0.5)])
    assert divergence(vectors, "to_mean", [2, 2, 2]) == pytest.approx(expected)
    assert divergence(-vectors[:2], "pairwise", [1, 1]) == pytest.approx(1.0)
    opposite = torch.tensor([[1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    assert divergence(opposite, "pairwise", [1, 1]) == pytest.approx(2.0)


@pytest.mark.parametrize("metric", ["pairwise", "to_mean"])
def test_who_has_trained_on_nothing_is_left_out(metric: str) -> None:
    vectors = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0], [0.0, 0.0]], dtype=torch.float64)
    two = divergence(vectors[:2], metric, [3, 1])
    assert two is not None
    assert two > 0
    assert divergence(vectors, metric, [3, 1, 0, 0]) == two
    # Nobody is left, or one alone: there is no divergence.
    assert divergence(vectors, metric, [0, 0, 0, 0]) is None
    assert divergence(vectors, metric, [0, 5, 0, 0]) is None


def test_a_vector_of_zeros_has_no_direction() -> None:
    zero = torch.zeros(1, 3, dtype=torch.float64)
    other = torch.ones(1, 3, dtype=torch.float64)
    assert divergence(torch.cat([zero, other]), "pairwise", [1, 1]) == 1.0
    assert divergence(torch.cat([zero, zero]), "pairwise", [1, 1]) == 0.0


# --- what a part costs ----------------------------------------------------------------------------

# (share of the parameters, a feature-learning step, a fine-tuning step) of a full step
VGG9 = {
    1: (0.0003, 0.67, 0.95),
    2: (0.0056, 0.72, 0.86),
    3: (0.0267, 0.76, 0.72),
    4: (0.0690, 0.85, 0.58),
    5: (0.1535, 0.90, 0.44),
    6: (0.3225, 0.99, 0.34),
    7: (0.9233, 1.00, 0.34),
}


def test_compute_factors_of_vgg9_by_split() -> None:
    shape = (3, 32, 32)
    model = build_model("vgg9", shape, 10)
    assert parameter_count(model) == 3_491_530
    profile = profile_model(model, shape, 10)
    assert profile.forward_macs == 135_369_728
    names = [layer.name for layer in profile.layers]
    assert len(names) == 9
    whole = profile.forward_macs + profile.backward_macs
    for s, (share, feature, fine) in VGG9.items():
        parameters = sum(layer.parameters for layer in profile.layers[:s])
        assert parameters / 3_491_530 == pytest.approx(share, abs=5e-5)
        for layers, expected in ((names[:s], feature), (names[s:], fine)):
            macs = profile.forward_macs + backward_macs_of(model, shape, 10, layers)
            assert macs / whole == pytest.approx(expected, abs=0.01)
    assert backward_macs_of(model, shape, 10, names) == profile.backward_macs
    assert backward_macs_of(model, shape, 10, []) == 0


def test_a_small_network_by_hand() -> None:
    """Two linear layers, 4-3-2: forward 12 + 6 products, and as many for each layer's weights; the
    gradient of the hidden activations takes 6."""
    model = build_model("mlp", (4,), 2, hidden=[3])
    first, second = (layer.name for layer in profile_model(model, (4,), 2).layers)
    assert backward_macs_of(model, (4,), 2, [first]) == 12 + 6
    assert backward_macs_of(model, (4,), 2, [second]) == 6
    assert backward_macs_of(model, (4,), 2, [first, second]) == 12 + 6 + 6


@pytest.mark.parametrize("width", [0.1, 0.25, 2.0])
def test_vgg9_in_other_widths(width: float) -> None:
    model = build_model("vgg9", (1, 28, 28), 10, width=width)
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_a_message_is_taken_apart_in_the_order_in_which_it_travels() -> None:
    message = Message(100, 20, (7, 30, 0))
    assert message.size_bytes == 157
    assert message.moved(157) == [100, 20, 7, 30, 0]
    assert message.moved(60.4) == [60, 0, 0, 0, 0]
    assert message.moved(130) == [100, 20, 7, 3, 0]
    assert message.moved(0.0) == [0, 0, 0, 0, 0]


# --- frozen is frozen -----------------------------------------------------------------------------

RECIPE = Recipe(2, None, 5, 0.1, 0.9, 0.05, pad=False)


def net() -> nn.Sequential:
    with torch_stream(3, "net"):
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8),
            nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3),
        )  # fmt: skip


def data(n: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.normal(size=(n, 1, 6, 6)).astype(np.float32))
    return x, torch.from_numpy(rng.integers(0, 3, n))


@pytest.mark.parametrize("layers", [("0", "1"), ("4", "7"), ("1",), ("0", "7")])
def test_the_other_layers_stay_bit_for_bit(layers: tuple[str, ...]) -> None:
    layout = Layout(net(), CPU)
    base, before = layout.flatten(), layout.statistics()
    x, y = data()
    with one_thread():
        delta, loss, steps = train(
            layout, base, x, y, RECIPE, np.random.default_rng(2), None, before, layers=layers
        )
    assert steps == 6
    assert math.isfinite(loss)
    where = layout.positions(layers)
    frozen = torch.ones(len(base), dtype=torch.bool)
    frozen[where["model"]] = False
    assert torch.equal(layout.flatten()[frozen], base[frozen])  # no weight decay either
    assert not delta[frozen].any()
    assert delta[where["model"]].ne(0).float().mean() > 0.5
    moved = layout.statistics()
    assert ("1" in layers) == bool(moved["counts"].ne(before["counts"]).any())
    assert ("1" in layers) == bool(moved["statistics"].ne(before["statistics"]).any())


def test_a_part_is_trained_as_torch_would_with_the_rest_frozen() -> None:
    """Against torch's own optimizer on a module whose other layers need no gradient."""
    layout = Layout(net(), CPU)
    base, statistics = layout.flatten(), layout.statistics()
    x, y = data()
    recipe = replace(RECIPE, batch_size=12)
    with one_thread():
        with torch_stream(7, "dropout"):
            delta, _, _ = train(
                layout, base, x, y, recipe, np.random.default_rng(2), None, statistics,
                layers=("4", "7"),
            )  # fmt: skip
        other = net()
        for parameter in other[0].parameters():
            parameter.requires_grad_(False)
        for parameter in other[1].parameters():
            parameter.requires_grad_(False)
        other.train()
        other[1].eval()
        chosen = [p for p in other.parameters() if p.requires_grad]
        sgd = torch.optim.SGD(chosen, lr=0.1, momentum=0.9, weight_decay=0.05)
        rng = np.random.default_rng(2)
        with torch_stream(7, "dropout"):
            for _ in range(2):
                order = torch.from_numpy(rng.permutation(12))
                sgd.zero_grad()
                nn.functional.cross_entropy(other(x[order]), y[order]).backward()
                sgd.step()
    trained = torch.cat([p.detach().reshape(-1) for p in other.parameters()])
    assert torch.allclose(base + delta, trained, atol=1e-6)


def test_where_layers_lie_is_found_once() -> None:
    layout = Layout(net(), CPU)
    found = layout.positions(("1", "7"))
    assert found is layout.positions(["1", "7"])
    # 36 + 4 parameters come before the normalization, whose 8 are followed by 64·8 + 8.
    assert found["model"].tolist() == [*range(40, 48), *range(568, 595)]
    assert found["statistics"].tolist() == list(range(8))
    assert found["counts"].tolist() == [0]
    assert not any(len(where) for where in layout.positions(()).values())


def test_nothing_to_train_takes_no_step() -> None:
    layout = Layout(net(), CPU)
    base = layout.flatten()
    x, y = data()
    delta, loss, steps = train(
        layout, base, x, y, RECIPE, np.random.default_rng(2), None, layout.statistics(), layers=()
    )
    assert not delta.any()
    assert math.isnan(loss)
    assert steps == 0


# --- merged by part -------------------------------------------------------------------------------


def bench() -> Workbench:
    layout = Layout(nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False)), CPU)
    empty = torch.zeros(0)
    return Workbench(layout, empty, empty, empty, empty, [])


def test_only_the_part_moves_and_what_the_server_keeps_for_it() -> None:
    """FedAvgM on the first layer [4 values], then on the second [2]: each has its own momentum."""
    server = {"model": torch.arange(6.0)}
    update = {"delta": torch.tensor([1.0, 1, 1, 1, 9, 9])}  # what is no part of it is left out
    optimizer = {"kind": "fedavgm", "lr": 1.0, "beta": 0.5}
    config = AggregateConfig((1.0,), (1.0,), "weights", optimizer, 4, ("0",))
    first = bench().run("aggregate", config, [server, update]).outputs["server"]
    assert first["model"].tolist() == [1, 2, 3, 4, 4, 5]
    assert first["m"].tolist() == [1, 1, 1, 1, 0, 0]
    config = replace(config, layers=("1",))
    second = bench().run("aggregate", config, [first, {"delta": torch.full((6,), 2.0)}])
    state = second.outputs["server"]
    assert state["model"].tolist() == [1, 2, 3, 4, 6, 7]
    assert state["m"].tolist() == [1, 1, 1, 1, 2, 2]
    config = replace(config, layers=("0",))
    third = bench().run("aggregate", config, [state, update]).outputs["server"]
    assert third["m"].tolist() == [1.5] * 4 + [2, 2]
    assert third["model"].tolist() == [2.5, 3.5, 4.5, 5.5, 6, 7]


def test_an_adaptive_step_begins_anew_for_each_part() -> None:
    optimizer = {"kind": "fedyogi", "lr": 0.1, "beta1": 0.9, "beta2": 0.99, "tau": 0.1, "v0": 0.04}
    whole = AggregateConfig((1.0,), (1.0,), "weights", optimizer, 4)
    server = {"model": torch.arange(6.0)}
    update = {"delta": torch.tensor([1.0, -1, 2, 1, 0.5, 0.25])}
    together = bench().run("aggregate", whole, [server, update]).outputs["server"]
    state = server
    for layers in (("0",), ("1",)):
        config = replace(whole, layers=layers)
        state = bench().run("aggregate", config, [state, update]).outputs["server"]
    for name, expected in together.items():
        assert torch.equal(state[name], expected), name


def test_the_divergence_of_each_layer_of_weights_and_of_updates() -> None:
    server = {"model": torch.tensor([1.0, 0, 0, 0, 1, 1])}
    updates = [
        {"delta": torch.tensor([1.0, 0, 0, 0, 1, 0])},
        {"delta": torch.tensor([0.0, 1, 0, 0, 1, 0])},
        {"delta": torch.tensor([math.nan] * 6)},
    ]
    config = DivergenceConfig(("0", "1"), "pairwise", "updates", (1.0, 1.0, 1.0))
    found = bench().run("divergence", config, [server, *updates]).values
    assert found["divergence"] == pytest.approx([1.0, 0.0])
    assert found["nonfinite"] == [2]
    config = replace(config, on="weights")
    found = bench().run("divergence", config, [server, *updates]).values
    assert found["divergence"] == pytest.approx([1 - math.sqrt(0.5), 0.0])  # (2, 0), (1, 1)
    config = replace(config, weights=(1.0, 0.0, 1.0))
    found = bench().run("divergence", config, [server, *updates]).values
    assert found == {"divergence": [None, None], "nonfinite": [2]}
    found = bench().run("divergence", config, [server, *updates[2:] * 3]).values
    assert found == {"divergence": [None, None], "nonfinite": [0, 1, 2]}


# --- FedMAX ---------------------------------------------------------------------------------------


def test_fedmax_by_hand() -> None:
    activations = torch.log(torch.tensor([[1.0, 1, 2], [1, 1, 1]]))  # p = (1/4, 1/4, 1/2), uniform
    from_uniform = (math.log(4 / 3) + math.log(4 / 3) + math.log(2 / 3)) / 3
    to_uniform = math.log(3) - (math.log(4) / 2 + math.log(2) / 2)
    found = fedmax(2.0, "from_uniform")(activations)
    assert found.tolist() == pytest.approx([2 * from_uniform, 0.0], abs=1e-6)
    found = fedmax(2.0, "to_uniform")(activations)
    assert found.tolist() == pytest.approx([2 * to_uniform, 0.0], abs=1e-6)


def test_the_activations_are_what_the_last_linear_layer_gets() -> None:
    model = net().eval()
    x, _ = data()
    logits, activations = with_activations(model, lambda: model(x))
    assert activations.shape == (12, 8)
    assert (activations >= 0).all()  # behind the ReLU
    assert torch.equal(model[7](activations), logits)
    assert not model[7]._forward_hooks


def test_fedmax_trains_on_the_sum_of_both_losses() -> None:
    """One step against autograd on CE + β · mean KL."""
    layout = Layout(net(), CPU)
    base = layout.flatten()
    x, y = data()
    recipe = Recipe(1, None, 12, 0.1, 0.0, 0.0, pad=False)
    model = net().train()
    model[1].eval()
    with one_thread():
        with torch_stream(5, "dropout"):
            delta, loss, _ = train(
                layout, base, x, y, recipe, np.random.default_rng(2), None, layout.statistics(),
                freeze=True, penalty=fedmax(1.5, "from_uniform"),
            )  # fmt: skip
        order = torch.from_numpy(np.random.default_rng(2).permutation(12))
        with torch_stream(5, "dropout"):
            hidden = model[:7](x[order])
        ce = nn.functional.cross_entropy(model[7](hidden), y[order])
        kl = -(torch.log_softmax(hidden, 1).mean(1)) - math.log(8)
        (ce + 1.5 * kl.mean()).backward()
    expected = torch.cat([-0.1 * p.grad.reshape(-1) for p in model.parameters()])  # type: ignore[union-attr]
    assert torch.allclose(delta, expected, atol=1e-6)
    assert loss == pytest.approx(float(ce.detach()), abs=1e-6)  # without the penalty


# --- identities -----------------------------------------------------------------------------------


def test_what_is_trained_and_how_is_part_of_an_identity() -> None:
    """Other layers, another rate, another objective: another training; the same ones: the same."""
    phases = {"first": RECIPE, "slow": replace(RECIPE, lr=0.01)}
    method = Method("root", 1, 3, 10, RECIPE, {"kind": "plain"}, {"kind": "average"}, "weights",
                    recipes=phases)  # fmt: skip

    def trained(part: Part | None, method: Method = method) -> str:
        learner = Learner(method, None, lambda: 0)
        return learner.train(learner.initial(), None, 0, (0, 0), part)[0].id

    to_uniform = {"kind": "fedmax", "beta": 1.0, "direction": "to_uniform"}
    ids = [
        trained(None),
        trained(Part("A", ("0",), "first")),
        trained(Part("A", ("0", "4"), "first")),
        trained(Part("B", ("4",), "first")),
        trained(Part("A", ("0",), "slow")),
        trained(None, replace(method, objective=to_uniform)),
        trained(None, replace(method, objective={**to_uniform, "direction": "from_uniform"})),
    ]
    assert len(set(ids)) == len(ids)
    assert ids[1] == trained(Part("A", ("0",), "first"))

    def merged(layers: tuple[str, ...] | None) -> str:
        learner = Learner(method, None, lambda: 0)
        start = learner.initial()
        update, _ = learner.train(start, None, 0, (0, 0), None)
        return learner.aggregate(start, [update], [1.0], [1.0], None, layers).id

    assert len({merged(None), merged(("0",)), merged(("4",))}) == 3


def test_the_direction_of_fedmax_reaches_the_training() -> None:
    activations = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    for direction in ("from_uniform", "to_uniform"):
        term = penalty({"kind": "fedmax", "beta": 3.0, "direction": direction})
        assert term is not None
        assert torch.equal(term(activations), fedmax(3.0, direction)(activations))
    assert penalty({"kind": "plain"}) is None
