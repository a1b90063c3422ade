"""The lines of a file that may be growing, or that a kill has torn: those with their line end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from analysis.errors import AnalysisError

NEEDED = "manifest.json, versions.csv, updates.csv, metrics.csv, clients.csv"


def open_lines(path: Path) -> TextIO:
    """Open a file of a run directory; ``AnalysisError`` where that cannot be done."""
    try:
        # Lines end at "\n" alone, so that a line torn between "\r" and "\n" counts as torn; a
        # character torn in the middle must not stop the lines before it from being read.
        return path.open(encoding="utf-8", errors="replace", newline="\n")
    except FileNotFoundError as error:
        raise AnalysisError(
            f"{path}: does not exist; {path.parent} is not a run directory, or not a whole one "
            f"(needed: {NEEDED})"
        ) from error
    except OSError as error:
        raise AnalysisError(f"{path}: cannot be read ({error.strerror})") from error


def whole_lines(stream: TextIO) -> Iterator[str]:
    """Those that end in a line end."""
    return (line for line in stream if line.endswith("\n"))
