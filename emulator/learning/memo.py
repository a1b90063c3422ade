"""What was computed, kept on disk: small values and checkpoints of live tensors.

``memo.sqlite`` holds the values by operation id and, from the last checkpoint, which handles were
alive (with checksums), which operations were pending, and how far the event log had come. The
tensors lie in ``checkpoints/``, one file a handle. Everything here is a cache: what is missing or
corrupt is computed again.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from emulator.errors import ScenarioError
from emulator.learning.lineage import Tensors

Values = dict[str, Any]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS value (operation TEXT PRIMARY KEY, json TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS live (handle TEXT PRIMARY KEY, checksum TEXT NOT NULL, kept INTEGER);
CREATE TABLE IF NOT EXISTS pending (operation TEXT PRIMARY KEY);
"""


class CacheLost(Exception):
    """Something that the checkpoint promised is not there: start over without it."""


class _Folder:
    """The memo of one run directory, as it is on disk."""

    def __init__(self, directory: Path, *, writable: bool) -> None:
        self.path = directory
        database = directory / "memo.sqlite"
        try:
            self._open(database, writable)
        except sqlite3.Error as error:
            if not writable:
                raise ScenarioError(
                    f"--memo {directory}: memo.sqlite cannot be read ({error}); name another run"
                ) from None
            # A cache: what it held is computed again.
            os.replace(database, database.with_suffix(".damaged"))
            self._open(database, writable)

    def _open(self, database: Path, writable: bool) -> None:
        if writable:
            self.connection = sqlite3.connect(database)
            self.connection.executescript(_SCHEMA)
        else:
            uri = f"{database.absolute().as_uri()}?mode=ro"
            self.connection = sqlite3.connect(uri, uri=True)
        self.meta = dict(self.connection.execute("SELECT key, value FROM meta"))
        self.live: dict[str, str] = dict(
            self.connection.execute("SELECT handle, checksum FROM live")
        )

    def value(self, operation_id: str) -> Values | None:
        row = self.connection.execute(
            "SELECT json FROM value WHERE operation = ?", (operation_id,)
        ).fetchone()
        return None if row is None else json.loads(row[0])

    def tensor_file(self, handle_id: str) -> Path:
        return self.path / "checkpoints" / f"{handle_id}.safetensors"

    def load(self, handle_id: str) -> Tensors:
        try:
            data = self.tensor_file(handle_id).read_bytes()
            if _checksum(data) != self.live[handle_id]:
                raise CacheLost(handle_id)
            return load_tensors(data)
        except (OSError, SafetensorError):
            raise CacheLost(handle_id) from None


class Memo:
    """The memo of a run, and optionally that of another run to read from (``source``).

    ``fingerprint`` names what may change a bit of a result. Raises :class:`ScenarioError` when
    the memo on disk, or the source, was made under another one.
    """

    def __init__(
        self,
        directory: Path,
        fingerprint: Mapping[str, str],
        source: Path | None = None,
        checkpoint_every_s: float = 30.0,
    ) -> None:
        (directory / "checkpoints").mkdir(parents=True, exist_ok=True)
        self._own = _Folder(directory, writable=True)
        self._folders = [self._own]
        if source is not None:
            self._folders.append(_Folder(source, writable=False))
        self._connections = [folder.connection for folder in self._folders]
        for folder in self._folders:
            _same_fingerprint(folder, fingerprint)
        self._fresh: dict[str, Values] = {}
        self._fingerprint = fingerprint
        self.checkpoint_every_s = checkpoint_every_s
        self._last_checkpoint = time.monotonic()
        self.sequence = int(self._own.meta.get("sequence", 0))
        self.pending: frozenset[str] = frozenset(
            row[0] for row in self._own.connection.execute("SELECT operation FROM pending")
        )
        self._kept = {
            row[0] for row in self._own.connection.execute("SELECT handle FROM live WHERE kept")
        }

    def forget_tensors(self) -> None:
        """After :class:`CacheLost`: use values only, and none of the stored tensors."""
        for folder in self._folders:
            folder.live = {}
        self._kept = set()
        self.sequence = 0
        self.pending = frozenset()

    def forget_everything(self) -> None:
        """Values too: everything is computed again."""
        self.forget_tensors()
        self._fresh.clear()
        self._folders = []

    def value(self, operation_id: str) -> Values | None:
        """The small values of an operation, if it ever ran."""
        found = self._fresh.get(operation_id)
        if found is not None:
            return found
        for folder in self._folders:
            found = folder.value(operation_id)
            if found is not None:
                self._fresh[operation_id] = found
                return found
        return None

    def remember(self, operation_id: str, values: Values) -> None:
        """Keep an operation's values; on disk with the next checkpoint."""
        self._fresh[operation_id] = values

    def has(self, handle_id: str) -> bool:
        """Whether tensors of the handle are stored."""
        return any(handle_id in folder.live for folder in self._folders)

    def load(self, handle_id: str) -> Tensors:
        """The stored tensors; raises :class:`CacheLost` when the file is gone or damaged."""
        for folder in self._folders:
            if handle_id in folder.live:
                return folder.load(handle_id)
        raise CacheLost(handle_id)

    def due(self) -> bool:
        """Whether the last checkpoint is long enough ago (host time)."""
        return time.monotonic() - self._last_checkpoint >= self.checkpoint_every_s

    def checkpoint(
        self,
        live: Mapping[str, Tensors],
        stored: Iterable[str],
        pending: Iterable[str],
        sequence: int,
        keep: Mapping[str, Tensors],
    ) -> None:
        """Write a consistent state of the run at event ``sequence``.

        New tensors go to temporary files, are synced and renamed; then one transaction names the
        live set; only then are files that nobody refers to deleted. ``stored`` are live handles
        whose tensors were not loaded from disk yet; ``keep`` stays for good.
        """
        own = self._own
        live_now: dict[str, tuple[str, int]] = {}
        for handle_id in stored:
            if handle_id in own.live:
                live_now[handle_id] = (own.live[handle_id], int(handle_id in self._kept))
        for handle_id in self._kept:
            live_now[handle_id] = (own.live[handle_id], 1)
        for kept, tensors_by_id in ((0, live), (1, keep)):
            for handle_id, tensors in tensors_by_id.items():
                if handle_id in own.live:
                    checksum = own.live[handle_id]
                else:
                    checksum = _write(own.tensor_file(handle_id), tensors)
                live_now[handle_id] = (checksum, max(kept, int(handle_id in self._kept)))
        _sync_folder(own.path / "checkpoints")
        with own.connection as transaction:
            transaction.execute("DELETE FROM live")
            transaction.executemany(
                "INSERT INTO live VALUES (?, ?, ?)", [(h, c, k) for h, (c, k) in live_now.items()]
            )
            transaction.execute("DELETE FROM pending")
            transaction.executemany("INSERT INTO pending VALUES (?)", [(p,) for p in pending])
            transaction.executemany(
                "INSERT OR REPLACE INTO value VALUES (?, ?)",
                [(o, json.dumps(v)) for o, v in self._fresh.items()],
            )
            meta = {"sequence": str(sequence), "fingerprint": json.dumps(dict(self._fingerprint))}
            transaction.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", meta.items())
        self._fresh.clear()
        own.live = {handle_id: checksum for handle_id, (checksum, _) in live_now.items()}
        self._kept |= set(keep)
        for file in (own.path / "checkpoints").iterdir():
            if file.suffix != ".safetensors" or file.stem not in own.live:
                file.unlink()
        self._last_checkpoint = time.monotonic()

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


def _same_fingerprint(folder: _Folder, fingerprint: Mapping[str, str]) -> None:
    stored = folder.meta.get("fingerprint")
    if stored is None:
        return
    before = json.loads(stored)
    changed = [
        f"{key}: {before.get(key)} then, {fingerprint.get(key)} now"
        for key in sorted({*before, *fingerprint})
        if before.get(key) != fingerprint.get(key)
    ]
    if changed:
        raise ScenarioError(
            f"{folder.path} was computed under another fingerprint, so results would mix; "
            + "; ".join(changed)
            + ". Use --restart to begin anew, or another directory"
        )


def _checksum(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _write(path: Path, tensors: Tensors) -> str:
    data = save_tensors({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
    temporary = path.with_suffix(".part")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
    return _checksum(data)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
