"""Choosing a registered function by the ``kind`` of a scenario, with its options checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from emulator.errors import ScenarioError, nearest

T = TypeVar("T")


def call_registered(
    where: str,
    registry: Mapping[str, Callable[..., T]],
    kind: str,
    options: Mapping[str, Any],
    *arguments: Any,
) -> T:
    """``registry[kind](*arguments, **options)``, once the kind and the options are known to fit.

    The keyword-only parameters of the registered function are its options; one without a
    default must be given. ``where`` is the key of the scenario, such as ``task.model``.
    Raises ScenarioError for an unknown kind, an unknown option or a missing one.
    """
    if kind not in registry:
        known = ", ".join(sorted(registry))
        raise ScenarioError(
            f"{where}.kind: '{kind}' is not known{nearest(kind, registry)}; use one of: {known}"
        )
    function = registry[kind]
    parameters = inspect.signature(function).parameters.values()
    allowed = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    required = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for name in options:
        if name not in allowed and not takes_any:
            raise ScenarioError(
                f"{where}: '{kind}' has no option '{name}'{nearest(name, allowed)}; "
                f"its options: {', '.join(allowed) or 'none'}"
            )
    for name in required:
        if name not in options:
            raise ScenarioError(f"{where}: '{kind}' needs the option '{name}'; add {name}: …")
    return function(*arguments, **options)
