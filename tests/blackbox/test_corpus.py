"""Every input of the corpus (tests/corpus) is refused with its message, at its place."""

from __future__ import annotations

import math
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from commandline import Lab, buffered, fedclock, timed
from corpus import READERS, Case, read_cases, refused_scenario, refused_trace

CORPUS = Path(__file__).resolve().parents[1] / "corpus"
GOOD = CORPUS / "scenarios" / "good"
APART = ("worlds", "mended")  # files of cases that other tests take


def _cases(name: str) -> list[Any]:
    """The cases of a folder of the corpus, or those of one file that stands apart."""
    files = CORPUS.rglob(f"{name}.cases") if name in APART else (CORPUS / name).glob("*.cases")
    return [
        pytest.param(case, id=f"{path.stem}:{case.line}")
        for path in sorted(files)
        if name == path.stem or path.stem not in APART
        for case in read_cases(path)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the good files, for those that are made of them."""
    found = tmp_path_factory.mktemp("scenarios")
    shutil.copytree(GOOD, found, dirs_exist_ok=True)
    return found


def _written(case: Case, folder: Path) -> tuple[Path, str]:
    """The file of a case, and the good text that it changes."""
    good = "" if case.own else (GOOD / f"{case.base}.yaml").read_text()
    path = folder / "scenario.yaml"
    path.write_text(case.input(good))
    return path, good


@pytest.mark.parametrize("path", sorted(GOOD.glob("*.yaml")), ids=lambda path: path.stem)
def test_what_the_cases_change_is_good(path: Path) -> None:
    said = fedclock("validate", path)
    assert said.exit_code == 0, said
    assert not said.err


@pytest.mark.parametrize("case", _cases("scenarios"))
def test_an_invalid_scenario_gets_its_message(case: Case, folder: Path) -> None:
    path, good = _written(case, folder)
    said = refused_scenario(path, case.overrides)
    assert case.unsaid(said, path, good) == [], f"{case.title}: {said}"


def test_there_are_many() -> None:
    assert len(_cases("scenarios")) >= 280
    assert len(_cases("worlds")) >= 27
    assert len(_cases("traces")) >= 116


def _script(*args: object) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    program = "from emulator.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, args)], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("name", ["text", "kinds", "set"])
def test_the_command_says_the_same_and_ends_with_2(name: str, folder: Path) -> None:
    case = read_cases(CORPUS / "scenarios" / f"{name}.cases")[-1]
    path, good = _written(case, folder)
    given = [word for override in case.overrides for word in ("--set", override)]
    said = _script("validate", path, *given)
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr == f"fedclock: {refused_scenario(path, case.overrides)}\n"
    assert case.unsaid(said.stderr, path, good) == []


@pytest.mark.parametrize("case", _cases("worlds"))
def test_a_scenario_of_which_no_world_can_be_made_gets_its_message(
    case: Case, folder: Path
) -> None:
    path, good = _written(case, folder)
    assert fedclock("validate", path).exit_code == 0
    out = folder / "run"
    timing = [] if case.base == "learning" else ["--timing-only"]
    said = fedclock("run", path, "--out", out, "--quiet", *timing)
    assert said.exit_code == 2, said
    assert case.unsaid(said.err, path, good) == [], f"{case.title}: {said.err}"
    assert not out.exists()


# --- traces -------------------------------------------------------------------------------------

# What the base of a case holds: a table, or the Python literal of what FedScale pickles.
KINDS: dict[str, Literal["devices", "availability"]] = {
    "sessions.csv": "availability",
    "behaviour.txt": "availability",
    "devices.csv": "devices",
    "capacity.txt": "devices",
}


def _trace(base: str, text: str, folder: Path) -> Path:
    if base.endswith(".csv"):
        path = folder / "trace.csv"
        path.write_text(text)
        return path
    literal = eval(text, {"nan": math.nan, "inf": math.inf})
    path = folder / "trace.pkl"
    path.write_bytes(pickle.dumps(literal))
    return path


def _good_trace(base: str) -> str:
    return (CORPUS / "traces" / "good" / base).read_text()


@pytest.mark.parametrize("base", KINDS)
def test_the_traces_that_the_cases_change_are_good(base: str, tmp_path: Path) -> None:
    path = _trace(base, _good_trace(base), tmp_path)
    assert len(READERS[KINDS[base]](path)) in (2, 3)
    assert fedclock("trace", "convert", path, tmp_path / "converted.csv").exit_code == 0


@pytest.mark.parametrize("case", _cases("traces"))
def test_an_invalid_trace_gets_its_message(case: Case, tmp_path: Path) -> None:
    good = _good_trace(case.base)
    path = _trace(case.base, case.input(good), tmp_path)
    said = refused_trace(path, KINDS[case.base])
    assert case.unsaid(said, path, good) == [], f"{case.title}: {said}"


@pytest.mark.parametrize("case", _cases("mended"))
def test_what_fedscales_file_has_is_mended_and_told(case: Case, tmp_path: Path) -> None:
    path = _trace(case.base, case.input(_good_trace(case.base)), tmp_path)
    note, mended = case.messages
    sessions = READERS["availability"](path)
    assert [sessions.row(row) for row in range(len(sessions))] == eval(mended)
    # A run says what was mended; a conversion is asked for it, and comes to the same.
    config = timed(2, 3, buffered(1, 1), stop={"versions": 1})
    config["system"]["availability"] = {"kind": "fedscale", "path": str(path), "at_end": "wrap"}
    said = Lab(tmp_path).try_run(config)
    assert said.exit_code == 0, said
    assert f"note: trace.pkl: mended {note}\n" in said.err
    out = tmp_path / "converted.csv"
    assert fedclock("trace", "convert", path, out).exit_code == 2
    assert fedclock("trace", "convert", path, out, "--repair", "mend").exit_code == 0
    again = READERS["availability"](out)
    assert [again.row(row) for row in range(len(again))] == eval(mended)


# --- paths on the command line ------------------------------------------------------------------

LONG = "x" * 300


@pytest.mark.parametrize(
    "words",
    [
        ["run", LONG],
        ["run", "rounds.yaml/x"],
        ["run", "."],
        ["run", "rounds.yaml", "--timing-only", "--out", "rounds.yaml"],
        ["run", "rounds.yaml", "--timing-only", "--out", "rounds.yaml/x"],
        ["run", "rounds.yaml", "--timing-only", "--out", LONG],
        ["run", "learning.yaml", "--memo", LONG],
        ["run", "learning.yaml", "--memo", "rounds.yaml"],
        ["trace", "inspect", LONG],
        ["trace", "inspect", "."],
        ["trace", "inspect", "sessions.csv", "--plot", f"{LONG}.png"],
        ["trace", "convert", "sessions.csv", f"{LONG}.csv"],
        ["trace", "convert", "sessions.csv", "rounds.yaml/x.csv"],
        ["trace", "convert", "sessions.csv", "nowhere/x.csv"],
        ["trace", "synthesize", "devices", "nowhere/x.csv", "--clients", "3", "--seed", "1"],
    ],
    ids=range(15),
)
def test_a_path_that_cannot_be_used(words: list[str], folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    said = fedclock(*words, cwd=folder)
    assert said.exit_code == 2, said
    assert said.err.startswith("fedclock: ")
    assert sorted(folder.rglob("*")) == before
