"""What pydantic found wrong with a scenario, told in the words of its file.

pydantic names a place by the path it took through the model, on which the tags of unions are
steps too: ``('federation', 'pacing', 'synchronous', 'participants')``. Here the model is walked
along that path, to drop those steps, to learn what the model knows at the place, and to find the
file's line. One line a fault, ordered by place in the file.
"""

from __future__ import annotations

import enum
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Discriminator, RootModel, Tag, ValidationError
from pydantic.fields import FieldInfo

from emulator.errors import ScenarioError, nearest
from emulator.scenario.source import Loc, Place, Source, cut, printable, shown

__all__ = ["explain"]

_MOST_LINES: Final = 40
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
    items: list[Any] = error.errors(include_url=False)
    sites = [(_site(model, source, item["loc"]), item) for item in items]
    faults: list[_Fault] = []
    for site, item in _meant(sites, source):
        faults += _faults(site, item, source, model)
    lines = [fault.text(source) for fault in sorted(_joined(faults), key=_Fault.order)]
    lines = list(dict.fromkeys(lines))
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES:] = [f"{source.path}: … and {len(lines) - _MOST_LINES} more"]
    return ScenarioError("\n".join(lines))


# --- what the model expects at a place -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Expected:
    """A type without its wrappers; of a union, the members without None."""

    core: Any
    members: tuple[_Expected, ...] = ()
    discriminator: str | Callable[..., Any] | None = None
    tag: str | None = None
    limits: tuple[object, ...] = ()

    @property
    def model(self) -> type[BaseModel] | None:
        is_model = isinstance(self.core, type) and issubclass(self.core, BaseModel)
        return self.core if is_model else None

    @property
    def container(self) -> type | None:
        """``dict`` or ``list`` if it holds values of its own at further steps of a path."""
        core = get_origin(self.core) or self.core
        if core is dict:
            return dict
        return list if core in (list, tuple, set, frozenset) else None

    def below(self, part: str | int) -> _Expected | None:
        """What is expected one step further, or None if the model can't tell."""
        if self.model is not None:
            field = self.fields().get(str(part))
            return None if field is None else _of_field(field)
        args = [arg for arg in get_args(self.core) if arg is not Ellipsis]
        if self.container is dict and len(args) == 2:
            return _expected(args[1])
        if self.container is list and args and isinstance(part, int):
            return _expected(args[min(part, len(args) - 1)])
        return None

    def fields(self) -> dict[str, FieldInfo]:
        """The fields of a model by the key that a file has for them."""
        if self.model is None:
            return {}
        return {_key(name, field): field for name, field in self.model.model_fields.items()}

    def tags(self) -> dict[str, _Expected]:
        """The members of a tagged union by tag, in the order of the model."""
        found: dict[str, _Expected] = {}
        for member in self.members:
            if member.tag is not None:
                found.setdefault(member.tag, member)
            elif member.members:
                found |= replace(member, discriminator=self.discriminator).tags()
            elif isinstance(self.discriminator, str) and self.discriminator in member.fields():
                for value in _of_field(member.fields()[self.discriminator]).choices():
                    found.setdefault(str(value), member)
        return found

    def choices(self) -> tuple[Any, ...]:
        """The values of a Literal or an Enum."""
        if get_origin(self.core) is Literal:
            return get_args(self.core)
        if isinstance(self.core, type) and issubclass(self.core, enum.Enum):
            return tuple(member.value for member in self.core)
        return tuple(value for member in self.members for value in member.choices())


def _key(name: str, field: FieldInfo) -> str:
    for alias in (field.validation_alias, field.alias):
        if isinstance(alias, str):
            return alias
    return name


def _of_field(field: FieldInfo) -> _Expected:
    return _expected(field.annotation, (field,))


def _expected(annotation: Any, metadata: tuple[Any, ...] = ()) -> _Expected:
    """The annotation without Annotated, type aliases and None; what they said is kept."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            metadata = (*metadata, *more)
        elif hasattr(annotation, "__value__"):  # a type alias
            annotation = annotation.__value__
        else:
            break
    discriminator, tag, limits = _said(metadata)
    if get_origin(annotation) in (Union, types.UnionType):
        given = [arg for arg in get_args(annotation) if arg is not type(None)]
        if len(given) == 1:
            return _expected(given[0], metadata)
        members = tuple(_expected(arg) for arg in given)
        return _Expected(None, members, discriminator, tag, limits)
    if isinstance(annotation, type) and issubclass(annotation, RootModel):
        return _of_field(annotation.model_fields["root"])
    return _Expected(annotation, (), None, tag, limits)


def _said(metadata: tuple[Any, ...]) -> tuple[Any, str | None, tuple[object, ...]]:
    """(discriminator, tag, constraints) of an Annotated or a field."""
    discriminator, tag = None, None
    limits: tuple[object, ...] = ()
    for item in metadata:
        if isinstance(item, FieldInfo):
            inner, _, more = _said(tuple(item.metadata))
            discriminator = item.discriminator or inner or discriminator
            limits += more
        elif isinstance(item, Tag):
            tag = item.tag
        elif isinstance(item, Discriminator):
            discriminator = item
        else:
            limits += (item,)
    if isinstance(discriminator, Discriminator):
        discriminator = discriminator.discriminator
    return discriminator, tag, limits


# --- from pydantic's path to the file's ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Branch:
    """A member of an untagged union on pydantic's path: the union's place in pydantic's path and
    in the file, the name of the member, and the member if the model tells which."""

    union: Loc
    path: Loc
    name: str
    member: _Expected | None

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
    expected: _Expected | None
    branches: tuple[_Branch, ...]


def _site(model: type[BaseModel], source: Source, loc: Loc) -> _Site:
    path: Loc = ()
    branches: list[_Branch] = []
    expected: _Expected | None = _expected(model)
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


def _member(union: _Expected, name: str) -> _Expected | None:
    """The member of an untagged union that pydantic names ``name`` on its path."""
    while match := _WRAPPED.fullmatch(name):
        name = match[1]
    for member in union.members:
        tagged = member.discriminator is not None
        written = "tagged-union" if tagged else str(getattr(member.core, "__name__", ""))
        if name == written or name.partition("[")[0] == written.partition("[")[0].casefold():
            return member
    return None


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


def _joined(faults: list[_Fault]) -> list[_Fault]:
    """The members of one union that complain of the same value share a line."""
    lines: dict[tuple[Loc, object], _Fault] = {}
    for at, fault in enumerate(faults):
        key = (fault.path, at if fault.union is None else fault.union)
        known = lines.setdefault(key, fault)
        if fault.message not in known.message:
            lines[key] = replace(known, message=f"{known.message}; or {fault.message}")
    return list(lines.values())


def _faults(
    site: _Site, item: dict[str, Any], source: Source, model: type[BaseModel]
) -> list[_Fault]:
    kind, path = item["type"], site.path
    if kind in ("value_error", "assertion_error") and "error" in item.get("ctx", {}):
        text = str(item["ctx"]["error"]) or "is not allowed"
        found = [_own(line, site, source) for line in text.splitlines()]
    elif kind == "missing":
        found = [_Fault(source.key_place(path), path, f"missing; required key{_hint(site)}")]
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
        match = _LEADING_PATH.match(line)
        parts = match[0].split(".") if match else []
        named = tuple(int(part) if part.isdigit() else part for part in parts)
        for path in ((*site.path, *named), named):
            if named and source.find(path) is not None:
                # A path in full is not said twice.
                shown_path = () if path == named else site.path
                return _Fault(source.place(path), shown_path, line)
    elif node is not None and shown(node.content) not in line and str(node.content) not in line:
        line = f"{line}, found {shown(node.content)}"
    return _Fault(source.place(site.path), site.path, line)


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
    hint = nearest(key, known)
    if not hint:
        homes = list(dict.fromkeys(_homes(_expected(model), key, "", "", ())))
        here = [tag for home, tag in homes if home == _dotted(parent.path) and tag]
        if here:
            hint = f" (it goes with {' or '.join(here)})"
        elif 0 < len(homes) <= _MOST_HOMES:
            places = [(home or "the top level") + (tag and f" with {tag}") for home, tag in homes]
            hint = f" (it belongs under {', or '.join(places)})"
    if not hint and ":" in key:
        hint = " (a space is needed after ':')"
    return f"unknown key{hint}; allowed: {', '.join(known) or 'no keys'}"


def _homes(
    expected: _Expected, key: str, path: str, tag: str, above: tuple[Any, ...]
) -> Iterator[tuple[str, str]]:
    """All (path, tag that chooses the member there) under which the model knows ``key``."""
    if expected.model is not None:
        if expected.model in above:
            return
        for name, field in expected.fields().items():
            if name == key:
                yield path, tag
            deeper = f"{path}.{name}" if path else name
            yield from _homes(_of_field(field), key, deeper, "", (*above, expected.model))
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
        message = f"missing; required key; allowed: {allowed}"
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
    must = _MUST_BE.get(kind) or item["msg"].replace("Input should", "must", 1)
    if expected is not None and must == "must be a mapping":
        must += _mapping_hint(expected, value)
    if kind.startswith(("greater_than", "less_than")) and expected and expected.limits:
        bounds = (
            f"{words} {getattr(limit, name)}"
            for name, words in _BOUNDS.items()
            for limit in expected.limits
            if getattr(limit, name, None) is not None
        )
        must = f"must be {' and '.join(bounds)}"
    if kind == "string_type" and isinstance(value, int | float):
        return f"{must}, found {shown(value)}; quote it"
    return f"{must}, found {shown(value)}"


def _mapping_hint(expected: _Expected, value: object) -> str:
    """What the mapping holds; for a bare tag (``pacing: buffered``), how to write it."""
    key, tags = expected.discriminator, expected.tags()
    if not isinstance(key, str):
        return f" (keys: {', '.join(expected.fields())})" if expected.fields() else ""
    example = value if isinstance(value, str) and value in tags else next(iter(tags), "…")
    return f" such as {{{key}: {example}}} (allowed: {', '.join(tags)})"
