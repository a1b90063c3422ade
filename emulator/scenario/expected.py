"""What a pydantic model expects at a place of a scenario: fields, members of unions, choices."""

from __future__ import annotations

import enum
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Discriminator, RootModel, Tag
from pydantic.fields import FieldInfo

__all__ = ["Expected", "expectation", "of_field"]


@dataclass(frozen=True, slots=True)
class Expected:
    """A type without its wrappers; of a union, the members without None."""

    core: Any
    members: tuple[Expected, ...] = ()
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

    def below(self, part: str | int) -> Expected | None:
        """What is expected one step further, or None if the model can't tell."""
        if self.model is not None:
            field = self.fields().get(str(part))
            return None if field is None else of_field(field)
        args = [arg for arg in get_args(self.core) if arg is not Ellipsis]
        if self.container is dict and len(args) == 2:
            return expectation(args[1])
        if self.container is list and args and isinstance(part, int):
            return expectation(args[min(part, len(args) - 1)])
        return None

    def fields(self) -> dict[str, FieldInfo]:
        """The fields of a model by the key that a file has for them."""
        if self.model is None:
            return {}
        return {_key(name, field): field for name, field in self.model.model_fields.items()}

    def tags(self) -> dict[str, Expected]:
        """The members of a tagged union by tag, in the order of the model."""
        found: dict[str, Expected] = {}
        for member in self.members:
            if member.tag is not None:
                found.setdefault(member.tag, member)
            elif member.members:
                found |= replace(member, discriminator=self.discriminator).tags()
            elif isinstance(self.discriminator, str) and self.discriminator in member.fields():
                for value in of_field(member.fields()[self.discriminator]).choices():
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


def of_field(field: FieldInfo) -> Expected:
    return expectation(field.annotation, (field,))


def expectation(annotation: Any, metadata: tuple[Any, ...] = ()) -> Expected:
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
            return expectation(given[0], metadata)
        members = tuple(expectation(arg) for arg in given)
        return Expected(None, members, discriminator, tag, limits)
    if isinstance(annotation, type) and issubclass(annotation, RootModel):
        return of_field(annotation.model_fields["root"])
    return Expected(annotation, (), None, tag, limits)


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
