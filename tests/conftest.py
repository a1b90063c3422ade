"""What would cost the same at each of the thousand runs in one process is paid once.

A process of a user runs one command. The tests call many, and most are tiny: two thirds of the time
of such a run went into these three.
"""

from __future__ import annotations

import functools
import gc
import importlib.metadata

import typer.main

# A run writes down the versions of the libraries: to parse their metadata takes longer than to run.
importlib.metadata.version = functools.cache(importlib.metadata.version)
# A call of the command line makes its commands from their signatures first.
typer.main.get_command = functools.cache(typer.main.get_command)


def pytest_collection_finish() -> None:
    """The libraries and the tests themselves are no garbage, and need not be looked through."""
    gc.collect()
    gc.freeze()
