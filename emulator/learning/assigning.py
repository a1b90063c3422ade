"""Which of several models is a client's: what clustered baselines ask of the learning plane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from emulator.learning.grouping import ChooseConfig, GroupConfig
from emulator.learning.lazy import Lazy
from emulator.learning.lineage import Handle, Operation, canonical, identity
from emulator.learning.memo import Values


class Assigning(Lazy):
    """Decisions by value, each computed when it is asked for."""

    def choose(self, models: Sequence[Handle], clients: Sequence[int]) -> Handle:
        """A handle of which of ``models`` fits the training samples of each client best."""
        ids = [model.id for model in models]
        operation_id = identity("choose", *ids, "for", *clients)
        config = ChooseConfig(tuple(clients))
        return self._handles("choose", operation_id, tuple(models), config, ("choice",))[0]

    def choices(self, chosen: Sequence[Handle]) -> list[list[int]]:
        """The number of the model, for each client of each of these handles."""
        self._force_values(chosen)
        return [self.values(handle.id.partition(".")[0])["choices"] for handle in chosen]

    def group(
        self, updates: Sequence[Handle], method: dict[str, Any], seed: int
    ) -> tuple[list[int | None], Handle]:
        """The group of each update, None where it is not finite, and a handle of the groups' mean
        updates, for :meth:`nearest`."""
        ids = [update.id for update in updates]
        operation_id = identity("group", *ids, canonical(method), seed)
        config = GroupConfig(method, seed)
        (references,) = self._handles("group", operation_id, tuple(updates), config,
                                      ("references",))  # fmt: skip
        self._force_values([references])
        groups: list[int | None] = self.values(operation_id)["groups"]
        return groups, references

    def nearest(self, references: Handle, updates: Sequence[Handle]) -> list[int | None]:
        """The group of each update among those of ``references``, None where it is not finite."""
        operations = [
            Operation("nearest", identity("nearest", references.id, update.id),
                      (references, update), None)
            for update in updates
        ]  # fmt: skip
        assert self._learning is not None
        self._force([o for o in operations if self._learning.memo.value(o.id) is None])
        return [self.values(operation.id)["group"] for operation in operations]

    def inter_group(self, models: Sequence[Handle], rate: float) -> list[Handle]:
        """The states of the groups, each drawn to the others, see
        :func:`emulator.learning.methods.flexcfl.inter_group`."""
        operation_id = identity("inter-group", *(model.id for model in models), repr(rate))
        names = tuple(f"server{j}" for j in range(len(models)))
        found = self._handles("inter_group", operation_id, tuple(models), rate, names)
        return [self._kept(state) for state in found]

    def norms(self, updates: Sequence[Handle]) -> Values:
        """``mean``, the norm of the mean update, and ``largest``, that of the longest one."""
        operation_id = identity("norms", *(update.id for update in updates))
        return self._value_of("norms", operation_id, updates, None)
