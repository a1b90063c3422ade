"""Runs the command line and kills its own process, with SIGKILL, at a chosen moment.

Usage: python killer.py MOMENT COUNT LOG ARGUMENTS…; the ARGUMENTS go to fedclock. MOMENT is

- ``never``      the process lives
- ``event``      as the COUNT-th event line is written
- ``training``   after the COUNT-th training
- ``checkpoint`` inside the COUNT-th file that a checkpoint writes, before it is renamed
- ``commit``     after the files of the COUNT-th checkpoint, before its transaction
- ``delete``     after the COUNT-th checkpoint's transaction, before old files are deleted
- ``replay``     as the COUNT-th line is compared with one on disk

One byte is added to LOG for every training, so that trainings of killed processes count too.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

moment, count, log = "", 0, ""
seen = 0


def tick(what: str) -> None:
    """Count one moment of that kind, and die at the right one."""
    global seen
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

    setattr(owner, name, wrapped)


if __name__ == "__main__":  # and not in the workers, which load this file too
    moment, count, log = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    sys.argv = ["fedclock", *sys.argv[4:]]
    from emulator.cli import main
    from emulator.learning import memo
    from emulator.learning.memo import Memo
    from emulator.recording.recorder import Recorder

    before(memo.os, "rename", "checkpoint")
    before(memo, "_sync_folder", "commit")
    original_remember = Memo.remember
    original_checkpoint = Memo.checkpoint

    def ticking(name: str) -> None:
        """Make a method of the recorder that writes an event tick."""
        original = getattr(Recorder, name)

        def wrapped(self: Recorder, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            tick("replay" if self._directory.events.replaying else "event")

        setattr(Recorder, name, wrapped)

    for name in ("event", "dispatch", "upload", "end", "version"):
        ticking(name)

    def remember(self: Memo, operation_id: str, values: dict[str, Any]) -> None:
        original_remember(self, operation_id, values)
        if "steps" in values:
            with open(log, "ab") as file:
                file.write(b".")
            tick("training")

    def checkpoint(self: Memo, *args: Any, **kwargs: Any) -> None:
        iterdir = memo.Path.iterdir

        def deleting(path: Any) -> Any:
            tick("delete")
            return iterdir(path)

        memo.Path.iterdir = deleting  # type: ignore[method-assign,assignment]
        try:
            original_checkpoint(self, *args, **kwargs)
        finally:
            memo.Path.iterdir = iterdir  # type: ignore[method-assign]

    Memo.checkpoint = checkpoint  # type: ignore[method-assign]
    Memo.remember = remember  # type: ignore[method-assign]
    main()
