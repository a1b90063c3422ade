"""What a client minimizes: what it costs on the wire and on the device.

The gradients themselves are in ``emulator/learning/methods/``, under the same file names.
"""

from __future__ import annotations

from typing import Any

Options = dict[str, Any]
