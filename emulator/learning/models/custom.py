"""A user's own model, named in the scenario as ``callable: "package.module:function"``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torch import nn

from emulator.errors import ScenarioError, nearest


def resolve_callable(spec: str) -> Callable[..., Any]:
    """The object that ``"package.module:name"`` names.

    Raises ScenarioError for another form, a module that cannot be imported, a name that it does
    not have, and an object that cannot be called.
    """
    where = f"task.model.callable: {spec!r}"
    module_name, colon, name = spec.partition(":") if isinstance(spec, str) else ("", "", "")
    if not (colon and name and all(part.isidentifier() for part in module_name.split("."))):
        raise ScenarioError(f"{where} is not of the form 'package.module:function'")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module can fail in any way
        raise ScenarioError(
            f"{where}: the module '{module_name}' cannot be imported "
            f"({type(error).__name__}: {error}); install it in this environment, or put its "
            "folder on PYTHONPATH"
        ) from error
    if not hasattr(module, name):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise ScenarioError(
            f"{where}: the module '{module_name}' ({module.__file__}) has no '{name}'"
            f"{nearest(name, public)}; name a function that it defines"
        )
    found = getattr(module, name)
    if not callable(found):
        raise ScenarioError(
            f"{where} is a {type(found).__name__}, which cannot be called; name a function "
            "fn(input_shape=…, classes=…) that returns a torch.nn.Module"
        )
    return found  # type: ignore[no-any-return]


def custom(
    input_shape: tuple[int, ...], classes: int, *, callable: str, **options: Any
) -> nn.Module:
    """What the user's function returns for ``fn(input_shape=…, classes=…, **options)``.

    Raises ScenarioError when the function cannot be found, fails, or returns no ``nn.Module``.
    """
    function = resolve_callable(callable)
    where = f"task.model.callable: '{callable}'"
    given = "".join(f", {name}={value!r}" for name, value in options.items())
    call = f"(input_shape={input_shape}, classes={classes}{given})"
    try:
        model = function(input_shape=input_shape, classes=classes, **options)
    except Exception as error:  # a user's function can fail in any way
        raise ScenarioError(
            f"{where} failed when called with {call} ({type(error).__name__}: {error}); it must "
            "take these arguments and return a torch.nn.Module"
        ) from error
    if not isinstance(model, nn.Module):
        raise ScenarioError(
            f"{where} returned a {type(model).__name__} when called with {call}; "
            "it must return a torch.nn.Module"
        )
    return model
