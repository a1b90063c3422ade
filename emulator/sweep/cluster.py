"""Runs on a Dask cluster: https://distributed.dask.org. Run directories lie on a file system that
all of its machines share under the same paths.

Each run is a process of its own beside the Dask worker that has started it. It ends with the
worker; Dask then gives the run to another worker, which goes on with it. When the sweep is gone, or
is interrupted, Dask takes its tasks back, and the runs write a checkpoint and end.
"""

from __future__ import annotations

import contextlib
import pickle
import signal
import subprocess
import sys
import time
import uuid
from typing import Any

from emulator.errors import RunError, ScenarioError
from emulator.sweep.carry_out import INTERRUPTED, Ending, Order
from emulator.sweep.local import death

CONNECT_S = 15


class DaskCrew:
    """See :class:`emulator.sweep.drive.Crew`. Dask decides how many run at once: one for each
    thread of its workers."""

    at_once = None

    def __init__(self, address: str) -> None:
        try:
            import distributed
        except ImportError:
            raise ScenarioError(
                "--dask needs dask.distributed, which is not installed; install fedclock[dask]"
            ) from None
        self._distributed = distributed
        try:
            self._client = distributed.Client(address, timeout=CONNECT_S)
        except (OSError, ValueError, TimeoutError) as error:
            raise ScenarioError(
                f"--dask {address}: no Dask scheduler answers there ({error}); start one with "
                "'dask scheduler' and give the address that it prints"
            ) from None
        self._address = address
        self._nonce = uuid.uuid4().hex
        self._futures: dict[str, Any] = {}

    def workers(self) -> int:
        """How many Dask workers there are now."""
        return len(self._client.scheduler_info(n_workers=-1)["workers"])

    def start(self, order: Order) -> None:
        # A key of this sweep alone: Dask would take an earlier one's result for it.
        self._futures[order.key] = self._client.submit(
            run_beside_worker, pickle.dumps(order), key=f"{order.key}-{self._nonce}", pure=False
        )

    def wait(self, timeout_s: float) -> list[tuple[str, Ending]]:
        futures = list(self._futures.values())
        if not futures:
            return []
        no_end = (TimeoutError, self._distributed.TimeoutError, self._distributed.CancelledError)
        with contextlib.suppress(*no_end):
            self._distributed.wait(futures, timeout_s, return_when="FIRST_COMPLETED")
        if self._client.status != "running":
            raise RunError(f"the Dask scheduler at {self._address} is gone; start it again, and "
                           "the same command goes on")  # fmt: skip
        over = [key for key, future in self._futures.items() if future.done()]
        return [(key, self._ending(self._futures.pop(key))) for key in over]

    def _ending(self, future: Any) -> Ending:
        if future.status == "finished":
            ending = future.result()
            assert isinstance(ending, Ending)
            return ending
        if future.cancelled():
            return INTERRUPTED
        error = future.exception()  # such as: too many workers died of it
        return Ending("killed", f"{type(error).__name__}: {error}")

    def interrupt(self) -> None:
        self._client.cancel(list(self._futures.values()))

    def close(self) -> None:
        self._client.close()


def run_beside_worker(pickled: bytes) -> Ending:
    """What a Dask worker does for a run: start its process, see it through."""
    process = subprocess.Popen(
        [sys.executable, "-m", "emulator.sweep.carry_out"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(pickled)
        process.stdin.flush()
        asked_to_end = False
        while process.poll() is None:
            if not asked_to_end and not _still_wanted():
                process.send_signal(signal.SIGINT)
                asked_to_end = True
            time.sleep(0.05)
        answer = process.stdout.read()
    finally:
        # Its end of the pipe tells the process that nobody is there any more.
        process.kill()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
        process.wait()
    if not answer:
        return Ending("killed", death(process.returncode))
    ending = pickle.loads(answer)
    assert isinstance(ending, Ending)
    return ending


def _still_wanted() -> bool:
    """Whether the scheduler still wants this task done."""
    from distributed import get_worker

    worker = get_worker()
    task = worker.state.tasks.get(worker.get_current_task())
    return task is not None and task.state == "executing"
