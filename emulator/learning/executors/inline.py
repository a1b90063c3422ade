"""One operation after the other, in this process."""

from __future__ import annotations

from collections.abc import Sequence

from emulator.errors import RunError
from emulator.learning.executors import Done
from emulator.learning.lineage import Operation
from emulator.learning.operations import Workbench


class Inline:
    """See :class:`emulator.learning.executors.Executor`."""

    kind = "inline"

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench

    def run(self, operations: Sequence[Operation], done: Done) -> None:
        for operation in operations:
            inputs = [handle.tensors if handle else None for handle in operation.inputs]
            try:
                result = self._bench.run(operation.kind, operation.config, inputs)
            except Exception as error:  # a user's model can fail in any way
                raise RunError(
                    f"an operation failed ({operation.kind} {operation.config}): "
                    f"{type(error).__name__}: {error}"
                ) from error
            done(operation, result)

    def close(self) -> None:
        pass
