"""The tree of cohorts: ``c0`` splits into ``c0.0`` and ``c0.1``, that into ``c0.1.0`` and so on.

Only leaves train. The id of a cohort is its way from the root, so that two ids alone tell how far
apart two cohorts are. (The letter keeps a reader of tables from taking ``0.0`` for a number.)
"""

from __future__ import annotations

from collections.abc import Iterable

ROOT = "c0"


def child(cohort: str, side: int) -> str:
    """The id of one of the two children."""
    return f"{cohort}.{side}"


def depth(cohort: str) -> int:
    """Splits between the root and ``cohort``."""
    return cohort.count(".")


def place(cohort: str) -> tuple[int, ...]:
    """The sides on the way from the root to ``cohort``, which name its random streams."""
    return tuple(map(int, cohort.split(".")[1:]))


def is_within(cohort: str, ancestor: str) -> bool:
    """Whether ``cohort`` is ``ancestor`` or lies below it."""
    return cohort == ancestor or cohort.startswith(f"{ancestor}.")


def common_ancestor(one: str, other: str) -> str:
    """The lowest cohort that both are within."""
    shared = []
    for mine, theirs in zip(one.split("."), other.split("."), strict=False):
        if mine != theirs:
            break
        shared.append(mine)
    return ".".join(shared)


def hops_up(cohort: str, other: str) -> int:
    """d(m, m'): from ``cohort`` up to the lowest common ancestor (a sibling: 1, a cousin: 2)."""
    return depth(cohort) - depth(common_ancestor(cohort, other))


class Tree:
    """See the module. ``leaves`` are in the order of their ids."""

    def __init__(self) -> None:
        self.leaves: list[str] = [ROOT]

    def split(self, cohort: str) -> tuple[str, str]:
        """The two children that train in place of the leaf ``cohort``."""
        children = child(cohort, 0), child(cohort, 1)
        self.leaves.remove(cohort)
        self.leaves = sorted((*self.leaves, *children))
        return children

    def match(self, requested: str | None, side: int | None, draw: float) -> str:
        """The leaf for a client that asks for ``requested`` and was on that ``side`` of it.

        A leaf is given as asked. What has split since is replaced by the closest leaf below the
        side, or below all of it where the side is not known; a client without a preference gets
        any leaf. ``draw`` from (0, 1) decides between equals.
        """
        if requested in self.leaves:
            return str(requested)
        within = requested
        if requested is not None and side is not None:
            within = child(requested, side)
        below = self.leaves if within is None else _closest(self.leaves, within)
        return below[int(draw * len(below))]


def _closest(leaves: Iterable[str], ancestor: str) -> list[str]:
    below = [leaf for leaf in leaves if is_within(leaf, ancestor)]
    least = min(map(depth, below))
    return [leaf for leaf in below if depth(leaf) == least]
