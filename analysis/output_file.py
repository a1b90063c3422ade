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


def refuse_place(path: Path) -> None:
    """``AnalysisError`` where a file cannot be written, before the work for it is done."""
    if path.is_dir():
        raise AnalysisError(f"{path}: is a folder; the name of a file is needed")
    if not path.parent.is_dir():
        raise AnalysisError(f"{path}: cannot be written (there is no folder {path.parent})")
