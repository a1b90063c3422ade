"""The memo on disk: consistent at every instant, and a cache that may be lost."""

from __future__ import annotations

import hashlib
import math
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from emulator.errors import ScenarioError
from emulator.learning.lineage import Tensors
from emulator.learning.memo import CacheLost, Memo

FINGERPRINT = {"torch": "2", "executor": "inline"}


def opened(directory: Path, **options: Any) -> Memo:
    return Memo(directory, options.pop("fingerprint", FINGERPRINT), **options)


def tensors(value: float) -> Tensors:
    return {"model": torch.full((3,), value), "control": torch.tensor([value / 3, -value])}


def save(
    memo: Memo,
    live: Mapping[str, Tensors],
    *,
    stored: Iterable[str] = (),
    pending: Iterable[str] = (),
    sequence: int = 1,
    keep: Mapping[str, Tensors] | None = None,
) -> None:
    memo.checkpoint(live, stored, pending, sequence, keep or {})


def files(directory: Path) -> set[str]:
    return {path.name for path in (directory / "checkpoints").iterdir()}


def contents(directory: Path) -> dict[str, str]:
    """Every file of a directory with its hash and its time of change."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        + str(path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file()
    }


def assert_same(got: Tensors, expected: Tensors) -> None:
    assert set(got) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(got[name], tensor)


def test_a_new_memo_knows_nothing(tmp_path: Path) -> None:
    memo = opened(tmp_path)
    assert memo.sequence == 0
    assert memo.pending == frozenset()
    assert memo.value("o") is None
    assert not memo.has("h")
    with pytest.raises(CacheLost):
        memo.load("h")
    memo.close()


def test_what_a_checkpoint_holds_is_there_after_reopening(tmp_path: Path) -> None:
    memo = opened(tmp_path)
    values = {"loss": 0.1 + 0.2, "n": 3, "nonfinite": [0, 2], "finite": True}
    memo.remember("o", values)
    memo.remember("undefined", {"loss": math.nan})
    assert memo.value("o") == values
    save(
        memo, {"a.update": tensors(1.0), "b.server": tensors(2.0)}, pending=["p", "q"], sequence=42
    )
    assert memo.value("o") == values
    memo.close()

    again = opened(tmp_path)
    assert again.sequence == 42
    assert again.pending == {"p", "q"}
    assert again.value("o") == values
    undefined = again.value("undefined")
    assert undefined is not None
    assert math.isnan(undefined["loss"])
    assert again.has("a.update")
    assert not again.has("c.update")
    assert_same(again.load("a.update"), tensors(1.0))
    assert_same(again.load("b.server"), tensors(2.0))
    assert files(tmp_path) == {"a.update.safetensors", "b.server.safetensors"}
    again.close()


def test_values_are_on_disk_with_the_next_checkpoint_only(tmp_path: Path) -> None:
    memo = opened(tmp_path)
    memo.remember("first", {"loss": 1.0})
    save(memo, {})
    memo.remember("second", {"loss": 2.0})
    memo.close()
    again = opened(tmp_path)
    assert again.value("first") == {"loss": 1.0}
    assert again.value("second") is None
    again.close()


def test_values_stay_and_the_live_set_is_replaced(tmp_path: Path) -> None:
    memo = opened(tmp_path)
    memo.remember("o", {"loss": 1.0})
    save(memo, {"a.update": tensors(1.0), "b.update": tensors(2.0)}, pending=["p"], sequence=1)
    save(memo, {"b.update": tensors(2.0), "c.update": tensors(3.0)}, pending=["q"], sequence=2)
    assert files(tmp_path) == {"b.update.safetensors", "c.update.safetensors"}
    memo.close()
    again = opened(tmp_path)
    assert again.sequence == 2
    assert again.pending == {"q"}
    assert again.value("o") == {"loss": 1.0}
    assert not again.has("a.update")
    assert_same(again.load("b.update"), tensors(2.0))
    assert_same(again.load("c.update"), tensors(3.0))
    again.close()


def test_what_lies_on_disk_is_not_written_again(tmp_path: Path) -> None:
    memo = opened(tmp_path)
    save(memo, {"a.update": tensors(1.0), "b.update": tensors(2.0)})
    before = contents(tmp_path)
    save(memo, {"a.update": tensors(1.0)}, stored=["b.update", "never seen"], sequence=2)
    after = contents(tmp_path)
    for name in ("a.update", "b.update"):
        assert after[f"checkpoints/{name}.safetensors"] == before[f"checkpoints/{name}.safetensors"]
    assert not memo.has("never seen")
    memo.close()
    again = opened(tmp_path)
    assert_same(again.load("b.update"), tensors(2.0))
    again.close()


def test_kept_tensors_stay_for_good(tmp_path: Path) -> None:
    memo = opened(tmp_path)
    version = tensors(1.0)
    save(memo, {"v1.server": version}, keep={"v1.server": version})
    save(memo, {"v2.server": tensors(2.0)}, sequence=2)
    assert files(tmp_path) == {"v1.server.safetensors", "v2.server.safetensors"}
    memo.close()

    again = opened(tmp_path)
    save(again, {}, sequence=3)
    assert files(tmp_path) == {"v1.server.safetensors"}
    again.close()
    last = opened(tmp_path)
    assert_same(last.load("v1.server"), version)
    last.close()


def test_files_go_only_after_the_transaction(tmp_path: Path) -> None:
    """A checkpoint whose transaction fails leaves the one before whole."""
    memo = opened(tmp_path)
    memo.remember("o", {"loss": 1.0})
    save(memo, {"a.update": tensors(1.0)}, pending=["p"], sequence=7)
    memo.remember("bad", {"loss": object()})  # no JSON
    with pytest.raises(TypeError):
        save(memo, {"b.update": tensors(2.0)}, pending=["q"], sequence=8)
    assert files(tmp_path) == {"a.update.safetensors", "b.update.safetensors"}
    memo.close()

    again = opened(tmp_path)
    assert again.sequence == 7
    assert again.pending == {"p"}
    assert again.value("o") == {"loss": 1.0}
    assert_same(again.load("a.update"), tensors(1.0))
    assert not again.has("b.update")
    # The next checkpoint sweeps up what the failed one left.
    save(again, {"a.update": tensors(1.0)}, sequence=9)
    assert files(tmp_path) == {"a.update.safetensors"}
    again.close()


def damage_content(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("harm", [damage_content, cut, empty, Path.unlink])
def test_a_damaged_or_missing_file_is_a_lost_cache(tmp_path: Path, harm: Any) -> None:
    memo = opened(tmp_path)
    memo.remember("o", {"loss": 1.0})
    save(memo, {"a.update": tensors(1.0), "b.update": tensors(2.0)}, sequence=5, pending=["p"])
    memo.close()
    harm(tmp_path / "checkpoints" / "a.update.safetensors")

    again = opened(tmp_path)
    with pytest.raises(CacheLost):
        again.load("a.update")
    assert_same(again.load("b.update"), tensors(2.0))

    # Start over without tensors: values stay, and what is computed again replaces what is damaged.
    again.forget_tensors()
    assert not again.has("a.update")
    assert not again.has("b.update")
    assert (again.sequence, again.pending) == (0, frozenset())
    assert again.value("o") == {"loss": 1.0}
    save(again, {"a.update": tensors(1.0)}, sequence=5)
    again.close()
    last = opened(tmp_path)
    assert_same(last.load("a.update"), tensors(1.0))
    assert files(tmp_path) == {"a.update.safetensors"}
    last.close()


def test_torn_temporary_files_are_ignored_and_cleaned(tmp_path: Path) -> None:
    memo = opened(tmp_path)
    save(memo, {"a.update": tensors(1.0)}, sequence=5)
    memo.close()
    folder = tmp_path / "checkpoints"
    for name in ("a.update.part", "b.update.part"):
        (folder / name).write_bytes(b"torn")

    again = opened(tmp_path)
    assert_same(again.load("a.update"), tensors(1.0))
    assert not again.has("b.update")
    with pytest.raises(CacheLost):
        again.load("b.update")
    save(again, {"a.update": tensors(1.0)}, sequence=6)
    assert files(tmp_path) == {"a.update.safetensors"}
    again.close()


# --- fingerprints -------------------------------------------------------------------------------


def test_another_fingerprint_is_refused_saying_what_changed(tmp_path: Path) -> None:
    memo = opened(tmp_path)
    save(memo, {})
    memo.close()
    other = {"torch": "3", "executor": "inline", "device": "H"}
    with pytest.raises(ScenarioError) as refused:
        opened(tmp_path, fingerprint=other)
    text = str(refused.value)
    assert "torch: 2 then, 3 now" in text
    assert "device: None then, H now" in text
    assert "executor" not in text
    assert str(tmp_path) in text
    assert "--restart" in text
    opened(tmp_path).close()


def test_without_a_checkpoint_there_is_no_fingerprint_yet(tmp_path: Path) -> None:
    opened(tmp_path).close()
    opened(tmp_path, fingerprint={"torch": "3"}).close()


def test_the_source_must_have_the_same_fingerprint(tmp_path: Path) -> None:
    source = opened(tmp_path / "source", fingerprint={"torch": "1"})
    save(source, {})
    source.close()
    with pytest.raises(ScenarioError, match=r"torch: 1 then, 2 now") as refused:
        opened(tmp_path / "own", source=tmp_path / "source")
    assert str(tmp_path / "source") in str(refused.value)


# --- another run's memo -------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    memo = opened(directory)
    memo.remember("o", {"loss": 1.0})
    save(memo, {"a.update": tensors(1.0)}, pending=["p"], sequence=9)
    memo.close()
    return directory


def test_a_source_is_read_and_never_written(tmp_path: Path, source: Path) -> None:
    before = contents(source)
    own = tmp_path / "own"
    memo = opened(own, source=source)
    assert memo.value("o") == {"loss": 1.0}
    assert memo.has("a.update")
    assert_same(memo.load("a.update"), tensors(1.0))
    # How far another run had come says nothing about this one.
    assert (memo.sequence, memo.pending) == (0, frozenset())
    memo.remember("mine", {"loss": 2.0})
    save(memo, {"a.update": tensors(1.0), "b.update": tensors(2.0)}, sequence=3)
    save(memo, {"b.update": tensors(2.0)}, sequence=4)
    assert memo.has("a.update")
    memo.close()
    assert contents(source) == before
    assert files(own) == {"b.update.safetensors"}

    # What was used is in the own memo now, and it needs the source no more.
    alone = opened(own)
    assert alone.value("o") == {"loss": 1.0}
    assert alone.value("mine") == {"loss": 2.0}
    assert not alone.has("a.update")
    alone.close()


def test_two_runs_can_read_one_source(tmp_path: Path, source: Path) -> None:
    memos = [opened(tmp_path / name, source=source) for name in ("one", "two")]
    for memo in memos:
        assert memo.value("o") == {"loss": 1.0}
        save(memo, {})
        memo.close()


def test_forgetting_tensors_forgets_those_of_the_source(tmp_path: Path, source: Path) -> None:
    memo = opened(tmp_path / "own", source=source)
    memo.forget_tensors()
    assert not memo.has("a.update")
    assert memo.value("o") == {"loss": 1.0}
    memo.close()


def test_a_source_without_a_memo_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"memo\.sqlite") as refused:
        opened(tmp_path / "own", source=tmp_path / "nothing")
    assert str(tmp_path / "nothing") in str(refused.value)


@pytest.mark.parametrize("name", ["50% alpha", "a%41b", "why?", "run#1", "größer"])
def test_a_source_in_a_folder_of_any_name(tmp_path: Path, name: str) -> None:
    memo = opened(tmp_path / name)
    memo.remember("o", {"loss": 1.0})
    save(memo, {})
    memo.close()
    reader = opened(tmp_path / "own", source=tmp_path / name)
    assert reader.value("o") == {"loss": 1.0}
    reader.close()


# --- a damaged database -------------------------------------------------------------------------


def test_a_file_that_is_no_database_is_moved_aside(tmp_path: Path) -> None:
    (tmp_path / "memo.sqlite").write_bytes(b"this is no database at all" * 100)
    memo = opened(tmp_path)
    assert memo.value("anything") is None
    assert (tmp_path / "memo.damaged").read_bytes().startswith(b"this is no database")
    memo.close()


def test_a_source_that_is_no_memo_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "source"
    directory.mkdir()
    sqlite3.connect(directory / "memo.sqlite").close()
    with pytest.raises(ScenarioError, match=r"memo\.sqlite") as refused:
        opened(tmp_path / "own", source=directory)
    assert str(directory) in str(refused.value)


# --- when a checkpoint is due -------------------------------------------------------------------


def test_checkpoints_are_due_by_host_time(tmp_path: Path) -> None:
    always, never = opened(tmp_path / "a", checkpoint_every_s=0.0), opened(tmp_path / "b")
    never.checkpoint_every_s = 1e9
    for memo in (always, never):
        save(memo, {})
    assert always.due()
    assert not never.due()
    always.close()
    never.close()
