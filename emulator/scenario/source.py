"""A scenario's text as plain data that still knows where each value stands.

The text is parsed by PyYAML and resolved by the core schema of YAML 1.2 (https://yaml.org/spec,
10.3): ``1e-3`` is a number, ``on`` and ``no`` are strings. What other readers would take for
something else is refused with the reason, never guessed: duplicate keys, sexagesimals, leading
zeros, tags, merge keys, ``.nan`` and ``.inf``. Every fault is a ScenarioError that begins with
``file:line:column``.

PyYAML's parser in Python is used even where libyaml is installed: the two disagree on some
inputs and on the places of errors, and a scenario must not depend on what a host has.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

import yaml

from emulator.errors import ScenarioError

__all__ = ["Loc", "Node", "Place", "Source", "compose", "read_yaml"]

Loc = tuple[str | int, ...]
Scalar = None | bool | int | float | str

_LARGEST_FILE_BYTES: Final = 1 << 20
_MOST_NODES: Final = 100_000
DEEPEST_NESTING: Final = 64

_INTEGER: Final = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_LEADING_ZERO: Final = re.compile(r"[-+]?0[0-9]+")
_SEXAGESIMAL: Final = re.compile(r"[-+]?[0-9]+(?::[0-9]{1,2})+(?:\.[0-9]*)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_WORDS: Final[Mapping[str, Scalar]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_LARGEST_INTEGER: Final = 2**128
# What PyYAML's complaint, which begins with the key, most often means.
_HINTS: Final[Mapping[str, str]] = {
    "could not find expected ':'": "; a key is followed by a colon and a space",
    "expected <block end>": "; check the indentation, and that quotes and brackets match",
    "mapping values are not allowed": "; check the indentation, and quote a text that holds ': '",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Line and column in the file, from 1; or the ``--set a.b=c`` that gave the value (0, 0)."""

    line: int
    column: int
    override: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its place; a mapping holds (place of the key, value) by key.

    ``size`` counts the nodes of the tree below and this one, an alias as often as it is used;
    ``depth`` is 1 for a scalar. An alias holds the nodes of its anchor; none is ever changed.
    """

    content: Scalar | tuple[Node, ...] | Mapping[str, tuple[Place, Node]]
    place: Place
    size: int = field(init=False, compare=False)
    depth: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        children = tuple(self.children())
        object.__setattr__(self, "size", 1 + sum(child.size for child in children))
        object.__setattr__(self, "depth", 1 + max((child.depth for child in children), default=0))

    def children(self) -> Iterator[Node]:
        """The values of a mapping or the items of a list, in the order of the text."""
        if isinstance(self.content, tuple):
            yield from self.content
        elif isinstance(self.content, Mapping):
            yield from (child for _, child in self.content.values())

    def child(self, part: str | int) -> tuple[Place, Node] | None:
        """The place of the key (of the item, in a list) and the value, or None if absent."""
        if isinstance(self.content, Mapping):
            return self.content.get(part) if isinstance(part, str) else None
        if (
            isinstance(self.content, tuple)
            and isinstance(part, int)
            and 0 <= part < len(self.content)
        ):
            item = self.content[part]
            return item.place, item
        return None

    def plain(self) -> Any:
        """Fresh dicts, lists and scalars."""
        if isinstance(self.content, Mapping):
            return {key: value.plain() for key, (_, value) in self.content.items()}
        if isinstance(self.content, tuple):
            return [item.plain() for item in self.content]
        return self.content


@dataclass(frozen=True, slots=True)
class Source:
    """A scenario as read: its file, its text as given, and its values after ``overrides``."""

    path: Path
    text: str
    root: Node
    overrides: tuple[str, ...] = ()

    @property
    def data(self) -> dict[str, Any]:
        """The scenario as plain data, a fresh copy at each call."""
        plain = self.root.plain()
        assert isinstance(plain, dict)
        return plain

    def find(self, loc: Loc) -> Node | None:
        """The node at ``loc``, or None if it is absent."""
        steps = self._walk(loc)
        return steps[-1][1] if len(steps) == len(loc) + 1 else None

    def place(self, loc: Loc) -> Place:
        """Where the value at ``loc`` begins; if it is absent, the key of its nearest parent."""
        steps = self._walk(loc)
        key, node = steps[-1]
        return node.place if len(steps) == len(loc) + 1 else key

    def key_place(self, loc: Loc) -> Place:
        """Where the key of ``loc`` stands, or that of its nearest known parent."""
        return self._walk(loc)[-1][0]

    def position(self, loc: Loc) -> tuple[int, int]:
        """(line, column) of :meth:`place`, from 1; (0, 0) for a value given with ``--set``."""
        place = self.place(loc)
        return place.line, place.column

    def key_position(self, loc: Loc) -> tuple[int, int]:
        """(line, column) of :meth:`key_place`, from 1; (0, 0) for one given with ``--set``."""
        place = self.key_place(loc)
        return place.line, place.column

    def where(self, place: Place) -> str:
        """``file.yaml:12:5``, or ``--set a.b=c``, for the beginning of a message."""
        return place.override or f"{self.path}:{place.line}:{place.column}"

    def _walk(self, loc: Loc) -> list[tuple[Place, Node]]:
        steps = [(self.root.place, self.root)]
        for part in loc:
            step = steps[-1][1].child(part)
            if step is None:
                break
            steps.append(step)
        return steps


def read_yaml(path: str | Path) -> Source:
    """The YAML file at ``path``, which must hold one mapping.

    Raises ScenarioError (file, line, column, reason) for all that is not a readable, plain,
    finite UTF-8 YAML 1.2 mapping.
    """
    path = Path(path)
    try:
        with open(path, "rb") as file:
            raw = file.read(_LARGEST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else None
        raise ScenarioError(
            f"{printable(str(path))}: cannot be read: {reason or error}; "
            "give the path of a scenario file (YAML)"
        ) from None
    if len(raw) > _LARGEST_FILE_BYTES:
        raise ScenarioError(
            f"{path}:1:1: larger than {_LARGEST_FILE_BYTES} bytes, too large for a scenario; "
            "keep tables in files of their own and name their paths"
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8").split("\n")
        raise ScenarioError(
            f"{path}:{len(before)}:{len(before[-1]) + 1}: not UTF-8 "
            f"(byte 0x{raw[error.start]:02x}: {error.reason}); save the file as UTF-8"
        ) from None
    text = text.removeprefix("\ufeff")
    root = compose(text, lambda place: f"{path}:{place.line}:{place.column}")
    if root is None:
        raise ScenarioError(f"{path}:1:1: the file is empty; a scenario is a mapping of keys")
    source = Source(path, text, root)
    if not isinstance(root.content, Mapping):
        raise ScenarioError(
            f"{source.where(root.place)}: a scenario is a mapping of keys ('name: …'), "
            f"found {shown(root.content)}"
        )
    return source


def compose(text: str, where: Callable[[Place], str], override: str = "") -> Node | None:
    """The one document in ``text``, or None if there is none.

    ``where`` gives the beginning of a message for a place; ``override``, if not empty, becomes
    the place of every node. Raises ScenarioError for all that the module's head names.
    """
    return _Composer(text, where, override).document()


def shown(value: object) -> str:
    """A plain value as YAML would write it, on one line and cut."""
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return cut(repr(value))


def cut(text: str, length: int = 80) -> str:
    """At most ``length`` characters of ``text``, printable on any terminal that takes UTF-8."""
    text = printable(text)
    return text if len(text) <= length else text[: length - 1] + "…"


def printable(text: str) -> str:
    """``text`` on one line: control characters and lone surrogates are written as escapes."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


@dataclass(slots=True)
class _Open:
    """A list or mapping whose end has not come yet."""

    place: Place
    anchor: str | None
    is_mapping: bool
    items: list[Node]
    entries: dict[str, tuple[Place, Node]]
    key: tuple[str, Place] | None = None


def _place(mark: Any) -> Place:  # a Mark of PyYAML; it has two classes of that name
    return Place(mark.line + 1, mark.column + 1)


class _Composer:
    """Nodes from PyYAML's events, with an explicit stack: nesting costs no recursion."""

    def __init__(self, text: str, where: Callable[[Place], str], override: str) -> None:
        self._text = text
        self._where = where
        self._override = override
        self._stack: list[_Open] = []
        self._anchors: dict[str, Node | None] = {}  # None while the anchored value is open
        self._nodes = 0
        self._root: Node | None = None

    def document(self) -> Node | None:
        documents = 0
        place = Place(1, 1)
        try:
            for event in yaml.parse(self._text, Loader=yaml.SafeLoader):
                place = _place(event.start_mark)
                if isinstance(event, yaml.DocumentStartEvent):
                    documents += 1
                    if documents > 1:
                        self._fail(place, "a second document ('---'); only one is allowed")
                elif isinstance(event, yaml.AliasEvent):
                    self._add(self._alias(str(event.anchor), place), place)
                elif isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent):
                    self._node(event, place)
                elif isinstance(event, yaml.CollectionEndEvent):
                    self._close()
        except yaml.MarkedYAMLError as error:
            self._fail_syntax(error, place)
        except yaml.reader.ReaderError as error:
            before = self._text[: error.position].split("\n")
            self._fail(
                Place(len(before), len(before[-1]) + 1),
                f"the character U+{ord(self._text[error.position]):04X} is not allowed in YAML",
            )
        except (ValueError, OverflowError):  # PyYAML: "\UFFFFFFFF", %YAML 999…9.1
            self._fail(place, "not valid YAML: an escape or version number out of range")
        return self._root

    def _fail(self, place: Place, reason: str) -> NoReturn:
        raise ScenarioError(f"{self._where(place)}: {reason}") from None

    def _fail_syntax(self, error: yaml.MarkedYAMLError, last: Place) -> NoReturn:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "syntax error"
        if problem.startswith("could not find expected ':'"):
            mark = error.context_mark or mark  # the key, and not what comes after it
        place = last if mark is None else _place(mark)
        if "'\\t'" in problem:
            self._fail(place, "not valid YAML: a tab; indent and separate with spaces only")
        context = error.context if error.problem and error.context else ""
        if context and error.context_mark is not None and _place(error.context_mark) != place:
            begun = _place(error.context_mark)
            context += f" that begins at {begun.line}:{begun.column}"
        told = f"not valid YAML: {problem}" + (f" ({context})" if context else "")
        hint = next((hint for start, hint in _HINTS.items() if problem.startswith(start)), "")
        self._fail(place, printable(told + hint))

    def _node(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent, place: Place) -> None:
        if event.tag is not None:
            self._fail(
                place,
                f"the tag '{cut(event.tag)}' is not allowed; write the value without it "
                "(quote a string that looks like a number)",
            )
        if isinstance(event, yaml.ScalarEvent):
            if self._expects_key():
                self._take_key(event, place)
                return
            node = Node(self._scalar(event, place), self._own(place))
            if event.anchor is not None:
                self._anchors[event.anchor] = node
            self._add(node, place)
            return
        if self._expects_key():
            self._fail(place, "a list or mapping as a key; keys are strings")
        if len(self._stack) >= DEEPEST_NESTING - 1:
            self._fail(place, f"nested deeper than {DEEPEST_NESTING} levels")
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        self._stack.append(_Open(self._own(place), event.anchor, is_mapping, [], {}))

    def _own(self, place: Place) -> Place:
        return Place(0, 0, self._override) if self._override else place

    def _expects_key(self) -> bool:
        return bool(self._stack) and self._stack[-1].is_mapping and self._stack[-1].key is None

    def _alias(self, anchor: str, place: Place) -> Node:
        if self._expects_key():
            self._fail(place, f"an alias ('*{cut(anchor)}') as a key; write the key out")
        if anchor not in self._anchors:
            self._fail(place, f"the alias '*{cut(anchor)}' has no anchor '&{cut(anchor)}' above")
        node = self._anchors[anchor]
        if node is None:
            self._fail(place, f"the alias '*{cut(anchor)}' stands inside its own anchor")
        if len(self._stack) + node.depth > DEEPEST_NESTING:
            self._fail(place, f"nested deeper than {DEEPEST_NESTING} levels through aliases")
        # Only the value itself moves to the alias: what is inside is mended at the anchor.
        return Node(node.content, self._own(place))

    def _take_key(self, event: yaml.ScalarEvent, place: Place) -> None:
        key = self._scalar(event, place)
        if event.anchor is not None:
            self._fail(place, f"an anchor ('&{cut(event.anchor)}') on a key; put it on the value")
        if key == "<<" and event.style is None:
            self._fail(place, "the merge key '<<' is not allowed; write the keys out")
        if not isinstance(key, str):
            self._fail(
                place,
                f"the key {cut(event.value) or '(nothing)'} is not a string, as keys must be; "
                "quote it",
            )
        known = self._stack[-1].entries.get(key)
        if known is not None:
            first = f"first on line {known[0].line}" if known[0].line else "it stands before"
            self._fail(place, f"duplicate key '{cut(key)}' ({first}); keep one of the two")
        self._stack[-1].key = (key, self._own(place))

    def _add(self, node: Node, place: Place) -> None:
        self._nodes += node.size
        if self._nodes > _MOST_NODES:
            self._fail(place, f"more than {_MOST_NODES} values (aliases count in full)")
        if not self._stack:
            self._root = node
            return
        top = self._stack[-1]
        if top.key is None:
            top.items.append(node)
            return
        key, key_place = top.key
        top.entries[key] = (key_place, node)
        top.key = None

    def _close(self) -> None:
        closed = self._stack.pop()
        node = Node(closed.entries if closed.is_mapping else tuple(closed.items), closed.place)
        if closed.anchor is not None:
            self._anchors[closed.anchor] = node
        self._nodes -= node.size - 1  # its children were counted when they were added
        self._add(node, closed.place)

    def _scalar(self, event: yaml.ScalarEvent, place: Place) -> Scalar:
        text = event.value
        if event.style is not None:
            if any("\ud800" <= char <= "\udfff" for char in text):
                self._fail(place, "a lone surrogate (\\uD800 to \\uDFFF) in a string")
            return str(text)
        if text in _WORDS:
            return _WORDS[text]
        if _LEADING_ZERO.fullmatch(text):
            self._fail(
                place,
                f"{cut(text)}: a leading zero (octal to some readers); "
                "write it without the zero, as 0o… or in quotes",
            )
        if _INTEGER.fullmatch(text):
            return self._integer(text, place)
        if _FLOAT.fullmatch(text):
            return self._float(text, place)
        if _SEXAGESIMAL.fullmatch(text):
            self._fail(
                place,
                f"{cut(text)}: a sexagesimal number to some readers (12:30 = 750); "
                f'write "{cut(text)}" in quotes for a string, or a unit for a duration (45 min)',
            )
        if _NOT_FINITE.fullmatch(text):
            self._fail(place, f"{text} is not a finite number; only finite numbers are allowed")
        return str(text)

    def _integer(self, text: str, place: Place) -> int:
        # The length first: Python refuses to convert a decimal of more than 4300 digits.
        value = int(text, 0) if len(text) <= 50 else _LARGEST_INTEGER
        if abs(value) >= _LARGEST_INTEGER:
            self._fail(place, f"{cut(text)}: an integer out of range (±2^128)")
        return value

    def _float(self, text: str, place: Place) -> float:
        value = float(text)
        mantissa = re.split("[eE]", text)[0]
        if not math.isfinite(value) or (value == 0 and re.search("[1-9]", mantissa)):
            self._fail(place, f"{cut(text)}: a number out of range of a 64-bit float")
        return value
