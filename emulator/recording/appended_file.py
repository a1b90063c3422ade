"""A text file that only grows, and that an interrupted run picks up by writing it again.

A run that is resumed produces its lines from the start. As long as the file on disk has a line at
that place, the new one must equal it; beyond, lines are appended. A last line without its newline
was torn by a kill and is cut off.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from emulator.errors import RunError

_BUFFERED_LINES = 8192


class AppendedFile:
    """Write with :meth:`line`; nothing is on disk for sure before :meth:`flush`."""

    def __init__(self, path: Path, *, hashed: bool = False) -> None:
        self.path = path
        self.lines = 0
        self._buffer: list[str] = []
        self._sha256 = hashlib.sha256() if hashed else None
        existing = path.stat().st_size if path.exists() else 0
        self._file = open(path, "r+b" if existing else "w+b", buffering=1 << 20)  # noqa: SIM115
        self._replaying = existing > 0

    def line(self, text: str) -> None:
        """Add one line (without its newline).

        Raises :class:`RunError` when the file holds another line at this place.
        """
        self.lines += 1
        self._buffer.append(text)
        if len(self._buffer) >= _BUFFERED_LINES:
            self.flush()

    @property
    def replaying(self) -> bool:
        """Whether lines are still being compared with those on disk."""
        return self._replaying

    def flush(self) -> None:
        """Hand all lines so far to the operating system."""
        if self._buffer:
            start = self._compare() if self._replaying else 0
            if start < len(self._buffer):
                data = ("\n".join(self._buffer[start:]) + "\n").encode()
                self._write(data)
            self._buffer.clear()
        self._file.flush()

    def _compare(self) -> int:
        """Compare buffered lines with the file; the index of the first that goes beyond it."""
        for index, text in enumerate(self._buffer):
            position = self._file.tell()
            found = self._file.readline()
            if not found.endswith(b"\n"):
                self._file.seek(position)
                self._file.truncate()
                self._replaying = False
                return index
            expected = found[:-1].decode(errors="replace")
            if expected != text:
                number = self.lines - len(self._buffer) + index + 1
                self._buffer.clear()
                raise RunError(
                    f"{self.path}:{number}: replaying the run gives another line than the file "
                    f"holds.\n  on disk:  {expected}\n  replayed: {text}\n"
                    "The file was changed, or the scenario, the traces or the program were; use "
                    "--restart to begin anew"
                )
            if self._sha256 is not None:
                self._sha256.update(found)
        return len(self._buffer)

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
