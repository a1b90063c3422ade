"""``task.planted``: clusters of clients whose data differ in a known way."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from emulator.scenario.schema.base import Kind, NonNegative, Section

Clusters = Annotated[int, Field(ge=2, le=1000)]


class Rotation(Section):
    """Images of cluster c are turned by c · 360°/clusters."""

    kind: Literal["rotation"]
    clusters: Clusters


class LabelPermutation(Section):
    """Each cluster has its own names for the classes: a random permutation of the labels; those of
    the first cluster stay."""

    kind: Literal["label_permutation"]
    clusters: Clusters


class AffineShift(Section):
    """Inputs of cluster c become (1 + severity · λ_c) x + severity · δ_c, value by value, with λ_c
    and δ_c drawn from the standard normal distribution (Reisizadeh et al. 2020)."""

    kind: Literal["affine_shift"]
    clusters: Clusters
    severity: NonNegative


class LabelGroups(Section):
    """The classes are dealt to the clusters in turn, and the clients of a cluster hold samples of
    its classes only, spread among them as ``partition`` says."""

    kind: Literal["label_groups"]
    clusters: Clusters


Planted = Annotated[Rotation | LabelPermutation | AffineShift | LabelGroups, Kind]
