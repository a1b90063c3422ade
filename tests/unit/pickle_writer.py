"""Pickles as other programs wrote them, opcode by opcode: no class of theirs is needed here."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray


def document(body: bytes) -> bytes:
    """A whole pickle of protocol 2."""
    return b"\x80\x02" + body + b"."


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def old_string(value: bytes) -> bytes:
    """Python 2's str."""
    return b"T" + struct.pack("<i", len(value)) + value


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def several(*items: bytes) -> bytes:
    """A tuple."""
    return b"(" + b"".join(items) + b"t"


def listed(*items: bytes) -> bytes:
    return b"](" + b"".join(items) + b"e"


def mapped(*pairs: tuple[bytes, bytes]) -> bytes:
    return b"}(" + b"".join(key + value for key, value in pairs) + b"u"


def call(function: bytes, *arguments: bytes) -> bytes:
    return function + several(*arguments) + b"R"


def build(obj: bytes, state: bytes) -> bytes:
    return obj + state + b"b"


def array(values: NDArray[Any], module: str = "numpy.core.multiarray") -> bytes:
    """An array of numbers as Python 2 and NumPy 1 wrote it (CIFAR)."""
    code = values.dtype.str.lstrip("<|>").encode()
    order = values.dtype.str[:1].encode()
    return _array(values.shape, old_string, code, order, old_string(values.tobytes()), module)


def latin1_array(values: NDArray[Any]) -> bytes:
    """An array of numbers as Python 3 and NumPy 1 wrote it in protocol 2 (HAPT)."""
    content = call(
        name("_codecs", "encode"), text(values.tobytes().decode("latin-1")), text("latin1")
    )
    code, order = values.dtype.str.lstrip("<|>").encode(), values.dtype.str[:1].encode()
    return _array(values.shape, lambda raw: text(raw.decode()), code, order, content)


def object_array(values: list[str]) -> bytes:
    content = listed(*map(text, values))
    return _array((len(values),), lambda raw: text(raw.decode()), b"O8", b"|", content)


def _array(
    shape: tuple[int, ...],
    string: Any,
    code: bytes,
    order: bytes,
    content: bytes,
    module: str = "numpy.core.multiarray",
) -> bytes:
    empty = call(
        name(module, "_reconstruct"), name("numpy", "ndarray"), several(number(0)), string(b"b")
    )
    kind = call(name("numpy", "dtype"), string(code), number(0), number(1))
    kind = build(
        kind,
        several(number(3), string(order), b"N", b"N", b"N", number(-1), number(-1), number(0)),
    )
    sides = several(*map(number, shape))
    return build(empty, several(number(1), sides, kind, b"\x89", content))


def frame(values: dict[str, NDArray[Any]]) -> bytes:
    """A pandas 1.0 DataFrame: one block for the columns of each type."""
    by_type: dict[str, list[str]] = {}
    for column, content in values.items():
        by_type.setdefault(content.dtype.str, []).append(column)
    blocks = [np.array([values[column] for column in columns]) for columns in by_type.values()]
    axes = listed(_index(list(values)))
    manager = build(
        _reconstructed("pandas.core.internals.managers", "BlockManager"),
        several(
            axes,
            listed(*map(latin1_array, blocks)),
            listed(*map(_index, by_type.values())),
            mapped(),
        ),
    )
    state = mapped((text("_data"), manager), (text("_typ"), text("dataframe")))
    return build(_reconstructed("pandas.core.frame", "DataFrame"), state)


def _reconstructed(module: str, attribute: str) -> bytes:
    return call(
        name("copy_reg", "_reconstructor"),
        name(module, attribute),
        name("__builtin__", "object"),
        b"N",
    )


def _index(columns: list[str]) -> bytes:
    return call(
        name("pandas.core.indexes.base", "_new_Index"),
        name("pandas.core.indexes.base", "Index"),
        mapped((text("data"), object_array(columns)), (text("name"), b"N")),
    )
