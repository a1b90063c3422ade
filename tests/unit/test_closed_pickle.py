"""Pickles from outside: arrays are read as NumPy would, and nothing is ever run."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pickle_writer import (
    array,
    build,
    call,
    document,
    latin1_array,
    listed,
    mapped,
    name,
    number,
    object_array,
    old_string,
    several,
    text,
)

from emulator.errors import ScenarioError
from emulator.learning.datasets import closed_pickle

TABLE = np.arange(12, dtype=np.int64).reshape(3, 4)


@pytest.mark.parametrize("dtype", ["u1", "<i4", "<i8", ">i2", "<f4", "<f8"])
@pytest.mark.parametrize("write", [array, latin1_array])
def test_an_array_is_what_numpy_reads(write: Any, dtype: str) -> None:
    content = document(write(TABLE.astype(dtype)))
    ours = closed_pickle.array(closed_pickle.load(content, "here"), "here", 2)
    numpys = pickle.loads(content, encoding="bytes" if write is array else "ASCII")
    assert (ours.dtype.kind, ours.dtype.itemsize) == (numpys.dtype.kind, numpys.dtype.itemsize)
    np.testing.assert_array_equal(ours, numpys)
    np.testing.assert_array_equal(ours, TABLE)


@pytest.mark.parametrize("values", [TABLE, np.asfortranarray(TABLE), TABLE.astype(bool)])
def test_what_this_numpy_writes_is_read(values: NDArray[Any]) -> None:
    for protocol in (2, 3, 4):
        content = pickle.dumps({"a": values, b"b": [1, 2.5, None, "c"]}, protocol=protocol)
        found = closed_pickle.load(content, "here")
        np.testing.assert_array_equal(closed_pickle.array(found["a"], "here", 2), values)
        assert found[b"b"] == [1, 2.5, None, "c"]


def hostile(marker: Path) -> dict[str, tuple[bytes, str]]:
    touch = f"touch {marker}"
    system = call(name("os", "system"), text(touch))
    reconstruct = name("numpy.core.multiarray", "_reconstruct")
    return {
        "call": (system, "asks for os.system"),
        "in a list": (listed(number(1), system), "asks for os.system"),
        "posix": (call(name("posix", "system"), text(touch)), "asks for posix.system"),
        "eval": (call(name("__builtin__", "eval"), text("1")), "asks for __builtin__.eval"),
        "numpy": (call(name("numpy", "load"), text(str(marker))), "asks for numpy.load"),
        "dotted": (name("numpy", "ndarray.tofile"), "asks for numpy.ndarray.tofile"),
        "attribute": (
            build(reconstruct, several(b"N", mapped((text("x"), number(1))))),
            "changes what it was only given to call",
        ),
        "dtype": (
            call(name("numpy", "dtype"), text("V8"), number(0), number(1)),
            "array of type 'V8'",
        ),
        "codec": (
            call(name("_codecs", "encode"), text("ab"), text("rot13")),
            "encodes a str as 'rot13'",
        ),
        "outside": (text("x") + b"Q", "objects outside itself"),
        "too few bytes": (
            build(
                call(reconstruct, b"N"),
                several(
                    number(1),
                    several(number(10**9)),
                    call(name("numpy", "dtype"), text("f8")),
                    b"\x89",
                    old_string(b"12345678"),
                ),
            ),
            "cannot reshape",
        ),
        "negative side": (
            build(
                call(reconstruct, b"N"),
                several(
                    number(1),
                    several(number(-1)),
                    call(name("numpy", "dtype"), text("f8")),
                    b"\x89",
                    old_string(b"12345678"),
                ),
            ),
            r"shape \(-1,\)",
        ),
    }


@pytest.mark.parametrize("kind", sorted(hostile(Path("x"))))
def test_a_hostile_pickle_runs_nothing(kind: str, tmp_path: Path) -> None:
    body, message = hostile(tmp_path / "marker")[kind]
    with pytest.raises(ScenarioError, match=f"^some file: .*{message}"):
        closed_pickle.load(document(body), "some file")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"<html>", document(array(TABLE))[:-9]])
def test_what_is_no_whole_pickle_is_refused(content: bytes) -> None:
    with pytest.raises(ScenarioError, match=r"^some file: is not a whole pickle"):
        closed_pickle.load(content, "some file")


def test_an_array_of_another_form_is_refused() -> None:
    names = closed_pickle.load(document(object_array(["a", "b"])), "here")
    assert closed_pickle.python_values(names, "here") == ["a", "b"]
    with pytest.raises(ScenarioError, match=r"here: a numeric array of 2 dim.*found a list"):
        closed_pickle.array(names, "here", 2)
    table = closed_pickle.load(document(array(TABLE)), "here")
    with pytest.raises(ScenarioError, match=r"of 1 dimension.*of shape \(3, 4\)"):
        closed_pickle.array(table, "here", 1)
    with pytest.raises(ScenarioError, match="an array of names"):
        closed_pickle.python_values(table, "here")
