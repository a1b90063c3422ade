"""``federation.structure``: the baselines of clustered federated learning.

One server has a model for each cluster, and a round asks clients of all clusters.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from emulator.scenario.schema.base import Count, Kind, NonNegative, Positive, Section
from emulator.scenario.units import PositiveSeconds

Clusters = Annotated[int, Field(ge=2, le=1000)]


class Ifca(Section):
    """IFCA (Ghosh et al. 2020): every participant is sent the models of all ``clusters``, trains
    the one that has the smallest loss on its samples, and says which (4 bytes). The models begin
    with different random weights."""

    kind: Literal["ifca"]
    clusters: Clusters


class AbsoluteNorms(Section):
    """ε1, below which the ``mean`` update must fall, and ε2, above which the ``largest`` must be;
    the authors' values, which suit their model and rate only."""

    kind: Literal["absolute"]
    mean: Positive = 0.4
    largest: Positive = 1.6


class RelativeNorms(Section):
    """ε1 is ``mean`` times the largest norm that the mean update of a cluster has had so far, and
    ε2 is ``ratio`` times ε1."""

    kind: Literal["relative"]
    mean: Annotated[float, Field(gt=0, lt=1)] = 0.1
    ratio: Positive = 4.0


class Cfl(Section):
    """CFL (Sattler et al. 2020): a cluster is cut in two when the norm of the mean update of its
    participants is below ε1 while that of the longest is above ε2 (``thresholds``), from version
    ``min_rounds`` on and up to ``max_clusters``. For a cut every member trains once from the
    cluster's model, as it comes, until ``deadline`` if there is one. ``linkage`` of the cosine
    distances: complete (the authors' code), or single (the paper's optimal cut)."""

    kind: Literal["cfl"]
    thresholds: Annotated[AbsoluteNorms | RelativeNorms, Kind] = RelativeNorms(kind="relative")
    min_rounds: Count = 20
    linkage: Literal["complete", "single"] = "complete"
    max_clusters: Clusters | None = None
    deadline: PositiveSeconds | None = None


class FlHc(Section):
    """FL+HC (Briggs et al. 2020): after ``after_rounds`` versions every client trains once from the
    model, as it comes, until ``deadline`` if there is one; their updates are put together by
    agglomerative clustering, down to a number of ``clusters`` or up to the distance
    ``threshold``."""

    kind: Literal["fl_hc"]
    after_rounds: Count = 20
    metric: Literal["euclidean", "manhattan", "cosine"] = "euclidean"
    linkage: Literal["complete", "average", "single", "ward"] = "complete"
    clusters: Clusters | None = None
    threshold: Positive | None = None
    deadline: PositiveSeconds | None = None

    @model_validator(mode="after")
    def _one_end(self) -> FlHc:
        if (self.clusters is None) == (self.threshold is None):
            raise ValueError(
                "say clusters, how many, or threshold, up to what distance, one of them; found "
                f"clusters: {self.clusters} and threshold: {self.threshold}"
            )
        if self.linkage == "ward" and self.metric != "euclidean":
            raise ValueError(
                f"linkage: 'ward' goes with metric: euclidean only, and this is '{self.metric}'"
            )
        return self


class FlexCfl(Section):
    """FlexCFL (Duan et al. 2021): before the first round the first ``clients`` to come (20 a
    cluster, if not said) train ``steps`` mini-batches from the initial model, and their updates are
    grouped by ``measure``: edc, or madc. A newcomer does the same in its first task, before it
    trains the model of its group. Who is waited for has until ``deadline``, if there is one. With
    ``inter_group`` η above 0 the models of the groups are drawn to each other after each version.
    """

    kind: Literal["flexcfl"]
    clusters: Clusters
    clients: Count | None = None
    steps: Count = 50
    measure: Literal["edc", "madc"] = "edc"
    inter_group: NonNegative = 0.0
    deadline: PositiveSeconds | None = None


Clustered = Ifca | Cfl | FlHc | FlexCfl
