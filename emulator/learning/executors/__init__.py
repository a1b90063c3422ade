"""Where operations run. An executor changes how long a run takes on the host, never what it
computes: the number of workers is no part of any result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from emulator.learning.lineage import Operation
from emulator.learning.operations import Result

Done = Callable[[Operation, Result], None]


class Executor(Protocol):
    """Runs pending operations; ``kind`` is part of the fingerprint."""

    kind: str

    def run(self, operations: Sequence[Operation], done: Done) -> None:
        """Run all operations, given in topological order; ``done`` receives each result in the
        calling thread, an operation's inputs before itself."""

    def close(self) -> None:
        """Give back processes and memory."""
