"""What can be chosen on each axis, read off the schema itself."""

from __future__ import annotations

import inspect
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from emulator.errors import ScenarioError, nearest
from emulator.scenario import schema

_AXES: dict[str, tuple[type[BaseModel], str]] = {
    "pacing": (schema.Federation, "pacing"),
    "selection": (schema.Federation, "selection"),
    "structure": (schema.Federation, "structure"),
    "objective": (schema.Federation, "objective"),
    "server_optimizer": (schema.Federation, "server_optimizer"),
    "payload": (schema.Federation, "payload"),
    "faults": (schema.Federation, "faults"),
    "dataset": (schema.Task, "dataset"),
    "partition": (schema.Task, "partition"),
    "model": (schema.Task, "model"),
    "devices": (schema.System, "devices"),
    "availability": (schema.System, "availability"),
    "network": (schema.System, "network"),
}


def catalogue(axis: str | None = None) -> str:
    """The kinds on one axis or on all, a line each with options and defaults."""
    if axis is not None and axis not in _AXES:
        raise ScenarioError(
            f"there is no axis '{axis}'{nearest(axis, _AXES)}; axes are {', '.join(_AXES)}"
        )
    lines: list[str] = []
    for name in [axis] if axis else _AXES:
        lines.append(f"{name}:")
        owner, field = _AXES[name]
        for model in _models(owner.model_fields[field].annotation):
            lines.extend(_lines_of(model, "  "))
    return "\n".join(lines)


def _lines_of(model: type[BaseModel], indent: str) -> list[str]:
    """A kind with its options, and below each of these the kinds or the keys that it takes."""
    # Its own words: getdoc() would take those of the base class where it has none.
    about = " ".join((model.__dict__.get("__doc__") or "").split())
    kind = model.model_fields.get("kind")
    name = get_args(kind.annotation)[0] if kind else ""
    lines = [f"{indent}{name}{': ' if name and about else ''}{about}".rstrip()]
    for option, info in model.model_fields.items():
        if option == "kind":
            continue
        lines.append(f"{indent}    {option}{_default(info)}")
        for below in _models(info.annotation):
            if "dist" not in below.model_fields:  # distributions are the same everywhere
                lines.extend(_lines_of(below, f"{indent}      "))
    return [line for line in lines if line.strip()]


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The sections in a (nested) union."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "  (required)"
    value = info.default
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return f"  [default: {value}]"
