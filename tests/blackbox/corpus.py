"""Case files: what is changed in a good input, side by side with the message that it must get.

A line begins with a word or a sign::

    base: rounds           the good file that the cases below change
    case: misspelt key     a title; the lines below it are one case
    - deadline: 10 min     text that stands once in the base, and goes
    + ▶deadlin: 10 min     what comes in its place; ▶ stands where the message must point
    = seed: 1              or: a line of a file of its own, without a base
    $ seed=x               what --set gives
    > seed: missing; …     the message; … stands for any text, FILE for the file's path

Of several lines of a message, the n-th points to the n-th ▶. A message without a place has no ▶.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from emulator.errors import ScenarioError
from emulator.scenario import load_scenario
from traces import TraceError, read_devices, read_sessions
from traces.conversion import convert
from traces.inspection import check_trace

HERE = "▶"


@dataclass(slots=True)
class Case:
    """One case as written; ``line`` is where it begins in its file."""

    title: str
    line: int
    base: str
    edits: list[tuple[list[str], list[str]]] = field(default_factory=list)
    own: list[str] = field(default_factory=list)
    overrides: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def marked(self, good: str) -> str:
        """The input with its marks, made from the text of the good one."""
        if self.own:
            return "\n".join(self.own)
        for old, new in self.edits:
            before, after = "\n".join(old), "\n".join(new)
            assert good.count(before) == 1, f"{before!r} stands {good.count(before)} times"
            good = good.replace(before, after)
        return good

    def input(self, good: str) -> str:
        """What is written to a file."""
        return self.marked(good).replace(HERE, "")

    def places(self, good: str) -> list[tuple[int, int]]:
        """(line, column) of each mark, from 1."""
        found = []
        for number, line in enumerate(self.marked(good).split("\n"), start=1):
            for seen, match in enumerate(re.finditer(HERE, line)):
                found.append((number, match.start() + 1 - seen))
        return found

    def unsaid(self, said: str, path: Path, good: str) -> list[str]:
        """The messages that a text of several lines does not have, in order; nothing if it is as
        it must be."""
        places = self.places(good)
        lines = said.removeprefix("fedclock: ").rstrip("\n").split("\n")
        wrong = []
        for number, message in enumerate(self.messages):
            where = ""
            if number < len(places):
                line, column = places[number]
                where = f"{path}:{line}:{column}: "
            pattern = re.escape(where) + matcher(message.replace("FILE", str(path)))
            if number >= len(lines) or not re.fullmatch(pattern, lines[number], re.DOTALL):
                wrong.append(where + message)
        wrong.extend(f"nothing more than: {line}" for line in lines[len(self.messages) :])
        return wrong


def matcher(message: str) -> str:
    """A regular expression of a message in which … stands for any text."""
    return ".*".join(map(re.escape, message.split("…")))


def read_cases(path: Path) -> list[Case]:
    """The cases of a file, in order."""
    cases = list(_cases(path))
    titles = [case.title for case in cases]
    assert len(set(titles)) == len(titles), f"{path}: two cases of one title"
    return cases


def _cases(path: Path) -> Iterator[Case]:
    base, case, before = "", None, ""
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        sign, text = line[:1], line[2:]
        if line.startswith("base: "):
            base = line.removeprefix("base: ")
        elif line.startswith("case: "):
            if case is not None:
                yield case
            case = Case(line.removeprefix("case: "), number, base)
        elif sign in ("", "#"):
            pass
        else:
            assert case is not None, f"{path}:{number}: no case has begun"
            if sign == "-" and before != "-":
                case.edits.append(([], []))
            if sign in "-+" and sign:
                case.edits[-1]["-+".index(sign)].append(text)
            elif sign == "=":
                case.own.append(text)
            elif sign == "$":
                case.overrides.append(text)
            elif sign == ">":
                case.messages.append(text)
            else:
                raise AssertionError(f"{path}:{number}: {line!r} begins with no known sign")
        before = sign
    if case is not None:
        yield case


# --- what is refused ----------------------------------------------------------------------------

READERS: dict[str, Callable[[Path], Any]] = {
    "availability": lambda path: read_sessions(path).sessions,
    "devices": read_devices,
}


def refused_scenario(path: Path, overrides: list[str] | None = None) -> str:
    """What is said of an invalid scenario; by the reader itself, since 300 command lines would
    take too long."""
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path, overrides or [])
    (message,) = caught.value.args
    assert all(line.isprintable() for line in message.split("\n"))
    return str(message)


def refused_trace(path: Path, kind: Literal["devices", "availability"]) -> str:
    """What the reader says of a bad trace, which nothing else takes for a good one."""
    with pytest.raises(TraceError) as caught:
        READERS[kind](path)
    (message,) = caught.value.args
    out = path.with_name("converted.csv")
    out.unlink(missing_ok=True)
    with pytest.raises(TraceError):
        convert(path, out, kind=kind)
    assert not out.exists()
    try:
        found = check_trace(path, kind).findings
    except TraceError:
        pass
    else:
        assert any(finding.remedy != "none" for finding in found)
    try:
        convert(path, out, repair="drop", kind=kind)
    except TraceError:
        assert not out.exists()
    else:
        assert len(READERS[kind](out)) > 0  # the clients without a fault are a trace
    return str(message)
