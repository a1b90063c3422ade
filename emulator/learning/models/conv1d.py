"""A small convolutional network for signals in time, such as a phone's motion sensors.

130,534 parameters on HAPT's windows (6 channels, 128 samples, 6 classes).
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from emulator.errors import ScenarioError

# 16 -> 12 -> 6 -> 2 -> 1
_SHORTEST = 16


def conv1d(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """conv 32@5, pool, conv 64@5, pool, fc 64, classifier; signals from 16 samples.

    Raises ScenarioError for anything that is not such a signal (channels, time).
    """
    if len(input_shape) != 2 or input_shape[1] < _SHORTEST:
        raise ScenarioError(
            f"task.model: 'conv1d' takes signals of shape (channels, time) with {_SHORTEST} "
            f"samples or more in time, got {input_shape}; use another model (mlp and logistic "
            "take any shape) or a data set of signals, such as hapt"
        )
    channels, samples = input_shape
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv1d(channels, 32, 5),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool1d(2),
            conv2=nn.Conv1d(32, 64, 5),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool1d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(64 * (((samples - 4) // 2 - 4) // 2), 64),
            relu3=nn.ReLU(),
            fc2=nn.Linear(64, classes),
        )
    )
