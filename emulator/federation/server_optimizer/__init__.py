"""How updates are merged; the equations are in ``emulator/learning/methods/``.

Each function takes its section and how clients train, and gives the options for the learning plane
and what the method costs a client.
"""

from __future__ import annotations

from typing import Any

Options = dict[str, Any]
