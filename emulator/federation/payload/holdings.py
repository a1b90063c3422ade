"""Which version of each layer the server has, and which of them every client holds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from emulator.federation.payload import Layers, WorkOf

NOTHING = -1
"""In place of a version: a client does not hold that layer as any version has it."""


@dataclass(frozen=True, slots=True)
class Model:
    """The layers in forward order by name, their bytes on the wire and their parameters; what a
    task computes that trains some ``layers`` of them by one of the run's recipes, and the key of
    the scenario that sets the learning rate of each recipe."""

    names: Layers
    sizes_bytes: tuple[int, ...]
    parameters: tuple[int, ...]
    work_of: Callable[[str, Layers], WorkOf]
    rates: Mapping[str, str]


class Holdings:
    """See the module. A client that has received a layer whole keeps it."""

    def __init__(self, names: Layers, clients: int) -> None:
        self._names = names
        self.versions = (0,) * len(names)
        """Of each layer the version of the model that has changed it last."""
        self._held: list[tuple[int, ...]] = [(NOTHING,) * len(names)] * clients

    def lacks(self, client: int, versions: tuple[int, ...]) -> list[bool]:
        """Of each layer whether the client does not hold it as ``versions`` has it."""
        pairs = zip(self._held[client], versions, strict=True)
        return [held != wanted for held, wanted in pairs]

    def received(self, client: int, versions: tuple[int, ...], but: Collection[str] = ()) -> None:
        """The client holds this model now, ``but`` for some layers, which are no version's."""
        pairs = zip(self._names, versions, strict=True)
        self._held[client] = (
            tuple(NOTHING if name in but else v for name, v in pairs) if but else versions
        )

    def changed(self, layers: Collection[str], version: int) -> None:
        """That version of the model has changed these layers."""
        pairs = zip(self._names, self.versions, strict=True)
        self.versions = tuple(version if name in layers else v for name, v in pairs)

    def forget(self, client: int) -> None:
        """The client holds another model now."""
        self._held[client] = (NOTHING,) * len(self._names)

    def copy(self) -> Holdings:
        """The same, to go another way from here."""
        found = Holdings(self._names, 0)
        found.versions, found._held = self.versions, list(self._held)
        return found
