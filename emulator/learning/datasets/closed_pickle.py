"""Pickles of NumPy arrays in builtin containers, read without importing or calling anything.

Data sets are published as pickles (CIFAR, some sensor data), and a pickle can ask for any
function to be called. Here it gets stand-ins of ours, one for each name that an honest file of
this kind asks for; every other name ends the reading. NumPy itself is called only at the end,
with a type and a shape that were checked.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ScenarioError

# Unsigned, signed, float, boolean; 'O' holds Python values, such as the names of columns.
_TYPE = re.compile(r"[|<>=]?([uif][1248]|b1|O8?)")


class Admitted:
    """What a name in the pickle stands for: can be called, and nothing else.

    Functions and classes are not handed out themselves, because a pickle may set attributes of
    what it holds.
    """

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: object) -> None:
        raise ScenarioError("the pickle changes what it was only given to call")


class _Type:
    """A NumPy dtype: its name, and the byte order that comes with its state."""

    __slots__ = ("code",)

    def __init__(self, code: str, *_: object) -> None:
        if not isinstance(code, (str, bytes)):
            raise ScenarioError(f"the pickle names an array type {code!r}")
        text = code.decode("ascii") if isinstance(code, bytes) else code
        matched = _TYPE.fullmatch(text)
        if matched is None:
            raise ScenarioError(
                f"the pickle has an array of type {text!r}; numbers, booleans and Python values "
                "are read"
            )
        self.code = matched[1]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|", "="):
            raise ScenarioError(f"the pickle has an array of byte order {order!r}")
        self.code = order + self.code


class _Array:
    """A NumPy array as the pickle describes it; :attr:`values` is the array, or a list."""

    __slots__ = ("values",)

    def __init__(self, *_: object) -> None:
        self.values: Any = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, in_columns, content = state
        if not isinstance(kind, _Type) or not all(type(n) is int and n >= 0 for n in shape):
            raise ScenarioError(f"the pickle has an array of shape {shape!r} and type {kind!r}")
        if "O" in kind.code:
            if not isinstance(content, list) or len(content) != math.prod(shape):
                raise ScenarioError("the pickle has an array of Python values without them")
            self.values = content
            return
        if isinstance(content, str):  # protocol 2 of Python 2, read as Latin-1
            content = content.encode("latin-1")
        flat = np.frombuffer(content, dtype=np.dtype(kind.code))
        self.values = flat.reshape(shape, order="F" if in_columns else "C")


def _encode(text: str, encoding: str) -> bytes:
    """``codecs.encode`` as Python 3 uses it to write bytes into an old pickle."""
    if encoding not in ("latin1", "latin-1") or not isinstance(text, str):
        raise ScenarioError(f"the pickle encodes a {type(text).__name__} as {encoding!r}")
    return text.encode("latin-1")


_NUMPY: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encode,
}


class _ClosedUnpickler(pickle.Unpickler):
    def __init__(
        self, file: io.BytesIO, encoding: str, names: Mapping[tuple[str, str], Callable[..., Any]]
    ) -> None:
        super().__init__(file, encoding=encoding)
        self._names = {name: Admitted(function) for name, function in names.items()}

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return self._names[module_name, global_name]
        except KeyError:
            raise ScenarioError(
                f"the pickle asks for {module_name}.{global_name}, which no data set of this "
                "kind needs; nothing of it was run. Fetch the file from its publisher again"
            ) from None

    def persistent_load(self, pid: Any, /) -> Any:
        raise ScenarioError("the pickle points to objects outside itself, and is not read")


def load(
    content: bytes,
    where: str,
    *,
    encoding: str = "bytes",
    names: Mapping[tuple[str, str], Callable[..., Any]] | None = None,
) -> Any:
    """The object in a pickle, with stand-ins for arrays: pass those to :func:`array`.

    ``names`` admits more names, each with the function of ours to call for it; ``encoding`` is
    pickle's, for the strings of Python 2. Raises ScenarioError, which starts with ``where``, for
    any other name, and for a stream that is cut or no pickle.
    """
    try:
        unpickler = _ClosedUnpickler(io.BytesIO(content), encoding, {**_NUMPY, **(names or {})})
        return unpickler.load()
    except ScenarioError as error:
        raise ScenarioError(f"{where}: {error}") from None
    except Exception as error:  # a hostile or cut stream can raise nearly anything
        raise ScenarioError(
            f"{where}: is not a whole pickle of arrays in builtin containers "
            f"({type(error).__name__}: {error}); fetch the file again"
        ) from None


def array(found: object, where: str, dimensions: int) -> NDArray[Any]:
    """The numeric array behind a stand-in; ScenarioError, naming ``where``, for anything else."""
    values = found.values if isinstance(found, _Array) else found
    if not isinstance(values, np.ndarray) or values.ndim != dimensions:
        shape = f" of shape {values.shape}" if isinstance(values, np.ndarray) else ""
        raise ScenarioError(
            f"{where}: a numeric array of {dimensions} dimension(s) is expected, found a "
            f"{type(values).__name__.lstrip('_')}{shape}; fetch the file again"
        )
    return values


def python_values(found: object, where: str) -> list[Any]:
    """The Python values behind a stand-in for an array of them; ScenarioError for anything else."""
    if not isinstance(found, _Array) or not isinstance(found.values, list):
        raise ScenarioError(f"{where}: an array of names is expected; fetch the file again")
    return found.values
