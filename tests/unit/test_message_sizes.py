"""Bytes of a message, and how many there may be."""

from __future__ import annotations

import pytest

from emulator.errors import ScenarioError
from emulator.federation.cost import Cost
from emulator.federation.payload.full import Sizes, full

MOST_BYTES = 2**43


def test_messages_up_to_8_tib_are_counted() -> None:
    assert full(MOST_BYTES - 12, Cost(), 10, 2) == Sizes(MOST_BYTES, MOST_BYTES)


def test_longer_messages_are_refused() -> None:
    with pytest.raises(ScenarioError, match=rf"messages of {MOST_BYTES + 1} bytes; at most"):
        full(MOST_BYTES - 11, Cost(), 10, 2)
