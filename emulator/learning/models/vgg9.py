"""VGG9 as FedMA has it (Wang et al., ICLR 2020, "ModerateCNN"), after Simonyan and Zisserman 2015.

Six 3x3 convolutions in three blocks, each pooled by 2, and three linear layers; no batch
normalization. On 3x32x32 images with 10 classes 3,491,530 parameters at width 1. Weights are drawn
as He et al. (ICCV 2015) have it: with torch's own initialization so many layers without
normalization learn nothing for the first hundreds of steps.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from emulator.learning.models.shapes import image_shape

# 8 -> 4 -> 2 -> 1
_SMALLEST_SIDE = 8


def vgg9(input_shape: tuple[int, ...], classes: int, *, width: float = 1.0) -> nn.Module:
    """conv 32, 64, pool, conv 128, 128, pool, conv 256, 256, pool, fc 512, 512, classifier, with
    dropout after the second block (5 % of the channels), the third and the first two linear layers
    (10 %); ``width`` multiplies all of these but the classes, rounded, and at least 1.

    Raises ScenarioError for anything that is not an image of 8x8 or larger.
    """
    channels, rows, columns = image_shape("vgg9", input_shape, _SMALLEST_SIDE)
    w32, w64, w128, w256, w512 = (max(1, round(n * width)) for n in (32, 64, 128, 256, 512))
    model = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, w32, 3, padding=1),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(w32, w64, 3, padding=1),
            relu2=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv3=nn.Conv2d(w64, w128, 3, padding=1),
            relu3=nn.ReLU(),
            conv4=nn.Conv2d(w128, w128, 3, padding=1),
            relu4=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            dropout1=nn.Dropout2d(0.05),
            conv5=nn.Conv2d(w128, w256, 3, padding=1),
            relu5=nn.ReLU(),
            conv6=nn.Conv2d(w256, w256, 3, padding=1),
            relu6=nn.ReLU(),
            pool3=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            dropout2=nn.Dropout(0.1),
            fc1=nn.Linear(w256 * (rows // 8) * (columns // 8), w512),
            relu7=nn.ReLU(),
            fc2=nn.Linear(w512, w512),
            relu8=nn.ReLU(),
            dropout3=nn.Dropout(0.1),
            fc3=nn.Linear(w512, classes),
        )
    )
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return model
