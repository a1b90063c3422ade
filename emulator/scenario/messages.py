"""What pydantic found wrong with a scenario, told in the words of its file.

pydantic names a place by the path it took through the model, on which the tags of unions are
steps too: ``('federation', 'pacing', 'synchronous', 'participants')``. Here the model is walked
along that path, to drop those steps, to learn what the model knows at the place, and to find the
file's line. One line a fault, ordered by place in the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from emulator.errors import ScenarioError, nearest
from emulator.scenario.expected import Expected, expectation, of_field
from emulator.scenario.source import Loc, Place, Source, cut, printable, shown

__all__ = ["explain", "placed"]

_MOST_LINES: Final = 40
_MISSING: Final = "missing; required key"
_SPACE: Final = " (a space is needed after ':')"
_FAR: Final = 1_000_000
_MOST_HOMES: Final = 3  # a key that lives in more places than this says nothing about the error

_MUST_BE: Final[Mapping[str, str]] = {
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping",
    "float_type": "must be a number",
    "int_from_float": "must be a whole number",
    "int_type": "must be a whole number",
    "list_type": "must be a list",
    "mapping_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "model_type": "must be a mapping",
    "path_type": "must be the path of a file or folder",
    "string_type": "must be a string",
    "tuple_type": "must be a list",
}
_BOUNDS: Final = {"gt": "greater than", "ge": "at least", "lt": "less than", "le": "at most"}
_WRAPPED: Final = re.compile(r"function-(?:before|after|wrap)\[.*?\(\), (.*)\]")
_LEADING_PATH: Final = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*", re.ASCII)


def explain(error: ValidationError, source: Source, model: type[BaseModel]) -> ScenarioError:
    """All faults that ``error`` holds as one ScenarioError, each on a line of its own:
    ``file.yaml:12:5: federation.pacing.over_comitment: unknown key (did you mean …?)``.

    ``error`` came from validating ``source.data`` against ``model``. A validator's own ValueError
    keeps its text; each line of it is a fault, and one that begins with the path of a value, as
    the file has it, is put at that value.
    """
    items: list[Any] = [i for i in error.errors(include_url=False) if not _short_of_wrong(i)]
    sites = [(_site(model, source, item["loc"]), item) for item in items]
    faults: list[_Fault] = []
    for site, item in _meant(sites, source):
        faults += _faults(site, item, source, model)
    told = sorted(_joined(_without_echoes(faults)), key=_Fault.order)
    lines = [fault.text(source) for fault in told]
    lines = list(dict.fromkeys(lines))
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES:] = [f"{source.path}: … and {len(lines) - _MOST_LINES} more"]
    return ScenarioError("\n".join(lines))


@contextmanager
def placed(source: Source) -> Iterator[None]:
    """A ScenarioError that leaves the body and begins with the path of a key, such as
    ``task.partition: …``, gets the key's place in front, as in :func:`explain`."""
    try:
        yield
    except ScenarioError as error:
        path = _leading_path(str(error))
        if type(error) is not ScenarioError or len(path) < 2 or source.find(path[:1]) is None:
            raise
        where = source.where(source.place(path))
        raise ScenarioError(f"{where}: {error}") from error.__cause__


# --- from pydantic's path to the file's ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Branch:
    """A member of an untagged union on pydantic's path: the union's place in pydantic's path and
    in the file, the name of the member, and the member if the model tells which."""

    union: Loc
    path: Loc
    name: str
    member: Expected | None

    def takes(self, content: object) -> bool:
        """Whether it is for values of this kind: mapping, list or scalar."""
        if self.member is None:
            return not isinstance(content, tuple | Mapping)
        if self.member.container is list:
            return isinstance(content, tuple)
        if self.member.container is dict or self.member.members or self.member.model:
            return isinstance(content, Mapping)
        return not isinstance(content, tuple | Mapping)


@dataclass(frozen=True, slots=True)
class _Site:
    """Where an error is in the file, and what the model expects there (None: it can't tell)."""

    path: Loc
    expected: Expected | None
    branches: tuple[_Branch, ...]


def _site(model: type[BaseModel], source: Source, loc: Loc) -> _Site:
    path: Loc = ()
    branches: list[_Branch] = []
    expected: Expected | None = expectation(model)
    for at, part in enumerate(loc):
        if expected is not None and expected.discriminator is not None:
            expected = expected.tags().get(str(part))
        elif expected is not None and expected.members:
            member = _member(expected, str(part))
            branches.append(_Branch(loc[:at], path, str(part), member))
            expected = member
        elif part == "[key]":
            continue
        else:
            # Where the model can't tell, a step is real if the data has it, and else a tag.
            node = source.find(path)
            known = expected is not None and (expected.model or expected.container)
            if known or (node is not None and node.child(part) is not None):
                path = (*path, part)
            expected = None if expected is None else expected.below(part)
    return _Site(path, expected, tuple(branches))


def _member(union: Expected, name: str) -> Expected | None:
    """The member of an untagged union that pydantic names ``name`` on its path."""
    while match := _WRAPPED.fullmatch(name):
        name = match[1]
    for member in union.members:
        tagged = member.discriminator is not None
        written = "tagged-union" if tagged else str(getattr(member.core, "__name__", ""))
        if name == written or name.partition("[")[0] == written.partition("[")[0].casefold():
            return member
    return None


def _short_of_wrong(item: Any) -> bool:
    """Whether a list is too short only because pydantic does not count its items that are wrong,
    each of which has a complaint of its own."""
    if item["type"] != "too_short" or not isinstance(item["input"], list | tuple):
        return False
    return bool(len(item["input"]) >= item["ctx"]["min_length"])


def _meant(found: list[tuple[_Site, Any]], source: Source) -> Iterator[tuple[_Site, Any]]:
    """The errors without those of union members that the file did not mean.

    For ``PositiveSeconds | list[PositiveSeconds]`` pydantic gives both members' complaints; those
    of a member for another kind of value go, if one for this kind has complaints.
    """
    meant: dict[Loc, set[str]] = {}
    for site, _ in found:
        for branch in site.branches:
            node = source.find(branch.path)
            if node is not None and branch.takes(node.content):
                meant.setdefault(branch.union, set()).add(branch.name)
    for site, item in found:
        if all(b.name in meant.get(b.union, (b.name,)) for b in site.branches):
            yield site, item


# --- the texts -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Fault:
    """One line of the message. ``union``: it is one of several answers to the same question."""

    place: Place
    path: Loc
    message: str
    union: Loc | None = None

    def order(self) -> tuple[bool, int, int, str, str]:
        """By line and column; what the command line gave comes last."""
        place = self.place
        return bool(place.override), place.line, place.column, _dotted(self.path), self.message

    def text(self, source: Source) -> str:
        named = f"{_dotted(self.path)}: " if self.path else ""
        return printable(f"{source.where(self.place)}: {named}{self.message}")


def _dotted(path: Loc) -> str:
    return ".".join(cut(str(part)) for part in path)


def _without_echoes(faults: list[_Fault]) -> list[_Fault]:
    """The faults without keys that are missing only because they are misspelt."""
    told = {(f.path[:-1], f.message.partition(";")[0]) for f in faults}
    return [
        f
        for f in faults
        if not f.message.startswith(_MISSING)
        or (f.path[:-1], f"unknown key (did you mean '{f.path[-1]}'?)") not in told
    ]


def _joined(faults: list[_Fault]) -> list[_Fault]:
    """The members of one union that complain of the same value share a line."""
    lines: dict[tuple[Loc, object], _Fault] = {}
    for at, fault in enumerate(faults):
        key = (fault.path, at if fault.union is None else fault.union)
        known = lines.setdefault(key, fault)
        if fault.message not in known.message:
            # That the value is not allowed, and what was found, is said once.
            more = fault.message.partition(" is not allowed; allowed: ")[2] or fault.message
            lines[key] = replace(known, message=f"{known.message}; or {more}")
    return list(lines.values())


def _faults(
    site: _Site, item: dict[str, Any], source: Source, model: type[BaseModel]
) -> list[_Fault]:
    kind, path = item["type"], site.path
    if kind in ("value_error", "assertion_error") and "error" in item.get("ctx", {}):
        text = str(item["ctx"]["error"]) or "is not allowed"
        found = [_own(line, site, source) for line in text.splitlines()]
    elif kind == "missing":
        what = "missing; required item" if isinstance(path[-1], int) else _MISSING
        found = [_Fault(source.key_place(path), path, f"{what}{_hint(site)}")]
    elif kind == "extra_forbidden":
        parent = _site(model, source, item["loc"][:-1])
        found = [_Fault(source.key_place(path), path, _unknown_key(site, parent, model))]
    elif kind in ("union_tag_invalid", "union_tag_not_found"):
        found = [_wrong_tag(site, item, source)]
    else:
        key = item["loc"][-1:] == ("[key]",)
        place = source.key_place(path) if key else source.place(path)
        found = [_Fault(place, path, _wrong_value(site, item, source))]
    last = site.branches[-1] if site.branches else None
    return [replace(f, union=last.union) if last and last.path == path else f for f in found]


def _own(line: str, site: _Site, source: Source) -> _Fault:
    """A line of a validator's own text, at the value whose path it begins with, if any."""
    node = source.find(site.path)
    if node is not None and isinstance(node.content, Mapping):
        named = _leading_path(line)
        for path in ((*site.path, *named), named):
            if named and source.find(path) is not None:
                # A path in full is not said twice.
                shown_path = () if path == named else site.path
                return _Fault(source.place(path), shown_path, line)
        if len(named) > 1 and source.find(named[:1]) is not None:
            return _Fault(source.key_place(named), (), line)  # of a key that is not there
    elif node is not None and shown(node.content) not in line and str(node.content) not in line:
        line = f"{line}, found {shown(node.content)}"
    return _Fault(source.place(site.path), site.path, line)


def _leading_path(text: str) -> Loc:
    match = _LEADING_PATH.match(text)
    parts = match[0].split(".") if match else []
    return tuple(int(part) if part.isdigit() else part for part in parts)


def _hint(site: _Site) -> str:
    """What may stand at a required key, in short."""
    if site.expected is None:
        return ""
    if isinstance(site.expected.discriminator, str):
        return f"; allowed: {site.expected.discriminator}: {', '.join(site.expected.tags())}"
    choices = site.expected.choices()
    return f"; allowed: {_listed(choices)}" if choices else ""


def _listed(choices: Any) -> str:
    return ", ".join(value if isinstance(value, str) else shown(value) for value in choices)


def _unknown_key(site: _Site, parent: _Site, model: type[BaseModel]) -> str:
    key = str(site.path[-1])
    known = parent.expected.fields() if parent.expected else {}
    homes = list(dict.fromkeys(_homes(expectation(model), key, "", "", ())))
    here = [tag for home, tag in homes if home == _dotted(parent.path) and tag]
    hint = f" (it goes with {' or '.join(here)})" if here else nearest(key, known)
    if len(homes) > _MOST_HOMES:  # those nearest to the top, where it has its plain meaning
        least = min(home.count(".") for home, _ in homes)
        homes = [(home, tag) for home, tag in homes if home.count(".") == least]
    if not hint and 0 < len(homes) <= _MOST_HOMES and _dotted(parent.path) not in dict(homes):
        places = [(home or "the top level") + (tag and f" with {tag}") for home, tag in homes]
        hint = f" (it belongs under {', or '.join(places)})"
    if not hint and ":" in key:
        hint = _SPACE
    return f"unknown key{hint}; allowed: {', '.join(known) or 'no keys'}"


def _homes(
    expected: Expected, key: str, path: str, tag: str, above: tuple[Any, ...]
) -> Iterator[tuple[str, str]]:
    """All (path, tag that chooses the member there) under which the model knows ``key``."""
    if expected.model is not None:
        if expected.model in above:
            return
        for name, field in expected.fields().items():
            if name == key:
                yield path, tag
            deeper = f"{path}.{name}" if path else name
            yield from _homes(of_field(field), key, deeper, "", (*above, expected.model))
    elif isinstance(expected.discriminator, str):
        for value, member in expected.tags().items():
            chosen = f"{expected.discriminator}: {value}"
            yield from _homes(member, key, path, chosen, above)
    elif expected.members:
        for member in expected.members:
            yield from _homes(member, key, path, tag, above)
    elif expected.container is not None:
        item = expected.below(0 if expected.container is list else "")
        if item is not None:
            yield from _homes(item, key, f"{path}[]", "", above)


def _wrong_tag(site: _Site, item: dict[str, Any], source: Source) -> _Fault:
    """No member of a tagged union has the tag, or there is none."""
    node = source.find(site.path)
    found = None if node is None else node.content
    tags = list(site.expected.tags()) if site.expected else []
    allowed = ", ".join(tags) or str(item["ctx"].get("expected_tags", ""))
    key = site.expected.discriminator if site.expected else None
    given = item["ctx"].get("tag")
    if not isinstance(key, str):
        # A function chose; what it looked at is known only if the tag stands in the file.
        key = next((k for k, v in _entries(found) if v == given), None) if given else None
    if key is None:
        message = f"{shown(found)} is not allowed; allowed: {allowed}"
        return _Fault(source.place(site.path), site.path, message)
    path = (*site.path, key)
    if given is None or source.find(path) is None:
        glued = any(name.startswith(f"{key}:") for name, _ in _entries(found))
        message = f"{_MISSING}{_SPACE * glued}; allowed: {allowed}"
        return _Fault(source.key_place(path), path, message)
    value = dict(_entries(found))[key]
    message = f"unknown {key} {shown(value)}{nearest(str(given), tags)}; allowed: {allowed}"
    return _Fault(source.place(path), path, message)


def _entries(content: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(content, Mapping):
        yield from ((key, node.content) for key, (_, node) in content.items())


def _wrong_value(site: _Site, item: dict[str, Any], source: Source) -> str:
    """What the value must be, what may stand there, and what was found."""
    kind, expected = item["type"], site.expected
    node = source.find(site.path)
    value = item["input"] if node is None else node.content
    choices = expected.choices() if expected else ()
    if kind in ("literal_error", "enum"):
        allowed = _listed(choices) or str(item["ctx"].get("expected", ""))
        hint = nearest(str(value), (c for c in choices if isinstance(c, str)))
        return f"{shown(value)} is not allowed{hint}; allowed: {allowed}"
    if kind in ("too_short", "too_long"):
        bound, limit = ("least", "min") if kind == "too_short" else ("most", "max")
        length = item["ctx"]["actual_length"]
        items = item["ctx"][f"{limit}_length"]
        return f"must have at {bound} {items} item{'s' * (items != 1)}, found {length}"
    must = _MUST_BE.get(kind) or re.sub("^(?:Input|String) should", "must", item["msg"])
    if expected is not None and must == "must be a mapping":
        must += _mapping_hint(expected, value)
    if kind.startswith(("greater_than", "less_than")) and expected and expected.limits:
        # Who is below 1 need not hear of a bound at 2^53.
        farthest = _FAR if kind.startswith("greater_than") else math.inf
        bounds = (
            f"{words} {getattr(limit, name)}"
            for name, words in _BOUNDS.items()
            for limit in expected.limits
            if getattr(limit, name, None) is not None and getattr(limit, name) < farthest
        )
        must = f"must be {' and '.join(bounds)}"
    if kind == "string_type" and isinstance(value, int | float):
        return f"{must}, found {shown(value)}; quote it"
    return f"{must}, found {shown(value)}"


def _mapping_hint(expected: Expected, value: object) -> str:
    """What the mapping holds; for a bare tag (``pacing: buffered``), how to write it."""
    key, tags = expected.discriminator, expected.tags()
    if not isinstance(key, str):
        return f" (keys: {', '.join(expected.fields())})" if expected.fields() else ""
    example = value if isinstance(value, str) and value in tags else next(iter(tags), "…")
    return f" such as {{{key}: {example}}} (allowed: {', '.join(tags)})"
