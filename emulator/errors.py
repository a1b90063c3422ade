"""Every error that fedclock raises on purpose.

Each takes one string: SimPy rebuilds an exception that leaves a process as
``type(error)(*error.args)``, and only a single string argument survives that. The text says
what is wrong, where (file and line, client, simulated time), the value, and what is allowed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from traces.errors import TraceError

__all__ = [
    "FedclockError",
    "InternalError",
    "PolicyStop",
    "RunError",
    "ScenarioError",
    "TraceError",
    "nearest",
]


class FedclockError(Exception):
    """Base of the errors below; ``exit_code`` is what the command line returns."""

    exit_code = 1


class ScenarioError(FedclockError):
    """The scenario, or the way the command was called, is wrong."""

    exit_code = 2


class RunError(FedclockError):
    """The run cannot go on."""


class InternalError(RunError):
    """A law that must hold inside the emulator does not: a fault of fedclock."""


class PolicyStop(FedclockError):
    """A policy of the scenario (``on_nonfinite: stop``) ended the run."""

    exit_code = 3


def nearest(word: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` for the nearest of ``known``, or an empty string."""
    match = difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.6)
    return f" (did you mean '{match[0]}'?)" if match else ""
