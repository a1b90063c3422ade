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
            kind = get_args(model.model_fields["kind"].annotation)[0]
            # Its own words: getdoc() would take those of the base class where it has none.
            about = " ".join((model.__dict__.get("__doc__") or "").split())
            lines.append(f"  {kind}" + (f": {about}" if about else ""))
            lines.extend(
                f"      {option}{_default(info)}"
                for option, info in model.model_fields.items()
                if option != "kind"
            )
    return "\n".join(lines)


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
