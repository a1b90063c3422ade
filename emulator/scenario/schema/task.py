"""``task``: the data, who holds it, the model."""

from __future__ import annotations

import itertools
import math
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from emulator.scenario.schema.base import Count, InputPath, Kind, Positive, Section, Whole
from emulator.scenario.schema.planted import LabelGroups, Planted, Rotation
from emulator.scenario.units import PositiveBytes

MOST_WEIGHTS = 1_000_000_000
Clients = Annotated[int, Field(ge=1, le=10_000_000)]
Share = Annotated[float, Field(gt=0, lt=1)]


class Digits(Section):
    """scikit-learn's 1,797 handwritten digits, 8x8; every fifth is a test sample."""

    kind: Literal["digits"]


class FashionMnist(Section):
    """Fashion-MNIST's IDX files; without a path, where Debian's package puts them, or what
    ``fedclock data fetch fashion_mnist`` has fetched. The first ``train_from`` training samples are
    left out, then ``train_samples`` taken."""

    kind: Literal["fashion_mnist"]
    path: InputPath | None = None
    train_samples: Count | None = None
    test_samples: Count | None = None
    train_from: Whole = 0


class Mnist(Section):
    """MNIST's IDX files; without a path, what ``fedclock data fetch mnist`` has fetched."""

    kind: Literal["mnist"]
    path: InputPath | None = None
    train_samples: Count | None = None
    test_samples: Count | None = None
    train_from: Whole = 0


class Idx(Section):
    """Any data set in MNIST's four IDX files, gzipped or not, in the folder ``path``."""

    kind: Literal["idx"]
    path: InputPath
    train_samples: Count | None = None
    test_samples: Count | None = None
    train_from: Whole = 0


class Emnist(Section):
    """EMNIST's IDX files in the folder ``path``; ``split`` is one of the six that it offers."""

    kind: Literal["emnist"]
    path: InputPath
    split: Literal["balanced", "byclass", "bymerge", "digits", "letters", "mnist"]
    train_samples: Count | None = None
    test_samples: Count | None = None


class Cifar10(Section):
    """CIFAR-10: the publisher's .tar.gz (Python's or the binary version), or its folder."""

    kind: Literal["cifar10"]
    path: InputPath
    train_samples: Count | None = None
    test_samples: Count | None = None


class Cifar100(Section):
    """CIFAR-100, as cifar10; 100 ``fine`` classes or 20 ``coarse`` ones."""

    kind: Literal["cifar100"]
    path: InputPath
    labels: Literal["fine", "coarse"] = "fine"
    train_samples: Count | None = None
    test_samples: Count | None = None


class Hapt(Section):
    """30 people's activities by their phones' motion: windows of 2.56 s, one every ``hop``
    samples at 50 Hz, the last ``test_fraction`` of each user's for testing; without a path, what
    ``fedclock data fetch hapt`` has fetched. Natural clients: users."""

    kind: Literal["hapt"]
    path: InputPath | None = None
    hop: Count = 64
    test_fraction: Share = 0.2
    train_samples_per_client: Count | None = None
    test_samples_per_client: Count | None = None


class Shakespeare(Section):
    """The next character after 80 of a role's text, every ``hop`` characters, the last
    ``test_fraction`` for testing; without a path (a folder of plays in Markdown), what
    ``fedclock data fetch shakespeare`` has fetched. Natural clients: roles with
    ``min_train_samples`` or more."""

    kind: Literal["shakespeare"]
    path: InputPath | None = None
    hop: Count = 80
    test_fraction: Share = 0.1
    min_train_samples: Count = 1
    train_samples_per_client: Count | None = None
    test_samples_per_client: Count | None = None


class DeclaredData(Section):
    """No data, only its size: for runs with --timing-only."""

    kind: Literal["declared"]
    samples_per_client: Whole
    input_shape: tuple[Count, ...] | None = Field(default=None, strict=False)
    classes: Count | None = None


class Iid(Section):
    """Samples dealt out at random, in equal numbers."""

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
    min_samples: Whole = 1
    attempts: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    holders: Count | None = None


class ClientDirichlet(Section):
    """Each client's mix of classes by Dirichlet(alpha × the classes' shares), equal sizes (Hsu et
    al. 2019)."""

    kind: Literal["client_dirichlet"]
    alpha: Positive
    holders: Count | None = None


class Quantity(Section):
    """Sizes by Dirichlet(alpha), classes at random (NIID-Bench's quantity skew)."""

    kind: Literal["quantity"]
    alpha: Positive
    min_samples: Whole = 1
    attempts: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    holders: Count | None = None


class Natural(Section):
    """A client for each of the data set's own: the first ``listed``, or a ``random`` choice."""

    kind: Literal["natural"]
    order: Literal["listed", "random"] = "listed"
    holders: Count | None = None


class PartitionFile(Section):
    """A CSV file: ``sample,client``, or FedScale's client_id,sample_path,label_name,label_id."""

    kind: Literal["file"]
    path: InputPath


class Logistic(Section):
    """One linear layer on all values of a sample."""

    kind: Literal["logistic"]


class Mlp(Section):
    """Linear layers of the ``hidden`` widths with ReLU between."""

    kind: Literal["mlp"]
    hidden: tuple[Count, ...] = Field(default=(64,), strict=False)


class LeNet5(Section):
    """LeNet-5 with ReLU and max-pooling."""

    kind: Literal["lenet5"]


class McMahanCnn(Section):
    """The two-convolution network of McMahan et al. 2017."""

    kind: Literal["mcmahan_cnn"]


class ResNet8(Section):
    """MLPerf Tiny's small residual network, with batch normalization: federation.batch_norm says
    what becomes of its running statistics."""

    kind: Literal["resnet8"]


class Vgg9(Section):
    """The VGG9 of FedMA and Divide-and-Conquer, without batch normalization; ``width`` multiplies
    the number of its channels and units."""

    kind: Literal["vgg9"]
    width: Annotated[float, Field(gt=0, le=16)] = 1.0


class FedSeqLeNet(Section):
    """FedSeq's LeNet, which is FedDyn's network for CIFAR."""

    kind: Literal["fedseq_lenet"]


class Conv1d(Section):
    """Two convolutions in time, for signals such as hapt's."""

    kind: Literal["conv1d"]


class CharLstm(Section):
    """The character LSTM of McMahan et al. 2017 and LEAF, for text such as shakespeare's."""

    kind: Literal["char_lstm"]
    embedding: Annotated[int, Field(ge=1, le=10_000)] = 8
    hidden: Annotated[int, Field(ge=1, le=10_000)] = 256
    layers: Annotated[int, Field(ge=1, le=100)] = 2


class CustomModel(Section):
    """``callable: module:function``, called with input_shape, classes and the options."""

    kind: Literal["custom"]
    callable: str
    options: dict[str, Any] = Field(default_factory=dict)


class DeclaredModel(Section):
    """No model, only what its clock needs: for runs with --timing-only."""

    kind: Literal["declared"]
    size: PositiveBytes
    forward_macs: Whole
    backward_macs: Whole


_IMAGES = (Digits, FashionMnist, Mnist, Idx, Emnist, Cifar10, Cifar100)
_TAKES: dict[type[Section], tuple[type[Section], ...]] = {
    Logistic: (*_IMAGES, Hapt),
    Mlp: (*_IMAGES, Hapt),
    LeNet5: _IMAGES,
    McMahanCnn: _IMAGES,
    FedSeqLeNet: _IMAGES,
    Vgg9: _IMAGES,
    ResNet8: _IMAGES,
    Conv1d: (Hapt,),
    CharLstm: (Shakespeare,),
}
"""The data sets that each model can take; models that are not here take what they take."""


def _kinds(dataset: Section) -> str:
    """The models of the table that take a data set, by kind."""
    return ", ".join(
        get_args(model.model_fields["kind"].annotation)[0]
        for model, sets in _TAKES.items()
        if isinstance(dataset, sets)
    )


class Pretrained(Section):
    """Weights to begin with, of a run's model.safetensors: of all layers, or of these ``layers``
    by name; the others are initialized as ever."""

    path: InputPath
    layers: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] | None = None


class Task(Section):
    """``client_test`` sets that fraction of each client's samples aside to test on that client;
    natural clients have test samples of their own instead. ``exemplars``: so many test samples of
    each class are held out for FedSeq's approximator 'conf'; no method is evaluated on them.
    ``planted`` puts the clients into clusters whose data differ in a known way; each cluster has an
    equal share of the test set, but for what natural clients have of it, which is of theirs."""

    dataset: Annotated[
        Digits
        | FashionMnist
        | Mnist
        | Idx
        | Emnist
        | Cifar10
        | Cifar100
        | Hapt
        | Shakespeare
        | DeclaredData,
        Kind,
    ]
    clients: Clients
    partition: (
        Annotated[
            Iid | Shards | Dirichlet | ClientDirichlet | Quantity | Natural | PartitionFile, Kind
        ]
        | None
    ) = None
    planted: Planted | None = None
    client_test: Share | None = None
    exemplars: Count | None = None
    pretrained: Pretrained | None = None
    model: Annotated[
        Logistic
        | Mlp
        | LeNet5
        | McMahanCnn
        | FedSeqLeNet
        | Vgg9
        | ResNet8
        | Conv1d
        | CharLstm
        | CustomModel
        | DeclaredModel,
        Kind,
    ]

    @model_validator(mode="after")
    def _fits_memory(self) -> Task:
        """No two layers with more weights between them than any machine holds."""
        widths: tuple[int, ...] = self.model.hidden if isinstance(self.model, Mlp) else ()
        if isinstance(self.dataset, DeclaredData) and not isinstance(self.model, DeclaredModel):
            given, classes = self.dataset.input_shape or (), self.dataset.classes or 1
            widths = (math.prod(given), *widths, classes)
        for below, above in itertools.pairwise(widths):
            if below * above > MOST_WEIGHTS:
                raise ValueError(
                    f"model '{self.model.kind}': {below:,} × {above:,} weights in a layer are more "
                    f"than {MOST_WEIGHTS:,}, 4 GB; make hidden, input_shape or classes smaller"
                )
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Task:
        declared = isinstance(self.dataset, DeclaredData)
        if declared and self.partition is not None:
            raise ValueError("dataset 'declared' has no samples to partition; leave partition out")
        if not declared and self.partition is None:
            raise ValueError(
                "partition is missing; say {kind: iid | shards | dirichlet | client_dirichlet | "
                "quantity | natural | file}"
            )
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
        if self.pretrained is not None and isinstance(self.model, DeclaredModel):
            raise ValueError("pretrained: model 'declared' has no weights; leave pretrained out")
        takes = _TAKES.get(type(self.model))
        if takes is not None and not isinstance(self.dataset, (*takes, DeclaredData)):
            raise ValueError(
                f"model '{self.model.kind}' does not take dataset '{self.dataset.kind}', whose "
                f"samples have another form; models that do: {_kinds(self.dataset)} and custom"
            )
        natural = isinstance(self.partition, Natural)
        if natural and not isinstance(self.dataset, Hapt | Shakespeare):
            raise ValueError(
                f"partition 'natural': dataset '{self.dataset.kind}' does not say whose samples "
                "are whose; hapt and shakespeare do"
            )
        if self.client_test is not None and (declared or natural):
            reason = (
                "dataset 'declared' has no samples to set aside"
                if declared
                else "natural clients have the test samples of the data set (test_fraction)"
            )
            raise ValueError(f"client_test: {reason}; leave client_test out")
        if self.exemplars is not None and (declared or natural):
            reason = (
                "dataset 'declared' has no test samples"
                if declared
                else "the test samples of natural clients are their own"
            )
            raise ValueError(f"exemplars: {reason}; leave exemplars out")
        if self.planted is not None:
            self._plantable(self.planted)
        holders = getattr(self.partition, "holders", None)
        if holders is not None and holders > self.clients:
            raise ValueError(f"partition.holders is {holders}, more than {self.clients} clients")
        return self

    def _plantable(self, planted: Section) -> None:
        kind = getattr(planted, "kind", "")
        clusters = getattr(planted, "clusters", 0)
        if clusters > self.clients:
            raise ValueError(
                f"planted.clusters is {clusters}, more than the {self.clients} clients"
            )
        if isinstance(self.dataset, Shakespeare) and not isinstance(planted, LabelGroups):
            raise ValueError(f"planted: '{kind}' changes numbers, and shakespeare's data are text")
        if isinstance(planted, Rotation) and isinstance(self.dataset, Hapt):
            raise ValueError("planted: 'rotation' turns images, and hapt's samples are signals")
        given = isinstance(self.partition, Natural | PartitionFile)
        if isinstance(planted, LabelGroups) and given:
            assert self.partition is not None
            raise ValueError(
                "planted: 'label_groups' says who may hold which classes, and partition "
                f"'{self.partition.kind}' says it already"
            )
        if isinstance(planted, LabelGroups) and getattr(self.partition, "holders", None):
            raise ValueError("planted: 'label_groups' with partition.holders: leave holders out")
