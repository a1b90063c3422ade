"""What a sweep runs: scenarios, seeds, values that vary; from a sweep file or the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, ValidationError

from emulator.errors import ScenarioError
from emulator.scenario.messages import explain
from emulator.scenario.overrides import apply_overrides, assign
from emulator.scenario.schema.base import InputPath, Name, Section
from emulator.scenario.source import Loc, Source, compose, cut, read_yaml, shown

MOST_RUNS: Final = 10_000
_LARGEST_SEED: Final = 2**63 - 1
_SEEDS: Final = re.compile(r"[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*")
_NOT_VARIED: Final = {
    "seed": "seeds are given by seeds (--seeds)",
    "name": "names are made of the values that vary",
    "schema": "it is that of the scenario file",
}


def seeds_of(text: str) -> list[int]:
    """``1-5`` or ``1,2,10-12`` as whole numbers; raises ValueError."""
    if not _SEEDS.fullmatch(text.replace(" ", "")):
        raise ValueError(f"must be seeds such as 1-5 or 1,2,10-12, found '{cut(text)}'")
    seeds: list[int] = []
    for part in text.replace(" ", "").split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if high > _LARGEST_SEED:
            raise ValueError(f"seeds go up to {_LARGEST_SEED}, found '{cut(text)}'")
        if low > high:
            raise ValueError(f"must count upwards, found '{part}'")
        if high - low + len(seeds) >= MOST_RUNS:
            raise ValueError(f"are more than {MOST_RUNS} runs, found '{cut(text)}'")
        seeds += range(low, high + 1)
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"one seed is there twice, found '{cut(text)}'")
    return seeds


def _seeds(value: Any) -> Any:
    if isinstance(value, str):
        return seeds_of(value)
    if isinstance(value, list) and len({repr(seed) for seed in value}) < len(value):
        raise ValueError(f"one seed is there twice, found {value}")
    return [value] if isinstance(value, int) and not isinstance(value, bool) else value


def _as_arm(value: Any) -> Any:
    return value if isinstance(value, Mapping) else {"file": value}


Seed = Annotated[int, Field(ge=0, le=_LARGEST_SEED)]


class Arm(Section):
    """A scenario file, with values of its own; the ``name`` is the scenario's unless given."""

    file: InputPath
    name: Name | None = None
    set: dict[str, Any] = Field(default_factory=dict)


class SweepFile(Section):
    """A study as one file: every scenario with every combination of varied values and every seed.

    ``set`` and ``vary`` have keys of a scenario such as ``system.network.client.up``. ``seeds`` is
    a list, or a text such as ``1-5``.
    """

    schema_version: Annotated[Literal[1], Field(alias="schema")]
    scenarios: Annotated[list[Annotated[Arm, BeforeValidator(_as_arm)]], Field(min_length=1)]
    seeds: Annotated[list[Seed], Field(min_length=1), BeforeValidator(_seeds)]
    vary: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)
    set: dict[str, Any] = Field(default_factory=dict)
    timing_only: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """A key of the scenario and its values, as plain data; beside each, where it was given."""

    key: str
    values: tuple[tuple[Any, str], ...]


@dataclass(frozen=True, slots=True)
class Study:
    """Scenarios as read, with all that is set; ``names`` are theirs if they are not their own."""

    sources: tuple[Source, ...]
    names: tuple[str | None, ...]
    seeds: tuple[int, ...]
    axes: tuple[Axis, ...]
    timing_only: bool


@dataclass(frozen=True, slots=True)
class Given:
    """The words of the command line; those it has win over a sweep file."""

    scenarios: Sequence[Path]
    seeds: str | None = None
    vary: Sequence[str] = ()
    overrides: Sequence[str] = ()
    timing_only: bool = False


def read_study(given: Given) -> Study:
    """Raises :class:`ScenarioError` with file and line, or the option, for what cannot be run."""
    sources = [read_yaml(path) for path in given.scenarios]
    files = [source for source in sources if source.find(("scenarios",)) is not None]
    if files and len(sources) > 1:
        raise ScenarioError(
            f"{files[0].path} is a sweep file, which names its scenarios itself; give it alone"
        )
    study = _of_file(files[0]) if files else Study(
        tuple(sources), (None,) * len(sources), (), (), False
    )  # fmt: skip
    seeds = study.seeds
    if given.seeds is not None:
        try:
            seeds = tuple(seeds_of(given.seeds))
        except ValueError as error:
            raise ScenarioError(f"--seeds: {error}") from None
    if not seeds:
        raise ScenarioError("--seeds is missing; say --seeds 1-5, or give a sweep file with seeds")
    axes = (*study.axes, *map(_axis, given.vary))
    _check_axes(axes, given, files[0] if files else None)
    sources = [apply_overrides(source, given.overrides) for source in study.sources]
    timing_only = given.timing_only or study.timing_only
    return Study(tuple(sources), study.names, seeds, axes, timing_only)


def _of_file(source: Source) -> Study:
    base = source.path.resolve().parent
    try:
        file = SweepFile.model_validate(source.data, context={"base": base})
    except ValidationError as error:
        raise explain(error, source, SweepFile) from None

    def where(loc: Loc) -> str:
        return source.where(source.place(loc))

    sources = []
    for number, arm in enumerate(file.scenarios):
        scenario = read_yaml(arm.file)
        for key, value in file.set.items():
            scenario = assign(scenario, key, value, where(("set", key)))
        for key, value in arm.set.items():
            scenario = assign(scenario, key, value, where(("scenarios", number, "set", key)))
        sources.append(scenario)
    axes = []
    for key, values in file.vary.items():
        at = [where(("vary", key, number)) for number in range(len(values))]
        axes.append(Axis(key, tuple(zip(values, at, strict=True))))
    names = tuple(arm.name for arm in file.scenarios)
    return Study(tuple(sources), names, tuple(file.seeds), tuple(axes), file.timing_only)


def _axis(text: str) -> Axis:
    """``a.b=x,y`` of the command line."""
    label = f"--vary {cut(text)}"
    key, equals, listed = text.partition("=")
    if not equals or not key.strip():
        raise ScenarioError(f"{label}: write --vary a.b=x,y")
    values = compose(f"[{listed}]", lambda place: label, override=label)
    assert values is not None
    if not isinstance(values.content, tuple) or not values.content:
        raise ScenarioError(f"{label}: no value after '='; write --vary a.b=x,y")
    key = key.strip()
    plain = [node.plain() for node in values.content]
    return Axis(key, tuple((value, f"--vary {key}={shown(value)}") for value in plain))


def _check_axes(axes: Sequence[Axis], given: Given, file: Source | None) -> None:
    """Keys that vary in two places, or that are set too, and values that are there twice."""
    keys = [axis.key for axis in axes]
    set_keys = [text.partition("=")[0].strip() for text in given.overrides]
    if file is not None:
        set_keys += file.data.get("set", {})
        for arm in file.data["scenarios"]:
            set_keys += arm.get("set", {}) if isinstance(arm, dict) else {}
    if "seed" in set_keys:
        raise ScenarioError("'seed' is set, and seeds are given by seeds (--seeds)")
    for number, axis in enumerate(axes):
        where = axis.values[0][1]
        reason = _NOT_VARIED.get(axis.key)
        if reason is not None:
            raise ScenarioError(f"{where}: '{axis.key}' cannot vary: {reason}")
        for other in (*keys[:number], *keys[number + 1 :]):
            if f"{axis.key}.".startswith(f"{other}."):
                raise ScenarioError(f"{where}: '{axis.key}' varies, and so does '{other}'")
        for other in set_keys:
            if f"{other}.".startswith(f"{axis.key}."):
                raise ScenarioError(f"{where}: '{axis.key}' varies, and '{other}' is set")
        for at, (value, place) in enumerate(axis.values):
            if any(_same(value, earlier) for earlier, _ in axis.values[:at]):
                raise ScenarioError(f"{place}: {axis.key} has {shown(value)} twice")


def _same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other)  # True is not 1 here
