"""The command line as a user calls it, scenarios with scripted times, and a run's files."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from emulator.cli import main

Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Said:
    """How a command ended, and what it wrote."""

    exit_code: int
    out: str
    err: str


def fedclock(*args: object, cwd: Path | None = None) -> Said:
    """``fedclock ARGS`` in this process; an exception that it would show as a traceback raises."""
    out, err = io.StringIO(), io.StringIO()
    argv_before, cwd_before = sys.argv, os.getcwd()
    sys.argv = ["fedclock", *map(str, args)]
    code: object = 0
    try:
        if cwd is not None:
            os.chdir(cwd)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as stop:
        code = stop.code or 0
    finally:
        sys.argv = argv_before
        os.chdir(cwd_before)
    assert isinstance(code, int), code
    return Said(code, out.getvalue(), err.getvalue())


class RunFiles:
    """What a run left in its directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def events(self) -> list[Config]:
        return [json.loads(line) for line in self.lines("events.jsonl")]

    def of(self, kind: str) -> list[Config]:
        """The events of one type."""
        return [event for event in self.events if event["type"] == kind]

    def lines(self, name: str) -> list[str]:
        text = (self.path / name).read_text()
        assert text.endswith("\n"), f"{name} ends in a torn line"
        return text.splitlines()

    def table(self, name: str) -> list[dict[str, str]]:
        """The rows of ``NAME.csv``."""
        return list(csv.DictReader(self.lines(f"{name}.csv")))

    def column(self, name: str, column: str) -> list[str]:
        return [row[column] for row in self.table(name)]

    def times(self, name: str, column: str = "sim_time_s") -> list[float]:
        """A column of simulated seconds."""
        return [float(cell) for cell in self.column(name, column)]

    def tasks(self, client: int) -> list[dict[str, str]]:
        """The participations of one client, in order of dispatch."""
        rows = [row for row in self.table("updates") if row["client"] == str(client)]
        return sorted(rows, key=lambda row: float(row["dispatched_s"]))

    @property
    def manifest(self) -> Config:
        found: Config = json.loads((self.path / "manifest.json").read_text())
        return found

    @property
    def resolved(self) -> Config:
        found: Config = yaml.load((self.path / "resolved.yaml").read_text(), yaml.CSafeLoader)
        return found


class Lab:
    """Scenario files and run directories under one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, config: Config, name: str = "scenario.yaml") -> Path:
        path = self.folder / name
        path.write_text(yaml.dump(config, Dumper=yaml.CSafeDumper, sort_keys=False))
        return path

    def try_run(self, config: Config | Path, *args: object, out: str = "run") -> Said:
        """``fedclock run``, quietly, and without learning where data are only declared."""
        path = config if isinstance(config, Path) else self.write(config)
        more: list[object] = ["--quiet"]
        if "kind: declared" in path.read_text():
            more.append("--timing-only")
        return fedclock("run", path, "--out", self.folder / out, *more, *args)

    def run(self, config: Config | Path, *args: object, out: str = "run") -> RunFiles:
        """The same where it must succeed."""
        said = self.try_run(config, *args, out=out)
        assert said.exit_code == 0, said
        return RunFiles(self.folder / out)

    def failed_run(
        self, config: Config | Path, *args: object, exit_code: int = 2, out: str = "run"
    ) -> str:
        """The same where it must fail: the message, which is one and no traceback."""
        said = self.try_run(config, *args, out=out)
        assert said.exit_code == exit_code, said
        assert "Traceback" not in said.err
        return said.err


def timed(
    clients: int,
    training: Any,
    pacing: Config,
    *,
    sessions: Any = None,
    period_s: float = 1000.0,
    at_end: str = "wrap",
    network: Config | None = None,
    stop: Config | None = None,
    size: str = "1 MB",
    **system: Any,
) -> Config:
    """A scenario without data, in which every time is written down."""
    availability: Config = {"kind": "always"}
    if sessions is not None:
        availability = {
            "kind": "scripted",
            "sessions": sessions,
            "period": period_s,
            "at_end": at_end,
        }
    return {
        "schema": 1,
        "name": "scripted",
        "seed": 1,
        "stop": {"sim_time": "1 d", **(stop or {})},
        "task": {
            "dataset": {"kind": "declared", "samples_per_client": 10},
            "clients": clients,
            "model": {"kind": "declared", "size": size, "forward_macs": 1, "backward_macs": 2},
        },
        "system": {
            "devices": {"kind": "scripted", "training": training},
            "availability": availability,
            "network": network or {"kind": "none"},
            **system,
        },
        "local": {"epochs": 1, "batch_size": 10, "optimizer": {"kind": "sgd", "lr": 0.05}},
        "federation": {"pacing": pacing, "payload": {"kind": "full", "header": "0 B"}},
        "evaluation": {"every": {"versions": 1}},
    }


def digits(clients: int, pacing: Config, *, versions: int, training: Any = 5.0) -> Config:
    """A scenario that learns digits with scripted times."""
    config = timed(clients, training, pacing, stop={"versions": versions})
    config["name"] = "digits"
    config["task"] = {
        "dataset": {"kind": "digits"},
        "clients": clients,
        "partition": {"kind": "iid"},
        "model": {"kind": "logistic"},
    }
    return config


def links(*, down: str, up: str, latency: str = "0 s", server: str | None = None) -> Config:
    """Client links; with ``server``, behind a link of that rate each way, which is shared."""
    network: Config = {"client": {"down": down, "up": up, "latency": latency}}
    if server is not None:
        network["server"] = {"down": server, "up": server}
    return network


def buffered(in_flight: int, buffer: int, **options: Any) -> Config:
    return {"kind": "buffered", "in_flight": in_flight, "buffer": buffer, **options}


def synchronous(participants: int, **options: Any) -> Config:
    return {"kind": "synchronous", "participants": participants, "deadline": "none", **options}
