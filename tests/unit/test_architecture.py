"""Which package may import which; the planes meet in handles only."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


def offenders(folder: str, *forbidden: str) -> list[str]:
    found = []
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files, folder
    for path in files:
        for name in imports(path):
            if any(name == f or name.startswith(f + ".") for f in forbidden):
                found.append(f"{path.relative_to(ROOT)} imports {name}")
    return found


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("traces", ("torch", "simpy", "emulator", "analysis")),
        ("emulator/simulation", ("torch", "emulator.learning", "analysis")),
        ("emulator/federation", ("torch", "emulator.learning", "analysis")),
        ("emulator/learning", ("simpy", "emulator.simulation", "emulator.federation", "analysis")),
        ("emulator/scenario", ("torch", "simpy", "numpy", "emulator.learning")),
        ("emulator/recording", ("torch", "simpy", "emulator.learning")),
        (
            "analysis",
            ("torch", "simpy", "emulator.simulation", "emulator.federation", "emulator.learning",
             "emulator.scenario", "emulator.run"),
        ),
    ],
)  # fmt: skip
def test_import_direction(folder: str, forbidden: tuple[str, ...]) -> None:
    assert offenders(folder, *forbidden) == []


def test_no_global_randomness() -> None:
    calls = (
        "np.random.seed", "np.random.rand", "np.random.choice", "np.random.shuffle",
        "np.random.permutation", "torch.manual_seed", "torch.seed", "random.seed",
    )  # fmt: skip
    for folder in ("emulator", "traces", "analysis"):
        for path in (ROOT / folder).rglob("*.py"):
            text = "\n".join(
                line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")
            )
            for call in calls:
                assert f"{call}(" not in text, f"{path} calls {call}"


def test_simulation_loads_without_torch() -> None:
    code = (
        "import sys, emulator.assembly, emulator.federation.server; "
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_modules_stay_small() -> None:
    for folder in ("emulator", "traces", "analysis"):
        for path in (ROOT / folder).rglob("*.py"):
            lines = len(path.read_text().splitlines())
            assert lines <= 480, f"{path.relative_to(ROOT)} has {lines} lines"
