"""Malformations of a trace file, gathered by kind instead of raised at the first one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Remedy = Literal["mend", "drop", "renumber", "none"]

REMEDIES: Mapping[str, Remedy] = {
    "zero-length": "mend",
    "unsorted": "mend",
    "overlapping": "mend",
    "touching": "mend",
    "numbering": "renumber",
    "duration": "none",
}
"""What becomes of a client with a malformation of this kind; one that is not here: ``drop``."""

MOST_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of malformation: how many, in how many clients (or devices), the first ones.

    ``remedy`` says what helps: ``mend`` (FedScale's file is read that way, a table never is),
    ``drop`` the client, ``renumber`` the clients, or ``none`` is needed.
    """

    kind: str
    count: int
    clients: int
    remedy: Remedy
    examples: tuple[str, ...]


class Findings:
    """Collects malformations, with no more than the first few texts of each kind."""

    def __init__(self) -> None:
        self.spoilt: set[int] = set()
        """Rows with a malformation that nothing but leaving the row out can help."""
        self._count: dict[str, int] = {}
        self._rows: dict[str, set[int]] = {}
        self._examples: dict[str, list[str]] = {}

    def add(self, kind: str, row: int, text: str) -> None:
        """One malformation; ``row`` counts the clients of the file from 0."""
        self._count[kind] = self._count.get(kind, 0) + 1
        self._rows.setdefault(kind, set()).add(row)
        examples = self._examples.setdefault(kind, [])
        if len(examples) < MOST_EXAMPLES:
            examples.append(text)
        if REMEDIES.get(kind, "drop") == "drop":
            self.spoilt.add(row)

    def add_many(self, kind: str, rows: NDArray[np.int64], text: Callable[[int], str]) -> None:
        """One malformation for each of ``rows``; ``text(i)`` tells of the i-th."""
        for i in range(min(len(rows), MOST_EXAMPLES)):
            self.add(kind, int(rows[i]), text(i))
        rest = rows[MOST_EXAMPLES:].tolist()
        if rest:
            self._count[kind] += len(rest)
            self._rows[kind].update(rest)
            if REMEDIES.get(kind, "drop") == "drop":
                self.spoilt.update(rest)

    @property
    def by_kind(self) -> tuple[Finding, ...]:
        """What was found, the most frequent first."""
        return tuple(
            Finding(
                kind,
                self._count[kind],
                len(self._rows[kind]),
                REMEDIES.get(kind, "drop"),
                tuple(self._examples[kind]),
            )
            for kind in sorted(self._count, key=lambda kind: (-self._count[kind], kind))
        )
