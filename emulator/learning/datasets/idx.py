"""Reader of IDX, the file format of MNIST and its descendants, plain or gzipped.

Two zero bytes, a type byte (8: unsigned byte), the number of dimensions, each dimension as a
big-endian 32-bit integer, then the values in row-major order (LeCun, "The MNIST database").
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ScenarioError

_UNSIGNED_BYTE = 8
_GZIP_MAGIC = b"\x1f\x8b"


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The array in an IDX file of unsigned bytes with this many dimensions.

    Whether the file is gzipped is read from its first bytes, not from its name. Raises
    ScenarioError, naming the file and what was found, for an unreadable file, a wrong magic
    number, and fewer or more values than the header promises.
    """
    content = _content(path)
    header_bytes = 4 + 4 * dimensions
    magic = _UNSIGNED_BYTE << 8 | dimensions
    found = content[:4].hex() or "nothing"
    if content[:4] != magic.to_bytes(4, "big"):
        raise ScenarioError(
            f"{path}: not an IDX file of unsigned bytes with {dimensions} dimension(s): it must "
            f"start with the magic number {magic:08x}, found {found}; check that the file is the "
            "one that its name says"
        )
    if len(content) < header_bytes:
        raise ScenarioError(
            f"{path}: truncated in its header: {header_bytes} bytes expected, found "
            f"{len(content)}; fetch the file again"
        )
    shape = struct.unpack(f">{dimensions}I", content[4:header_bytes])
    expected, actual = math.prod(shape), len(content) - header_bytes
    if actual != expected:
        raise ScenarioError(
            f"{path}: {'truncated' if actual < expected else 'too long'}: the header says "
            f"{'x'.join(map(str, shape))} = {expected} values, found {actual}; "
            "fetch the file again"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header_bytes).reshape(shape)


def _content(path: Path) -> bytes:
    """The bytes of the file, decompressed."""
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if raw.startswith(_GZIP_MAGIC) else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ScenarioError(
            f"{path}: truncated or damaged gzip file of {len(raw)} bytes ({error}); "
            "fetch the file again"
        ) from error
    except OSError as error:
        raise ScenarioError(
            f"{path}: cannot be read ({error.strerror}); check the path and its permissions"
        ) from error
