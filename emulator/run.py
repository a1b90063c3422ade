"""One run, from a scenario to a run directory: the place where the two planes meet."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from emulator import assembly
from emulator.composition import Federation, build_method, compose
from emulator.errors import FedclockError, RunError, ScenarioError
from emulator.federation.payload import divide_and_conquer
from emulator.learning import setting as learning_setting
from emulator.learning.executors.lanes import StepProgram
from emulator.learning.lazy import Learning
from emulator.learning.learner import Learner
from emulator.learning.memo import CacheLost, Memo
from emulator.learning.operations import Workbench
from emulator.learning.setting import Setting
from emulator.learning.training import state_dict
from emulator.manifest import Manifest, memory_bytes, new_manifest, progress_of, same_run
from emulator.recording.presence import online_rows, session_rows
from emulator.recording.recorder import Recorder
from emulator.recording.run_directory import RunDirectory
from emulator.recording.tables import CLIENTS, ONLINE, SESSIONS
from emulator.scenario import Scenario, resolved_yaml, schema
from emulator.scenario.source import Source

Progress = Callable[[Federation, "float | None"], None]


@dataclass(frozen=True, slots=True)
class Options:
    """How to run, beside what the scenario says. ``workers`` 0: one for each core."""

    out: Path
    memo: Path | None = None
    timing_only: bool = False
    workers: int = 0
    restart: bool = False


def run(scenario: Scenario, source: Source, options: Options, progress: Progress) -> Manifest:
    """Execute a scenario and return the manifest; ``progress`` hears of every evaluation.

    Raises a :class:`FedclockError`; what is on disk is then readable, and the same call goes on.
    """
    started = time.perf_counter()
    _refuse_impossible(scenario, options)
    if not options.timing_only:
        learning_setting.start_workers_early(scenario)
    # Everything that can be wrong with the input is found before the directory is touched.
    setting = learning_setting.build(scenario)
    if not options.timing_only:
        kind = learning_setting.resolve_executor(
            scenario.execution, scenario.task.model.kind, setting.profile
        )
        execution = scenario.execution.model_copy(update={"executor": kind})
        scenario = scenario.model_copy(update={"execution": execution})
    before_bytes = memory_bytes()
    world = assembly.build_world(scenario, setting.samples)
    if isinstance(scenario.federation.payload, schema.DivideAndConquer):
        layers = tuple(layer.name for layer in setting.profile.layers)
        world.notes.extend(divide_and_conquer.check(scenario.federation.payload, layers))
    population_bytes = memory_bytes() - before_bytes
    bench, step = None, None
    if not options.timing_only:
        device = learning_setting.torch_device(scenario.execution.device)
        bench = learning_setting.workbench(setting, device)
        step = learning_setting.lanes(scenario, bench)
    fingerprint = learning_setting.fingerprint(scenario)
    directory = RunDirectory(options.out, restart=options.restart)
    learning: Learning | None = None
    try:
        before = directory.manifest()
        manifest = new_manifest(
            scenario, timing_only=options.timing_only, fingerprint=fingerprint,
            overrides=list(source.overrides), notes=world.notes, setting=setting, before=before,
        )  # fmt: skip
        manifest["population_bytes"] = population_bytes
        if before is not None and same_run(directory.path, before, manifest, scenario.stop):
            return before
        if bench is not None:
            learning = _learning(
                scenario, options, setting, bench, step, directory.path, fingerprint
            )
        if before is None:
            directory.write_text("scenario.yaml", source.text)
        directory.write_text("resolved.yaml", resolved_yaml(scenario))
        directory.write_manifest(manifest)
        one = _Attempt(scenario, setting, world, directory, learning, manifest, progress, started)
        return one.run()
    finally:
        if learning is not None:
            learning.executor.close()
            learning.memo.close()
        directory.close()


def _refuse_impossible(scenario: Scenario, options: Options) -> None:
    """What the scenario and the way of running it say against each other."""
    if options.timing_only and scenario.stop.target is not None:
        raise ScenarioError(
            "stop.target needs the accuracy, which --timing-only never computes; add "
            "--set stop.target=null"
        )
    if not options.timing_only and isinstance(scenario.task.dataset, schema.DeclaredData):
        raise ScenarioError(
            "task.dataset.kind: declared has no data to train on; add --timing-only"
        )
    structure = scenario.federation.structure
    if (
        options.timing_only
        and isinstance(structure, schema.Superclients)
        and structure.pretraining is not None
        and structure.stand_in is None
    ):
        raise ScenarioError(
            f"federation.structure.grouping: '{structure.grouping.kind}' goes by what clients have "
            "learned, which --timing-only never computes; say federation.structure.stand_in: random"
        )
    if (
        options.timing_only
        and isinstance(structure, schema.Cohorts)
        and structure.clustering.max_cohorts > 1
        and structure.stand_in is None
    ):
        raise ScenarioError(
            "federation.structure: 'cohorts' are found from what clients have learned, which "
            "--timing-only never computes; say stand_in: planted, with task.planted"
        )
    if options.timing_only and isinstance(structure, schema.Clustered):
        raise ScenarioError(
            f"federation.structure: '{structure.kind}' goes by what clients have learned, which "
            "--timing-only never computes; run it with learning"
        )
    payload = scenario.federation.payload
    if (
        options.timing_only
        and isinstance(payload, schema.DivideAndConquer)
        and payload.by_value
        and payload.stand_in is None
    ):
        raise ScenarioError(
            f"federation.payload.split: '{payload.split.kind}' goes by what clients have learned, "
            "which --timing-only never computes; say federation.payload.stand_in: 3, a number of "
            "layers"
        )
    if options.memo is None:
        return
    if options.timing_only:
        raise ScenarioError("--memo holds what was trained, and --timing-only trains nothing")
    if options.memo.resolve() == options.out.resolve():
        raise ScenarioError(
            f"--memo {options.memo}: that is the run's own directory, whose memo is used anyway"
        )
    if not os.path.isfile(options.memo / "memo.sqlite"):
        raise ScenarioError(f"--memo {options.memo}: there is no memo.sqlite; name a run directory")


def _learning(
    scenario: Scenario, options: Options, setting: Setting, bench: Workbench,
    step: StepProgram | None, path: Path, fingerprint: dict[str, str],
) -> Learning:  # fmt: skip
    initial, pretraining = bench.layout.flatten(), None
    if setting.pretraining_model is not None:
        pretraining = bench.layout.flat_of(setting.pretraining_model)
    memo = Memo(path, fingerprint, options.memo, scenario.memo.checkpoint_every)
    workers = options.workers or os.cpu_count() or 1
    executor = learning_setting.executor(scenario.execution.executor, bench, workers, step)
    more = tuple(bench.layout.flat_of(model) for model in setting.more_models)
    return Learning(executor, memo, initial, scenario.memo.keep == "versions", pretraining, more)


@dataclass(slots=True)
class _Attempt:
    """A simulation from time 0; lines that are on disk already are compared, not written."""

    scenario: Scenario
    setting: Setting
    world: assembly.World
    directory: RunDirectory
    learning: Learning | None
    manifest: Manifest
    progress: Progress
    started: float
    simulating: float = field(default=0.0)
    simulated: float | None = field(default=None)
    _manifest_written: float = field(default=0.0)

    def run(self) -> Manifest:
        """Replay it, and go on from there."""
        # Something that a checkpoint promised may be gone: then from the start with values only,
        # and if those are not whole either, with nothing.
        try:
            for forget in (Memo.forget_tensors, Memo.forget_everything):
                try:
                    return self._replay()
                except CacheLost:
                    assert self.learning is not None
                    forget(self.learning.memo)
            return self._replay()
        except KeyboardInterrupt:
            self.manifest["status"] = "interrupted"  # also where it has only just begun
            self.directory.write_manifest(self.manifest)
            raise

    def _replay(self) -> Manifest:
        directory, manifest = self.directory, self.manifest
        end_differs = manifest["finish_of"] != manifest["scenario_sha256"]
        chains = self.scenario.federation.has_chains
        parts = isinstance(self.scenario.federation.payload, schema.DivideAndConquer)
        cohorts = isinstance(self.scenario.federation.structure, schema.Cohorts)
        directory.open_tables(
            manifest["open_end"] if end_differs else None, chains=chains, parts=parts,
            cohorts=cohorts,
        )  # fmt: skip
        recorder = Recorder(directory, self.scenario.task.clients)
        learner = Learner(
            build_method(self.scenario, self.setting), self.learning,
            lambda: directory.events.lines,
        )  # fmt: skip
        server = compose(
            self.scenario, self.setting, self.world, learner, recorder,
            partial(self._evaluated, learner, recorder),
        )  # fmt: skip
        self.simulating = time.perf_counter()
        status = "failed"
        try:
            with _rare_collections(self.learning is None):
                self._simulate(server)
            self._finish(server, learner, recorder)
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
            directory.flush()
            manifest.update(
                progress_of(
                    server, learner, recorder, self.started, self.simulating, self.simulated
                ),
                status=status,
            )
            directory.write_manifest(manifest)
        return manifest

    def _evaluated(
        self, learner: Learner, recorder: Recorder, server: Federation, accuracy: float | None
    ) -> None:
        self.directory.flush()
        learner.checkpoint()
        if time.monotonic() - self._manifest_written > 1.0:
            self._manifest_written = time.monotonic()
            self.manifest.update(
                progress_of(server, learner, recorder, self.started, self.simulating)
            )
            self.directory.write_manifest(self.manifest)
        self.progress(server, accuracy)

    def _finish(self, server: Federation, learner: Learner, recorder: Recorder) -> None:
        """The last evaluation, the last checkpoint, the last model.

        What is written from here on is cut off again when the run is extended: ``open_end`` holds
        the sizes of the files before it, ``finish_of`` which scenario's end it is.
        """
        directory = self.directory
        directory.flush()
        self.manifest["open_end"] = {t.path.name: t.size_bytes() for t in directory.tables}
        self.manifest["finish_of"] = self.manifest["scenario_sha256"]
        directory.write_manifest(self.manifest)
        sequence = directory.events.lines
        server.finish()
        directory.flush()
        learner.checkpoint(force=True, sequence=sequence)
        if self.learning is not None:
            _save_model(directory.path, learner, server, self.setting)
        for table in directory.tables:
            table.finish()
        self.manifest["stop_reason"] = server.stopped or "sim_time"
        self.manifest["events_sha256"] = directory.events.sha256()
        directory.write_table("clients.csv", CLIENTS, _client_rows(server, recorder))
        _write_presence(directory, server, recorder)

    def _simulate(self, server: Federation) -> None:
        limit_s = self.scenario.stop.sim_time
        shown = time.monotonic()

        def watch() -> None:
            nonlocal shown
            if time.monotonic() - shown > 0.25:
                shown = time.monotonic()
                self.progress(server, None)

        alive = server.clock.run_until(limit_s, watch)
        self.simulated = time.perf_counter()
        if not alive:
            raise RunError(
                f"nothing is left to happen at simulated time {server.clock.now!r} s, and no stop "
                f"condition is met (stop.sim_time is {limit_s!r} s): the server is at version "
                f"{server.version} and waits for {server.waits.waits_for}"
            )


@contextmanager
def _rare_collections(timing_only: bool) -> Iterator[None]:
    """Let Python look for garbage in cycles a hundred times less often.

    With links that are shared, a quarter of the time would go into that: there are many objects,
    and next to none dies in a cycle. Where there is training, tensors must not wait for it.
    """
    before = gc.get_threshold()
    if timing_only:
        gc.set_threshold(100 * before[0], *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _client_rows(server: Federation, recorder: Recorder) -> list[tuple[Any, ...]]:
    """``clients.csv``: one row a client."""
    now, clients = server.clock.now, range(server.population.clients)
    availability, did = server.population.availability, recorder.by_client
    online_s = [availability.online_seconds(client, 0.0, now) for client in clients]
    accuracy = [did.accuracy.get(client) for client in clients]
    columns = (
        clients, did.participations, did.reported, accuracy, online_s, did.busy_s, did.size_bytes,
    )  # fmt: skip
    return list(zip(*columns, strict=True))


def _write_presence(directory: RunDirectory, server: Federation, recorder: Recorder) -> None:
    """``online.csv`` and ``sessions.csv``."""
    availability = assembly.stateless(server.population.availability)
    now, participations = server.clock.now, recorder.by_client.participations
    took_part = [client for client, count in enumerate(participations) if count]
    directory.write_table(
        "online.csv", ONLINE, online_rows(availability, server.population.clients, now)
    )
    directory.write_table("sessions.csv", SESSIONS, session_rows(availability, took_part, now))


def _save_model(path: Path, learner: Learner, server: Federation, setting: Setting) -> None:
    assert setting.model is not None
    for old in path.glob("model*.safetensors"):
        old.unlink()
    for cohort, state in server.models().items():
        tensors = state_dict(setting.model, learner.tensors(state))
        temporary = path / ".model.part"
        save_file(tensors, str(temporary))
        name = "model" if cohort is None else f"model-{cohort}"
        os.replace(temporary, path / f"{name}.safetensors")
