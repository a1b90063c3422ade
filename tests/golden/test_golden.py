"""The event logs of small scripted scenarios, line by line.

They may change only together with a line "results change: yes" in CHANGELOG.md; then
``python tests/golden/test_golden.py`` writes them anew. All times are scripted and nothing is
learned, so that they hold on any processor.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from emulator.run import Options, run
from emulator.scenario import load_scenario

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in HERE.glob("*.yaml"))


def event_log(name: str, folder: Path) -> str:
    scenario, source = load_scenario(HERE / f"{name}.yaml")
    run(scenario, source, Options(folder / name, timing_only=True), lambda server, accuracy: None)
    return (folder / name / "events.jsonl").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_event_log(name: str, tmp_path: Path) -> None:
    assert event_log(name, tmp_path) == (HERE / f"{name}.jsonl").read_text()


if __name__ == "__main__":
    for each in NAMES:
        with tempfile.TemporaryDirectory() as temporary:
            (HERE / f"{each}.jsonl").write_text(event_log(each, Path(temporary)))
        print(f"wrote {each}.jsonl", file=sys.stderr)
