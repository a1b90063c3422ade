"""The one error of this package."""

from __future__ import annotations


class AnalysisError(Exception):
    """A run directory, or what is asked of it, is wrong; one string, what and where."""

    exit_code = 2
