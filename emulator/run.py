"""One run, from a scenario to a run directory: the place where the two planes meet."""

from __future__ import annotations

import hashlib
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

import numpy as np

from emulator import assembly
from emulator.errors import FedclockError, RunError, ScenarioError
from emulator.federation.payload.full import full
from emulator.federation.server import Policy, Server
from emulator.federation.structure.star import Star
from emulator.learning import setting as learning_setting
from emulator.learning.learner import Learner, Learning, Method
from emulator.learning.memo import CacheLost, Memo
from emulator.learning.setting import Setting
from emulator.recording.recorder import Recorder
from emulator.recording.run_directory import RunDirectory
from emulator.scenario import Scenario, resolved_yaml, schema
from emulator.scenario.source import Source
from emulator.simulation.clock import Clock
from emulator.simulation.participations import Participations
from emulator.simulation.population import Population

Progress = Callable[[Server, "float | None"], None]


@dataclass(frozen=True, slots=True)
class Options:
    """How to run, beside what the scenario says."""

    out: Path
    memo: Path | None = None
    timing_only: bool = False
    workers: int = 0
    restart: bool = False


@dataclass(slots=True)
class Run:
    """A run under way. ``progress`` hears of every evaluation."""

    scenario: Scenario
    source_text: str
    options: Options
    progress: Progress

    def execute(self) -> dict[str, Any]:
        """Run to the end and return the manifest; raises a :class:`FedclockError`."""
        scenario, options = self.scenario, self.options
        if options.timing_only and scenario.stop.target is not None:
            raise ScenarioError(
                "stop.target needs the accuracy, which --timing-only never computes; add "
                "--set stop.target=null"
            )
        if not options.timing_only and isinstance(scenario.task.dataset, schema.DeclaredData):
            raise ScenarioError(
                "task.dataset.kind: declared has no data to train on; add --timing-only"
            )
        started = time.perf_counter()
        directory = RunDirectory(options.out, restart=options.restart)
        try:
            return self._in(directory, started)
        finally:
            directory.close()

    def _in(self, directory: RunDirectory, started: float) -> dict[str, Any]:
        scenario, options = self.scenario, self.options
        setting = learning_setting.build(scenario)
        executor_kind = "none"
        if not options.timing_only:
            executor_kind = learning_setting.resolve_executor(scenario.execution, setting.profile)
        resolved = resolved_yaml(
            scenario.model_copy(
                update={
                    "execution": scenario.execution.model_copy(update={"executor": executor_kind})
                }
            )
            if executor_kind != "none"
            else scenario
        )
        before = directory.manifest()
        manifest = self._manifest(resolved, executor_kind, setting, before)
        if before is not None:
            finished = _same_run(directory.path, before, manifest)
            if finished:
                return before
        directory.write_text("scenario.yaml", self.source_text)
        directory.write_text("resolved.yaml", resolved)
        directory.write_manifest(manifest)
        learning: Learning | None = None
        if not options.timing_only:
            learning = self._learning(directory, setting, executor_kind, manifest)
        try:
            try:
                return self._replay(directory, setting, learning, manifest, started)
            except CacheLost:
                # Something that a checkpoint promised is gone: from the start, with values only.
                assert learning is not None
                learning.memo.forget_tensors()
                return self._replay(directory, setting, learning, manifest, started)
        finally:
            if learning is not None:
                learning.executor.close()
                learning.memo.close()

    def _learning(
        self,
        directory: RunDirectory,
        setting: Setting,
        executor_kind: str,
        manifest: dict[str, Any],
    ) -> Learning:
        scenario, options = self.scenario, self.options
        device = learning_setting.torch_device(scenario.execution.device)
        memo = Memo(
            directory.path,
            manifest["fingerprint"],
            options.memo,
            scenario.memo.checkpoint_every,
        )
        bench = learning_setting.workbench(setting, device)
        initial = bench.layout.flatten()
        workers = options.workers or os.cpu_count() or 1
        executor = learning_setting.executor(executor_kind, bench, workers)
        return Learning(executor, memo, initial, scenario.memo.keep == "versions")

    def _replay(
        self,
        directory: RunDirectory,
        setting: Setting,
        learning: Learning | None,
        manifest: dict[str, Any],
        started: float,
    ) -> dict[str, Any]:
        """Simulate from time 0; lines that are on disk already are compared, not written."""
        scenario = self.scenario
        directory.open_tables()
        recorder = Recorder(directory)
        learner = Learner(_method(scenario, setting), learning, lambda: directory.events.lines)
        last_written = time.monotonic()

        def on_evaluation(server: Server, accuracy: float | None) -> None:
            nonlocal last_written
            directory.flush()
            learner.checkpoint()
            if time.monotonic() - last_written > 1.0:
                last_written = time.monotonic()
                manifest.update(_state(server, learner, recorder, started, setting))
                directory.write_manifest(manifest)
            self.progress(server, accuracy)

        before_bytes = _memory_bytes()
        server = self._simulation(setting, learner, recorder, on_evaluation)
        manifest["population_bytes"] = _memory_bytes() - before_bytes
        simulated = time.perf_counter()
        status = "failed"
        try:
            self._simulate(server)
            server.finish()
            directory.flush()
            learner.checkpoint(force=True)
            if learning is not None:
                _save_model(directory.path, learner, server, setting)
            status = "done"
        except KeyboardInterrupt:
            status = "interrupted"
            learner.checkpoint(force=True)
            raise
        except FedclockError as error:
            status = "stopped" if error.exit_code == 3 else "failed"
            manifest["error"] = str(error)
            raise
        finally:
            if status != "done":
                directory.flush()
            manifest.update(_state(server, learner, recorder, started, setting))
            manifest["host"]["simulation_s"] = time.perf_counter() - simulated
            manifest["status"] = status
            if status == "done":
                for table in directory.tables:
                    table.finish()
                manifest["stop_reason"] = server.stopped or "sim_time"
                manifest["events_sha256"] = directory.events.sha256()
                directory.write_clients(_client_rows(server, recorder))
            directory.write_manifest(manifest)
        return manifest

    def _simulation(
        self,
        setting: Setting,
        learner: Learner,
        recorder: Recorder,
        on_evaluation: Callable[[Server, float | None], None],
    ) -> Server:
        scenario = self.scenario
        federation, system = scenario.federation, scenario.system
        clock = Clock()
        draws = assembly.Draws(scenario.seed, scenario.task.clients)
        table = assembly.device_table(scenario, draws)
        availability = assembly.build_availability(scenario, draws)
        network = assembly.build_network(scenario, clock, table, draws)
        _, cost = assembly.OBJECTIVES[federation.objective.kind](federation.objective)
        profile = setting.profile
        macs = profile.forward_macs + profile.backward_macs
        selection = federation.selection
        queueing = isinstance(selection, schema.RandomSelection) and selection.busy == "queue"
        server = Server(
            clock,
            _policy(scenario),
            network,
            assembly.build_devices(scenario, table, draws),
            assembly.SELECTORS[selection.kind](scenario.seed),
            full(federation.payload, cost, profile.size_bytes),
            assembly.build_work(scenario, setting.samples, macs, cost),
            Star(queueing=queueing),
            learner,
            recorder,
            on_evaluation,
        )
        participations = Participations(
            clock,
            availability,
            network,
            system.on_offline,
            server.begun,
            server.ended,
            server.lost,
        )
        eligible = np.ones(scenario.task.clients, dtype=np.bool_)
        if scenario.local.short_clients == "skip":
            eligible = setting.samples >= min(scenario.local.batch_size, int(1e18))
            if not eligible.any():
                raise ScenarioError(
                    "local.short_clients: skip leaves no client: none has "
                    f"{scenario.local.batch_size} samples, a whole batch; use a smaller "
                    "batch_size, or train or pad"
                )
        if scenario.local.short_clients == "pad" and not setting.samples.all():
            empty = int(np.flatnonzero(setting.samples == 0)[0])
            raise ScenarioError(
                f"local.short_clients: pad cannot pad client {empty}, which holds no sample; use "
                "train or skip, or a partition with min_samples of 1 or more"
            )
        population = Population(
            clock,
            availability,
            setting.samples,
            eligible,
            participations.busy,
            participations.busy_clients,
            queueing=queueing,
        )
        pacing = assembly.PACINGS[federation.pacing.kind](server, federation.pacing)
        server.start(pacing, population, participations)
        return server

    def _simulate(self, server: Server) -> None:
        limit_s = self.scenario.stop.sim_time
        steps, shown = 0, time.monotonic()

        def stopped() -> bool:
            nonlocal steps, shown
            steps += 1
            if steps & 1023 == 0 and time.monotonic() - shown > 0.25:
                shown = time.monotonic()
                self.progress(server, None)
            return server.stopped is not None

        if not server.clock.run_until(limit_s, stopped):
            raise RunError(
                f"nothing is left to happen at simulated time {server.clock.now!r} s, and no stop "
                f"condition is met (stop.sim_time is {limit_s!r} s): the server is at version "
                f"{server.version} and waits for {server.pacing.waits_for}"
            )

    def _manifest(
        self, resolved: str, executor_kind: str, setting: Setting, before: dict[str, Any] | None
    ) -> dict[str, Any]:
        scenario = self.scenario
        libraries = ("simpy", "torch", "numpy", "scipy", "scikit-learn", "networkx", "pydantic")
        fingerprint = learning_setting.fingerprint(scenario, executor_kind)
        return {
            "status": "running",
            "name": scenario.name,
            "seed": scenario.seed,
            "timing_only": self.options.timing_only,
            "scenario_sha256": hashlib.sha256(resolved.encode()).hexdigest(),
            "fingerprint": fingerprint,
            "versions_of": {
                "fedclock": installed_version("fedclock"),
                "python": platform.python_version(),
                **{name: installed_version(name) for name in libraries},
            },
            "model": {
                "parameter_bytes": setting.profile.size_bytes,
                "forward_macs": setting.profile.forward_macs,
                "backward_macs": setting.profile.backward_macs,
            },
            "stop_reason": None,
            "events_sha256": None,
            "earlier": [
                *(before or {}).get("earlier", []),
                *([_past(before)] if before else []),
            ],
        }


def _past(before: dict[str, Any]) -> dict[str, Any]:
    """What an earlier process of this run had done when it last wrote the manifest."""
    return {key: before.get(key) for key in ("status", "trainings", "host")}


def _same_run(path: Path, before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether the directory holds this very run, finished; refuses any other run."""
    if before["scenario_sha256"] != now["scenario_sha256"]:
        raise ScenarioError(
            f"{path} holds a run of another scenario ('{before['name']}', seed {before['seed']}); "
            "use --restart to begin anew, or --out another directory"
        )
    if before["timing_only"] != now["timing_only"]:
        raise ScenarioError(
            f"{path} holds a run {'with' if before['timing_only'] else 'without'} --timing-only; "
            "use --restart to begin anew, or --out another directory"
        )
    changed = [
        f"{key}: {before['fingerprint'].get(key)} then, {value} now"
        for key, value in now["fingerprint"].items()
        if before["fingerprint"].get(key) != value
    ]
    if changed:
        raise ScenarioError(
            f"{path} was begun under another fingerprint; "
            + "; ".join(changed)
            + ". Use --restart to begin anew, or --out another directory"
        )
    return bool(before["status"] == "done")


def _method(scenario: Scenario, setting: Setting) -> Method:
    federation = scenario.federation
    objective, _ = assembly.OBJECTIVES[federation.objective.kind](federation.objective)
    optimizer = federation.server_optimizer
    pacing = federation.pacing
    return Method(
        root=setting.root,
        seed=scenario.seed,
        clients=scenario.task.clients,
        test_samples=0 if setting.dataset is None else len(setting.dataset.test_y),
        recipe=learning_setting.recipe(scenario.local),
        objective=objective,
        server_optimizer=assembly.SERVER_OPTIMIZERS[optimizer.kind](optimizer),
        normalise=pacing.normalise if isinstance(pacing, schema.Buffered) else "weights",
    )


def _policy(scenario: Scenario) -> Policy:
    federation, system, stop = scenario.federation, scenario.system, scenario.stop
    every = scenario.evaluation.every
    return Policy(
        root_seed=scenario.seed,
        weights=federation.pacing.weights,
        drop_notice=system.drop_notice,
        drop_timeout_s=system.drop_timeout,
        task_failure=system.task_failure,
        on_nonfinite=federation.on_nonfinite,
        stop_versions=stop.versions,
        target_value=stop.target.value if stop.target else None,
        target_sustain=stop.target.sustain if stop.target else 1,
        evaluate_every_versions=every.versions if isinstance(every, schema.EveryVersions) else None,
        evaluate_every_s=every.sim_time if isinstance(every, schema.EveryTime) else None,
    )


def _state(
    server: Server, learner: Learner, recorder: Recorder, started: float, setting: Setting
) -> dict[str, Any]:
    """Where the run is: the part of the manifest that grows."""
    host = learner.host
    ran = host.count.get("train", 0)
    aggregated = recorder.aggregated
    return {
        "sim_time_s": server.clock.now,
        "versions": server.version,
        "trainings": {
            "run": ran,
            "aggregated": aggregated,
            "reused": max(0, aggregated - ran) if learner.learns else 0,
        },
        "host": {
            "total_s": time.perf_counter() - started,
            "learning_s": host.forcing_s,
            "inside_operations_s": sum(host.seconds.values()),
            "by_operation_s": dict(host.seconds),
            "peak_memory_bytes": _peak_memory_bytes(),
        },
    }


def _memory_bytes() -> int:
    """What the process holds now (Linux; elsewhere the peak so far)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return _peak_memory_bytes()
    return pages * os.sysconf("SC_PAGE_SIZE")


def _peak_memory_bytes() -> int:
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _client_rows(server: Server, recorder: Recorder) -> list[str]:
    """``clients.csv``: one row a client."""
    now = server.clock.now
    availability, by_client = server.population.availability, recorder.by_client
    rows = []
    for client in range(server.population.clients):
        tasks, reported, busy_s, size = by_client.get(client, (0, 0, 0.0, 0))
        online_s = availability.online_seconds(client, 0.0, now)
        rows.append(f"{client},{tasks},{int(reported)},,{online_s!r},{busy_s!r},{size}")
    return rows


def _save_model(path: Path, learner: Learner, server: Server, setting: Setting) -> None:
    from safetensors.torch import save_file

    assert setting.model is not None
    flat = learner.tensors(server.state)["model"].cpu()
    tensors, start = {}, 0
    for name, parameter in setting.model.named_parameters():
        size = math.prod(parameter.shape)
        tensors[name] = flat[start : start + size].reshape(parameter.shape).clone()
        start += size
    temporary = path / ".model.part"
    save_file(tensors, str(temporary))
    os.replace(temporary, path / "model.safetensors")


def run(
    scenario: Scenario, source: Source | str, options: Options, progress: Progress
) -> dict[str, Any]:
    """Execute a scenario; see :class:`Run`."""
    text = source if isinstance(source, str) else source.text
    return Run(scenario, text, options, progress).execute()
