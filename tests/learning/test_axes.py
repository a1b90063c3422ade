"""The axes compose: any two choices run together, or are refused at load with the reason.

What can be chosen is read off the schema, so that a new method is walked without a word here; one
that needs options finds them in ``NEEDED``. Every pair of choices is loaded on its own. The pairs
that load are then run a few versions on digits, many of them in one run: a run is filled up with
further choices as long as all of them go together.
"""

from __future__ import annotations

import inspect
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import torch
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from safetensors.torch import load_file

from emulator.errors import ScenarioError
from emulator.run import Options, run
from emulator.scenario import load_scenario, schema

Config = dict[str, Any]
Path_ = tuple[str, ...]
Settings = dict[Path_, Any]

CLIENTS = 10
VERSIONS = 2

NEEDED: dict[str, Config] = {
    "synchronous": {"participants": 4, "deadline": "1 h"},
    "schedule": {"steps": [{"from_round": 0, "deadline": "1 h"}]},
    "quantile": {"q": 0.8, "of_last": 4, "initial": "1 h"},
    "buffered": {"in_flight": CLIENTS, "buffer": 2},
    "asynchronous": {"in_flight": CLIENTS},
    "fedseqinter": {"mode": "free_hops", "walkers": 2},
    "superclients": {
        "grouping": {"kind": "random", "min_samples": 200},
        "hop": "p2p",
        "absent": {"kind": "swap", "timeout": "10 min"},
    },
    "cohorts": {"clustering": {"kind": "auxo", "min_participants": 2}},
    "ifca": {"clusters": 2},
    "cfl": {"min_rounds": 1, "deadline": "1 h"},
    "fl_hc": {"after_rounds": 1, "clusters": 2, "deadline": "1 h"},
    "flexcfl": {"clusters": 2, "clients": 4, "steps": 3, "deadline": "1 h"},
    "relative": {"mean": 0.9, "ratio": 1.1},
    "kmeans": {"min_samples": 200},
    "greedy": {"min_samples": 200},
    "swap": {"timeout": "10 min"},
    "skip": {"timeout": "10 min"},
    "fedprox": {"mu": 0.01},
    "fedmax": {"beta": 1.0},
    "divide_and_conquer": {
        "split": {"kind": "fixed", "layer": 1},
        "feature_learning": {"epochs": 1, "lr": 0.05},
        "fine_tuning": {"epochs": 1, "lr": 0.05},
    },
    "fixed": {"layer": 1},
    "dynamic": {"every": 1, "by": "divergence"},
    "feddyn": {"alpha": 0.01},
    "mirrored": {"share": 0.2},
    "random_class": {"share": 0.2},
    "gaussian": {"clip": 1.0, "sigma": 0.1},
    "at_check_in": {"probability": 0.2},
    "scripted": {"at": ["12 s"], "restart": "5 s"},
    "exponential": {"mean": "10 min", "restart": "5 s"},
}
"""The options of a kind that have no default."""

PACING: Path_ = ("federation", "pacing")
STRUCTURE: Path_ = ("federation", "structure")
WITH_SUPERCLIENTS: Settings = {(*STRUCTURE, "kind"): "superclients"}
PRETRAINED: list[Settings] = [
    {(*STRUCTURE, "pretraining", "absent"): "wait_all", (*STRUCTURE, "pretraining", "epochs"): 1},
    {("task", "exemplars"): 2},
]
MERGING: Settings = {
    (*PACING, "kind"): "fedseqinter", (*PACING, "mode"): "merge", (*PACING, "mixing"): 0.5,
}  # fmt: skip
PAYLOAD: Path_ = ("federation", "payload")
DIVIDED: Settings = {("task", "model"): {"kind": "mlp", "hidden": [8]}}
WITH_PREPASS: Settings = {
    (*PAYLOAD, "prepass", "deadline"): "1 h",
    (*PAYLOAD, "prepass", "participants"): 2,
}
FAULTS: Path_ = ("federation", "faults")
COHORTS: list[Settings] = [
    {("task", "client_test"): 0.2},
    {(*STRUCTURE, "clustering", "kind"): "auxo", (*STRUCTURE, "window"): "1 s"},
    {(*STRUCTURE, "clustering", "min_participants"): 2},
    {(*PACING, "kind"): "synchronous"},
    {(*PACING, "kind"): "buffered"},
]
IN_COHORTS: list[Settings] = [
    {
        ("task", "client_test"): 0.2,
        (*STRUCTURE, "kind"): "cohorts",
        (*STRUCTURE, "clustering", "kind"): "auxo",
        (*STRUCTURE, "clustering", "min_participants"): 2,
        (*STRUCTURE, "window"): "1 s",
    }
]
BESIDE: dict[tuple[Path_, str], list[Settings]] = {
    ((*FAULTS, "label_flips", "claims"), "wrong"): IN_COHORTS,
    ((*FAULTS, "lost_records", "kind"), "at_check_in"): IN_COHORTS,
    **{
        ((*FAULTS, name, "kind"), kind): IN_COHORTS
        for name in ("cohort_failures", "coordinator_failures")
        for kind in ("scripted", "exponential")
    },
    # All clients in each sub-round, and none of them lost.
    (("federation", "server_optimizer", "kind"), "fedma"): [
        {
            (*PACING, "kind"): "synchronous",
            (*PACING, "participants"): CLIENTS,
            (*PACING, "deadline"): "none",
        },
        {("system", "on_offline"): "pause"},
        DIVIDED,
    ],
    ((*PAYLOAD, "kind"), "divide_and_conquer"): [DIVIDED],
    **{
        ((*PAYLOAD, "split", "kind"), kind): [WITH_PREPASS]
        for kind in ("largest_jump", "threshold", "dynamic")
    },
    ((*PAYLOAD, "split", "by"), "accuracy"): [{(*PAYLOAD, "split", "layer"): 1}],
    **{
        ((*PAYLOAD, "prepass", name), value): [WITH_PREPASS]
        for name, value in (
            ("too_few", "proceed"),
            ("on", "weights"),
            ("metric", "to_mean"),
        )
    },
    ((*PAYLOAD, "prepass", "too_few"), "fail"): [
        WITH_PREPASS,
        {("system", "availability"): {"kind": "always"}},
    ],
    **{
        ((*STRUCTURE, "pretraining", "absent"), absent): [
            {(*STRUCTURE, "grouping", "kind"): "kmeans"},
            {(*STRUCTURE, "approximator", "kind"): "conf"},
            {(*STRUCTURE, "pretraining", "epochs"): 1, ("task", "exemplars"): 2, **more},
        ]
        for absent, more in (
            ("wait_all", {}),
            ("free", {}),
            ("deadline", {(*STRUCTURE, "pretraining", "deadline"): "1 min"}),
        )
    },
    (("system", "drop_notice"), "timeout"): [{("system", "drop_timeout"): "30 s"}],
    (("system", "drop_notice"), "at_deadline"): [{(*PACING, "kind"): "synchronous"}],
    # With all of them away there are too few, and a run that fails for that has no model.
    ((*PACING, "too_few"), "fail"): [{("system", "availability"): {"kind": "always"}}],
    (("federation", "selection", "busy"), "queue"): [
        {(*PACING, "kind"): "buffered"},
        {("system", "on_offline"): "pause"},
    ],
    (("federation", "objective", "kind"), "feddyn"): [
        {(*PACING, "kind"): "synchronous", (*PACING, "weights"): "uniform"},
        {(*PACING, "kind"): "buffered", (*PACING, "staleness", "kind"): "constant"},
        {(*PACING, "kind"): "fedseqinter", (*PACING, "weights"): "uniform"},
    ],
    (("federation", "objective", "normaliser"), "superclients"): [WITH_SUPERCLIENTS],
    ((*PACING, "kind"), "fedseqinter"): [WITH_SUPERCLIENTS],
    ((*PACING, "mode"), "merge"): [MERGING],
    **{
        ((*PACING, "staleness", "kind"), kind): [MERGING]
        for kind in ("constant", "polynomial", "hinge")
    },
    # There are fewer superclients than clients.
    ((*STRUCTURE, "kind"), "superclients"): [
        {(*PACING, "kind"): "synchronous", (*PACING, "participants"): 2},
        {(*PACING, "kind"): "buffered", (*PACING, "in_flight"): 4},
    ],
    ((*STRUCTURE, "kind"), "cohorts"): COHORTS,
    **{
        ((*STRUCTURE, "kind"), kind): [
            {("task", "client_test"): 0.2},
            {(*PACING, "kind"): "synchronous"},
        ]
        for kind in ("ifca", "cfl", "fl_hc", "flexcfl")
    },
    ((*STRUCTURE, "grouping", "kind"), "random"): [{(*STRUCTURE, "grouping", "min_samples"): 200}],
    ((*STRUCTURE, "grouping", "kind"), "kmeans"): [
        {(*STRUCTURE, "approximator", "kind"): "conf"},
        *PRETRAINED,
    ],
    ((*STRUCTURE, "grouping", "kind"), "greedy"): [
        {(*STRUCTURE, "approximator", "kind"): "conf"},
        *PRETRAINED,
    ],
    ((*STRUCTURE, "approximator", "kind"), "conf"): [
        {(*STRUCTURE, "grouping", "kind"): "kmeans"},
        *PRETRAINED,
    ],
    ((*STRUCTURE, "approximator", "kind"), "clf"): [
        {(*STRUCTURE, "grouping", "kind"): "kmeans"},
        *PRETRAINED,
    ],
}
"""What a choice cannot do without: each group is set where nothing that was chosen contradicts."""

WALKED: list[tuple[str, type[BaseModel], tuple[str, ...]]] = [
    ("federation", schema.Federation, tuple(schema.Federation.model_fields)),
    ("system", schema.System, ("on_offline", "drop_notice")),
    ("local", schema.Local, ("short_clients",)),
]

BASE: Config = {
    "schema": 1,
    "name": "axes",
    "seed": 5,
    "stop": {"sim_time": "10 d", "versions": VERSIONS},
    "task": {
        "dataset": {"kind": "digits"},
        "clients": CLIENTS,
        "partition": {"kind": "iid"},
        "model": {"kind": "logistic"},
    },
    "system": {
        "devices": {"kind": "scripted", "training": [5.0 + client for client in range(CLIENTS)]},
        "availability": {
            "kind": "scripted",
            "sessions": [[[0, 40 + 3 * client], [80, 1000]] for client in range(CLIENTS)],
            "period": 1000,
            "at_end": "wrap",
        },
        "network": {"client": {"down": "1 Mbps", "up": "0.5 Mbps", "latency": "50 ms"}},
    },
    "local": {"epochs": 1, "batch_size": 10, "optimizer": {"kind": "sgd", "lr": 0.05}},
    "federation": {},
    "evaluation": {"every": {"versions": VERSIONS}},
}


@dataclass(frozen=True)
class Choice:
    """A kind, or an option of one: what it sets in the scenario, by the path of the key."""

    settings: tuple[tuple[Path_, str], ...]

    def __str__(self) -> str:
        path, value = self.settings[-1]
        kinds = [said for _, said in self.settings[:-1]]
        return f"{'.'.join((*path[:2], *kinds, *path[2:]))}={value}"

    def goes_with(self, other: Choice) -> bool:
        """Whether no key is set to two values."""
        mine = dict(self.settings)
        return all(mine.get(path, value) == value for path, value in other.settings)


Pair = tuple[Choice, Choice]


def sections(annotation: Any) -> list[type[BaseModel]]:
    """The sections of a (nested) union that are told apart by ``kind``."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation] if "kind" in annotation.model_fields else []
    if get_origin(annotation) is list:
        return []
    return [model for part in get_args(annotation) for model in sections(part)]


def plain(annotation: Any) -> list[type[BaseModel]]:
    """The section that may be there or not, and has no kind."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return [] if "kind" in annotation.model_fields else [annotation]
    if get_origin(annotation) is list:
        return []
    return [model for part in get_args(annotation) for model in plain(part)]


def words(annotation: Any) -> list[str]:
    """The values of a ``Literal`` of several words."""
    if get_origin(annotation) is not Literal:
        return []
    values = [value for value in get_args(annotation) if isinstance(value, str)]
    return values if len(values) > 1 else []


def kind_of(model: type[BaseModel]) -> str:
    return str(get_args(model.model_fields["kind"].annotation)[0])


def choices_of(
    info: FieldInfo, path: Path_, settings: tuple[tuple[Path_, str], ...], *, default: bool
) -> Iterator[Choice]:
    """The choices at ``path`` and below; without the default one where it was walked already."""
    for word in words(info.annotation):
        if default or word != info.default:
            yield Choice((*settings, (path, word)))
    for model in sections(info.annotation):
        kind = kind_of(model)
        here = (*settings, ((*path, "kind"), kind))
        if default or not (isinstance(info.default, model) and info.default.kind == kind):  # type: ignore[attr-defined]
            yield Choice(here)
        for name, option in model.model_fields.items():
            if name != "kind":
                yield from choices_of(option, (*path, name), here, default=False)
    for model in plain(info.annotation):
        for name, option in model.model_fields.items():
            for word in words(option.annotation):
                if word != option.default:
                    yield Choice((*settings, ((*path, name), word)))
            if model is schema.Faults:
                yield from choices_of(option, (*path, name), settings, default=False)


CHOICES = [
    choice
    for root, model, names in WALKED
    for name in names
    for choice in choices_of(model.model_fields[name], (root, name), (), default=True)
]
PAIRS = [(a, b) for a, b in itertools.combinations(CHOICES, 2) if a.goes_with(b)]


def at(config: Config, path: Path_) -> Config:
    """The mapping that holds the last key of ``path``, made where it is not there."""
    for key in path[:-1]:
        if not isinstance(config.get(key), dict):
            config[key] = {}
        config = config[key]
    return config


def scenario_of(chosen: Sequence[Choice]) -> Config:
    """A scenario with these choices, with what they need, and with defaults for the rest."""
    settings = {path: value for choice in chosen for path, value in choice.settings}
    for setting in list(settings.items()):
        for group in BESIDE.get(setting, []):
            below = any(path[: len(p)] == p != path for path in settings for p in group)
            if not below and all(settings.get(path, v) == v for path, v in group.items()):
                settings |= group
    settings.setdefault((*PACING, "kind"), "synchronous")
    config: Config = json.loads(json.dumps(BASE))
    for path, value in settings.items():
        at(config, path)[path[-1]] = value
    for path, value in settings.items():
        if path[-1] == "kind":
            section = at(config, path)
            for name, needed in NEEDED.get(value, {}).items():
                section.setdefault(name, needed)
    return config


def load(config: Config, folder: Path) -> Any:
    path = folder / "scenario.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    return load_scenario(path)


def goes(chosen: Sequence[Choice]) -> bool:
    """Whether these choices load."""
    try:
        schema.Scenario.model_validate(scenario_of(chosen))
    except ValidationError:
        return False
    return True


@pytest.fixture(scope="module")
def possible() -> set[Pair]:
    """The pairs that load."""
    return {pair for pair in PAIRS if goes(pair)}


def named(chosen: Sequence[Choice]) -> str:
    return " + ".join(map(str, chosen))


TYPE_ERRORS = (
    "unknown key",
    "missing; required",
    "must be a ",
    "is not allowed; allowed:",
    "List ",
)


def kinds() -> dict[str, type[BaseModel]]:
    """All kinds that are walked."""
    found: dict[str, type[BaseModel]] = {}
    waiting = [
        model
        for _, owner, names in WALKED
        for name in names
        for model in sections(owner.model_fields[name].annotation)
    ]
    for info in schema.Faults.model_fields.values():
        waiting.extend(sections(info.annotation))
    while waiting:
        model = waiting.pop()
        found[kind_of(model)] = model
        for info in model.model_fields.values():
            waiting.extend(sections(info.annotation))
    return found


def test_every_kind_has_the_options_it_needs() -> None:
    for kind, model in kinds().items():
        required = {name for name, info in model.model_fields.items() if info.is_required()}
        missing = required - {"kind"} - set(NEEDED.get(kind, {}))
        assert not missing, (
            f"kind '{kind}' has no default for {sorted(missing)}; say in NEEDED, in "
            f"{Path(__file__).name}, what it gets when it is walked"
        )
    assert set(NEEDED) <= set(kinds())


def test_a_refusal_gives_its_reason(possible: set[Pair], tmp_path: Path) -> None:
    for pair in PAIRS:
        if pair in possible:
            continue
        with pytest.raises(ScenarioError) as refusal:
            load(scenario_of(pair), tmp_path)
        text = str(refusal.value)
        assert not any(sign in text for sign in TYPE_ERRORS), f"{named(pair)}: {text}"
        values = [value for choice in pair for _, value in choice.settings]
        assert any(value in text for value in values), f"{named(pair)}: {text}"
        # The place, and more than its name: why, and what to do.
        assert len(text.split(": ", 2)[2]) > 40, f"{named(pair)}: {text}"
    assert len(PAIRS) / 2 < len(possible) < len(PAIRS)


def test_every_choice_is_possible(possible: set[Pair]) -> None:
    """Nothing is on the menu that is always refused."""
    for choice in CHOICES:
        assert goes([choice]) or any(choice in pair for pair in possible), choice


def runs(possible: set[Pair]) -> Iterator[list[Choice]]:
    """Choices that go together, so that every pair that loads is in one of the runs."""
    both_ways = possible | {(b, a) for a, b in possible}
    left = set(both_ways)
    for pair in PAIRS:
        if pair not in left:
            continue
        chosen = list(pair)
        candidates = [choice for choice in CHOICES if choice not in pair]
        while candidates:
            # The one that brings most pairs which have not run yet.
            gains = [sum((old, new) in left for old in chosen) for new in candidates]
            if not any(gains):
                break
            new = candidates.pop(gains.index(max(gains)))
            if all((old, new) in both_ways for old in chosen) and goes([*chosen, new]):
                chosen.append(new)
        left -= set(itertools.permutations(chosen, 2))
        yield chosen


def test_what_loads_runs_to_a_finite_model(possible: set[Pair], tmp_path: Path) -> None:
    assert possible
    for count, chosen in enumerate(runs(possible)):
        out = tmp_path / f"run-{count}"
        scenario, source = load(scenario_of(chosen), tmp_path)
        try:
            manifest = run(scenario, source, Options(out), lambda server, accuracy: None)
        except Exception as error:
            raise AssertionError(f"{named(chosen)}: {type(error).__name__}: {error}") from error
        assert manifest["status"] == "done", named(chosen)
        rows = [line.split(",") for line in (out / "versions.csv").read_text().splitlines()[1:]]
        assert {int(row[1]) for row in rows} == {*range(1, VERSIONS + 1)}, named(chosen)
        models = sorted(out.glob("model*.safetensors"))
        assert models, named(chosen)
        for tensor in (tensor for path in models for tensor in load_file(path).values()):
            assert bool(torch.isfinite(tensor).all()), named(chosen)
        values = [line.split(",") for line in (out / "metrics.csv").read_text().splitlines()[1:]]
        assert all(math.isfinite(float(row[6])) for row in values), named(chosen)
