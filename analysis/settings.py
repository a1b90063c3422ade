"""What a run was told: its resolved scenario, by dotted key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from analysis.errors import AnalysisError

# The C parser of PyYAML reads the same language as the safe one, and takes a tenth of the time.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_settings(path: Path) -> dict[str, Any]:
    """The values of a scenario file by dotted key; empty where the file is absent.

    A list is a value. Raises ``AnalysisError`` where the file cannot be read, or is no YAML
    mapping.
    """
    if not path.exists():
        return {}
    try:
        loaded = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)
    except OSError as error:
        raise AnalysisError(f"{path}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, ValueError) as error:
        raise AnalysisError(f"{path}: is not YAML ({' '.join(str(error).split())})") from error
    if not isinstance(loaded, dict):
        raise AnalysisError(f"{path}: holds a {type(loaded).__name__}; a YAML mapping is needed")
    return dict(_flat("", loaded))


def _flat(prefix: str, section: dict[Any, Any]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in section.items():
        if isinstance(value, dict) and value:
            found += _flat(f"{prefix}{key}.", value)
        else:
            found.append((f"{prefix}{key}", value))
    return found
