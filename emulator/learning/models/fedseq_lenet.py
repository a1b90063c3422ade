"""The LeNet of FedSeq, for images of CIFAR's size.

Zaccone, Rizzardi, Caldarola, Ciccone, Caputo, "Speeding up Heterogeneous Federated Learning with
Sequentially Trained Superclients" (ICPR 2022), after the CIFAR network of FedDyn (Acar et al.,
ICLR 2021) and so of McMahan et al. 2017: two 5x5 convolutions with 64 channels, each pooled by 2,
layers of 384 and 192. On 3x32x32 images 797,962 parameters with 10 classes, 815,332 with 100.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from emulator.learning.models.shapes import image_shape

# 16 -> 12 -> 6 -> 2 -> 1
_SMALLEST_SIDE = 16


def fedseq_lenet(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """conv 64@5x5, pool, conv 64@5x5, pool, fc 384, fc 192, classifier; images from 16x16.

    Raises ScenarioError for anything that is not such an image.
    """
    channels, height, width = image_shape("fedseq_lenet", input_shape, _SMALLEST_SIDE)
    rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 64, 5),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(64, 64, 5),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(64 * rows * columns, 384),
            relu3=nn.ReLU(),
            fc2=nn.Linear(384, 192),
            relu4=nn.ReLU(),
            fc3=nn.Linear(192, classes),
        )
    )
