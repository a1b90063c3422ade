"""FedMA's matching with fixed widths, against numbers worked by hand and against brute force."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from emulator.errors import ScenarioError
from emulator.learning.methods.fedma import (
    average_by_class,
    check,
    from_unit_vectors,
    gain,
    match,
    permute_inputs,
    unit_vectors,
)
from emulator.learning.models import build_model


def table(*rows: Sequence[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def order(seed: int, width: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).permutation(width))


def run_match(
    units: Sequence[Tensor],
    *,
    sigma: float = 1.0,
    sigma0: float = 1.0,
    sweeps: int = 5,
    seed: int = 0,
) -> tuple[Tensor, list[Tensor]]:
    rng = np.random.default_rng(seed)
    return match(units, sigma=sigma, sigma0=sigma0, sweeps=sweeps, rng=rng)


def assert_close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-13)


# --- Units as vectors ---------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 2, 2, 2), (3, 4)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_vectors_and_back(shape: tuple[int, ...], has_bias: bool) -> None:
    weight, bias = normal(0, *shape), normal(1, 3) if has_bias else None
    vectors = unit_vectors(weight, bias)
    assert vectors.shape == (3, weight[0].numel() + has_bias)
    found, found_bias = from_unit_vectors(vectors, shape, has_bias)
    assert torch.equal(found, weight)
    assert (found_bias is None) == (bias is None)
    if bias is not None and found_bias is not None:
        assert torch.equal(found_bias, bias)


def test_the_bias_comes_last() -> None:
    found = unit_vectors(table([1, 2], [3, 4]), torch.tensor([5.0, 6.0]))
    assert found.tolist() == [[1, 2, 5], [3, 4, 6]]


# --- The gain of an assignment ------------------------------------------------------------------

G, Q = table([1, 0], [-3, 1]), torch.tensor([2.0, 4.0], dtype=torch.float64)
UNITS = table([1, 2], [0, -1])


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        # s w + G: (2, 2), (−2, 3); (1, −1), (−3, 0). ‖G‖²/Q: 1/2, 10/4.
        (1.0, [[8 / 3 - 1 / 2, 13 / 5 - 5 / 2], [2 / 3 - 1 / 2, 9 / 5 - 5 / 2]]),
        # s w + G: (5, 8), (1, 9); (1, −4), (−3, −3).
        (4.0, [[89 / 6 - 1 / 2, 82 / 8 - 5 / 2], [17 / 6 - 1 / 2, 18 / 8 - 5 / 2]]),
    ],
)
def test_gain(precision: float, expected: list[list[float]]) -> None:
    assert_close(gain(UNITS, precision, G, Q), table(*expected))


# --- Matching -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sigma", "sigma0", "expected"),
    [
        # 2 and 1, and −1 and −3 belong together: G = (3, −4), Q = 1 + 2.
        (1.0, 1.0, [[1.0], [-4 / 3]]),
        # s = 4: G = (12, −16), Q = 1/4 + 8.
        (0.5, 2.0, [[12 / 8.25], [-16 / 8.25]]),
    ],
)
def test_two_clients(sigma: float, sigma0: float, expected: list[list[float]]) -> None:
    units = [table([2], [-1]), table([-3], [1])]
    matched, assignments = run_match(units, sigma=sigma, sigma0=sigma0)
    assert [a.tolist() for a in assignments] == [[0, 1], [1, 0]]
    assert_close(matched, table(*expected))


@pytest.mark.parametrize("sweeps", [0, 5])
def test_one_client(sweeps: int) -> None:
    """s = 4, 1/σ0² = 1: 4/5 of it."""
    units = normal(0, 6, 3)
    matched, (assignment,) = run_match([units], sigma=0.5, sweeps=sweeps)
    assert assignment.tolist() == list(range(6))
    assert assignment.dtype == torch.int64
    assert_close(matched, 0.8 * units)


@pytest.mark.parametrize("seed", range(8))
def test_no_permutation_gains_more(seed: int) -> None:
    """Client 1 is matched with the global units that client 0 began."""
    first, second = normal(seed, 2, 4, 3)
    sigma, sigma0 = 0.7, 1.5
    s = sigma**-2
    _, assignments = run_match([first, second], sigma=sigma, sigma0=sigma0, sweeps=0)
    assert assignments[0].tolist() == [0, 1, 2, 3]
    prior = torch.full((4,), sigma0**-2, dtype=torch.float64)
    gains = gain(second, s, s * first, prior + s)
    best = max(permutations(range(4)), key=lambda p: sum(gains[i, p[i]].item() for i in range(4)))
    assert assignments[1].tolist() == list(best)


@pytest.mark.parametrize("clients", [2, 5])
def test_permuted_clients_are_matched_exactly(clients: int) -> None:
    base = normal(0, 7, 4)
    orders = [torch.arange(7), *(order(j, 7) for j in range(1, clients))]
    matched, assignments = run_match([base[o] for o in orders])
    for o, assignment in zip(orders, assignments, strict=True):
        assert assignment.tolist() == o.tolist()
    assert_close(matched, clients / (clients + 1) * base)


def test_sigmas_only_shrink() -> None:
    """Widths are fixed, so the same units are matched; J s / (1/σ0² + J s): 3/4, 12/12.25."""
    units = list(normal(3, 3, 6, 4))
    matched, assignments = run_match(units)
    other, others = run_match(units, sigma=0.5, sigma0=2.0)
    assert [a.tolist() for a in others] == [a.tolist() for a in assignments]
    assert_close(other, matched * (4 / 3) * (12 / 12.25))


@pytest.mark.parametrize("sigma", [1e-6, 1e6])
@pytest.mark.parametrize("sigma0", [1e-6, 1e6])
def test_the_farthest_deviations(sigma: float, sigma0: float) -> None:
    """Units as large as float32 has them, and the share of them that J s / (1/σ0² + J s) is."""
    units = [3e38 * u / u.abs().max() for u in normal(3, 3, 6, 4)]
    _, plain = run_match(units)
    matched, assignments = run_match(units, sigma=sigma, sigma0=sigma0)
    assert [a.tolist() for a in assignments] == [a.tolist() for a in plain]
    share = 3 / (3 + (sigma / sigma0) ** 2)
    total = torch.zeros(6, 4, dtype=torch.float64)
    for own, assignment in zip(units, assignments, strict=True):
        total[assignment] += own
    torch.testing.assert_close(matched, share * total / 3, rtol=1e-9, atol=0.0)


def test_sweeps_never_lose() -> None:
    """Σ ‖G_i‖² / Q_i ∝ ‖matched‖²; a sweep more from the same seed goes on from the one before."""
    units = list(normal(1, 12, 16, 3))
    values = [run_match(units, sweeps=sweeps)[0].square().sum().item() for sweeps in range(6)]
    assert all(b >= a - 1e-12 for a, b in pairwise(values))
    assert values[-1] > values[0] + 0.01


def test_same_seed_same_result() -> None:
    units = list(normal(2, 5, 8, 3))
    matched, assignments = run_match(units, seed=4)
    again, repeated = run_match(units, seed=4)
    assert torch.equal(again, matched)
    assert [a.tolist() for a in repeated] == [a.tolist() for a in assignments]


def test_the_seed_orders_the_sweeps() -> None:
    units = list(normal(2, 12, 16, 3))
    found = {tuple(run_match(units, sweeps=1, seed=seed)[1][0].tolist()) for seed in range(6)}
    assert len(found) > 1


def test_the_arguments_stay_and_float32_comes_back() -> None:
    units = [normal(seed, 4, 3).float() for seed in range(3)]
    before = [u.clone() for u in units]
    matched, _ = run_match(units)
    assert matched.dtype == torch.float32
    assert all(torch.equal(u, b) for u, b in zip(units, before, strict=True))


def test_diverged_clients_cannot_be_matched() -> None:
    with pytest.raises(ValueError, match="not finite"):
        run_match([table([1], [2]), table([1], [float("nan")])])


@given(
    st.integers(1, 5), st.integers(1, 6), st.integers(1, 4), st.integers(0, 3), st.integers(0, 999)
)
@settings(max_examples=80, deadline=None)
def test_assignments_are_permutations(
    clients: int, width: int, d: int, sweeps: int, seed: int
) -> None:
    """Small whole numbers: with units that are alike and units that are zero."""
    values = np.random.default_rng(seed).integers(-1, 2, (clients, width, d))
    units = list(torch.from_numpy(values).double())
    matched, assignments = run_match(units, sigma=0.5, sigma0=2.0, sweeps=sweeps, seed=seed)
    assert len(assignments) == clients
    total = torch.zeros(width, d, dtype=torch.float64)
    for own, assignment in zip(units, assignments, strict=True):
        assert assignment.sort().values.tolist() == list(range(width))
        for i, target in enumerate(assignment.tolist()):
            total[target] += own[i]
    assert_close(matched, 4 * total / (0.25 + 4 * clients))


# --- The next layer -----------------------------------------------------------------------------


def network() -> nn.Sequential:
    """Images [2, 6, 6] to 3 classes; 4 channels of 2 × 2 are flattened."""
    net = nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(5, 4, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 6),
        nn.ReLU(),
        nn.Linear(6, 3),
    ).double()
    for i, parameter in enumerate(net.parameters()):
        parameter.data = normal(i, *parameter.shape)
    return net


@pytest.mark.parametrize(
    ("layer", "following"),
    [
        pytest.param(0, 2, id="conv-conv"),
        pytest.param(2, 6, id="conv-linear"),
        pytest.param(6, 8, id="linear-linear"),
    ],
)
@torch.no_grad()
def test_matched_units_leave_the_outputs(layer: int, following: int) -> None:
    """A client whose units stand in another order is brought back to the first client's order by
    what :func:`match` finds, and neither order changes what the network puts out."""
    first, other = network(), network()
    x = normal(99, 4, 2, 6, 6)
    outputs = first(x)
    own, after = other[layer], other[following]
    reference, behind = first[layer], first[following]
    moved_to = order(7, len(own.weight))
    assert moved_to.tolist() != sorted(moved_to.tolist())

    moved = torch.empty_like(vectors := unit_vectors(own.weight, own.bias))
    moved[moved_to] = vectors
    own.weight.data, own.bias.data = from_unit_vectors(moved, own.weight.shape, True)
    assert not torch.allclose(other(x), outputs, rtol=1e-3)
    after.weight.data = permute_inputs(after.weight, moved_to)
    assert_close(other(x), outputs)

    _, (_, assignment) = run_match([unit_vectors(m.weight, m.bias) for m in (reference, own)])
    assert torch.equal(permute_inputs(after.weight, assignment), behind.weight)


def test_inputs_by_hand() -> None:
    """Two channels of two inputs each change places; three units move round."""
    assert permute_inputs(table([1, 2, 3, 4]), torch.tensor([1, 0])).tolist() == [[3, 4, 1, 2]]
    assert permute_inputs(table([1, 2, 3]), torch.tensor([1, 2, 0])).tolist() == [[3, 1, 2]]


def test_inputs_of_other_units() -> None:
    with pytest.raises(ValueError, match="7 inputs, which is no multiple of the 3 matched units"):
        permute_inputs(normal(0, 2, 7), torch.arange(3))
    with pytest.raises(ValueError, match="a convolution of 6 channels cannot follow 3 matched"):
        permute_inputs(normal(0, 2, 6, 3, 3), torch.arange(3))


# --- The last layer -----------------------------------------------------------------------------

# Class 0: 1 and 3 samples; class 1: only client 1 has it; class 2: nobody has it.
COUNTS = torch.tensor([[1, 0, 0], [3, 5, 0]])
WEIGHTS = (table([4, 8], [1, 1], [2, 0]), table([0, 4], [7, -7], [4, 1]))
BIASES = (torch.tensor([1.0, 9.0, 1.0]).double(), torch.tensor([5.0, 2.0, 2.0]).double())


def test_average_by_class() -> None:
    weight, bias = average_by_class(WEIGHTS, BIASES, COUNTS)
    assert_close(weight, table([1, 5], [7, -7], [3, 0.5]))
    assert bias is not None
    assert bias.tolist() == [4.0, 2.0, 1.5]


def test_average_by_class_without_biases() -> None:
    weight, bias = average_by_class([w.float() for w in WEIGHTS], (None, None), COUNTS)
    assert weight.tolist() == [[1, 5], [7, -7], [3, 0.5]]
    assert weight.dtype == torch.float32
    assert bias is None


# --- The models it is for -----------------------------------------------------------------------


class Net(nn.Module):
    """Three linear layers of a few units, put together in some ``way``."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.c = nn.Linear(8, 6 if way == "half of the last" else 3)
        if way == "shared":
            self.b.weight = self.a.weight
        if way == "scaled":
            self.b.scale = nn.Parameter(torch.ones(8))
        if way == "normalized":
            self.norm = nn.GroupNorm(2, 8, affine=False)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)  # whatever it begins with

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x).relu()
        if self.way == "normalized":
            a = self.norm(a)
        b = self.b(a).relu()
        if self.way == "past a layer":
            b = b + a
        elif self.way == "side by side":
            b = self.b(x).relu() * a
        elif self.way == "twice":
            b = self.b(b).relu()
        c: Tensor = self.c(b)
        return c[:, :3]


class ChannelsLast(nn.Module):
    """Flattens pixel by pixel, where matching takes one channel after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 4, 3), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.b(self.a(x).relu().movedim(1, 3).flatten(1))
        return found


ABC = ("a", "b", "c")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("lenet5", {}), ("mcmahan_cnn", {}), ("fedseq_lenet", {}), ("vgg9", {"width": 0.1}),
        ("mlp", {"hidden": [20, 10]}),
    ],
)  # fmt: skip
def test_models_whose_layers_feed_each_other(kind: str, options: dict[str, object]) -> None:
    model = build_model(kind, (3, 28, 28), 10, **options)
    before = [p.clone() for p in model.parameters()]
    layers = list(dict.fromkeys(n.rpartition(".")[0] for n, _ in model.named_parameters()))
    check(model, layers, torch.randn(2, 3, 28, 28))
    assert all(map(torch.equal, before, model.parameters()))


def test_a_plain_net_of_ones_own() -> None:
    check(Net("one after the other"), ABC, torch.randn(2, 8))


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("past a layer", r"units of layer 'a' .* connections past a layer"),
        ("side by side", "units of layer 'a' .* connections past a layer"),
        ("twice", "units of layer 'a' .* the inputs of b in it"),
        ("normalized", "units of layer 'a'"),
        ("half of the last", "units of layer 'c' .* the inputs of the logits in it"),
        ("shared", r"layer 'b' of task.model is a Linear with the parameters bias of its own"),
        ("scaled", r"is a Linear with the parameters weight, bias, scale of its own"),
    ],
)
def test_other_nets_are_refused(way: str, reason: str) -> None:
    model = Net(way)
    with pytest.raises(ScenarioError, match=reason):
        check(model, ABC, torch.randn(2, 8))


def test_another_way_to_flatten_is_refused() -> None:
    with pytest.raises(ScenarioError, match="units of layer 'a'"):
        check(ChannelsLast(), ("a", "b"), torch.randn(2, 1, 6, 6))
