"""Builds the sdist and the wheel of a source folder, the same bytes each time, and checks what is in them."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath

from packaging.metadata import Metadata

from trainfleet.errors import Problem, TrainfleetError

PACKAGE = "trainfleet"
SDIST_FILES = {
    ".gitignore",
    "CHANGELOG.md",
    "LICENSE",
    "PKG-INFO",
    "README.md",
    "pyproject.toml",
    "requirements.lock",
}
"""What the sdist has besides the package."""
LEFTOVERS = ("__pycache__", ".pyc", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".DS_Store", ".trainfleet")


class ReleaseError(TrainfleetError):
    """A release that must not be published."""


@dataclass(frozen=True)
class Distributions:
    """The two files of a release."""

    sdist: Path
    wheel: Path


def build(source: Path, folder: Path, epoch: int) -> Distributions:
    """Build the sdist of a source folder into `folder`, and the wheel from the sdist, as an index would.

    Args:
        epoch: seconds since 1970, the time of every file in both.

    Raises:
        ReleaseError: the build failed.
    """
    _run_build(["--outdir", str(folder), str(source)], epoch)
    return Distributions(next(folder.glob("*.tar.gz")), next(folder.glob("*.whl")))


def build_wheel(source: Path, folder: Path, epoch: int) -> Path:
    """Build the wheel from the source folder itself, without an sdist between.

    Raises:
        ReleaseError: the build failed.
    """
    _run_build(["--wheel", "--outdir", str(folder), str(source)], epoch)
    return next(folder.glob("*.whl"))


def _run_build(arguments: list[str], epoch: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", *arguments],
        env=os.environ | {"SOURCE_DATE_EPOCH": str(epoch)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise ReleaseError("the build failed", [Problem("python -m build", line) for line in lines[-5:]])


def package_files(root: Path) -> set[str]:
    """The files of the package in a checkout that git does not ignore, by their names in the package: a link
    to another folder of the checkout is that folder.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    links = {
        f"{path.resolve().relative_to(root.resolve())}/": f"{PACKAGE}/{path.name}/"
        for path in (root / PACKAGE).iterdir()
        if path.is_symlink()
    }
    found = {name for name in listed if name.startswith(f"{PACKAGE}/") and not (root / name).is_symlink()}
    for target, name in links.items():
        found |= {name + each.removeprefix(target) for each in listed if each.startswith(target)}
    return {name for name in found if (root / name).is_file()}


def members(file: Path) -> set[str]:
    """The files in an sdist (without its top folder) or a wheel."""
    if file.suffix == ".whl":
        return set(zipfile.ZipFile(file).namelist())
    with tarfile.open(file) as archive:
        return {str(PurePosixPath(*PurePosixPath(name).parts[1:])) for name in archive.getnames()}


def content_problems(found: Distributions, expected: set[str]) -> list[Problem]:
    """What is missing in the two files, and what does not belong there.

    Args:
        expected: the files of the package, as `package_files` lists them.
    """
    info = f"{found.wheel.name.removesuffix('-py3-none-any.whl')}.dist-info/"
    wheel = {name for name in members(found.wheel) if not name.startswith(info)}
    sdist = members(found.sdist)
    problems = []
    for file, has, allowed in (
        (found.wheel, wheel, expected),
        (found.sdist, sdist, expected | SDIST_FILES),
    ):
        problems += [Problem(file.name, f"{name} is missing") for name in sorted(expected - has)]
        problems += [Problem(file.name, f"{name} does not belong to it") for name in sorted(has - allowed)]
        problems += [
            Problem(file.name, f"{name} is a leftover of a run")
            for name in sorted(has & allowed)
            if any(part.endswith(LEFTOVERS) for part in PurePosixPath(name).parts)
        ]
    return problems


def metadata(wheel: Path) -> Metadata:
    """The wheel's core metadata, validated.

    Raises:
        packaging.metadata.InvalidMetadata: a field is invalid; an exception group, if several are.
    """
    archive = zipfile.ZipFile(wheel)
    name = next(each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
    return Metadata.from_email(archive.read(name), validate=True)


def metadata_problems(found: Distributions, version: str) -> list[Problem]:
    """What an index would refuse, or show without its description."""
    where = found.wheel.name
    try:
        read = metadata(found.wheel)
    except ExceptionGroup as group:
        return [Problem(where, str(each)) for each in group.exceptions]
    problems = []
    if str(read.version) != version:
        problems.append(Problem(where, f"its version is {read.version}", version))
    if read.description_content_type != "text/markdown" or not (read.description or "").strip():
        problems.append(Problem(where, "it has no description in Markdown", "`readme` in pyproject.toml"))
    if not read.license_expression or not read.license_files:
        problems.append(
            Problem(where, "it names no licence or has no licence file", "`license`, `license-files`")
        )
    text = read_sdist(found.sdist, "PKG-INFO")
    sdist = HeaderParser().parsestr(text)
    if sdist["Version"] != version:
        problems.append(Problem(found.sdist.name, f"its version is {sdist['Version']}", version))
    return problems


def read_sdist(sdist: Path, name: str) -> str:
    """The text of a file in the sdist's top folder."""
    with tarfile.open(sdist) as archive:
        file = archive.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/{name}")
        assert file is not None
        return file.read().decode()
