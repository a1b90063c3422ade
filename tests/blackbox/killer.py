"""Runs the command line in a process that kills itself, with SIGKILL, at a chosen moment:

- ``never``      the process lives; it is this one
- ``event``      as the COUNT-th event line is written
- ``training``   after the COUNT-th training
- ``checkpoint`` inside the COUNT-th file that a checkpoint writes, before it is renamed
- ``commit``     after the files of the COUNT-th checkpoint, before its transaction
- ``delete``     after the COUNT-th checkpoint's transaction, before old files are deleted
- ``replay``     as the COUNT-th line is compared with one on disk

A process that may die is forked from a server that has loaded the libraries: to load them takes
some seconds. The server hashes strings by a seed of its own, so that an order that hangs on hashes
shows where its log is compared with one of this process.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
from commandline import fedclock

PROCESSES = multiprocessing.get_context("forkserver")


def start_server() -> None:
    """In the background; before a run with worker processes starts the server for its own ends."""
    PROCESSES.set_forkserver_preload(
        ["pytest", "sklearn.datasets", "commandline", "emulator.run",
         "emulator.learning.executors.processes"]
    )  # fmt: skip
    forkserver.ensure_running()


def run(arguments: Sequence[object], moment: str, count: int, log: Path) -> int:
    """The exit code of ``fedclock ARGUMENTS``, -9 when killed. One byte is added to the log for
    every training, so that trainings of killed processes count too."""
    if moment == "never":
        with pytest.MonkeyPatch.context() as patch:
            _arm(patch, moment, count, log)
            said = fedclock(*arguments)
        assert said.exit_code == 0, said
        return 0
    process = PROCESSES.Process(target=_run, args=(arguments, moment, count, log))
    process.start()
    process.join(timeout=300)
    assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
    return process.exitcode


def _run(arguments: Sequence[object], moment: str, count: int, log: Path) -> None:
    _arm(pytest.MonkeyPatch(), moment, count, log)
    said = fedclock(*arguments)
    print(said.err, file=sys.stderr)
    sys.exit(said.exit_code)


def _arm(patch: pytest.MonkeyPatch, moment: str, count: int, log: Path) -> None:
    """Let this process die at the moment, and keep the log of its trainings."""
    from emulator.learning import memo
    from emulator.learning.memo import Memo
    from emulator.recording.recorder import Recorder

    seen = 0

    def tick(what: str) -> None:
        """Count one moment of that kind, and die at the right one."""
        nonlocal seen
        if what == moment:
            seen += 1
            if seen == count:
                os.kill(os.getpid(), signal.SIGKILL)

    def before(owner: Any, name: str, what: str) -> None:
        """Make ``owner.name`` tick before it does its work."""
        original = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            tick(what)
            return original(*args, **kwargs)

        patch.setattr(owner, name, wrapped)

    def ticking(name: str) -> None:
        """Make a method of the recorder that writes an event tick."""
        original = getattr(Recorder, name)

        def wrapped(self: Recorder, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            tick("replay" if self._directory.events.replaying else "event")

        patch.setattr(Recorder, name, wrapped)

    original_remember = Memo.remember
    original_checkpoint = Memo.checkpoint

    def remember(self: Memo, operation_id: str, values: dict[str, Any]) -> None:
        original_remember(self, operation_id, values)
        if "steps" in values:
            with open(log, "ab") as file:
                file.write(b".")
            tick("training")

    def checkpoint(self: Memo, *args: Any, **kwargs: Any) -> None:
        with pytest.MonkeyPatch.context() as within:
            iterdir = Path.iterdir

            def deleting(path: Path) -> Any:
                tick("delete")
                return iterdir(path)

            within.setattr(Path, "iterdir", deleting)
            original_checkpoint(self, *args, **kwargs)

    before(memo.os, "rename", "checkpoint")
    before(memo, "_sync_folder", "commit")
    for name in ("event", "dispatch", "upload", "end", "version"):
        ticking(name)
    patch.setattr(Memo, "remember", remember)
    patch.setattr(Memo, "checkpoint", checkpoint)
