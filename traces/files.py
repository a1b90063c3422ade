"""Files that are whole or not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from traces.errors import TraceError


@contextmanager
def replacing(path: str | Path) -> Iterator[IO[bytes]]:
    """A file to write that takes the place of ``path`` once all of it is written.

    Whatever goes wrong on the way, what was at ``path`` stays. Raises TraceError for a file that
    cannot be written.
    """
    path = Path(path)
    part = path.with_name(f".{path.name}.part")
    try:
        with open(part, "wb") as file:
            yield file
        os.replace(part, path)
    except OSError as error:
        raise TraceError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):  # there may not even be a folder
            part.unlink()
