"""Scenarios drawn from the schema itself, and mutations of given ones, for fuzzing.

What is drawn follows the schema, so that a new option is fuzzed without a line here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from hypothesis import strategies as st
from pydantic import WithJsonSchema

from emulator.scenario.expected import Expected, expectation
from emulator.scenario.schema import Scenario

Config = dict[str, Any]
Steps = tuple[str | int, ...]

NODES = ("core", "north", "south")
FILES = ("sessions.csv", "devices.csv", "behaviour.pkl", "capacity.pkl", "partition.csv", ".")
# What is plausible first; what is only just allowed is drawn now and then.
INTEGERS = (1, 2, 3, 4, 7, 0, 10, 100)
FLOATS = (0.5, 1.0, 0.1, 0.9, 1e-3, 0.0, 1.5, 2.0, 10.0)
EXTREMES = (2**53, 10_000_000, 1_000_000, 3660, 1e300, 1e-300, 1e15, 0.999999, 20.0, -1.0)
EXTREME_QUANTITIES = {
    "duration": (1e300, 1e-300, 1e15, 0.05, "1 us", 0),
    "rate": (1e300, 1e-300, 1e-3, "1 TB/s"),
    "size": (2**63 - 1, 1, "1 TB", 0),
}
QUANTITIES = {
    "duration": (1, 10, "30 s", 0.5, "5 min", "2 h", 100, "1 d", 0.1),
    "rate": ("2 Mbps", 1e6, "1 MB/s", 1000, "1 Gbps"),
    "size": (1000, "1 MB", "1 kB", 1),
}
ODD = (
    *(None, True, False, 0, -1, 1, 2**31, 2**53, 2**63, 2**64, 10**30, 0.0, -0.5, 1e-300, 1e300),
    *(
        "",
        " ",
        "none",
        "1 h",
        "-1 s",
        "10 minuts",
        "5",
        "1e400 d",
        "1e300 d",
        "20 Mbps",
        "é",
        "a.b",
    ),
    *([], {}, [[]], [None], {"kind": "none"}, {"": {}}, [1, 2, 3], ["x"] * 50, "x" * 1000),
)


@st.composite
def scenarios(draw: st.DrawFn) -> Config:
    """All that is required, and some of what is not; the sections mostly fit each other."""
    config = _drawn(draw, expectation(Scenario), "")
    assert isinstance(config, dict)
    _fit(draw, config)
    return config


def _drawn(draw: st.DrawFn, expected: Expected, key: str) -> Any:
    """What the schema takes at a place, but for what it knows in its validators only."""
    if expected.discriminator is not None:
        return _drawn(draw, draw(st.sampled_from(list(expected.tags().values()))), key)
    if choices := expected.choices():
        return draw(st.sampled_from(choices))
    if expected.members:
        return _drawn(draw, draw(st.sampled_from(expected.members)), key)
    if expected.model is not None:
        found = {}
        for name, field in expected.fields().items():
            below = expected.below(name)
            if below is not None and (field.is_required() or draw(st.integers(0, 3)) == 0):
                found[name] = _drawn(draw, below, name)
        return found
    if expected.container is list:
        fixed = get_origin(expected.core) is tuple and Ellipsis not in get_args(expected.core)
        length = len(get_args(expected.core)) if fixed else draw(st.integers(1, 3))
        return [_drawn(draw, _item(expected, at), key) for at in range(length)]
    return _scalar(draw, expected, key)


def _item(expected: Expected, at: int) -> Expected:
    item = expected.below(at)
    assert item is not None
    return item


def _scalar(draw: st.DrawFn, expected: Expected, key: str) -> Any:
    if expected.core is str:
        return draw(st.sampled_from(NODES if key != "callable" else ("nowhere:model", "x")))
    if expected.core is Path:
        return draw(st.sampled_from(FILES))
    for limit in expected.limits:
        if isinstance(limit, WithJsonSchema) and limit.json_schema is not None:
            noun = limit.json_schema["description"].split(":")[0]
            extreme = draw(st.integers(0, 15)) == 15
            return draw(st.sampled_from((EXTREME_QUANTITIES if extreme else QUANTITIES)[noun]))
    values: tuple[float, ...] = INTEGERS if expected.core is int else FLOATS
    if draw(st.integers(0, 15)) == 15:
        values = tuple(x for x in EXTREMES if type(x) is expected.core) + values[:1]
    return draw(st.sampled_from([value for value in values if _within(value, expected)] or [0]))


def _within(value: float, expected: Expected) -> bool:
    bounds = {
        name: bound
        for limit in expected.limits
        for name in ("ge", "gt", "le", "lt")
        if (bound := getattr(limit, name, None)) is not None
    }
    return bounds.get("ge", -math.inf) <= value <= bounds.get("le", math.inf) and bounds.get(
        "gt", -math.inf
    ) < value < bounds.get("lt", math.inf)


def _fit(draw: st.DrawFn, config: Config) -> None:
    """Mend what would nearly always be refused."""
    task, federation = config["task"], config["federation"]
    clients = task["clients"] = draw(st.integers(1, 5))
    config["name"] = "drawn"
    if ("epochs" in config["local"]) == ("steps" in config["local"]):
        config["local"].pop("steps", None)
        config["local"]["epochs"] = 1
    _fit_task(draw, config)
    _fit_system(draw, config["system"], clients)
    pacing = federation["pacing"]
    for key in ("participants", "in_flight"):
        if key in pacing:
            pacing[key] = clients if draw(st.booleans()) else draw(st.integers(1, clients))
    if pacing["kind"] == "synchronous":
        pacing["over_commitment"] = draw(st.sampled_from([1.0, 1.0, 1.3]))
        pacing["too_few"] = "proceed"
        pacing.pop("min_updates", None)
    if pacing["kind"] == "buffered":
        pacing["buffer"] = draw(st.integers(1, clients))


def _fit_task(draw: st.DrawFn, config: Config) -> None:
    task = config["task"]
    if draw(st.integers(0, 2)):
        task["dataset"] = {"kind": "declared", "samples_per_client": draw(st.integers(0, 20))}
        task["model"] = {"kind": "declared", "size": 1000, "forward_macs": 10, "backward_macs": 20}
    if task["dataset"]["kind"] == "declared":
        for key in ("partition", "client_test"):
            task.pop(key, None)
        config["evaluation"].pop("clients", None)
        if task["model"]["kind"] != "declared":
            task["dataset"] |= {"input_shape": [1, 12, 12], "classes": 3}
    else:
        task.setdefault("partition", {"kind": "iid"})
        if task["model"]["kind"] == "declared":
            task["model"] = {"kind": "logistic"}
    if task["model"]["kind"] != "resnet8":
        config["federation"].pop("batch_norm", None)


def _fit_system(draw: st.DrawFn, system: Config, clients: int) -> None:
    network, availability = system["network"], system["availability"]
    if draw(st.integers(0, 5)):  # else a trace of the other kind, or a folder
        for section, files in (
            (system["devices"], ["devices.csv", "capacity.pkl"]),
            (availability, ["sessions.csv", "behaviour.pkl"]),
        ):
            if "path" in section:
                section |= {"path": draw(st.sampled_from(files)), "assign": "random"}
                section.pop("period", None)
                section.pop("data_correlation", None)
    for section, key in (
        (system["devices"], "training"),
        (network.get("client", {}), "down"),
        (network.get("client", {}), "up"),
    ):
        if isinstance(section.get(key), list):
            section[key] = [section[key][n % len(section[key])] for n in range(clients)]
    for steps in list(places(system)):
        section = at(system, steps)
        if isinstance(section, dict) and section.get("dist") == "uniform":
            section |= {"low": 1, "high": draw(st.sampled_from([2, 60]))}
    if "sessions" in availability:
        cuts = st.lists(st.integers(0, 100), max_size=6, unique=True).map(sorted)
        drawn = [draw(cuts) for _ in range(clients)]
        availability["sessions"] = [
            [list(pair) for pair in zip(row[::2], row[1::2], strict=False)] for row in drawn
        ]
        availability["period"] = 100
    if "edges" in network:
        ways = [["core", "north"], ["north", "south"]][: draw(st.integers(1, 2))]
        network["edges"] = [{"between": way, "rate": "1 MB/s", "latency": 0.5} for way in ways]
        nodes = [way[1] for way in ways]
        network |= {"server": "core", "attach": draw(st.lists(st.sampled_from(nodes), min_size=1))}
    if draw(st.integers(0, 3)):
        system["drop_notice"] = "at_once"
    system.pop("drop_timeout", None)
    if system.get("drop_notice") == "timeout":
        system["drop_timeout"] = "10 s"


# --- mutations ----------------------------------------------------------------------------------


def places(node: Any, steps: Steps = ()) -> Iterator[Steps]:
    """The steps to every value below a node, and to the node itself."""
    yield steps
    if isinstance(node, dict | list):
        for key, child in node.items() if isinstance(node, dict) else enumerate(node):
            yield from places(child, (*steps, key))


def at(node: Any, steps: Steps) -> Any:
    for step in steps:
        node = node[step]
    return node


@st.composite
def mutated(draw: st.DrawFn, config: Config, others: list[Config]) -> Config:
    """The same, changed at one to three places; ``others`` lend their values."""
    config = copy.deepcopy(config)
    for _ in range(draw(st.integers(1, 3))):
        steps = draw(st.sampled_from([steps for steps in places(config) if steps]))
        parent, key = at(config, steps[:-1]), steps[-1]
        match draw(st.sampled_from(["delete", "odd", "lend", "rename", "swap", "wrap", "add"])):
            case "delete":
                del parent[key]
            case "odd":
                parent[key] = copy.deepcopy(draw(st.sampled_from(ODD)))
            case "lend":
                other = draw(st.sampled_from(others))
                parent[key] = copy.deepcopy(at(other, draw(st.sampled_from(list(places(other))))))
            case "rename" if isinstance(parent, dict):
                parent[draw(st.text(max_size=8))] = parent.pop(key)
            case "swap" if isinstance(parent, dict) and len(parent) > 1:
                other_key = draw(st.sampled_from(list(parent)))
                parent[key], parent[other_key] = parent[other_key], parent[key]
            case "wrap":
                parent[key] = draw(st.sampled_from([[parent[key]], {"value": parent[key]}]))
            case _ if isinstance(parent, list):
                parent.insert(0, copy.deepcopy(parent[key]))
            case _:
                name = draw(st.sampled_from(["x", "kind", "seed", "path"]))
                parent[name] = copy.deepcopy(draw(st.sampled_from(ODD)))
        if not config:
            break
    return config
