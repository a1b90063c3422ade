"""The event loop compiled ("A faster clock" in the README): the same logs, the same laws."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[2]
SOURCES = ("emulator", "traces", "analysis", "setup.py", "setup.cfg", "pyproject.toml", "README.md")
RUN = [
    "tests/golden",
    "tests/physics",
    *(f"tests/blackbox/test_{name}.py" for name in ("fuzz", "rounds", "pacing", "compositions")),
]
HEADER = Path(sysconfig.get_path("include")) / "Python.h"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")
@pytest.mark.skipif(not HEADER.exists(), reason="Python's headers are not installed")
@pytest.mark.skipif(importlib.util.find_spec("mypyc") is None, reason="mypyc is not installed")
def test_the_same_holds_with_a_compiled_event_loop(tmp_path: Path) -> None:
    for name in (*SOURCES, "tests"):
        copy = shutil.copytree if (HERE / name).is_dir() else shutil.copy
        copy(HERE / name, tmp_path / name)
    environment = {**os.environ, "FEDCLOCK_COMPILE": "1", "PYTHONPATH": str(tmp_path)}

    def python(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout

    python("setup.py", "-q", "build_ext", "--inplace")
    where = python("-c", "from emulator.simulation import clock; print(clock.__file__)")
    assert Path(where.strip()).parent == tmp_path / "emulator" / "simulation"
    assert where.strip().endswith(sysconfig.get_config_var("EXT_SUFFIX"))
    python("-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", *RUN)


def test_another_choice_than_0_and_1_is_refused(tmp_path: Path) -> None:
    shutil.copy(HERE / "setup.py", tmp_path)
    done = subprocess.run(
        [sys.executable, "setup.py", "--version"], cwd=tmp_path, text=True, capture_output=True,
        env={**os.environ, "FEDCLOCK_COMPILE": "yes"},
    )  # fmt: skip
    assert done.returncode != 0
    assert "FEDCLOCK_COMPILE is 'yes'; 1 compiles the event loop, 0 does not" in done.stderr
