"""What only ``events.jsonl`` says of a run: ends of chains, why a model was split, check-ins."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from analysis.errors import AnalysisError
from analysis.whole_lines import open_lines, whole_lines


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """All events in their order, each with a number ``t`` and texts ``type`` and ``entity``.

    Raises ``AnalysisError`` where the log is missing, or a line is no such event.
    """
    with open_lines(path) as stream:
        for number, line in enumerate(whole_lines(stream), start=1):
            try:
                event = orjson.loads(line)
                known = isinstance(event["t"], float | int) and isinstance(event["type"], str)
                known = known and isinstance(event["entity"], str)
            except (ValueError, KeyError, TypeError):
                known = False
            if not known:
                raise AnalysisError(
                    f"{path}, line {number}: is no event (number 't', texts 'type' and 'entity'): "
                    f"{line[:80].rstrip()}"
                )
            yield event


def read_chain_ends(path: Path) -> dict[float, float]:
    """By number of the chain, the simulated second at which the event log has it end."""
    needed = "the end of a chain needs numbers 't' and 'chain'"
    return dict(_logged(path, "chain_end", needed, lambda e: (float(e["chain"]), float(e["t"]))))


def read_split_reasons(path: Path) -> dict[int, tuple[str, str]]:
    """See ``Run.split_reasons``."""

    def reason(event: dict[str, Any]) -> tuple[int, tuple[str, str]]:
        words = event["rule"], event["why"]
        if not all(isinstance(word, str) for word in words):
            raise TypeError(words)
        return int(event["version"]), words

    needed = "a split needs a number 'version' and texts 'rule' and 'why'"
    return dict(_logged(path, "split", needed, reason))


def read_check_ins(path: Path) -> dict[str, NDArray[Any]]:
    """See ``Run.check_ins``."""

    def check_in(event: dict[str, Any]) -> tuple[float, bool]:
        if not isinstance(event["explores"], bool):
            raise TypeError(event["explores"])
        return float(event["t"]), event["explores"]

    needed = "a check-in needs a number 't' and 'explores', true or false"
    found = list(_logged(path, "check_in", needed, check_in)) if path.exists() else []
    return {
        "sim_time_s": np.array([t for t, _ in found], dtype=np.float64),
        "explores": np.array([explores for _, explores in found], dtype=np.bool_),
    }


def _logged(
    path: Path, kind: str, needed: str, convert: Callable[[dict[str, Any]], Any]
) -> Iterator[Any]:
    """What ``convert`` makes of each event of a kind; its errors are those of a damaged log."""
    sign = f'"type":"{kind}"'
    with open_lines(path) as stream:
        for number, line in enumerate(whole_lines(stream), start=1):
            # A log has lines by the million, and few of them are of interest.
            if sign not in line:
                continue
            try:
                yield convert(json.loads(line))
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                raise AnalysisError(f"{path}, line {number}: {needed} ({error!r})") from error
