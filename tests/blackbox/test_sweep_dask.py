"""``fedclock sweep --dask`` on a real local cluster of two worker processes, one of them killed."""

from __future__ import annotations

import csv
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from commandline import Lab, buffered, fedclock, timed

distributed = pytest.importorskip(
    "distributed", reason="dask.distributed is not installed (extra 'dask')"
)

# A host second or so each, for a version a simulated second is measured and noted.
LONG = timed(1, 1, buffered(1, 1), stop={"sim_time": "1500 s"})


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as running:
        yield running


def swept(lab: Lab, out: str, *more: object, values: str = "1,2") -> Any:
    return fedclock(
        "sweep", lab.write(LONG), "--timing-only", "--seeds", "1", "--vary",
        f"system.devices.training={values}", "--out", lab.folder / out, *more,
    )  # fmt: skip


def hashes(out: Path) -> dict[str, str]:
    with (out / "sweep.csv").open(newline="") as file:
        return {row["directory"]: row["events_sha256"] for row in csv.DictReader(file)}


def manifests(out: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in out.rglob("manifest.json")]


def running(out: Path) -> list[str]:
    """Directories of the runs that are under way."""
    return [
        str(path.parent)
        for path in out.resolve().rglob("manifest.json")
        if json.loads(path.read_text())["status"] == "running"
    ]


def until(condition: Callable[[], Any]) -> Any:
    give_up = time.monotonic() + 120
    while not (found := condition()):
        assert time.monotonic() < give_up
        time.sleep(0.05)
    return found


def worker_with_a_run(pids: Sequence[int], out: Path) -> int | None:
    """The process id of a worker whose run is under way."""
    import psutil  # comes with distributed

    begun = running(out)
    for pid in pids:
        for child in psutil.Process(pid).children():
            opened = [Path(file.path).parent for file in child.open_files()]
            if any(str(folder) in begun for folder in opened):
                return pid
    return None


def test_a_worker_that_dies_costs_nothing(cluster: Any, tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    assert swept(lab, "here", "--quiet").exit_code == 0
    with distributed.Client(cluster, set_as_default=False) as client:
        pids = list(client.run(os.getpid).values())
    assert len(pids) == 2

    def kill() -> None:
        pid = until(lambda: worker_with_a_run(pids, lab.folder / "there"))
        os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    said = swept(lab, "there", "--dask", cluster.scheduler_address)
    killer.join()
    assert said.exit_code == 0, said
    assert hashes(lab.folder / "there") == hashes(lab.folder / "here")
    # One run was begun twice, and went on where it was.
    begun = [len(manifest["earlier"]) for manifest in manifests(lab.folder / "there")]
    assert sum(begun) == 1

    # Ctrl-C reaches the runs on the cluster too; they can go on here.
    def interrupt() -> None:
        until(lambda: running(lab.folder / "stopped"))
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    said = swept(lab, "stopped", "--dask", cluster.scheduler_address, values="1")
    interrupter.join()
    assert said.exit_code == 130
    until(lambda: not running(lab.folder / "stopped"))
    assert "interrupted" in {run["status"] for run in manifests(lab.folder / "stopped")}
    assert swept(lab, "stopped", "--quiet", values="1").exit_code == 0
    assert hashes(lab.folder / "stopped").items() <= hashes(lab.folder / "here").items()


def test_a_scheduler_that_is_not_there_is_said(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("emulator.sweep.cluster.CONNECT_S", 0.2)
    said = swept(Lab(tmp_path), "out", "--dask", "tcp://127.0.0.1:9")
    assert said.exit_code == 2
    assert "--dask tcp://127.0.0.1:9: no Dask scheduler answers there" in said.err
