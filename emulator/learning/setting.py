"""From a scenario's task to what the learning plane works with."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import os
import platform
from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import emulator
from emulator import random_streams
from emulator.errors import ScenarioError
from emulator.learning.corruption import corrupt
from emulator.learning.datasets import Dataset, load_dataset
from emulator.learning.executors import Executor, processes
from emulator.learning.executors.batched import LANES, Batched
from emulator.learning.executors.inline import Inline
from emulator.learning.executors.lanes import StepProgram, step_program
from emulator.learning.executors.processes import Processes
from emulator.learning.lineage import canonical, identity
from emulator.learning.methods.fedseq import classifier_weights, exemplars
from emulator.learning.models import build_model, resolve_callable
from emulator.learning.models.pretrained import load_pretrained
from emulator.learning.objectives import penalty
from emulator.learning.operations import Workbench, one_thread, torch_stream
from emulator.learning.partitions import (
    ClientTest,
    Indices,
    by_label_group,
    natural_test,
    partition,
    partition_hash,
    plant,
    planted_clusters,
    set_aside,
)
from emulator.learning.pretraining import Pretraining
from emulator.learning.probes import Sample, check_methods
from emulator.learning.profile import Profile, backward_macs_of, profile_model
from emulator.learning.training import Layout, Recipe, running_norms
from emulator.scenario.schema import (
    BATCH_NORM_CHOICES,
    CharLstm,
    Clf,
    CustomModel,
    DeclaredData,
    DeclaredModel,
    Execution,
    FlexCfl,
    Ifca,
    LabelGroups,
    Local,
    Natural,
    Scenario,
    Superclients,
    Task,
)
from emulator.scenario.schema import Pretraining as PretrainingSection

PROCESSES_FROM_MACS = 1_000_000
"""``executor: auto`` takes worker processes from this many forward multiply-accumulates a sample:
below, sending a task costs about as much as doing it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """``samples`` [clients], for training; ``root`` is the identity of everything that training
    starts from.

    ``partition[client]`` are the client's training samples. ``client_test`` is what each client
    is tested on, where the scenario or the data set says it. ``dataset`` and ``model`` are None
    where the scenario only declares their size. ``exemplars`` (x, y) are held out of the test set;
    ``pretraining_model`` is where clients begin before superclients are formed; ``sample`` is the
    shape of one, the number of classes, and whether it is text; ``planted`` [clients] the cluster
    that each client has been put into; ``more_models`` are where others than the first begin.
    """

    samples: NDArray[np.int64]
    profile: Profile
    root: str
    partition: list[NDArray[np.int64]]
    dataset: Dataset | None
    model: torch.nn.Module | None
    client_test: ClientTest | None = None
    pretraining_model: torch.nn.Module | None = None
    exemplars: tuple[NDArray[Any], NDArray[np.int64]] | None = None
    sample: Sample = ((), 0, False)
    planted: NDArray[np.int64] | None = None
    more_models: tuple[torch.nn.Module, ...] = ()

    def backward_macs(self, layers: Collection[str]) -> int:
        """Multiply-accumulates of one sample's backward pass where only ``layers`` are trained."""
        assert self.model is not None
        shape, classes, is_text = self.sample
        return backward_macs_of(self.model, shape, classes, layers, is_text=is_text)

    @property
    def units(self) -> list[int]:
        """Of each layer of the profile how many units it has: outputs, or channels."""
        assert self.model is not None
        modules = dict(self.model.named_modules())
        return [modules[layer.name].weight.shape[0] for layer in self.profile.layers]

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """Each client's samples by class [clients, classes]."""
        if self.dataset is None:
            return None
        y, classes = self.dataset.train_y, self.dataset.classes
        return np.array([np.bincount(y[part], minlength=classes) for part in self.partition])


def build(scenario: Scenario) -> Setting:
    """Load the data, split it, and initialize the model, each from its named stream."""
    task, seed = scenario.task, scenario.seed
    model_spec = task.model.model_dump(mode="json")
    if isinstance(task.dataset, DeclaredData):
        declared = task.dataset
        samples = np.full(task.clients, declared.samples_per_client, dtype=np.int64)
        planted = None
        if task.planted is not None:
            planted = planted_clusters(task.clients, task.planted.clusters, seed)
        root = identity(
            "declared",
            canonical(declared.model_dump(mode="json")),
            task.clients,
            canonical(model_spec),
            seed,
        )
        if isinstance(task.model, DeclaredModel):
            m = task.model
            profile = Profile((), m.size, m.forward_macs, m.backward_macs)
            return Setting(samples, profile, root, [], None, None, planted=planted)
        assert declared.input_shape is not None
        assert declared.classes is not None
        model = _initialized(model_spec, declared.input_shape, declared.classes, seed)
        if task.pretrained is not None:
            root = identity(root, load_pretrained(model, task.pretrained))
        _check_batch_norm(model, scenario.federation.batch_norm)
        profile = profile_model(
            model,
            declared.input_shape,
            declared.classes,
            is_text=isinstance(task.model, CharLstm),
        )
        sample = (declared.input_shape, declared.classes, isinstance(task.model, CharLstm))
        check_methods(model, [x.name for x in profile.layers], sample, scenario.federation)
        return Setting(samples, profile, root, [], None, model, sample=sample, planted=planted)
    dataset = _dataset(task.dataset.model_dump())
    dataset, held_out = _hold_out(dataset, task.exemplars, seed)
    planted = None
    if task.planted is not None:
        planted = planted_clusters(task.clients, task.planted.clusters, seed)
    parts, client_test = _split(task, dataset, planted, seed)
    if task.planted is not None and planted is not None:
        everything, tested = parts, list[NDArray[np.int64]]()
        if client_test is not None and client_test.split == "train":
            everything = [np.concatenate(p) for p in zip(parts, client_test.indices, strict=True)]
        elif client_test is not None:
            tested = client_test.indices
        dataset = plant(dataset, task.planted.model_dump(), everything, planted, seed, tested)
    dataset = corrupt(dataset, parts, scenario)
    samples = np.array([len(part) for part in parts], dtype=np.int64)
    model = _initialized(model_spec, dataset.input_shape, dataset.classes, seed)
    given = [] if task.pretrained is None else [load_pretrained(model, task.pretrained)]
    _check_batch_norm(model, scenario.federation.batch_norm)
    profile = profile_model(model, dataset.input_shape, dataset.classes, is_text=dataset.is_text)
    sample = (dataset.input_shape, dataset.classes, dataset.is_text)
    check_methods(model, [x.name for x in profile.layers], sample, scenario.federation)
    held = [partition_hash(parts), *given]
    if client_test is not None:
        held.append(partition_hash(client_test.indices))
    if task.exemplars is not None:
        held.append(f"exemplars={task.exemplars}")
    root = identity("root", dataset.content_hash, *held, canonical(model_spec), seed)
    pretraining_model = None
    structure = scenario.federation.structure
    if isinstance(structure, Superclients) and structure.pretraining is not None:
        pretraining_model = _initialized(
            model_spec, dataset.input_shape, dataset.classes, seed, "pre-training initialization"
        )
        if isinstance(structure.approximator, Clf):
            classifier_weights(model, structure.approximator.layers)  # refused before anything runs
    more = range(1, structure.clusters) if isinstance(structure, Ifca) else ()
    more_models = tuple(
        _initialized(
            model_spec, dataset.input_shape, dataset.classes, seed, "initialization", number
        )
        for number in more
    )
    return Setting(
        samples, profile, root, parts, dataset, model, client_test, pretraining_model, held_out,
        sample, planted, more_models,
    )  # fmt: skip


def _hold_out(
    dataset: Dataset, per_class: int | None, seed: int
) -> tuple[Dataset, tuple[NDArray[Any], NDArray[np.int64]] | None]:
    """The data set with fewer test samples, and the exemplars (x, y) that it was relieved of."""
    if per_class is None:
        return dataset, None
    rng = random_streams.generator(seed, "exemplars")
    chosen, rest = exemplars(dataset.test_y, dataset.classes, per_class, rng)
    x, y = dataset.test_x, dataset.test_y
    kept = dataclasses.replace(dataset, test_x=x[rest], test_y=y[rest])
    return kept, (x[chosen], y[chosen])


def _split(
    task: Task, dataset: Dataset, planted: Indices | None, seed: int
) -> tuple[list[Indices], ClientTest | None]:
    """The training samples of each client, and what each is tested on."""
    assert task.partition is not None
    options = task.partition.model_dump()
    kind = options.pop("kind")

    def split(labels: NDArray[np.int64], clients: int, *cluster: int) -> list[Indices]:
        rng = random_streams.generator(seed, "partition", *cluster)
        return partition(kind, labels, clients, rng, groups=dataset.train_group, **options)

    if planted is not None and isinstance(task.planted, LabelGroups):
        parts = by_label_group(split, dataset, planted, task.planted.clusters)
    else:
        parts = split(dataset.train_y, task.clients)
    if isinstance(task.partition, Natural):
        assert dataset.train_group is not None
        assert dataset.test_group is not None
        own = natural_test(parts, dataset.train_group, dataset.test_group)
        return parts, ClientTest("test", own)
    if task.client_test is None:
        return parts, None
    parts, own = set_aside(parts, task.client_test, seed)
    return parts, ClientTest("train", own)


def _dataset(options: dict[str, Any]) -> Dataset:
    kind = options.pop("kind")
    return load_dataset(kind, **{k: v for k, v in options.items() if v is not None})


def _initialized(
    spec: dict[str, Any],
    input_shape: tuple[int, ...],
    classes: int,
    seed: int,
    stream: str = "initialization",
    *number: int,
) -> torch.nn.Module:
    options = dict(spec)
    kind = options.pop("kind")
    if kind == "custom":
        options = {"callable": options["callable"], **options["options"]}
    with torch_stream(seed, stream, *number):
        return build_model(kind, input_shape, classes, **options)


def _check_batch_norm(model: torch.nn.Module, choice: str | None) -> None:
    """Raise :class:`ScenarioError` unless ``federation.batch_norm`` goes with the model."""
    keeps = bool(running_norms(model))
    if keeps and choice is None:
        raise ScenarioError(f"federation.batch_norm is missing: task.model {BATCH_NORM_CHOICES}")
    if choice is not None and not keeps:
        raise ScenarioError(
            f"federation.batch_norm: '{choice}' says what becomes of the running statistics of "
            "batch normalization, and task.model keeps none; leave it out"
        )


def pretraining(scenario: Scenario) -> Pretraining | None:
    """How clients train before superclients are formed; None where they need not."""
    structure = scenario.federation.structure
    if not isinstance(structure, Superclients) or structure.pretraining is None:
        return None
    section, approximator = structure.pretraining, structure.approximator
    layers = approximator.layers if isinstance(approximator, Clf) else None
    local = pretraining_local(scenario.local, section)
    return Pretraining(recipe(local), layers, section.similarity)


def pretraining_local(local: Local, section: PretrainingSection) -> Local:
    """What ``local`` is while clients pre-train."""
    return local.model_copy(
        update={
            "epochs": section.epochs,
            "steps": None,
            "batch_size": section.batch_size or local.batch_size,
            "optimizer": section.optimizer or local.optimizer,
        }
    )


def cold_start_local(local: Local, section: FlexCfl) -> Local:
    """What ``local`` is when a client's group is to be found."""
    return local.model_copy(update={"epochs": None, "steps": section.steps})


def classifier_bytes(setting: Setting, layers: int) -> int:
    """What ψ_clf of so many layers sends: 4 bytes a weight."""
    if setting.model is None:
        raise ScenarioError(
            "federation.structure.approximator: 'clf' sends a part of the model, and model "
            "'declared' has no layers; take another model, or approximator: {kind: conf}"
        )
    return 4 * classifier_weights(setting.model, layers).numel()


def recipe(local: Local) -> Recipe:
    """How every client trains."""
    sgd = local.optimizer
    return Recipe(
        local.epochs,
        local.steps,
        local.batch_size,
        sgd.lr,
        sgd.momentum,
        sgd.weight_decay,
        local.short_clients == "pad",
    )


BATCHED_MODELS = {
    "cpu": ("logistic", "mlp"),
    "cuda": ("logistic", "mlp", "lenet5", "mcmahan_cnn", "fedseq_lenet", "conv1d"),
}
"""``executor: auto`` trains these kinds of models in lanes. On a CPU that pays where starting the
operations takes longer than they do; on a GPU it does for all that can be trained so."""


def resolve_executor(execution: Execution, model_kind: str, profile: Profile) -> str:
    """The fixed rule behind ``executor: auto``: of model and device only."""
    device = execution.device
    if device == "cuda" and execution.executor == "processes":
        raise ScenarioError(
            "execution.executor: processes runs on the CPU; use inline or batched (or auto) with "
            "device: cuda"
        )
    if execution.executor != "auto":
        return execution.executor
    if device == "cpu" and profile.forward_macs >= PROCESSES_FROM_MACS:
        return "processes"
    return "batched" if model_kind in BATCHED_MODELS[device] else "inline"


def start_workers_early(scenario: Scenario) -> None:
    """Where worker processes are likely, load their libraries while the data are read."""
    execution = scenario.execution
    small = scenario.task.model.kind in BATCHED_MODELS["cpu"]
    likely = execution.executor == "auto" and not small
    if execution.device == "cpu" and (likely or execution.executor == "processes"):
        processes.prepare()


def torch_device(name: str) -> torch.device:
    """The device, or a :class:`ScenarioError` when it is not there."""
    if name == "cuda":
        if not torch.cuda.is_available():
            raise ScenarioError("device: cuda was asked for, and torch finds no CUDA device here")
        # cuBLAS sums in a fixed order only with a workspace of this kind.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
    return torch.device(name)


def workbench(setting: Setting, device: torch.device) -> Workbench:
    """What the operations of a run need."""
    assert setting.dataset is not None
    assert setting.model is not None
    data = setting.dataset

    def tensor(array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    held = setting.exemplars
    return Workbench(
        Layout(setting.model, device),
        tensor(data.train_x),
        tensor(data.train_y),
        tensor(data.test_x),
        tensor(data.test_y),
        setting.partition,
        setting.client_test,
        None if held is None else (tensor(held[0]), tensor(held[1])),
        setting.planted,
    )


def lanes(scenario: Scenario, bench: Workbench) -> StepProgram | None:
    """What ``executor: batched`` runs; None with another executor.

    Raises :class:`ScenarioError` for a model that cannot be trained in lanes.
    """
    if scenario.execution.executor != "batched":
        return None
    width, rows = LANES[scenario.execution.device], scenario.local.batch_size
    objective = scenario.federation.objective.model_dump()
    with one_thread():
        return step_program(
            bench.layout, rows, width, bench.train_x, bench.train_y, penalty(objective)
        )


def executor(kind: str, bench: Workbench, workers: int, step: StepProgram | None) -> Executor:
    """The executor of that kind; ``step`` as :func:`lanes` gives it."""
    if step is not None:
        return Batched(bench, step, workers if bench.layout.device.type == "cpu" else 1)
    return Processes(bench, workers) if kind == "processes" else Inline(bench)


def fingerprint(scenario: Scenario) -> dict[str, str]:
    """What may change a bit of a result beside the scenario: sources, libraries, processor."""
    model = scenario.task.model
    sources = sorted((Path(emulator.__file__).parent / "learning").rglob("*.py"))
    sources.append(Path(random_streams.__file__))
    executor, device = scenario.execution.executor, scenario.execution.device
    found = {
        "learning plane": _digest(b"".join(path.read_bytes() for path in sources)),
        **{name: version(name) for name in ("torch", "numpy", "scipy", "scikit-learn")},
        "executor": f"batched, {LANES[device]} lanes" if executor == "batched" else executor,
        "dtype": "float32",
        "machine": platform.machine(),
    }
    if isinstance(model, CustomModel):
        found["custom model"] = _digest(_source_of(model.callable))
    if scenario.execution.device == "cuda":
        here = torch.cuda.is_available()  # it need not be, in a timing-only run
        found["device"] = torch.cuda.get_device_name() if here else "cuda"
    else:
        found["device"] = f"cpu {torch.backends.cpu.get_cpu_capability()}"
    return found


def _source_of(spec: str) -> bytes:
    """The file in which a user's callable is written."""
    function = inspect.unwrap(resolve_callable(spec))
    try:
        path = inspect.getsourcefile(getattr(function, "func", function))
    except TypeError:
        path = None
    if path is None:
        raise ScenarioError(
            f"task.model.callable: '{spec}' has no source file, so a change of it could not be "
            "noticed; name a function or a class of a module"
        )
    return Path(path).read_bytes()


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()
