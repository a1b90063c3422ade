"""YAML with places: what is read, what is refused and where, and ``--set``."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from emulator.errors import ScenarioError
from emulator.scenario.overrides import apply_overrides
from emulator.scenario.source import Source, read_yaml

SCENARIO = """\
# a comment
name: phones
stop: {sim_time: 48 h, versions: 2000}
federation:
  pacing:
    kind: buffered
    buffer: 10
  cohorts:
    - size: 3
    - size: 4
"""

_numbers = itertools.count()


def read(folder: Path, text: str | bytes) -> Source:
    """The source of a new file that holds ``text``."""
    path = folder / f"{next(_numbers)}.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_yaml(path)


def refusal(folder: Path, text: str | bytes) -> tuple[int, int, str]:
    """(line, column, reason) of the ScenarioError for ``text``."""
    with pytest.raises(ScenarioError) as caught:
        read(folder, text)
    (message,) = caught.value.args
    assert message.startswith(f"{folder}/")
    assert "\n" not in message
    _, line, column, reason = message.removeprefix(str(folder)).split(":", 3)
    return int(line), int(column), reason


@pytest.fixture
def scenario(tmp_path: Path) -> Source:
    return read(tmp_path, SCENARIO)


def test_data_and_text(scenario: Source) -> None:
    assert scenario.text == SCENARIO
    assert scenario.data == {
        "name": "phones",
        "stop": {"sim_time": "48 h", "versions": 2000},
        "federation": {
            "pacing": {"kind": "buffered", "buffer": 10},
            "cohorts": [{"size": 3}, {"size": 4}],
        },
    }
    scenario.data["name"] = "changed"
    assert scenario.data["name"] == "phones"


def test_positions_of_values_and_keys(scenario: Source) -> None:
    assert scenario.position(("name",)) == (2, 7)
    assert scenario.key_position(("name",)) == (2, 1)
    assert scenario.position(("stop", "versions")) == (3, 34)
    assert scenario.key_position(("stop", "versions")) == (3, 24)
    assert scenario.position(("federation", "pacing", "buffer")) == (7, 13)
    assert scenario.position(("federation", "cohorts", 1, "size")) == (10, 13)
    assert scenario.position(()) == (2, 1)


def test_an_absent_key_is_placed_at_its_nearest_parents_key(scenario: Source) -> None:
    assert scenario.position(("federation", "pacing", "nope", "deeper")) == (5, 3)
    assert scenario.position(("federation", "cohorts", 7)) == (8, 3)
    assert scenario.key_position(("federation", "cohorts", "x")) == (8, 3)
    assert scenario.position(("name", "of")) == (2, 1)
    assert scenario.position(("nope",)) == (2, 1)
    assert scenario.find(("federation", "cohorts", 7)) is None


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-3", 0.001),
        ("1E+3", 1000.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("-0.25", -0.25),
        ("+3", 3),
        ("-12", -12),
        ("0", 0),
        ("0.0", 0.0),
        ("0x1F", 31),
        ("0o17", 15),
        ("true", True),
        ("True", True),
        ("FALSE", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("No", "No"),
        ("y", "y"),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("2024-01-01", "2024-01-01"),
        ("=", "="),
        ("45 min", "45 min"),
        ("a:b", "a:b"),
        ('"12:30:00"', "12:30:00"),
        ("'017'", "017"),
        ('"true"', "true"),
        ('""', ""),
        ("nan", "nan"),
    ],
)
def test_scalars_of_yaml_1_2(tmp_path: Path, written: str, value: object) -> None:
    parsed = read(tmp_path, f"a: {written}\n").data["a"]
    assert parsed == value
    assert type(parsed) is type(value)


def test_a_block_scalar_is_a_string(tmp_path: Path) -> None:
    assert read(tmp_path, "a: |\n  017\n").data == {"a": "017\n"}


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    source = read(tmp_path, b"\xef\xbb\xbfa: 1")
    assert source.data == {"a": 1}
    assert source.key_position(("a",)) == (1, 1)


@pytest.mark.parametrize(
    ("text", "line", "column", "reason"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, 1, "duplicate key 'a' (first on line 1)"),
        ("a: {b: 1, 'b': 2}", 1, 11, "duplicate key 'b' (first on line 1)"),
        ("a:\n  start: 12:30:00", 2, 10, 'write "12:30:00" in quotes'),
        ("a: 12:30", 1, 4, "sexagesimal"),
        ("a: [017]", 1, 5, "leading zero"),
        ("a: -00", 1, 4, "leading zero"),
        ("lr: .nan", 1, 5, "only finite numbers"),
        ("lr: -.inf", 1, 5, "only finite numbers"),
        ("lr: 1e999", 1, 5, "out of range"),
        ("lr: 1e-999", 1, 5, "out of range"),
        ("n: " + "9" * 5000, 1, 4, "out of range"),
        ("a: !!python/object/apply:os.system [ls]", 1, 4, "tag"),
        ("a: !!str 3", 1, 4, "tag"),
        ("a: ! 3", 1, 4, "tag"),
        ("a: &x {b: 1}\nc:\n  <<: *x", 3, 3, "merge key"),
        ("1: x", 1, 1, "quote it"),
        ("a: {true: x}", 1, 5, "quote it"),
        ("?\n: x", 1, 2, "the key (nothing) is not a string"),
        ("? [a]\n: x", 1, 3, "keys are strings"),
        ("a: &x b\n*x : c", 2, 1, "an alias"),
        ("&x a: b", 1, 1, "an anchor"),
        ("a: *x", 1, 4, "no anchor"),
        ("a: &x [*x]", 1, 8, "inside its own anchor"),
        ("a: 1\n---\nb: 2", 2, 1, "second document"),
        ("", 1, 1, "empty"),
        ("# only a comment\n", 1, 1, "empty"),
        ("- a\n", 1, 1, "found a list"),
        ("\n3\n", 2, 1, "found 3"),
        ("a:\n\tb: 1", 2, 1, "a tab"),
        ("a: b: c", 1, 5, "not valid YAML"),
        ("a: [1, 2", 1, 9, "not valid YAML"),
        ("a: 'x", 1, 6, "not valid YAML"),
        ("a: @x", 1, 4, "not valid YAML"),
        ('a: "\\UFFFFFFFF"', 1, 1, "not valid YAML"),
        ("%YAML " + "9" * 5000 + ".1\n---\na: 1", 1, 1, "not valid YAML"),
        ('a: "\\ud800"', 1, 4, "surrogate"),
        ("a: 1\nb: x\0", 2, 5, "U+0000"),
        (b"a: 1\n\xc3\xa9: \xff", 2, 4, "not UTF-8"),
        (b"\xff\xfea\0:\0", 1, 1, "not UTF-8"),
    ],
)
def test_refused(tmp_path: Path, text: str | bytes, line: int, column: int, reason: str) -> None:
    found = refusal(tmp_path, text)
    assert found[:2] == (line, column)
    assert reason in found[2]


def test_aliases(tmp_path: Path) -> None:
    source = read(tmp_path, "a: &x {lr: 0.1}\nb: *x\nc: [*x]\nd: &y 3\ne: *y\n")
    assert source.data["b"] == {"lr": 0.1}
    assert source.data["c"] == [{"lr": 0.1}]
    assert source.data["e"] == 3
    assert source.position(("b",)) == (2, 4)
    assert source.position(("b", "lr")) == (1, 12), "what is inside is mended at the anchor"
    source.data["a"]["lr"] = 5
    assert source.data["b"] == {"lr": 0.1}


def _laughs(levels: int, width: int) -> str:
    lines = ["a0: &a0 [x]"]
    for n in range(1, levels):
        lines.append(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (_laughs(levels=40, width=9), "more than 100000 values"),
        (_laughs(levels=200, width=1), "nested deeper than 64 levels"),
        ("a: " + "[" * 5000, "nested deeper than 64 levels"),
        ("a: " + "{b: " * 5000, "nested deeper than 64 levels"),
        ("- " * 5000, "nested deeper than 64 levels"),
        ("? " * 5000, "keys are strings"),
        ("x" * (2**20 + 1), "larger than 1048576 bytes"),
    ],
)
def test_no_input_exhausts_the_reader(tmp_path: Path, text: str, reason: str) -> None:
    assert reason in refusal(tmp_path, text)[2]


def test_the_deepest_allowed_nesting_is_read(tmp_path: Path) -> None:
    source = read(tmp_path, "a: " + "[" * 62 + "x" + "]" * 62)
    assert source.root.depth == 64
    assert "64 levels" in refusal(tmp_path, "a: " + "[" * 63 + "x" + "]" * 63)[2]


@pytest.mark.parametrize("name", ["missing.yaml", "", "no/folder.yaml", "nul\0.yaml"])
def test_a_path_that_is_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(ScenarioError, match="cannot be read"):
        read_yaml(f"{tmp_path}/{name}")


PIECES = list("ab10:-?[]{},'\"#!|%\t\r\\~é\x85\u2028\ufeff\0\n")
PIECES += [": ", "- ", "\n  ", "&x ", "*x", "!!int ", ">-", "---", "...", "<<", "12:30", ".nan"]
tokens = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=60) | (st.text(max_size=60) | tokens).map(str.encode))
@example(b"\xef\xbb\xbf\xef\xbb\xbf")
@example(b'a: "\\x"')
def test_any_bytes_are_read_or_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "any.yaml"
    path.write_bytes(raw)
    try:
        source = read_yaml(path)
    except ScenarioError as error:
        (message,) = error.args
        if not (message.startswith(f"{path}:") and message.isprintable()):
            pytest.fail(message)
    else:
        assert isinstance(source.data, dict)
        assert source.position(()) >= (1, 1)


# --- overrides -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("assignment", "loc", "value"),
    [
        ("federation.pacing.buffer=7", ("federation", "pacing", "buffer"), 7),
        ("name=x=y", ("name",), "x=y"),
        ("name='7'", ("name",), "7"),
        ("name=''", ("name",), ""),
        ("name=null", ("name",), None),
        ("lr=1e-3", ("lr",), 0.001),
        ("stop={versions: 5}", ("stop",), {"versions": 5}),
        (
            "federation.pacing={kind: synchronous}",
            ("federation", "pacing"),
            {"kind": "synchronous"},
        ),
        ("federation.pacing=x", ("federation", "pacing"), "x"),
        ("federation.cohorts.1.size=9", ("federation", "cohorts", 1, "size"), 9),
        ("federation.cohorts.0=[1, 2]", ("federation", "cohorts", 0), [1, 2]),
        ("new.a.b=1", ("new",), {"a": {"b": 1}}),
        (" name = x ", ("name",), "x"),
    ],
)
def test_set(scenario: Source, assignment: str, loc: tuple[Any, ...], value: object) -> None:
    changed = apply_overrides(scenario, [assignment])
    found = changed.find(loc)
    assert found is not None
    assert found.plain() == value
    assert changed.where(changed.place(loc)) == f"--set {assignment}"
    assert changed.position(loc) == (0, 0)
    assert changed.overrides == (assignment,)
    assert changed.text == SCENARIO


def test_set_leaves_the_rest_and_the_original(scenario: Source) -> None:
    before = scenario.data
    changed = apply_overrides(
        scenario, ["federation.pacing.buffer=7", "federation.cohorts.0.size=1"]
    )
    assert scenario.data == before
    before["federation"]["pacing"]["buffer"] = 7
    before["federation"]["cohorts"][0]["size"] = 1
    assert changed.data == before
    assert list(changed.data) == list(before)
    assert changed.position(("federation", "pacing", "kind")) == (6, 11)
    assert changed.key_position(("federation", "pacing")) == (5, 3)


def test_the_last_set_wins_and_each_sees_the_ones_before(scenario: Source) -> None:
    changed = apply_overrides(scenario, ["stop=null", "stop.versions=1", "stop.versions=2"])
    assert changed.data["stop"] == {"versions": 2}
    assert changed.where(changed.place(("stop", "versions"))) == "--set stop.versions=2"


def test_set_does_not_write_through_an_alias(tmp_path: Path) -> None:
    source = read(tmp_path, "a: &x {lr: 1}\nb: *x\n")
    assert apply_overrides(source, ["b.lr=2"]).data == {"a": {"lr": 1}, "b": {"lr": 2}}


@pytest.mark.parametrize(
    ("assignment", "reason"),
    [
        ("name", "no '='"),
        ("", "no '='"),
        ("=3", "empty key"),
        ("a..b=3", "empty key"),
        (".a=3", "empty key"),
        ("a.=3", "empty key"),
        ("name=", "no value"),
        ("name=  ", "no value"),
        ("name=# gone", "no value"),
        ("name=[1,", "not valid YAML"),
        ("name={a: 1, a: 2}", "duplicate key 'a' (it stands before)"),
        ("name=017", "leading zero"),
        ("name=.inf", "finite"),
        ("name=12:30:00", "sexagesimal"),
        ("name=!!python/none", "tag"),
        ("name=\udcff", "U+DCFF"),
        ("na\udcffme=1", "no key has"),
        ("name.first=x", "name is 'phones', neither a mapping nor a list"),
        ("federation.cohorts.2.size=1", "a list with items 0 to 1; '2' is none of them"),
        ("federation.cohorts.-1.size=1", "'-1' is none of them"),
        ("federation.cohorts.x=1", "'x' is none of them"),
        (".".join("a" * 5000) + "=1", "nested deeper than 64 levels"),
        ("a.b=" + "[" * 63 + "]" * 63, "nested deeper than 64 levels"),
    ],
)
def test_set_refused(scenario: Source, assignment: str, reason: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        apply_overrides(scenario, [assignment])
    (message,) = caught.value.args
    assert message.startswith("--set ")
    assert reason in message
    assert message.isprintable()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text(max_size=30) | st.tuples(st.sampled_from(["name", "a.b"]), tokens).map("=".join))
def test_any_set_is_applied_or_refused(scenario: Source, assignment: str) -> None:
    try:
        changed = apply_overrides(scenario, [assignment])
    except ScenarioError as error:
        (message,) = error.args
        if not (message.startswith("--set ") and message.isprintable()):
            pytest.fail(message)
    else:
        assert isinstance(changed.data, dict)


def test_reading_a_scenario_imports_neither_plane() -> None:
    program = """
import sys
import emulator.scenario.messages, emulator.scenario.overrides, emulator.scenario.units
print([name for name in ("torch", "simpy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
