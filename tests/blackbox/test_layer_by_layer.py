"""FedMA's sub-rounds on the clock and on the wire, and what it does not go with.

The model is an MLP of 4-6-5-3: 120, 140 and 72 bytes, 30, 35 and 18 parameters.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commandline import Config, Lab, RunFiles, digits, links, synchronous, timed
from safetensors.numpy import load_file

SIZES = (120, 140, 72)
HEADER = 10


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def matched(clients: int = 3, *, versions: int = 7, **options: Any) -> Config:
    training = options.pop("training", 102.0)
    optimizer = options.pop("optimizer", {})
    config = timed(clients, training, synchronous(clients), stop={"versions": versions}, **options)
    config["task"]["dataset"].update(input_shape=[4], classes=3)
    config["task"]["model"] = {"kind": "mlp", "hidden": [6, 5]}
    config["federation"]["payload"] = {"kind": "full", "header": f"{HEADER} B"}
    config["federation"]["server_optimizer"] = {"kind": "fedma", **optimizer}
    return config


def test_bytes_and_operations_of_each_sub_round_by_hand(lab: Lab) -> None:
    """Multiply-accumulates of a sample: forward 24 + 30 + 15 = 69; the gradients of all weights
    take 69 more, those of the hidden activations 30 + 15. The last layer's sub-round has three
    times the epochs."""
    network = links(down="1 kB/s", up="1 kB/s")
    run = lab.run(matched(training=183.0, versions=7, network=network))
    assert len(run.table("updates")) == 3 * 7
    whole = 69 + 69 + 45
    seconds = [
        183.0,
        183.0 * (69 + 30 + 15 + 15) / whole,  # of layers 2 and 3: back through layer 3 only
        183.0 * 3 * (69 + 15) / whole,
    ]
    for client in range(3):
        for number, row in enumerate(run.tasks(client)):
            layer = number % 3
            if number == 0:
                down = sum(SIZES)
            else:
                # The layer that was matched before, and where its units are (4 bytes each).
                down = SIZES[layer - 1] + (0 if layer == 0 else 4 * (6, 5)[layer - 1])
            assert int(row["bytes_down"]) == HEADER + down
            # With the last layer goes how many samples of each of 3 classes the client holds.
            assert int(row["bytes_up"]) == HEADER + SIZES[layer] + (4 * 3 if layer == 2 else 0)
            took = float(row["trained_s"]) - float(row["downloaded_s"])
            assert took == pytest.approx(seconds[layer])
    parts = [event["part"] for event in run.of("dispatch")]
    assert len(set(parts)) == 3


def test_a_round_is_one_model_each_way_in_as_many_sub_rounds_as_layers(lab: Lab) -> None:
    run = lab.run(matched(versions=9))
    second = [row for row in run.table("updates") if int(row["version"]) in (3, 4, 5)]
    up = sum(int(row["bytes_up"]) - HEADER - 12 * (row["version"] == "5") for row in second)
    down = sum(int(row["bytes_down"]) - HEADER - 4 * (0, 6, 5)[int(row["version"]) - 3]
               for row in second)  # fmt: skip
    assert up == down == 3 * sum(SIZES)


def test_recipes_of_the_sub_rounds(lab: Lab) -> None:
    optimizer = {"retraining": {"epochs": 2, "lr": 0.1}, "last_layer": {"epochs": 5, "lr": 0.1}}
    run = lab.run(matched(1, training=183.0, versions=3, optimizer=optimizer))
    took = [float(row["trained_s"]) - float(row["downloaded_s"]) for row in run.tasks(0)]
    assert took == pytest.approx([183.0, 2 * (69 + 60), 5 * (69 + 15)])


def learning(versions: int, **optimizer: Any) -> Config:
    config = digits(5, synchronous(5), versions=versions)
    config["task"]["partition"] = {"kind": "dirichlet", "alpha": 0.5}
    config["task"]["model"] = {"kind": "mlp", "hidden": [24, 16]}
    config["local"]["epochs"] = 3
    config["federation"]["server_optimizer"] = {"kind": "fedma", **optimizer}
    return config


def test_the_model_changes_with_every_last_sub_round_and_learns(lab: Lab) -> None:
    run = lab.run(learning(18))
    accuracy = [float(r["value"]) for r in run.table("metrics") if r["metric"] == "accuracy"]
    assert len(accuracy) == 19
    for version, value in enumerate(accuracy):
        assert value == accuracy[version - version % 3]
    assert len(set(accuracy[::3])) > 4
    assert accuracy[-1] > 0.8


def test_every_executor_gives_the_same_model(lab: Lab) -> None:
    """To the bit one by one and in processes; in lanes sums are taken in another order."""
    found = []
    for out, executor in (("a", "inline"), ("b", "processes"), ("c", "batched")):
        config = learning(6)
        config["execution"] = {"executor": executor}
        lab.run(config, out=out)
        found.append(load_file(lab.folder / out / "model.safetensors"))
    for name, value in found[0].items():
        assert (value == found[1][name]).all()
        assert abs(value - found[2][name]).max() < 1e-4


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("local.optimizer.lr", {}),
        ("federation.server_optimizer.retraining.lr", {"retraining": {"epochs": 1, "lr": 1e38}}),
        ("federation.server_optimizer.last_layer.lr", {"last_layer": {"epochs": 1, "lr": 1e38}}),
    ],
)  # fmt: skip
def test_the_rate_that_is_too_large_is_named(lab: Lab, key: str, options: Config) -> None:
    config = learning(3, **options)
    config["federation"]["on_nonfinite"] = "stop"
    if not options:
        config["local"]["optimizer"]["lr"] = 1e38
    assert f"a smaller {key} helps" in lab.failed_run(config, exit_code=3)


REFUSED: dict[str, Config] = {
    "matches all clients in each of its sub-rounds": {"pacing": synchronous(2)},
    "its sub-rounds say themselves which layers": {
        "payload": {"kind": "divide_and_conquer", "split": {"kind": "fixed", "layer": 1}}
    },
    "with server_optimizer 'fedma' units change places": {
        "objective": {"kind": "scaffold", "option": "II"}
    },
}


@pytest.mark.parametrize("reason", list(REFUSED))
def test_refused_with_the_reason(lab: Lab, reason: str) -> None:
    config = matched()
    config["federation"].update(REFUSED[reason])
    assert reason in lab.failed_run(config)


@pytest.mark.parametrize("kind", ["resnet8", "char_lstm", "conv1d"])
def test_a_model_whose_layers_do_not_feed_each_other_is_refused(lab: Lab, kind: str) -> None:
    config = matched()
    config["task"]["dataset"].update(input_shape=[3, 8, 8])
    config["task"]["model"] = {"kind": kind}
    if kind == "resnet8":
        config["federation"]["batch_norm"] = "freeze"
    assert f"which model '{kind}' is not made of" in lab.failed_run(config)


def test_a_model_of_ones_own_that_is_not_matched_is_refused_at_the_start(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sizes fit, but a connection goes past a layer."""
    (lab.folder / "past.py").write_text(
        "from torch import nn\n\n"
        "class Past(nn.Module):\n"
        "    def __init__(self, input_shape, classes):\n"
        "        super().__init__()\n"
        "        self.first, self.second = nn.Linear(64, 8), nn.Linear(8, 8)\n"
        "        self.last = nn.Linear(8, classes)\n\n"
        "    def forward(self, x):\n"
        "        h = self.first(x.flatten(1)).relu()\n"
        "        return self.last(h + self.second(h).relu())\n"
    )
    monkeypatch.syspath_prepend(str(lab.folder))
    config = learning(3)
    config["task"]["model"] = {"kind": "custom", "callable": "past:Past"}
    message = lab.failed_run(config)
    assert "with the units of layer 'first' of task.model in another order" in message
    assert not (lab.folder / "run").exists()


def test_clients_that_are_lost_are_refused_and_those_that_pause_are_waited_for(lab: Lab) -> None:
    """Client 1 is away from 50 s to 80 s, in the first of three sub-rounds."""
    sessions = [[[0.0, 900.0]], [[0.0, 50.0], [80.0, 900.0]], [[0.0, 900.0]]]
    message = lab.failed_run(matched(sessions=sessions, on_offline="drop", drop_notice="at_once"))
    assert "loses some; say pause or continue" in message
    run: RunFiles = lab.run(
        matched(training=183.0, sessions=sessions, on_offline="pause", versions=3), out="pause"
    )
    assert [float(run.tasks(client)[0]["trained_s"]) for client in range(3)] == [183, 213, 183]
    assert {row["outcome"] for row in run.table("updates")} == {"reported"}
    assert [row["updates"] for row in run.table("versions")] == ["3", "3", "3"]
    assert run.times("versions")[0] == 213.0
