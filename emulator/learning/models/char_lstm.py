"""The character LSTM of McMahan et al. 2017 and LEAF (Caldas et al. 2018): what comes next?

A vocabulary of ``classes`` characters, embedded in 8 dimensions, two LSTM layers of 256, and a
classifier on the last position: 820,185 parameters with 81 characters. (torch's LSTM has two
bias vectors a layer, where one would do.)
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from emulator.errors import ScenarioError


class LastOutput(nn.LSTM):
    """An LSTM over ``[batch, time, features]`` that gives its last output ``[batch, hidden]``."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        outputs: Tensor = super().forward(x)[0]
        return outputs[:, -1]


def char_lstm(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    embedding: int = 8,
    hidden: int = 256,
    layers: int = 2,
) -> nn.Module:
    """embedding, ``layers`` of LSTM of width ``hidden``, classifier; for sequences of positions
    in a vocabulary of ``classes`` characters.

    Raises ScenarioError for another shape than (time,), and for sizes that are not positive.
    """
    for option, value in (("embedding", embedding), ("hidden", hidden), ("layers", layers)):
        if type(value) is not int or value < 1:
            raise ScenarioError(
                f"task.model.{option}: {value!r} is not allowed; write an integer from 1 up"
            )
    if len(input_shape) != 1:
        raise ScenarioError(
            f"task.model: 'char_lstm' takes sequences of characters of shape (time,), got "
            f"{input_shape}; use a data set of text, such as shakespeare"
        )
    return nn.Sequential(
        OrderedDict(
            embed=nn.Embedding(classes, embedding),
            lstm=LastOutput(embedding, hidden, layers, batch_first=True),
            fc=nn.Linear(hidden, classes),
        )
    )
