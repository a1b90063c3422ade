"""LeNet-5 (LeCun, Bottou, Bengio, Haffner 1998) in today's form: ReLU, max-pooling, dense C3.

61,706 parameters on 28x28 grey images with 10 classes.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from emulator.learning.models.shapes import image_shape

# 12 + 4 of padding -> 12 -> 6 -> 2 -> 1
_SMALLEST_SIDE = 12


def _padding(side: int) -> int:
    """2 below 32, else 0: the net sees 28x28 as 32x32, as LeCun's did."""
    return 2 if side < 32 else 0


def _after_convolutions(side: int) -> int:
    """The side of the last feature map: two 5x5 convolutions, each pooled by 2."""
    return ((side + 2 * _padding(side) - 4) // 2 - 4) // 2


def lenet5(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """conv 6@5x5, pool, conv 16@5x5, pool, fc 120, fc 84, classifier; images from 12x12.

    Raises ScenarioError for anything that is not such an image.
    """
    channels, height, width = image_shape("lenet5", input_shape, _SMALLEST_SIDE)
    padding = (_padding(height), _padding(width))
    flat = 16 * _after_convolutions(height) * _after_convolutions(width)
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 6, 5, padding=padding),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(6, 16, 5),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(flat, 120),
            relu3=nn.ReLU(),
            fc2=nn.Linear(120, 84),
            relu4=nn.ReLU(),
            fc3=nn.Linear(84, classes),
        )
    )
