"""The ResNet-8 of MLPerf Tiny (Banbury et al., NeurIPS 2021 Datasets and Benchmarks).

The ResNet of He et al. (CVPR 2016) with one residual block for each of three widths, 16, 32 and
64, and batch normalization. 78,186 parameters on 32x32 colour images with 10 classes and 480
values of running statistics beside them, MLPerf's 78,666 together.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from emulator.learning.models.shapes import image_shape


class ResidualBlock(nn.Module):
    """relu(norm(conv(relu(norm(conv(x))))) + shortcut(x)), 3x3 convolutions, the first with
    ``stride``; the shortcut is x itself, or a 1x1 convolution where the shape changes."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1)
        self.norm1 = nn.BatchNorm2d(channels)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(channels)
        same = channels_in == channels and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels_in, channels, 1, stride)
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.relu1(self.norm1(self.conv1(x)))
        out: Tensor = self.relu2(self.norm2(self.conv2(hidden)) + self.shortcut(x))
        return out


class MeanOverImage(nn.Module):
    """[batch, channels, height, width] to [batch, channels]."""

    def forward(self, x: Tensor) -> Tensor:
        # Not AdaptiveAvgPool2d, whose gradient has no fixed order of sums on a GPU.
        return x.mean(dim=(2, 3))


def resnet8(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """conv 16, blocks of 16, 32 (halved) and 64 (halved), mean, classifier; images from 4x4.

    Raises ScenarioError for anything that is not such an image.
    """
    channels, _, _ = image_shape("resnet8", input_shape, 4)
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 16, 3, padding=1),
            norm1=nn.BatchNorm2d(16),
            relu1=nn.ReLU(),
            block1=ResidualBlock(16, 16, 1),
            block2=ResidualBlock(16, 32, 2),
            block3=ResidualBlock(32, 64, 2),
            pool=MeanOverImage(),
            fc=nn.Linear(64, classes),
        )
    )
