"""Fixtures of the tests of laws."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from laws import Document, Simulate

from analysis.run_reader import Run, read_run
from emulator.cli import app


@pytest.fixture
def simulate(tmp_path: Path) -> Simulate:
    """Run a scenario through the command line without learning, and open what it leaves behind."""

    def run(document: Document) -> Run:
        path, out = tmp_path / "scenario.yaml", tmp_path / "run"
        path.write_text(json.dumps(document))  # JSON is YAML
        arguments = ["run", str(path), "--out", str(out), "--timing-only", "--quiet", "--restart"]
        app(arguments, standalone_mode=False)
        return read_run(out)

    return run
