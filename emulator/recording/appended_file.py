"""A text file that only grows, and that an interrupted run picks up by writing it again.

A run that is resumed produces its lines from the start. As long as the file on disk has a line at
that place, the new one must equal it; beyond, lines are appended. A last line without its newline
was torn by a kill and is cut off.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from emulator.errors import RunError


class AppendedFile:
    """Write with :meth:`line`; nothing is on disk for sure before :meth:`flush`."""

    def __init__(self, path: Path, *, hashed: bool = False) -> None:
        self.path = path
        self.buffer: list[str] = []
        """Lines that wait for :meth:`flush`; append to it, or call :meth:`line`."""
        self._flushed_lines = 0
        self._sha256 = hashlib.sha256() if hashed else None
        existing = path.stat().st_size if path.exists() else 0
        self._file = open(path, "r+b" if existing else "w+b", buffering=1 << 20)  # noqa: SIM115
        self._replaying = existing > 0

    @property
    def lines(self) -> int:
        """How many lines there are."""
        return self._flushed_lines + len(self.buffer)

    def line(self, text: str) -> None:
        """Add one line (without its newline).

        A line that differs from the one that the file holds at this place is found by
        :meth:`flush`, which raises :class:`RunError`.
        """
        self.buffer.append(text)

    @property
    def replaying(self) -> bool:
        """Whether lines are still being compared with those on disk."""
        return self._replaying

    def flush(self) -> None:
        """Hand all lines so far to the operating system."""
        if self.buffer:
            start = self._compare() if self._replaying else 0
            if start < len(self.buffer):
                data = ("\n".join(self.buffer[start:]) + "\n").encode()
                self._write(data)
            self._flushed_lines += len(self.buffer)
            self.buffer.clear()
        self._file.flush()

    def _compare(self) -> int:
        """Compare buffered lines with the file; the index of the first that goes beyond it."""
        for index, text in enumerate(self.buffer):
            position = self._file.tell()
            found = self._file.readline()
            if not found.endswith(b"\n"):
                self._file.seek(position)
                self._file.truncate()
                self._replaying = False
                return index
            expected = found[:-1].decode(errors="replace")
            if expected != text:
                number = self._flushed_lines + index + 1
                self.buffer.clear()
                raise RunError(
                    f"{self.path}:{number}: replaying the run gives another line than the file "
                    f"holds.\n  on disk:  {expected}\n  replayed: {text}\n"
                    "The file was changed, or the scenario, the traces or the program were; use "
                    "--restart to begin anew"
                )
            if self._sha256 is not None:
                self._sha256.update(found)
        return len(self.buffer)

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        if self._sha256 is not None:
            self._sha256.update(data)

    def finish(self) -> None:
        """Flush; raises :class:`RunError` when the file on disk goes on beyond the last line."""
        self.flush()
        if self._replaying:
            rest = self._file.readline()
            if rest.endswith(b"\n"):
                raise RunError(
                    f"{self.path}:{self.lines + 1}: the replayed run ends here, the file goes on "
                    f"with\n  {rest.decode(errors='replace').rstrip()}"
                )
            self._file.seek(-len(rest), 1)
            self._file.truncate()
            self._replaying = False
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
