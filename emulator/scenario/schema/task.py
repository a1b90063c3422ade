"""``task``: the data, who holds it, the model."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from emulator.scenario.schema.base import Count, InputPath, Kind, Positive, Section
from emulator.scenario.units import PositiveBytes


class Digits(Section):
    """scikit-learn's 1,797 handwritten digits, 8x8; every fifth is a test sample."""

    kind: Literal["digits"]


class FashionMnist(Section):
    """Fashion-MNIST's IDX files; without a path, where Debian's package puts them."""

    kind: Literal["fashion_mnist"]
    path: InputPath | None = None
    train_samples: Count | None = None
    test_samples: Count | None = None


class Idx(Section):
    """Any data set in MNIST's four IDX files, gzipped or not, in the folder ``path``."""

    kind: Literal["idx"]
    path: InputPath
    train_samples: Count | None = None
    test_samples: Count | None = None


class DeclaredData(Section):
    """No data, only its size: for runs with --timing-only."""

    kind: Literal["declared"]
    samples_per_client: Annotated[int, Field(ge=0)]
    input_shape: tuple[Count, ...] | None = Field(default=None, strict=False)
    classes: Count | None = None


class Iid(Section):
    kind: Literal["iid"]
    holders: Count | None = None


class Shards(Section):
    """Sorted by label and cut into equal shards, ``shards_per_client`` each (1: α = 0)."""

    kind: Literal["shards"]
    shards_per_client: Count = 1
    holders: Count | None = None


class Dirichlet(Section):
    """Each class spread over the clients by Dirichlet(alpha)."""

    kind: Literal["dirichlet"]
    alpha: Positive
    min_samples: Annotated[int, Field(ge=0)] = 1
    attempts: Count = 100
    holders: Count | None = None


class Logistic(Section):
    kind: Literal["logistic"]


class Mlp(Section):
    kind: Literal["mlp"]
    hidden: tuple[Count, ...] = Field(default=(64,), strict=False)


class LeNet5(Section):
    kind: Literal["lenet5"]


class McMahanCnn(Section):
    """The two-convolution network of McMahan et al. 2017."""

    kind: Literal["mcmahan_cnn"]


class CustomModel(Section):
    """``callable: module:function``, called with input_shape, classes and the options."""

    kind: Literal["custom"]
    callable: str
    options: dict[str, Any] = Field(default_factory=dict)


class DeclaredModel(Section):
    """No model, only what its clock needs: for runs with --timing-only."""

    kind: Literal["declared"]
    size: PositiveBytes
    forward_macs: Annotated[int, Field(ge=0)]
    backward_macs: Annotated[int, Field(ge=0)]


class Task(Section):
    dataset: Annotated[Digits | FashionMnist | Idx | DeclaredData, Kind]
    clients: Count
    partition: Annotated[Iid | Shards | Dirichlet, Kind] | None = None
    model: Annotated[Logistic | Mlp | LeNet5 | McMahanCnn | CustomModel | DeclaredModel, Kind]

    @model_validator(mode="after")
    def _consistent(self) -> Task:
        declared = isinstance(self.dataset, DeclaredData)
        if declared and self.partition is not None:
            raise ValueError("dataset 'declared' has no samples to partition; leave partition out")
        if not declared and self.partition is None:
            raise ValueError("partition is missing; say {kind: iid | shards | dirichlet}")
        if isinstance(self.model, DeclaredModel) and not declared:
            raise ValueError("model 'declared' goes with dataset 'declared' (--timing-only)")
        if (
            isinstance(self.dataset, DeclaredData)
            and not isinstance(self.model, DeclaredModel)
            and None in (self.dataset.input_shape, self.dataset.classes)
        ):
            raise ValueError(
                "dataset 'declared' needs input_shape and classes for a model that is built"
            )
        holders = self.partition.holders if self.partition else None
        if holders is not None and holders > self.clients:
            raise ValueError(f"partition.holders is {holders}, more than {self.clients} clients")
        return self
