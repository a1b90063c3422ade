"""One run of a sweep, in a process of its own: what ``fedclock run`` does, without its tables.

The process ends when its parent is gone, however that went, so that nothing writes on in a
directory that a new sweep wants; SIGINT makes it write a checkpoint and end.
"""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import BinaryIO, Final, Literal

from emulator.errors import FedclockError, TraceError
from emulator.scenario import Scenario
from emulator.scenario.messages import placed
from emulator.scenario.source import Source

LOCK_WAIT_S: Final = 30.0
"""How long a run waits for a process of an earlier sweep that is just ending."""

_LONGEST_REASON: Final = 4000


@dataclass(frozen=True, slots=True)
class Order:
    """What a process has to run. ``key`` names the run in the sweep."""

    key: str
    scenario: Scenario
    source: Source
    out: Path
    memo: Path | None
    timing_only: bool
    workers: int


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended, and why if it is not ``done``."""

    status: Literal["done", "stopped", "failed", "killed", "interrupted"]
    reason: str = ""


INTERRUPTED: Final = Ending("interrupted", "interrupted; the same command goes on from there")


def carry_out(order: Order) -> Ending:
    """Run it, or go on with it; no exception but those that end the process."""
    try:
        from emulator.run import Options, run

        _wait_until_free(order.out)
        memo = _usable(order.memo, order.scenario)
        options = Options(order.out, memo, order.timing_only, order.workers)
        with placed(order.source):
            run(order.scenario, order.source, options, lambda server, accuracy: None)
    except KeyboardInterrupt:
        return INTERRUPTED
    except (FedclockError, TraceError) as error:
        stopped = getattr(error, "exit_code", 1) == 3
        return Ending("stopped" if stopped else "failed", str(error)[:_LONGEST_REASON])
    except Exception:
        return Ending("failed", traceback.format_exc()[-_LONGEST_REASON:])
    return Ending("done")


def _usable(memo: Path | None, scenario: Scenario) -> Path | None:
    """The memo, unless it was made under another fingerprint: on another machine of a cluster."""
    if memo is None:
        return None
    from emulator.learning.setting import fingerprint

    here = fingerprint(scenario)
    try:
        there = json.loads((memo / "manifest.json").read_text())["fingerprint"]
    except (OSError, ValueError, KeyError):
        return None
    # ``auto`` is resolved later, and alike for both: runs of a family have one model.
    same = all(there.get(key) == here[key] for key in here if key != "executor")
    return memo if same and (memo / "memo.sqlite").is_file() else None


def _wait_until_free(out: Path) -> None:
    """Return once no other process has the run's lock, or after ``LOCK_WAIT_S``."""
    give_up = time.monotonic() + LOCK_WAIT_S
    while time.monotonic() < give_up:
        try:
            with open(out / ".lock", "a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
        except FileNotFoundError:
            return
        except BlockingIOError:
            time.sleep(0.05)
        except OSError:
            return  # the run itself says what is wrong


# --- as a child of the sweep ----------------------------------------------------------------


def child(order: Order, answer: Connection) -> None:
    """The life of a process that a sweep on this machine has forked for one run."""
    os.setpgid(0, 0)  # Ctrl-C goes to the sweep, which passes it on once
    parent = parent_process()
    assert parent is not None
    _end_with(lambda: connection.wait([parent.sentinel]))
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        ending = carry_out(order)
    except KeyboardInterrupt:
        ending = INTERRUPTED
    answer.send(ending)
    # Skip the interpreter's tear-down: nothing here needs it, and it takes a while.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _end_with(gone: Callable[[], object]) -> None:
    """Die as soon as ``gone()`` returns."""

    def watch() -> None:
        gone()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


# --- as a command: python -m emulator.sweep.carry_out ----------------------------------------


def main(orders: BinaryIO, answers: BinaryIO) -> None:
    """Take a pickled order from a pipe that stays open, put the pickled ending into another."""
    try:
        order = pickle.load(orders)
        assert isinstance(order, Order)
        _end_with(orders.read)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        ending = carry_out(order)
    except KeyboardInterrupt:
        ending = INTERRUPTED
    pickle.dump(ending, answers)
    answers.flush()
    os._exit(0)


if __name__ == "__main__":
    # What the run prints must not get among the answer.
    own = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    from emulator.sweep import carry_out as module

    module.main(sys.stdin.buffer, own)
