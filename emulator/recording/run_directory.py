"""The files that a run leaves behind, and the lock that keeps others out of them."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from emulator.errors import ScenarioError
from emulator.recording.appended_file import AppendedFile
from emulator.recording.tables import (
    AFFINITY,
    CHAIN_COLUMNS,
    CHAINS,
    CLUSTERING,
    METRICS,
    PART_COLUMNS,
    UPDATES,
    VERSIONS,
    encode_lines,
    encode_rows,
)

_OWN_FILES = (
    "manifest.json", "scenario.yaml", "resolved.yaml", "events.jsonl", "versions.csv",
    "updates.csv", "metrics.csv", "clients.csv", "chains.csv", "superclients.csv",
    "similarity.csv", "layers.csv", "affinity.csv", "clustering.csv", "cohorts.csv",
    "online.csv", "sessions.csv", "model.safetensors", "memo.sqlite", "time_to_accuracy.png",
    "superclients.png", "similarity.png", "walkers.png", "layers.png", "bytes.png",
    "bytes_to_accuracy.png", "cohorts.png", "memberships.png", "clustering.png", "affinity.png",
    "fairness.png", "perfetto.json",
)  # fmt: skip


_NEEDED_KEYS = {
    "status", "name", "seed", "timing_only", "scenario_sha256", "run_sha256", "fingerprint",
    "open_end", "finish_of",
}  # fmt: skip
"""What a manifest must have for a run to go on."""


class RunDirectory:
    """Open files of a run. Raises :class:`ScenarioError` when another process has it open."""

    def __init__(self, path: Path, *, restart: bool = False) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ScenarioError(
                f"--out {path}: cannot be made a directory: {error.strerror}"
            ) from None
        try:
            self._lock: IO[str] = open(path / ".lock", "w")  # noqa: SIM115 - held until close()
        except OSError as error:
            raise ScenarioError(f"--out {path}: cannot be written to: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ScenarioError(f"{path}: another fedclock process is writing there") from None
        if restart:
            for name in _OWN_FILES:
                (path / name).unlink(missing_ok=True)
            for model in path.glob("model-*.safetensors"):  # of cohorts
                model.unlink()
            for folder in ("checkpoints", "parquet"):
                shutil.rmtree(path / folder, ignore_errors=True)

    def open_tables(
        self, valid_bytes: dict[str, int] | None = None, *, chains: bool = False,
        parts: bool = False, cohorts: bool = False,
    ) -> None:  # fmt: skip
        """Open the event log and the tables, each with its header line; again, to begin anew.

        ``chains``: also the table of chains, with superclients. ``parts``: bytes are told apart by
        part of the model. ``cohorts``: also what the clients' updates tell of them.
        ``valid_bytes`` by file name: what lies beyond is the end of a run that is extended.
        """
        self._close_tables()
        valid = valid_bytes or {}

        def table(name: str, columns: tuple[str, ...]) -> AppendedFile:
            file = AppendedFile(self.path / name, encode_rows, valid_bytes=valid.get(name))
            file.buffer.append(columns)
            return file

        events = "events.jsonl"
        self.events = AppendedFile(
            self.path / events, encode_lines, hashed=True, valid_bytes=valid.get(events)
        )
        self.versions = table("versions.csv", VERSIONS)
        columns = UPDATES + (CHAIN_COLUMNS if chains else ()) + (PART_COLUMNS if parts else ())
        self.updates = table("updates.csv", columns)
        self.metrics = table("metrics.csv", METRICS)
        self.chains = table("chains.csv", CHAINS) if chains else None
        self.affinity = table("affinity.csv", AFFINITY) if cohorts else None
        self.clustering = table("clustering.csv", CLUSTERING) if cohorts else None
        self.parts = parts

    @property
    def tables(self) -> tuple[AppendedFile, ...]:
        """All files that grow line by line."""
        always = (self.events, self.versions, self.updates, self.metrics)
        some = (self.chains, self.affinity, self.clustering)
        return (*always, *(table for table in some if table is not None))

    def flush(self) -> None:
        """Flush all tables, or none: where one came to grief the others stay as they are."""
        if not any(table.broken for table in self.tables):
            for table in self.tables:
                table.flush()

    def manifest(self) -> dict[str, Any] | None:
        """The manifest on disk, if there is one."""
        path = self.path / "manifest.json"
        if not path.exists():
            return None
        try:
            found = json.loads(path.read_text())
        except ValueError:
            found = None
        if not isinstance(found, dict) or not found.keys() >= _NEEDED_KEYS:
            raise ScenarioError(f"{path}: damaged; use --restart to begin anew")
        return found

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        self.write_text("manifest.json", json.dumps(manifest, indent=2) + "\n")

    def write_table(
        self, name: str, columns: tuple[str, ...], rows: Sequence[Sequence[Any]]
    ) -> None:
        """A whole table at once."""
        self.write_text(name, encode_rows([columns, *rows]).decode())

    def write_text(self, name: str, text: str) -> None:
        """Replace a whole file; a reader never sees half of it."""
        temporary = self.path / f".{name}.part"
        temporary.write_text(text)
        os.replace(temporary, self.path / name)

    def close(self) -> None:
        self._close_tables()
        self._lock.close()

    def _close_tables(self) -> None:
        if hasattr(self, "chains"):
            for table in self.tables:
                table.close()
