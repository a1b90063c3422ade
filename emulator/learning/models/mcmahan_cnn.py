"""The CNN of "Communication-Efficient Learning of Deep Networks from Decentralized Data".

McMahan, Moore, Ramage, Hampson, Agüera y Arcas (AISTATS 2017), section 3: two 5x5 convolutions
with 32 and 64 channels, each pooled by 2, a layer of 512, softmax. The paper's 1,663,370
parameters (28x28 grey images, 10 classes) fix the padding: the convolutions keep the size.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from emulator.learning.models.shapes import image_shape


def mcmahan_cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """conv 32@5x5, pool, conv 64@5x5, pool, fc 512, classifier; images from 4x4.

    Raises ScenarioError for anything that is not such an image.
    """
    channels, height, width = image_shape("mcmahan_cnn", input_shape, 4)
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 32, 5, padding=2),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(32, 64, 5, padding=2),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(64 * (height // 4) * (width // 4), 512),
            relu3=nn.ReLU(),
            fc2=nn.Linear(512, classes),
        )
    )
