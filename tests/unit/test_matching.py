"""FedMA's sub-rounds on whole models: what is put together still computes what its parts did."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import nn

from emulator.learning.matching import MatchConfig, Matching, match_layer, own_model
from emulator.learning.methods.fedma import permute_inputs
from emulator.learning.operations import Workbench, torch_stream
from emulator.learning.training import Layout

LAYERS = ("0", "4", "7")
OPTIONS = {"kind": "fedma", "sigma": 1.0, "sigma0": 1e6, "sweeps": 5}
"""With no prior to speak of, units that are alike are matched to themselves."""


def net() -> nn.Sequential:
    with torch_stream(1, "net"):
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 6),
            nn.ReLU(), nn.Identity(), nn.Linear(6, 3),
        )  # fmt: skip


def shuffled(layout: Layout, seed: int) -> torch.Tensor:
    """The layout's model with its hidden units in another order, which computes the same."""
    rng = np.random.default_rng(seed)
    model = net()
    layers = [model[int(name)] for name in LAYERS]
    with torch.no_grad():
        for layer, after in pairwise(layers):
            place = torch.from_numpy(rng.permutation(layer.weight.shape[0]))  # type: ignore[union-attr]
            weight, bias = layer.weight.clone(), layer.bias.clone()  # type: ignore[union-attr,operator]
            layer.weight[place], layer.bias[place] = weight, bias  # type: ignore[index,operator]
            after.weight.copy_(permute_inputs(after.weight.clone(), place))  # type: ignore[union-attr,operator,arg-type]
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def round_of(bench: Workbench, server: dict[str, torch.Tensor], own: list[torch.Tensor]):  # type: ignore[no-untyped-def]
    """All sub-rounds of clients that have trained nothing: the server's state after them."""
    for number, layer in enumerate(LAYERS):
        matching = Matching(LAYERS, number)
        if number:
            own = [own_model(bench.layout, matching, server, {"own": model}, client)
                   for client, model in enumerate(own)]  # fmt: skip
        where = bench.layout.positions((layer,))["model"]
        updates = [{"layer": model[where]} for model in own]
        config = MatchConfig(matching, tuple(range(len(own))), len(own), OPTIONS, 1, number)
        outputs, values = match_layer(bench, config, [server, *updates])
        server = outputs["server"]
        assert values["nonfinite"] == [number for number, m in enumerate(own) if m.isnan().any()]
    return server


def bench(layout: Layout, clients: int) -> Workbench:
    y = torch.arange(12) % 3
    parts = [np.arange(client, 12, clients) for client in range(clients)]
    return Workbench(layout, torch.zeros(12, 1, 6, 6), y, torch.zeros(0), y[:0], parts)


def test_clients_with_the_same_model_in_other_orders_give_that_model() -> None:
    layout = Layout(net(), torch.device("cpu"))
    start = layout.flatten()
    own = [start, *(shuffled(layout, seed) for seed in (2, 3, 4))]
    x = torch.randn(5, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    layout.load(start)
    expected = layout.model(x)
    for model in own[1:]:
        assert not torch.equal(model, start)
        layout.load(model)
        assert torch.allclose(layout.model(x), expected, atol=1e-6)
    server = round_of(bench(layout, 4), {"model": torch.zeros_like(start)}, own)
    assert set(server) == {"model"}
    layout.load(server["model"])
    assert torch.allclose(layout.model(x), expected, atol=1e-5)
    # A plain mean of the four is another model.
    layout.load(torch.stack(own).mean(0))
    assert not torch.allclose(layout.model(x), expected, atol=1e-2)


def test_a_model_that_is_not_finite_is_left_out_and_none_leaves_the_layer() -> None:
    layout = Layout(net(), torch.device("cpu"))
    start = layout.flatten()
    bad = torch.full_like(start, torch.nan)
    x = torch.randn(5, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    layout.load(start)
    expected = layout.model(x)
    server = round_of(bench(layout, 3), {"model": start}, [start, bad, shuffled(layout, 5)])
    layout.load(server["model"])
    assert torch.allclose(layout.model(x), expected, atol=1e-5)
    server = round_of(bench(layout, 2), {"model": start}, [bad, bad])
    assert torch.equal(server["model"], start)


def test_seed_and_key_name_the_draws_of_the_order() -> None:
    """Of the sweeps; where nothing can be matched exactly, it matters. The same names, the same
    units."""
    layout = Layout(net(), torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    own = [torch.randn(layout.size, generator=generator) for _ in range(24)]
    where = layout.positions(("0",))["model"]
    inputs = [{"model": layout.flatten()}, *({"layer": model[where]} for model in own)]

    def assigned(seed: int, key: int) -> tuple[int, ...]:
        options = {**OPTIONS, "sweeps": 1}
        config = MatchConfig(Matching(LAYERS, 0), tuple(range(24)), 24, options, seed, key)
        outputs, _ = match_layer(bench(layout, 12), config, inputs)
        return tuple(outputs["server"]["assignment"].flatten().tolist())

    assert assigned(3, 4) == assigned(3, 4)
    assert len({assigned(seed, 0) for seed in range(8)}) > 1
    assert len({assigned(0, key) for key in range(8)}) > 1
