"""The check on image shapes that the convolutional models share."""

from __future__ import annotations

from emulator.errors import ScenarioError


def image_shape(
    kind: str, input_shape: tuple[int, ...], smallest_side: int
) -> tuple[int, int, int]:
    """``input_shape`` as (channels, height, width), each side at least ``smallest_side``.

    Raises ScenarioError for another rank or a smaller image.
    """
    if len(input_shape) != 3:
        raise ScenarioError(
            f"task.model: '{kind}' takes images of shape (channels, height, width), "
            f"got {input_shape}; use mlp or logistic"
        )
    channels, height, width = input_shape
    if min(height, width) < smallest_side:
        raise ScenarioError(
            f"task.model: '{kind}' takes images of {smallest_side}x{smallest_side} or larger, "
            f"got {height}x{width}; use another model (mlp and logistic take any size) or "
            "another data set"
        )
    return channels, height, width
