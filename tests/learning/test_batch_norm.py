"""Batch normalization: what becomes of running statistics, by hand and through whole runs."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from emulator.errors import InternalError, ScenarioError
from emulator.learning.learner import Learner
from emulator.learning.lineage import Tensors
from emulator.learning.method import Method
from emulator.learning.models import build_model, parameter_count
from emulator.learning.operations import (
    AggregateConfig,
    EvaluateConfig,
    TrainConfig,
    Workbench,
    one_thread,
    torch_stream,
)
from emulator.learning.profile import profile_model
from emulator.learning.training import Layout, Recipe, batches, running_norms, train
from emulator.run import Options, run
from emulator.scenario import load_scenario

CPU = torch.device("cpu")
AVERAGE = {"kind": "average", "lr": 1.0}
CHOICES = ("average", "local", "freeze")


@pytest.fixture(autouse=True)
def one_thread_each() -> Iterator[None]:
    with one_thread():
        yield


def recipe(**changes: Any) -> Recipe:
    return replace(Recipe(1, None, 8, 0.1, 0.0, 0.0, False), **changes)


# --- two clients by hand ------------------------------------------------------------------------


def tiny_bench(spoiled: float = 2.0) -> Workbench:
    """One feature, normalized. Client 0 holds 0 and 2, client 1 holds 1, 3, 5, 7, client 2 a
    single 9, client 3 nothing; in float64."""
    x = torch.tensor([0.0, spoiled, 1.0, 3.0, 5.0, 7.0, 9.0]).double().reshape(7, 1)
    y = torch.tensor([0, 1, 0, 1, 0, 1, 0])
    parts = [np.array(p, dtype=np.int64) for p in ([0, 1], [2, 3, 4, 5], [6], [])]
    with torch_stream(1, "initialization"):
        model = nn.Sequential(OrderedDict(norm=nn.BatchNorm1d(1), fc=nn.Linear(1, 2))).double()
    return Workbench(Layout(model, CPU), x, y, x, y, parts)


def start(bench: Workbench) -> Tensors:
    return bench.run("initial", bench.layout.flatten(), []).outputs["server"]


def train_on(
    bench: Workbench,
    server: Tensors,
    client: int,
    choice: str | None,
    state: Tensors | None = None,
    **options: Any,
) -> dict[str, Tensors]:
    objective = options.pop("objective", {"kind": "plain"})
    how = options.pop("recipe", recipe())
    config = TrainConfig(client, (0, 0), 1, how, objective, batch_norm=choice, **options)
    return bench.run("train", config, [server, state]).outputs


def aggregate(
    bench: Workbench,
    server: Tensors,
    updates: Sequence[Tensors],
    weights: Sequence[float],
    discounts: Sequence[float] | None = None,
    step: dict[str, Any] | None = None,
) -> Tensors:
    ones = (1.0,) * len(updates)
    config = AggregateConfig(
        tuple(weights), tuple(discounts or ones), "weights", step or AVERAGE, clients=4
    )
    return bench.run("aggregate", config, [server, *updates]).outputs["server"]


def close(got: Tensor, *expected: float) -> None:
    torch.testing.assert_close(got, torch.tensor(expected).double(), rtol=1e-6, atol=1e-9)


def test_average_by_hand() -> None:
    """PyTorch's running statistics: b ← 0.9 b + 0.1 (mean, unbiased variance) of the batch."""
    bench = tiny_bench()
    server = start(bench)
    close(server["statistics"], 0.0, 1.0)
    updates = [train_on(bench, server, client, "average")["update"] for client in (0, 1)]
    # Client 0: mean 1, variance (1 + 1)/1 = 2; client 1: mean 4, variance (9 + 1 + 1 + 9)/3.
    close(updates[0]["statistics"], 0.1, 0.9 + 0.2)
    close(updates[1]["statistics"], 0.4, 0.9 + 0.1 * 20 / 3)
    # With 2 and 4 samples.
    after = aggregate(bench, server, updates, [2.0, 4.0])
    close(after["statistics"], (0.2 + 1.6) / 6, 0.9 + (2 * 0.2 + 4 * 0.1 * 20 / 3) / 6)
    assert after["counts"].tolist() == [1]
    assert after["counts"].dtype == torch.int64
    # A client starts from what came with the model.
    again = train_on(bench, after, 0, "average")["update"]
    close(again["statistics"], 0.9 * 0.3 + 0.1, 0.9 * float(after["statistics"][1]) + 0.2)
    assert again["counts"].tolist() == [2]


def test_merging_by_hand() -> None:
    """b ← (1 − Σ a_k) b + Σ a_k b_k, the largest step count, whatever the server optimizer."""
    bench = tiny_bench()
    server = start(bench)  # (0, 1)
    adam = {"kind": "fedadam", "lr": 1.0, "beta1": 0.5, "beta2": 0.5, "tau": 1.0, "v0": 1.0}
    updates = [
        {
            "delta": torch.zeros(6).double(),
            "statistics": torch.tensor(values).double(),
            "counts": torch.tensor([count]),
        }
        for values, count in (((4.0, 2.0), 7), ((8.0, 6.0), 3))
    ]
    for step in (AVERAGE, adam):
        # s = (1, ½), p = 1: a = (½, ¼), so ¼ (0, 1) + ½ (4, 2) + ¼ (8, 6).
        after = aggregate(bench, server, updates, [1.0, 1.0], [1.0, 0.5], step)
        close(after["statistics"], 4.0, 2.75)
        assert after["counts"].tolist() == [7]
    # FedAsync mixes them as it mixes the model: α s = ½ · ½, ¾ (0, 1) + ¼ (4, 2).
    one = {**updates[0], "model": torch.zeros(6).double()}
    after = aggregate(bench, server, [one], [3.0], [0.5], {"kind": "fedasync", "mixing": 0.5})
    close(after["statistics"], 1.0, 1.25)


def test_local_stays_with_the_client() -> None:
    bench = tiny_bench()
    server = start(bench)
    first = train_on(bench, server, 0, "local")
    assert set(first["update"]) == {"delta"}
    close(first["state"]["statistics"], 0.1, 1.1)
    after = aggregate(bench, server, [first["update"]], [2.0])
    assert torch.equal(after["statistics"], server["statistics"])
    second = train_on(bench, after, 0, "local", first["state"])
    close(second["state"]["statistics"], 0.9 * 0.1 + 0.1, 0.9 * 1.1 + 0.2)
    assert second["state"]["counts"].tolist() == [2]
    close(first["state"]["statistics"], 0.1, 1.1)


def test_freeze_keeps_those_of_the_initial_model() -> None:
    bench = tiny_bench()
    server = start(bench)
    outputs = train_on(bench, server, 1, "freeze")
    assert set(outputs) == {"update"}
    assert set(outputs["update"]) == {"delta"}
    # As if the layer were w·(x − 0)/√(1 + 1e-5) + b: one step of gradient descent by autograd.
    weight, bias, fc_weight, fc_bias = (
        v.clone().requires_grad_() for v in bench.layout.views(server["model"])
    )
    x, y = bench.samples_of(1)
    logits = (weight * x / math.sqrt(1 + 1e-5) + bias) @ fc_weight.T + fc_bias
    gradients = torch.autograd.grad(cross_entropy(logits, y), (weight, bias, fc_weight, fc_bias))
    expected = torch.cat([-0.1 * g.reshape(-1) for g in gradients])
    torch.testing.assert_close(outputs["update"]["delta"], expected)
    after = aggregate(bench, server, [outputs["update"]], [1.0])
    assert torch.equal(after["statistics"], server["statistics"])
    # In a chain the next client begins at what this one has made, by the same statistics.
    handed_on = train_on(bench, server, 1, "freeze", uploads=("model",))["update"]
    assert set(handed_on) == {"model"}
    following = train_on(bench, handed_on, 0, "freeze")["update"]
    whole = {**handed_on, **{name: server[name] for name in ("statistics", "counts")}}
    assert torch.equal(following["delta"], train_on(bench, whole, 0, "freeze")["update"]["delta"])


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("client", [2, 3])
def test_clients_of_one_sample_and_of_none(choice: str, client: int) -> None:
    """One sample has no spread: it is normalized by the running statistics, which stay."""
    bench = tiny_bench()
    server = start(bench)
    outputs = train_on(bench, server, client, choice)
    trained = client == 2
    assert bool(torch.count_nonzero(outputs["update"]["delta"])) is trained
    for tensors in outputs.values():
        if "statistics" in tensors:
            close(tensors["statistics"], 0.0, 1.0)
            assert tensors["counts"].tolist() == [0]


@pytest.mark.parametrize("choice", ["average", "local"])
def test_what_is_not_finite_is_left_out_whole(choice: str) -> None:
    bench = tiny_bench(spoiled=float("inf"))
    server = start(bench)
    lost, good = (train_on(bench, server, client, choice) for client in (0, 1))
    both = aggregate(bench, server, [lost["update"], good["update"]], [1.0, 1.0])
    alone = aggregate(bench, server, [good["update"]], [1.0])
    for name, tensor in alone.items():
        assert torch.equal(both[name], tensor)
    if choice == "local":
        # The client keeps what it had: those of the initial model, or its own.
        close(lost["state"]["statistics"], 0.0, 1.0)
        own = {"statistics": torch.tensor([3.0, 4.0]).double(), "counts": torch.tensor([5])}
        again = train_on(bench, server, 0, choice, own)["state"]
        assert torch.equal(again["statistics"], own["statistics"])
        assert torch.equal(again["counts"], own["counts"])


@pytest.mark.parametrize("choice", CHOICES)
def test_methods_act_on_the_parameters_only(choice: str) -> None:
    bench = tiny_bench()
    server = start(bench)
    plain = train_on(bench, server, 1, choice)
    for objective, kept in (
        ({"kind": "scaffold", "option": "I"}, "control"),
        ({"kind": "feddyn", "alpha": 0.1}, "gradient"),
    ):
        outputs = train_on(bench, server, 1, choice, objective=objective)
        assert outputs["state"][kept].shape == (bench.layout.size,)
        # One step, from a state of zeros: that of plain training. SCAFFOLD's extra pass at the
        # server's model counts into no statistics.
        for name, tensor in plain["update"].items():
            assert torch.equal(outputs["update"][name], tensor)
        for name, tensor in plain.get("state", {}).items():
            assert torch.equal(outputs["state"][name], tensor)


# --- evaluation ---------------------------------------------------------------------------------


def test_evaluation_by_running_statistics_and_by_batch() -> None:
    bench = tiny_bench()
    server = {**start(bench), "statistics": torch.tensor([3.0, 4.0]).double()}
    weight, bias, fc_weight, fc_bias = bench.layout.views(server["model"])

    def loss(mean: float, variance: float) -> float:
        normal = (bench.test_x - mean) / math.sqrt(variance + 1e-5)
        logits = (weight * normal + bias) @ fc_weight.T + fc_bias
        return float(cross_entropy(logits, bench.test_y, reduction="sum"))

    running = bench.run("evaluate", EvaluateConfig(0, 7), [server]).values
    assert running["loss"] == pytest.approx(loss(3.0, 4.0), rel=1e-12)
    # 0, 2, 1, 3, 5, 7, 9: mean 27/7, biased variance 169/7 − (27/7)².
    by_batch = bench.run("evaluate", EvaluateConfig(0, 7, by_batch=True), [server]).values
    expected = loss(27 / 7, 169 / 7 - (27 / 7) ** 2)
    assert by_batch["loss"] == pytest.approx(expected, rel=1e-12)
    # F_k of q-FedAvg follows the same rule.
    uploads = ("delta", "base_loss")
    for choice, how in (("average", False), ("freeze", False), ("local", True)):
        update = train_on(bench, server, 1, choice, uploads=uploads)["update"]
        same = Workbench(
            bench.layout, bench.train_x, bench.train_y, bench.train_x[2:6], bench.train_y[2:6], []
        )
        frozen = bench.layout.initial_statistics if choice == "freeze" else {}
        model = {**server, **frozen}
        values = same.run("evaluate", EvaluateConfig(0, 4, by_batch=how), [model]).values
        close(update["base_loss"], values["loss"] / 4)


@pytest.mark.parametrize("choice", CHOICES)
def test_statistics_do_not_leak_between_operations(choice: str) -> None:
    bench = tiny_bench()
    server = start(bench)
    config = EvaluateConfig(0, 7, by_batch=choice == "local")
    before = bench.run("evaluate", config, [server]).values
    first = train_on(bench, server, 0, choice)
    train_on(bench, {**server, "model": server["model"] * 2}, 1, choice)
    assert bench.run("evaluate", config, [server]).values == before
    again = train_on(bench, server, 0, choice)
    for output, tensors in first.items():
        assert all(torch.equal(again[output][name], t) for name, t in tensors.items())


def test_the_choice_is_part_of_every_identity() -> None:
    def ids(choice: str | None) -> tuple[str, bool]:
        method = Method("root", 1, 4, 7, recipe(), {"kind": "plain"}, AVERAGE, "weights", choice)
        learner = Learner(method, None, lambda: 0)
        update, state = learner.train(learner.initial(), None, 0, (0, 0))
        return update.id, state is not None

    found = [ids(choice) for choice in (None, *CHOICES)]
    assert len({update for update, _ in found}) == 4
    assert [stateful for _, stateful in found] == [False, False, True, False]


def test_no_choice_is_no_default() -> None:
    bench = tiny_bench()
    with pytest.raises(InternalError, match="choice of batch_norm"):
        train_on(bench, start(bench), 0, None)


# --- against a plain loop -----------------------------------------------------------------------


def dense(input_shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), 16),
        nn.BatchNorm1d(16, momentum=None),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Linear(16, 10),
    )


def models() -> list[nn.Module]:
    with torch_stream(4, "initialization"):
        return [dense((1, 8, 8)), build_model("resnet8", (1, 8, 8), 10)]


@pytest.mark.parametrize("which", [0, 1], ids=["dense", "resnet8"])
@pytest.mark.parametrize("freeze", [False, True])
def test_training_is_a_plain_loop_bit_for_bit(which: int, freeze: bool) -> None:
    """Seventeen samples in batches of eight: the last batch of each epoch is a single sample."""
    model = models()[which]
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.random((17, 1, 8, 8), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, 10, 17))
    how = recipe(epochs=2, momentum=0.5)
    plain = copy.deepcopy(model)
    if which == 1:
        plain = plain.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    base = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    optimizer = torch.optim.SGD(plain.parameters(), lr=how.lr, momentum=how.momentum)
    sizes = []
    with torch_stream(9, "dropout"):
        for positions in batches(17, how, np.random.default_rng(3)):
            plain.train()
            sizes.append(len(positions))
            if freeze or len(positions) == 1:
                for norm in running_norms(plain):
                    norm.eval()
            chosen = x[torch.from_numpy(positions)]
            if which == 1:
                chosen = chosen.contiguous(memory_format=torch.channels_last)
            loss = cross_entropy(plain(chosen), y[torch.from_numpy(positions)])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    assert sizes == [8, 8, 1] * 2
    layout = Layout(model, CPU)
    with torch_stream(9, "dropout"):
        delta, _, steps = train(
            layout, base, x, y, how, np.random.default_rng(3), None, freeze=freeze
        )
    assert steps == 6
    trained = torch.cat([p.detach().reshape(-1) for p in plain.parameters()])
    assert torch.equal(delta, trained - base)
    got, wanted = layout.model.state_dict(), plain.state_dict()
    assert all(torch.equal(got[name], tensor) for name, tensor in wanted.items())
    counts = layout.statistics()["counts"]
    assert torch.equal(counts, torch.full_like(counts, 0 if freeze else 4))


# --- the residual network -----------------------------------------------------------------------


def convolution(channels_in: int, channels: int, side: int) -> int:
    return side * side * channels_in * channels + channels


def test_resnet8_is_mlperf_tinys() -> None:
    """78,666 parameters there, 4 · 240 of batch normalization's, half of which are statistics."""
    shape = (3, 32, 32)
    model = build_model("resnet8", shape, 10)
    expected = (
        convolution(3, 16, 3)
        + 2 * convolution(16, 16, 3)
        + convolution(16, 32, 3) + convolution(32, 32, 3) + convolution(16, 32, 1)
        + convolution(32, 64, 3) + convolution(64, 64, 3) + convolution(32, 64, 1)
        + 2 * (3 * 16 + 2 * 32 + 2 * 64)
        + 64 * 10 + 10
    )  # fmt: skip
    assert parameter_count(model) == expected == 78_186
    assert expected + 2 * 240 == 78_666
    profile = profile_model(model, shape, 10)
    assert profile.size_bytes == 4 * 78_186
    assert profile.statistics_bytes == 4 * 480 + 8 * 7  # and seven step counts
    # Multiply-accumulates: outputs times the inputs of each.
    assert profile.forward_macs == (
        32 * 32 * 16 * 9 * (3 + 16 + 16)
        + 16 * 16 * 32 * (9 * 16 + 9 * 32 + 16)
        + 8 * 8 * 64 * (9 * 32 + 9 * 64 + 32)
        + 640
    )


@pytest.mark.parametrize("shape", [(1, 4, 4), (1, 8, 8), (1, 28, 28), (3, 33, 17)])
def test_resnet8_takes_any_image_from_the_smallest(shape: tuple[int, ...]) -> None:
    assert build_model("resnet8", shape, 5)(torch.zeros(2, *shape)).shape == (2, 5)
    with pytest.raises(ScenarioError, match="4x4 or larger"):
        build_model("resnet8", (1, 3, 8), 5)


# --- whole runs ---------------------------------------------------------------------------------

SCENARIO = """
schema: 1
name: normalized
seed: 1
stop: {sim_time: 1 h, versions: 2}
task:
  dataset: {kind: digits}
  clients: 12
  partition: {kind: dirichlet, alpha: 1.0}
  model: MODEL
system:
  devices: {kind: scripted, training: 10 s}
  availability: {kind: always}
  network: {kind: none}
local: {steps: 2, batch_size: 8, optimizer: {kind: sgd, lr: 0.05}}
federation:
  pacing: {kind: synchronous, participants: 2, deadline: none}
  BATCH_NORM
evaluation: {every: {versions: 2}}
execution: {executor: EXECUTOR}
"""
RESNET = "{kind: resnet8}"


def load(folder: Path, model: str, batch_norm: str | None, executor: str = "inline") -> Any:
    said = f"batch_norm: {batch_norm}" if batch_norm else ""
    text = SCENARIO.replace("MODEL", model).replace("EXECUTOR", executor)
    (folder / "scenario.yaml").write_text(text.replace("BATCH_NORM", said))
    return load_scenario(folder / "scenario.yaml")


def run_in(folder: Path, *how: Any) -> dict[str, Tensor]:
    scenario, source = load(folder, *how)
    out = folder / "-".join(map(str, how[1:]))
    manifest = run(scenario, source, Options(out, workers=1), lambda server, accuracy: None)
    assert manifest["status"] == "done"
    return load_file(out / "model.safetensors")


def test_runs_end_to_end(tmp_path: Path) -> None:
    parameter_bytes = 4 * (78_186 - 2 * 9 * 16)  # one colour for three
    saved = {choice: run_in(tmp_path, RESNET, choice) for choice in CHOICES}
    fresh = build_model("resnet8", (1, 8, 8), 10)
    for choice, tensors in saved.items():
        fresh.load_state_dict(tensors)  # by torch's own names, nothing missing
        assert tensors["norm1.num_batches_tracked"].dtype == torch.int64
        moved = choice == "average"
        assert bool(tensors["norm1.running_mean"].any()) is moved
        assert bool(tensors["norm1.num_batches_tracked"] > 0) is moved
        sizes = {
            tuple(line.split(",")[10:12])
            for line in (tmp_path / choice / "updates.csv").read_text().splitlines()[1:]
        }
        size = str(1000 + parameter_bytes + (4 * 480 + 8 * 7 if moved else 0))
        assert sizes == {(size, size)}, choice
    # Training normalizes by batch, so that running statistics matter to evaluation only, but for
    # frozen ones.
    average, local, freeze = (saved[choice]["fc.weight"] for choice in CHOICES)
    assert torch.equal(average, local)
    assert not torch.equal(average, freeze)
    metrics = {(tmp_path / choice / "metrics.csv").read_text() for choice in CHOICES}
    assert len(metrics) == 3
    side_by_side = run_in(tmp_path, RESNET, "average", "processes")
    assert all(torch.equal(side_by_side[name], t) for name, t in saved["average"].items())


def normalized(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A user's model."""
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, classes))


def flat(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A user's model without batch normalization."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


def custom(function: str) -> str:
    return f"{{kind: custom, callable: '{__name__}:{function}'}}"


@pytest.mark.parametrize(
    ("model", "choice", "reason"),
    [
        (RESNET, None, "batch_norm is missing.*average.*local.*freeze"),
        ("{kind: mlp}", "average", "'average'.*model 'mlp' keeps none; leave it out"),
        (RESNET, "mean", "batch_norm"),
        (custom("normalized"), None, "batch_norm is missing.*average.*local.*freeze"),
        (custom("flat"), "freeze", "'freeze'.*task.model keeps none; leave it out"),
    ],
)
def test_the_choice_is_asked_for_where_it_is_one(
    model: str, choice: str | None, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ScenarioError, match=f"(?s){reason}"):
        run_in(tmp_path, model, choice)
    assert not (tmp_path / str(choice)).exists()  # said before anything is written


def test_a_custom_model_runs(tmp_path: Path) -> None:
    tensors = run_in(tmp_path, custom("normalized"), "average")
    assert bool(tensors["1.running_mean"].any())
