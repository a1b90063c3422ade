"""The one error of this package."""

from __future__ import annotations


class TraceError(Exception):
    """A trace file or a setting of it is wrong; one string, so that SimPy can rebuild it."""

    exit_code = 2
