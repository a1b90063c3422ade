"""What a client minimizes: what it costs on the wire and on the device.

The gradients themselves are in ``emulator/learning/methods/``, under the same file names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Options = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cost:
    """Model-sized vectors in each direction, and passes over a client's samples beyond training."""

    vectors_down: int = 1
    vectors_up: int = 1
    extra_passes: int = 0
