"""Files that a command writes: whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from analysis.errors import AnalysisError


def write_file(path: Path, content: bytes) -> None:
    """Replace a file; a reader never sees half of it. ``AnalysisError`` where it cannot be done."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        raise AnalysisError(f"{path}: cannot be written ({error.strerror})") from error
