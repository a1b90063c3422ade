"""A text file that only grows, and that an interrupted run picks up by writing it again.

A run that is resumed produces its lines from the start. As long as the file on disk has a line at
that place, the new one must equal it; beyond, lines are appended. A last line without its newline
was torn by a kill and is cut off.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from emulator.errors import RunError


class AppendedFile:
    """Append to :attr:`buffer`; nothing is on disk for sure before :meth:`flush`.

    ``encode(items)`` gives the lines of what was appended, each with its newline.
    ``valid_bytes``: what the file holds beyond is not compared but overwritten (the end of a
    finished run that is extended).
    """

    def __init__(
        self,
        path: Path,
        encode: Callable[[list[Any]], bytes],
        *,
        hashed: bool = False,
        valid_bytes: int | None = None,
    ) -> None:
        self.path = path
        self._encode = encode
        self.buffer: list[Any] = []
        """Lines, or rows of a table, that wait for :meth:`flush`; append to it."""
        self.broken = False
        """Set by a flush that did not come to its end: nothing more is written."""
        self._flushed_lines = 0
        self._sha256 = hashlib.sha256() if hashed else None
        existing = path.stat().st_size if path.exists() else 0
        self._file = open(path, "r+b" if existing else "w+b", buffering=1 << 20)  # noqa: SIM115
        self._valid_bytes = existing if valid_bytes is None else min(existing, valid_bytes)
        self._replaying = existing > 0

    @property
    def lines(self) -> int:
        """How many lines there are."""
        return self._flushed_lines + len(self.buffer)

    @property
    def replaying(self) -> bool:
        """Whether lines are still being compared with those on disk."""
        return self._replaying

    def flush(self) -> None:
        """Hand all lines so far to the operating system."""
        if self.broken:
            return
        self.broken = True
        if self.buffer:
            data = self._encode(self.buffer)
            if self._replaying:
                data = self._compare(data)
            self._file.write(data)
            if self._sha256 is not None:
                self._sha256.update(data)
            self._flushed_lines += len(self.buffer)
            self.buffer.clear()
        self._file.flush()
        self.broken = False

    def _compare(self, data: bytes) -> bytes:
        """Compare lines with the file; those that go beyond it.

        Raises :class:`RunError` for a line that differs from the one on disk at its place.
        """
        lines = data.splitlines(keepends=True)
        for index, line in enumerate(lines):
            position = self._file.tell()
            found = self._file.readline() if position < self._valid_bytes else b""
            if not found.endswith(b"\n"):
                self._cut(position)
                return b"".join(lines[index:])
            if found != line:
                raise RunError(
                    f"{self.path}:{self._flushed_lines + index + 1}: replaying the run gives "
                    "another line than the file holds.\n"
                    f"  on disk:  {found[:-1].decode(errors='replace')}\n"
                    f"  replayed: {line[:-1].decode()}\n"
                    "The file was changed, or the scenario, the traces or the program were; use "
                    "--restart to begin anew"
                )
            if self._sha256 is not None:
                self._sha256.update(found)
        return b""

    def _cut(self, position: int) -> None:
        self._file.seek(position)
        self._file.truncate()
        self._replaying = False

    def finish(self) -> None:
        """Flush; raises :class:`RunError` when the file on disk goes on beyond the last line."""
        self.flush()
        if self._replaying:
            position = self._file.tell()
            rest = self._file.readline() if position < self._valid_bytes else b""
            if rest.endswith(b"\n"):
                raise RunError(
                    f"{self.path}:{self.lines + 1}: the run on disk went further than this one is "
                    f"to go, on with\n  {rest.decode(errors='replace').rstrip()}\n"
                    "Use a later stop, or another directory"
                )
            self._cut(position)
        self._file.flush()

    def sha256(self) -> str:
        """Of all lines flushed so far."""
        assert self._sha256 is not None
        return self._sha256.hexdigest()

    def size_bytes(self) -> int:
        """Bytes flushed so far."""
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
