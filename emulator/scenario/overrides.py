"""``--set a.b.c=value``: values given on the command line instead of in the file, or by a sweep.

The value is read with the file's own rules, so ``--set stop={versions: 10}`` gives a mapping and
``--set local.optimizer.lr=1e-3`` a number. Whether the path is one that the scenario knows is the
schema's question: a made-up key is refused there, with the nearest known one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from emulator.errors import ScenarioError
from emulator.scenario.source import DEEPEST_NESTING, Node, Place, Source, compose, cut, shown

__all__ = ["apply_overrides", "assign"]


def apply_overrides(source: Source, assignments: Iterable[str]) -> Source:
    """The source with each ``a.b=value`` applied, in order; a later one wins.

    A part that is absent (or null) on the way becomes a mapping; a part of digits counts the
    items of a list, from 0; the new value replaces the old one whole. The place of all that an
    assignment gives is ``--set a.b=value``. Raises ScenarioError, naming the assignment, for a
    missing ``=``, an empty path or value, bad YAML, a path through a scalar, and an item that
    the list does not have.
    """
    for assignment in assignments:
        source = _applied(source, assignment)
    return source


def _applied(source: Source, assignment: str) -> Source:
    label = f"--set {cut(assignment)}"
    path, equals, text = assignment.partition("=")
    if not equals:
        raise ScenarioError(f"{label}: no '='; write --set a.b=value")
    parts = _parts(path, label)
    value = compose(text, lambda place: label, override=label)
    if value is None or (value.content is None and not text.strip()):
        raise ScenarioError(f"{label}: no value after '='; write null for none, '' for no text")
    return _assigned(source, parts, value, label, assignment)


def assign(source: Source, path: str, value: Any, where: str) -> Source:
    """The source with ``value``, plain data, at ``path``, such as ``a.b``.

    ``where`` says who gave it, for the beginning of a message; errors as :func:`apply_overrides`.
    """
    node = _node(value, Place(0, 0, where))
    text = f"{path}={json.dumps(value, ensure_ascii=False)}"
    return _assigned(source, _parts(path, where), node, where, text)


def _node(value: Any, place: Place) -> Node:
    if isinstance(value, Mapping):
        return Node({key: (place, _node(below, place)) for key, below in value.items()}, place)
    if isinstance(value, list | tuple):
        return Node(tuple(_node(item, place) for item in value), place)
    return Node(value, place)


def _parts(path: str, label: str) -> list[str]:
    parts = [part.strip() for part in path.split(".")]
    if not path.isprintable():
        raise ScenarioError(f"{label}: a character before '=' that no key has")
    if not all(parts):
        raise ScenarioError(f"{label}: an empty key before '='; write --set a.b=value")
    return parts


def _assigned(source: Source, parts: list[str], value: Node, label: str, assignment: str) -> Source:
    if len(parts) + value.depth > DEEPEST_NESTING:
        raise ScenarioError(f"{label}: nested deeper than {DEEPEST_NESTING} levels")
    root = _with(source.root, parts, 0, value, label)
    return replace(source, root=root, overrides=(*source.overrides, assignment))


def _with(node: Node, parts: list[str], at: int, value: Node, label: str) -> Node:
    """``node`` with ``value`` at ``parts[at:]`` below it."""
    if at == len(parts):
        return value
    place = Place(0, 0, label)
    part = parts[at]
    if isinstance(node.content, tuple):
        index = _index(node.content, parts, at, label)
        items = list(node.content)
        items[index] = _with(items[index], parts, at + 1, value, label)
        return Node(tuple(items), node.place)
    if isinstance(node.content, Mapping):
        known_place, known = node.content.get(part, (place, Node(None, place)))
        key_place = place if at == len(parts) - 1 else known_place
        entry = (key_place, _with(known, parts, at + 1, value, label))
        return Node({**node.content, part: entry}, node.place)
    if node.content is None:
        return Node({part: (place, _with(Node(None, place), parts, at + 1, value, label))}, place)
    raise ScenarioError(
        f"{label}: {'.'.join(parts[:at])} is {shown(node.content)}, neither a mapping nor a list; "
        f"give it a whole value: --set {'.'.join(parts[:at])}={{{part}: …}}"
    )


def _index(items: tuple[Node, ...], parts: list[str], at: int, label: str) -> int:
    """The item that ``parts[at]`` names."""
    text = parts[at]
    if text.isdecimal() and text.isascii() and len(text) < 10 and int(text) < len(items):
        return int(text)
    has = f"items 0 to {len(items) - 1}" if items else "no items"
    raise ScenarioError(
        f"{label}: {'.'.join(parts[:at])} is a list with {has}; "
        f"'{text}' is none of them; set the whole list to change its length"
    )
