"""How long training takes: work × device speed × noise, three separate things.

The work is counted for this model and this recipe, the speed belongs to the device for good, and
the noise is drawn anew for every task.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from emulator.errors import RunError
from emulator.random_streams import purpose_key, uniform
from emulator.simulation.distributions import Ppf


@dataclass(frozen=True, slots=True)
class Work:
    """What one task computes: samples trained on (counted with every repetition), samples of
    extra passes that the method asks for, and multiply-accumulates of one sample's forward and
    backward pass; then the samples of passes that are forward only, and the multiply-accumulates
    of one such.

    Where a part of the model is trained, ``of_sample`` is what a sample takes of what one of the
    whole model's training does, and ``of_local`` what the training takes of one that trains the
    whole model as the scenario's ``local`` says, on ``usual_samples``."""

    samples: int
    extra_samples: int
    macs_per_sample: int
    forward_samples: int = 0
    forward_macs: int = 0
    of_sample: float = 1.0
    of_local: float = 1.0
    usual_samples: int = 0

    def __add__(self, other: Work) -> Work:
        """One after the other, of one model that is trained in whole."""
        return Work(
            self.samples + other.samples, self.extra_samples + other.extra_samples,
            self.macs_per_sample, self.forward_samples + other.forward_samples,
            self.forward_macs, self.of_sample, self.of_local + other.of_local, self.usual_samples,
        )  # fmt: skip


class Speed(Protocol):
    """A kind of device: noiseless seconds of a task."""

    def seconds(self, client: int, work: Work) -> float:
        """Seconds that ``work`` takes ``client`` without noise."""


class FedScaleSpeed:
    """FedScale's formula: 3·(samples)·(ms of one inference)/1000; forward 1, backward 2.

    Source: FedScale, ``Client.getCompletionTime``: 3·B·S·computation/1000. Where a part of the
    model is trained, the 3 shrinks with the operations that this takes.
    """

    def __init__(self, ms_per_sample: NDArray[np.float64]) -> None:
        self._ms_per_sample = ms_per_sample.tolist()

    def seconds(self, client: int, work: Work) -> float:
        ms = self._ms_per_sample[client]
        trained = work.samples * work.of_sample + work.extra_samples
        inferences = 3.0 * trained + work.forward_samples
        return float(inferences * ms / 1000)


class MacsSpeed:
    """The same devices, charged for this model: ``reference_macs`` in ``ms`` milliseconds."""

    def __init__(self, ms_per_sample: NDArray[np.float64], reference_macs: int) -> None:
        self._seconds_per_mac = (ms_per_sample / 1000 / reference_macs).tolist()

    def seconds(self, client: int, work: Work) -> float:
        macs = (work.samples + work.extra_samples) * work.macs_per_sample
        macs += work.forward_samples * work.forward_macs
        return float(macs * self._seconds_per_mac[client])


class ScriptedSpeed:
    """A task's training takes what was written; extra passes lengthen it in proportion, a forward
    pass by a third of a sample's training, as in FedScale's formula. One that trains a part of the
    model, or by another recipe, takes as much of it as its operations are of the usual ones; one
    that trains nothing takes its extra passes only."""

    def __init__(self, training_s: Sequence[float]) -> None:
        self._training_s = list(training_s)

    def seconds(self, client: int, work: Work) -> float:
        seconds = self._training_s[client]
        extra = work.extra_samples + work.forward_samples / 3
        return seconds * (work.of_local + extra / work.usual_samples if extra else work.of_local)


class Devices:
    """Training times of tasks. The noise of a client's n-th task is named by (client, n)."""

    def __init__(self, speed: Speed, noise: Ppf | None, root_seed: int) -> None:
        self._speed = speed
        self._noise = noise
        self._key = purpose_key(root_seed, "training noise")

    def training_s(self, client: int, work: Work, task_number: int) -> float:
        """Seconds of simulated time that the client's ``task_number``-th task trains."""
        seconds = self._speed.seconds(client, work)
        if self._noise is not None:
            try:
                seconds *= self._noise(uniform(self._key, client, task_number))
            except OverflowError:
                seconds = math.inf
            if not seconds < math.inf:
                raise RunError(
                    f"system.devices.noise makes the training of task {task_number} of client "
                    f"{client} last for ever; use a smaller sigma"
                )
        return seconds
