"""``manifest.json``: what a run is, how far it has come, and what it cost the host."""

from __future__ import annotations

import os
import platform
import sys
import time
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from emulator.composition import Federation
from emulator.errors import ScenarioError
from emulator.learning.learner import Learner
from emulator.learning.setting import Setting
from emulator.recording.recorder import Recorder
from emulator.scenario import Scenario, scenario_sha256
from emulator.scenario.schema import Stop
from emulator.simulation import clock

Manifest = dict[str, Any]

_LIBRARIES = ("simpy", "torch", "numpy", "scipy", "scikit-learn", "networkx", "pydantic")


def new_manifest(
    scenario: Scenario, *, timing_only: bool, fingerprint: dict[str, str], overrides: list[str],
    notes: list[str], setting: Setting, before: Manifest | None,
) -> Manifest:  # fmt: skip
    """The manifest of a run that starts, or goes on after what ``before`` tells of."""
    endless = scenario.model_copy(update={"stop": None})
    earlier = list((before or {}).get("earlier", []))
    if before is not None:
        earlier.append({key: before.get(key) for key in ("status", "trainings", "host")})
    return {
        "status": "running",
        "name": scenario.name,
        "seed": scenario.seed,
        "timing_only": timing_only,
        "scenario_sha256": scenario_sha256(scenario),
        "run_sha256": scenario_sha256(endless),
        "overrides": overrides,
        "notes": notes,
        "fingerprint": fingerprint,
        "versions_of": {
            "fedclock": installed_version("fedclock"),
            "python": platform.python_version(),
            **{name: installed_version(name) for name in _LIBRARIES},
        },
        "model": {
            "parameter_bytes": setting.profile.size_bytes,
            "forward_macs": setting.profile.forward_macs,
            "backward_macs": setting.profile.backward_macs,
        },
        "stop_reason": None,
        "events_sha256": None,
        # Where the end that is on disk begins, and the scenario whose end it is.
        "open_end": (before or {}).get("open_end"),
        "finish_of": (before or {}).get("finish_of"),
        "earlier": earlier,
    }


def same_run(path: Path, before: Manifest, now: Manifest, stop: Stop) -> bool:
    """Whether the directory holds this very run, finished.

    Only the stop condition may differ, to a later one: then the run is extended. Raises
    :class:`ScenarioError` when the directory holds another run, or one that went further.
    """
    anew = "use --restart to begin anew, or --out another directory"
    if before["timing_only"] != now["timing_only"]:
        raise ScenarioError(
            f"{path} holds a run {'with' if before['timing_only'] else 'without'} --timing-only; "
            f"{anew}"
        )
    if before["run_sha256"] != now["run_sha256"]:
        raise ScenarioError(
            f"{path} holds a run of another scenario ('{before['name']}', seed {before['seed']}); "
            f"{anew}"
        )
    changed = [
        f"{key}: {before['fingerprint'].get(key)} then, {value} now"
        for key, value in now["fingerprint"].items()
        if before["fingerprint"].get(key) != value
    ]
    if changed:
        raise ScenarioError(
            f"{path} was begun under another fingerprint; {'; '.join(changed)}; {anew}"
        )
    for key, limit in (("versions", stop.versions), ("sim_time_s", stop.sim_time)):
        reached = before.get(key)
        if limit is not None and reached is not None and reached > limit:
            raise ScenarioError(
                f"{path} holds a run that has reached {key} {reached}, beyond the stop at {limit}; "
                f"say a later stop, or {anew}"
            )
    return bool(before["status"] == "done" and before["scenario_sha256"] == now["scenario_sha256"])


def progress_of(
    server: Federation, learner: Learner, recorder: Recorder, started: float, simulating: float,
    simulated: float | None = None,
) -> Manifest:  # fmt: skip
    """The part of the manifest that grows.

    Readings of the host's clock: ``started`` of the run, ``simulating`` and ``simulated`` of the
    first and the last simulated event.
    """
    host, now = learner.host, time.perf_counter()
    ran, aggregated = host.count.get("train", 0), recorder.aggregated
    simulation_s = (simulated or now) - simulating
    return {
        "sim_time_s": server.clock.now,
        "versions": server.version,
        "trainings": {
            "run": ran,
            "aggregated": aggregated,
            "reused": max(0, aggregated - ran) if learner.learns else 0,
        },
        "host": {
            "event_loop": "interpreted" if clock.__file__.endswith(".py") else "compiled",
            "total_s": now - started,
            "simulation_s": simulation_s,
            "finish_s": now - (simulated or now),
            "learning_s": host.forcing_s,
            "inside_operations_s": sum(host.seconds.values()),
            "by_operation_s": dict(host.seconds),
            "participations_per_s": server.tasks.ledger.dispatched / simulation_s,
            "peak_memory_bytes": peak_memory_bytes(),
        },
    }


def memory_bytes() -> int:
    """What the process holds now (Linux; elsewhere the peak so far)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return peak_memory_bytes()
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_memory_bytes() -> int:
    """The most that the process has held."""
    try:
        import resource
    except ImportError:  # no such module on Windows
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
