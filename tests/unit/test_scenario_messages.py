"""Errors of a model, told in the words and lines of the scenario's file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)

from emulator.errors import ScenarioError
from emulator.scenario.messages import explain
from emulator.scenario.overrides import apply_overrides
from emulator.scenario.source import Source, read_yaml
from emulator.scenario.units import NonNegativeBytes, PositiveSeconds


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Synchronous(Section):
    kind: Literal["synchronous"]
    participants: Annotated[int, Field(ge=1, le=100)]
    over_commitment: Annotated[float, Field(ge=1)] = 1.0
    deadline: Literal["none"] | PositiveSeconds = "none"
    stragglers: Literal["cancel", "finish"] = "cancel"


class Buffered(Section):
    kind: Literal["buffered"]
    buffer: int
    in_flight: int = 40

    @model_validator(mode="after")
    def _fits(self) -> Buffered:
        if self.buffer > self.in_flight:
            raise ValueError(
                f"in_flight: must be at least buffer ({self.buffer}), got {self.in_flight}"
            )
        return self


Pacing = Annotated[Synchronous | Buffered, Field(discriminator="kind")]


class Every(Section):
    versions: int


def _form(value: Any) -> str:
    return "mapping" if isinstance(value, dict | Every) else "word"


class Federation(Section):
    pacing: Pacing
    others: list[Pacing] = []
    sizes: dict[str, NonNegativeBytes] = {}


class Scenario(Section):
    version: Annotated[Literal[1], Field(alias="schema")]
    name: str = "x"
    federation: Federation
    evaluate: Annotated[
        Annotated[Every, Tag("mapping")] | Annotated[Literal["never", "always"], Tag("word")],
        Discriminator(_form),
    ] = "never"
    training: PositiveSeconds | list[PositiveSeconds] | Pacing | None = None
    pair: Annotated[tuple[int, PositiveSeconds], Field(strict=False)] | None = None

    @model_validator(mode="after")
    def _named(self) -> Scenario:
        if self.name == "bad":
            raise ValueError(
                "name is 'bad', not allowed\nfederation.pacing: goes badly\nnothing fits"
            )
        if self.name == "mute":
            raise ValueError
        return self


GOOD = """\
schema: 1
federation:
  pacing:
    kind: synchronous
    participants: 3
"""


def lines(tmp_path: Path, text: str, *overrides: str) -> list[str]:
    """The lines of the message for a scenario, the file's name left out."""
    path = tmp_path / "s.yaml"
    path.write_text(text)
    source = apply_overrides(read_yaml(path), overrides)
    return [line.removeprefix(f"{path}:") for line in told(source).splitlines()]


def told(source: Source) -> str:
    try:
        Scenario.model_validate(source.data)
    except ValidationError as error:
        found = explain(error, source, Scenario)
        assert isinstance(found, ScenarioError)
        assert len(found.args) == 1
        return str(found)
    pytest.fail("the scenario is valid")


def test_the_good_scenario_is_good() -> None:
    data = {"schema": 1, "federation": {"pacing": {"kind": "synchronous", "participants": 3}}}
    assert Scenario.model_validate(data).version == 1


PACING_KEYS = "kind, participants, over_commitment, deadline, stragglers"


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        (
            "    over_comitment: 1.3\n",
            "6:5: federation.pacing.over_comitment: unknown key "
            f"(did you mean 'over_commitment'?); allowed: {PACING_KEYS}",
        ),
        (
            "    buffer: 3\n",
            "6:5: federation.pacing.buffer: unknown key (it goes with kind: buffered); "
            f"allowed: {PACING_KEYS}",
        ),
        (
            "others: []\n",
            "6:1: others: unknown key (it belongs under federation); "
            "allowed: schema, name, federation, evaluate, training, pair",
        ),
        (
            "    pair: [1, 2]\n",
            "6:5: federation.pacing.pair: unknown key (it belongs under the top level); "
            f"allowed: {PACING_KEYS}",
        ),
        (
            "evaluate: {version: 3, versions: 2}\n",
            "6:12: evaluate.version: unknown key (did you mean 'versions'?); allowed: versions",
        ),
        (
            "    stragglers: cancle\n",
            "6:17: federation.pacing.stragglers: 'cancle' is not allowed "
            "(did you mean 'cancel'?); allowed: cancel, finish",
        ),
        (
            "    over_commitment: 0.5\n",
            "6:22: federation.pacing.over_commitment: must be at least 1, found 0.5",
        ),
        (
            "    over_commitment: true\n",
            "6:22: federation.pacing.over_commitment: must be a number, found true",
        ),
        ("name: 017x\nname2: 1\n", "7:1: name2: unknown key (did you mean 'name'?); allowed: "),
        ("name: 7\n", "6:7: name: must be a string, found 7; quote it"),
        ("evaluate: sometimes\n", "6:11: evaluate: 'sometimes' is not allowed; allowed: never"),
        (
            "evaluate:\n  versions: x\n",
            "7:13: evaluate.versions: must be a whole number, found 'x'",
        ),
        ("evaluate: {}\n", "6:1: evaluate.versions: missing; required key"),
        ("pair: [x, 2]\n", "6:8: pair.0: must be a whole number, found 'x'"),
        ("pair: [1, 2 mins]\n", "6:11: pair.1: '2 mins' has the unknown unit 'mins'"),
        ("pair: {a: 1}\n", "6:7: pair: must be a list, found a mapping"),
        (
            "  sizes:\n    a: 1 kB\n    b: 1.5 B\n",
            "8:8: federation.sizes.b: '1.5 B' is not a whole number of bytes",
        ),
        ("  sizes: {'a b': -3}\n", "6:18: federation.sizes.a b: -3 is not allowed; allowed: 0 or"),
        ("  others: x\n", "6:11: federation.others: must be a list, found 'x'"),
        (
            "  others:\n    - {kind: buffered, buffer: x}\n",
            "7:32: federation.others.0.buffer: must be a whole number, found 'x'",
        ),
        (
            "  others:\n    - kind: bufered\n",
            "7:13: federation.others.0.kind: unknown kind 'bufered' (did you mean 'buffered'?); "
            "allowed: synchronous, buffered",
        ),
        (
            "  others:\n    - buffer: 3\n",
            "7:7: federation.others.0.kind: missing; required key; allowed: synchronous, buffered",
        ),
        (
            "  others: [buffered]\n",
            "6:12: federation.others.0: must be a mapping such as {kind: buffered} "
            "(allowed: synchronous, buffered), found 'buffered'",
        ),
        (
            "  others: [{kind: [1]}]\n",
            "6:19: federation.others.0.kind: unknown kind a list; allowed: synchronous, buffered",
        ),
        (
            "  others: [{kind: buffered, buffer: 50}]\n",
            "6:12: federation.others.0: in_flight: must be at least buffer (50), got 40",
        ),
        (
            "  others: [{kind: buffered, buffer: 9, in_flight: 2}]\n",
            "6:51: federation.others.0: in_flight: must be at least buffer (9), got 2",
        ),
    ],
)
def test_one_fault_one_line(tmp_path: Path, added: str, expected: str) -> None:
    (line,) = lines(tmp_path, GOOD + added)
    assert line.startswith(expected)


def test_missing_keys_are_told_at_their_parents_line(tmp_path: Path) -> None:
    assert lines(tmp_path, "schema: 1\nfederation:\n  pacing:\n    kind: buffered\n") == [
        "3:3: federation.pacing.buffer: missing; required key"
    ]
    assert lines(tmp_path, "name: x\n") == [
        "1:1: federation: missing; required key",
        "1:1: schema: missing; required key; allowed: 1",
    ]
    assert lines(tmp_path, "schema: 1\nfederation: {}\n") == [
        "2:1: federation.pacing: missing; required key; allowed: kind: synchronous, buffered"
    ]


def test_both_bounds_are_told(tmp_path: Path) -> None:
    assert lines(tmp_path, GOOD, "federation.pacing.participants=500") == [
        "--set federation.pacing.participants=500: federation.pacing.participants: "
        "must be at least 1 and at most 100, found 500"
    ]


def test_a_value_of_several_types(tmp_path: Path) -> None:
    (line,) = lines(tmp_path, GOOD + "    deadline: 10 mins\n")
    assert line.startswith("6:15: federation.pacing.deadline: '10 mins' ")
    assert "did you mean 'min'?" in line
    assert "; or " in line
    assert "allowed: none" in line


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("5 mins", "6:11: training: '5 mins' has the unknown unit"),
        ("[1, -2]", "6:15: training.1: -2 is not allowed; allowed: greater than 0"),
        ("{kind: nope}", "6:18: training.kind: unknown kind 'nope'; allowed: synchronous"),
        ("{kind: buffered}", "6:1: training.buffer: missing; required key"),
    ],
)
def test_only_the_branch_that_was_meant_complains(
    tmp_path: Path, written: str, expected: str
) -> None:
    (line,) = lines(tmp_path, GOOD + f"training: {written}\n")
    assert line.startswith(expected)
    assert "; or " not in line


def test_a_validators_own_text_is_kept_and_placed(tmp_path: Path) -> None:
    assert lines(tmp_path, GOOD + "name: bad\n") == [
        "1:1: nothing fits",
        "4:5: federation.pacing: goes badly",
        "6:7: name is 'bad', not allowed",
    ]


def test_a_validator_without_a_text_is_not_lost(tmp_path: Path) -> None:
    assert lines(tmp_path, GOOD + "name: mute\n") == ["1:1: is not allowed"]


def test_a_tag_that_is_also_a_key_is_not_mistaken(tmp_path: Path) -> None:
    """pydantic's path has the tag ``buffered``; the data has a key of that name."""
    text = (
        "schema: 1\nfederation:\n  pacing:\n    kind: buffered\n    buffer: x\n    buffered: {}\n"
    )
    assert lines(tmp_path, text) == [
        "5:13: federation.pacing.buffer: must be a whole number, found 'x'",
        "6:5: federation.pacing.buffered: unknown key (did you mean 'buffer'?); "
        "allowed: kind, buffer, in_flight",
    ]


def test_all_faults_in_the_order_of_the_file_then_the_command_line(tmp_path: Path) -> None:
    text = GOOD.replace("participants: 3", "participants: x") + "zzz: 1\nname: 3\n"
    found = lines(tmp_path, text, "evaluate=17", "schema=2")
    assert [line.split(": ")[:2] for line in found] == [
        ["5:19", "federation.pacing.participants"],
        ["6:1", "zzz"],
        ["7:7", "name"],
        ["--set evaluate=17", "evaluate"],
        ["--set schema=2", "schema"],
    ]


def test_a_made_up_path_on_the_command_line_gets_the_nearest_key(tmp_path: Path) -> None:
    (line,) = lines(tmp_path, GOOD, "federation.pacing.participant=4")
    assert line == (
        "--set federation.pacing.participant=4: federation.pacing.participant: unknown key "
        f"(did you mean 'participants'?); allowed: {PACING_KEYS}"
    )


def test_a_forgotten_space_gets_a_hint(tmp_path: Path) -> None:
    (line,) = lines(tmp_path, GOOD + "training: {kind: buffered, buffer: 3, qq:1}\n")
    assert "training.qq:1: unknown key (a space is needed after ':')" in line


def test_a_flood_of_errors_is_cut(tmp_path: Path) -> None:
    found = lines(tmp_path, GOOD + f"training: [{', '.join(['x'] * 500)}]\n")
    assert len(found) == 41
    assert found[-1] == " … and 460 more"


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
KEYS = ["schema", "federation", "pacing", "others", "kind", "buffer", "evaluate", "training"]
KEYS += ["pair", "sizes", "versions", "synchronous", "mapping", "name", "in_flight"]
keys = st.sampled_from(KEYS)
values = st.recursive(
    scalars | st.sampled_from(["buffered", "synchronous", "never", "3 s", 1]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=5),
    max_leaves=12,
)


@settings(
    max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(st.dictionaries(keys, values))
def test_any_data_is_valid_or_explained(tmp_path: Path, data: dict[str, Any]) -> None:
    path = tmp_path / "any.yaml"
    path.write_text(_flow(data))
    try:
        source = read_yaml(path)
    except ScenarioError:  # a NaN, a lone surrogate
        return
    try:
        Scenario.model_validate(source.data)
    except ValidationError as error:
        explained = str(explain(error, source, Scenario))
        assert all(line.startswith(f"{path}:") for line in explained.split("\n"))
        assert "Value error" not in explained


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, str):
        return "'" + value.encode("unicode_escape").decode().replace("'", "''") + "'"
    return {True: "true", False: "false", None: "null"}.get(value, repr(value))
