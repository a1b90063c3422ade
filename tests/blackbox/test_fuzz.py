"""Whatever a scenario or a trace holds, the answer is a result or a message: never a traceback,
never a hang.

The suite takes the same few examples every time. FEDCLOCK_FUZZ=20000 takes so many, at random.
"""

from __future__ import annotations

import itertools
import math
import os
import pickle
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from corpus import READERS, refused_trace
from drawn import Config, mutated, scenarios
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from emulator.errors import FedclockError, InternalError, ScenarioError, TraceError
from emulator.run import Options, run
from emulator.scenario import Scenario, load_scenario, resolved_yaml
from emulator.scenario.source import read_yaml
from traces.inspection import check_trace

CORPUS = Path(__file__).resolve().parents[1] / "corpus"
GOOD = [read_yaml(path).data for path in sorted(CORPUS.glob("scenarios/good/*.yaml"))]
MANY = int(os.environ.get("FEDCLOCK_FUZZ", "0"))
MOST_SECONDS = 30  # of host time for one example; a hang, and no measure of speed


def fuzzed(few: int) -> Callable[[Any], Any]:
    return settings(
        max_examples=MANY or few,
        derandomize=not MANY,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
    )


@contextmanager
def no_hang() -> Iterator[None]:
    """TimeoutError in a body that takes too long."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"still at work after {MOST_SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(MOST_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the files that drawn scenarios name; no data set has been fetched."""
    found = tmp_path_factory.mktemp("fuzz")
    shutil.copytree(CORPUS / "scenarios" / "good", found, dirs_exist_ok=True)
    for name in ("behaviour", "capacity"):
        literal = eval((CORPUS / "traces" / "good" / f"{name}.txt").read_text())
        (found / f"{name}.pkl").write_bytes(pickle.dumps(literal))
    (found / "partition.csv").write_text("sample,client\n0,0\n1,1\n2,0\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(found / "cache"))
        yield found


def _loaded(path: Path, *overrides: str) -> Scenario | None:
    """The scenario, or None where it is refused in the way it must be."""
    refusal: ScenarioError | None = None
    with no_hang():
        try:
            scenario, _ = load_scenario(path, overrides)
        except ScenarioError as error:
            refusal = error
    if refusal is None:
        return scenario
    where = re.compile(rf"{re.escape(str(path))}(:[0-9]+:[0-9]+)?: |--set ")
    assert all(where.match(line) for line in _message(refusal).split("\n")), refusal
    return None


def _message(error: Exception) -> str:
    """The text of an error, which must be one for users."""
    (text,) = error.args
    assert isinstance(text, str)
    assert text
    assert all(line.isprintable() for line in text.split("\n")), text
    assert len(text) < 50_000
    return text


def _check_loading(path: Path) -> None:
    """Refused with a message, or the same again when its resolved form is read."""
    scenario = _loaded(path)
    event("refused" if scenario is None else "valid")
    if scenario is not None:
        text = resolved_yaml(scenario)
        resolved = path.with_name("resolved.yaml")
        resolved.write_text(text)
        again = _loaded(resolved)
        assert again == scenario
        assert resolved_yaml(again) == text


mutations = st.sampled_from(GOOD).flatmap(lambda config: mutated(config, GOOD))


@fuzzed(150)
@given(config=mutations | scenarios() | scenarios().flatmap(lambda one: mutated(one, GOOD)))
def test_any_mapping_is_a_scenario_or_refused(folder: Path, config: Config) -> None:
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), errors="replace")
    _check_loading(path)


TOKENS = ["\t", "\n", " ", ":", "- ", "{", "}", "[", "]", "&a ", "*a", "!!str ", "'", '"', "#", "|"]
TOKENS += ["<<: ", "---\n", ".nan", "1e999", "12:30", "017", "\0", "\ud800", "é", "\x85", "? ", "0"]


@fuzzed(150)
@given(data=st.data(), raw=st.sampled_from([yaml.safe_dump(c, sort_keys=False) for c in GOOD]))
def test_any_text_is_a_scenario_or_refused(folder: Path, data: st.DataObject, raw: str) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(raw)))
        end = data.draw(st.integers(start, min(start + 12, len(raw))))
        raw = raw[:start] + data.draw(st.sampled_from(["", *TOKENS])) + raw[end:]
    path = folder / "scenario.yaml"
    path.write_bytes(raw.encode("utf-8", "surrogatepass"))
    _check_loading(path)


# --- runs without learning ----------------------------------------------------------------------


@fuzzed(60)
@given(config=scenarios() | scenarios() | mutations)
def test_any_scenario_runs_or_says_why_not(folder: Path, config: Config) -> None:
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), errors="replace")
    # Bounded, so that a scenario of a million events is no hang.
    bounds = "stop={sim_time: 5 min, versions: 3}"
    scenario = _loaded(path, bounds)
    if scenario is None or scenario.task.clients > 50:
        event("refused")
        return
    _, source = load_scenario(path, [bounds])
    options = Options(folder / "run", timing_only=True, restart=True)
    failure: FedclockError | TraceError | None = None
    with no_hang():
        try:
            run(scenario, source, options, lambda server, accuracy: None)
        except (FedclockError, TraceError) as error:
            failure = error
    if failure is None:
        event("exit 0")
        return
    event(f"exit {failure.exit_code}: {_message(failure)[:50]}")
    assert not isinstance(failure, InternalError), failure


# --- traces -------------------------------------------------------------------------------------

LITERALS: dict[str, Any] = {
    "availability": eval((CORPUS / "traces" / "good" / "behaviour.txt").read_text()),
    "devices": eval((CORPUS / "traces" / "good" / "capacity.txt").read_text()),
}
CELLS = ["", "0", "1", "2", "-1", "0.5", "600", "1200", "1e3", "inf", "nan", "x", '"', " 7 ", "1_0"]


def _check_trace(path: Path, kind: Literal["availability", "devices"]) -> None:
    """A message, or what holds for every trace; all that look at it agree."""
    refusal: TraceError | None = None
    with no_hang():
        try:
            trace = READERS[kind](path)
        except TraceError as error:
            refusal = error
    if refusal is not None:
        event("refused")
        assert _message(refusal).startswith(f"{path}")
        refused_trace(path, kind)
        return
    event("read")
    checked = check_trace(path, kind)
    assert {finding.remedy for finding in checked.findings} <= {"none", "mend"}
    if kind == "devices":
        for column in (trace.computation_ms_per_sample, trace.communication_kbps):
            assert all(0 < value < math.inf for value in column.tolist())
        return
    assert len(trace) == len(checked.sessions) > 0
    for row, period in enumerate(trace.period_s.tolist()):
        assert trace.row(row) == checked.sessions.row(row)
        assert 0 < period < math.inf
        times = [time for pair in trace.row(row) for time in pair]
        assert all(before < after for before, after in itertools.pairwise(times)), times
        assert all(0 <= time <= period for time in times)


@fuzzed(100)
@given(raw=st.binary(max_size=80), name=st.sampled_from(["t.csv", "t.csv.gz", "t.pkl"]))
def test_any_bytes_are_no_trace(folder: Path, raw: bytes, name: str) -> None:
    path = folder / name
    path.write_bytes(raw)
    for kind in READERS:
        _check_trace(path, kind)


@fuzzed(150)
@given(data=st.data(), kind=st.sampled_from(["availability", "devices"]))
def test_any_table_is_a_trace_or_refused(folder: Path, data: st.DataObject, kind: str) -> None:
    name = {"availability": "sessions.csv", "devices": "devices.csv"}[kind]
    lines = (CORPUS / "traces" / "good" / name).read_text().splitlines()
    cells = [line.split(",") for line in lines]
    for _ in range(data.draw(st.integers(1, 3))):
        row = data.draw(st.integers(0 if data.draw(st.integers(0, 5)) == 0 else 1, len(cells) - 1))
        match data.draw(st.sampled_from(["cell", "cell", "line", "move", "short", "long"])):
            case "cell":
                column = data.draw(st.integers(0, len(cells[row]) - 1))
                cells[row][column] = data.draw(st.sampled_from(CELLS))
            case "line":
                cells.insert(row, list(cells[data.draw(st.integers(0, len(cells) - 1))]))
            case "move":
                cells.append(cells.pop(row))
            case "short" if len(cells[row]) > 1:
                cells[row].pop()
            case _:
                cells[row].append(data.draw(st.sampled_from(CELLS)))
    end = data.draw(st.sampled_from(["\n", "\r\n", "\n\n"]))
    path = folder / "t.csv"
    path.write_bytes(end.join(",".join(line) for line in cells).encode())
    _check_trace(path, kind)


@fuzzed(150)
@given(data=st.data(), kind=st.sampled_from(["availability", "devices"]))
def test_any_pickle_is_a_trace_or_refused(folder: Path, data: st.DataObject, kind: str) -> None:
    literal = data.draw(mutated(LITERALS[kind], [LITERALS["availability"], LITERALS["devices"]]))
    raw = bytearray(pickle.dumps(literal, data.draw(st.integers(0, pickle.HIGHEST_PROTOCOL))))
    for _ in range(data.draw(st.sampled_from([0, 0, 1, 2]))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = folder / "t.pkl"
    path.write_bytes(raw[: data.draw(st.integers(len(raw) - 3, len(raw)))])
    _check_trace(path, kind)


span = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted)


@fuzzed(100)
@given(rows=st.lists(st.lists(span, min_size=1, max_size=7), min_size=1, max_size=3))
def test_mending_changes_nothing_about_who_is_online(folder: Path, rows: list[Any]) -> None:
    path = folder / "t.pkl"
    trace = {
        key: {"active": [a for a, _ in row], "inactive": [b for _, b in row], "finish_time": 30}
        for key, row in enumerate(rows)
    }
    path.write_bytes(pickle.dumps(trace))
    sessions = READERS["availability"](path)
    for number, row in enumerate(rows):
        mended = sessions.row(number)
        for halves in range(61):
            time = halves / 2
            # A session of no length is no time online.
            given_online = any(a <= time <= b and a < b for a, b in row)
            assert any(a <= time <= b for a, b in mended) == given_online, (row, mended, time)
    _check_trace(path, "availability")
