"""Installs the distributions into clean environments, one for each Python and cloud, and uses them there.

An environment has only what `trainfleet[CLOUD]` requires, at the versions of the lock, and no checkout: a
repository is created by `trainfleet init`, and its stack is checked and previewed on the simulated cloud.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

from tools.release.build import Distributions
from tools.release.checkout import version_of
from trainfleet.errors import Problem

CLOUDS = ("aws", "gcp", "azure")
"""The light installs: `trainfleet[CLOUD]` reviews the platforms of one cloud, without torch."""
MOST_BYTES = 400_000_000
"""The most disk space of a light install."""
ABSENT = ("torch", "ray")
ANSWERS = {
    "aws": ("--admin", "arn:aws:iam::111122223333:role/admin"),
    "gcp": ("--account", "my-project-123456", "--admin", "admin@example.com"),
    "azure": (
        *("--account", "11111111-2222-3333-4444-555555555555"),
        *("--admin", "11111111-2222-3333-4444-555555555555"),
    ),
}
LIMIT_S = 600
SETTINGS = ("PYTHON", "VIRTUAL_ENV", "TRAINFLEET_", "PULUMI_")
"""Variables, by their start, that an environment does not inherit."""


@dataclass(frozen=True)
class Installed:
    """What was measured in an environment: its bytes on disk when installed and after its use."""

    python: str
    cloud: str
    bytes: int
    used: int
    seconds: float

    def __str__(self) -> str:
        sizes = f"{self.bytes / 1e6:.0f} MB, {self.used / 1e6:.0f} MB after its use"
        return f"Python {self.python}, {self.cloud}: installed in {self.seconds:.0f} s, {sizes}"


def supported(root: Path) -> list[str]:
    """The Pythons that pyproject.toml admits, as `3.11`."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    admitted = SpecifierSet(project["requires-python"])
    return [f"3.{minor}" for minor in range(100) if f"3.{minor}.0" in admitted]


def find(python: str) -> Path | None:
    """An interpreter of this minor version that runs: on PATH, installed by uv, or by pyenv."""
    for each in _candidates(python):
        command = [str(each), "-c", "import sys, venv, ssl; print(sys.version_info[:2])"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        except OSError:
            continue
        if done.stdout.strip() == f"({python.replace('.', ', ')})":
            return each
    return None


def _candidates(python: str) -> Iterator[Path]:
    name = f"python{python}"
    paths = (Path(each, name) for each in os.environ.get("PATH", "").split(os.pathsep))
    yield from (each for each in paths if each.is_file())
    managed = subprocess.run(
        [_uv(), "python", "dir"], capture_output=True, text=True, check=False
    ).stdout.strip()
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    for folder, pattern in ((Path(managed), f"cpython-{python}.*"), (pyenv, f"{python}.*")):
        yield from sorted(folder.glob(f"{pattern}/bin/{name}"), reverse=True)


def _uv() -> Path:
    return Path(sys.executable).with_name("uv")


def missing_problems(pythons: Mapping[str, Path | None], accepted: Sequence[str]) -> list[Problem]:
    """Pythons that are neither here nor accepted as missing."""
    return [
        Problem(f"Python {each}", "is not installed here", f"install it, or accept it: WITHOUT={each}")
        for each, path in pythons.items()
        if path is None and each not in accepted
    ]


def constraints(lock: Path, file: Path) -> Path:
    """Write the pins of the lock, without hashes and with their markers."""
    pins = re.findall(r"^[A-Za-z0-9].*?(?= \\$)", lock.read_text(encoding="utf-8"), re.M)
    file.write_text("\n".join(pins) + "\n", encoding="utf-8")
    return file


def check(
    root: Path, found: Distributions, python: Path, cloud: str, folder: Path
) -> tuple[Installed, list[Problem]]:
    """Install the wheel with a cloud's extra, then the sdist over it, and use both.

    Args:
        folder: an empty folder, where the environment and a repository are made.
    """
    where = Environment(root, python, folder, cloud)
    seconds = where.install(f"trainfleet[{cloud}] @ {found.wheel.resolve().as_uri()}")
    installed = size(where.venv)
    problems = where.problems
    packages = where.uv("pip", "freeze").splitlines()
    problems += [
        Problem(where.name, f"has {line}", "no package of the training extras")
        for line in packages
        if line.startswith(tuple(f"{each}==" for each in ABSENT))
    ]
    where.uv("pip", "check")
    where.use()
    measured = Installed(where.version, cloud, installed, size(where.venv), seconds)
    if measured.used > MOST_BYTES:
        problems.append(
            Problem(where.name, f"takes {measured.used / 1e6:.0f} MB", f"at most {MOST_BYTES / 1e6:.0f} MB")
        )
    where.uv("pip", "install", "--quiet", "--no-deps", "--reinstall-package", "trainfleet", str(found.sdist))
    where.trainfleet("--version", says=version_of(root))
    where.trainfleet("spec", "check", "dev", says="ok dev")
    return measured, problems


class Environment:
    """A virtual environment, and a repository next to it that `trainfleet init` made."""

    def __init__(self, root: Path, python: Path, folder: Path, cloud: str) -> None:
        self.root, self.folder, self.cloud = root, folder, cloud
        self.venv, self.repository = folder / "venv", folder / "demo"
        self.python = self.venv / "bin" / "python"
        self.environment = {
            key: value for key, value in os.environ.items() if not key.startswith(SETTINGS)
        } | {"VIRTUAL_ENV": str(self.venv), "NO_COLOR": "1", "COLUMNS": "160"}
        self.problems: list[Problem] = []
        self.name = str(python)
        self.uv("venv", "--quiet", "--python", str(python), str(self.venv))
        self.version = self._run(
            [self.python, "-c", "import platform; print(platform.python_version())"]
        ).strip()
        self.name = f"Python {self.version}, {cloud}"

    def install(self, requirement: str) -> float:
        """Install a requirement at the versions of the lock; returns the seconds."""
        pins = constraints(self.root / "requirements.lock", self.folder / "pins.txt")
        started = time.monotonic()
        self.uv("pip", "install", "--quiet", "--constraints", str(pins), requirement)
        return time.monotonic() - started

    def use(self) -> None:
        """Compile every module, then create a repository and review its stack."""
        site = next((self.venv / "lib").glob("python*/site-packages")) / "trainfleet"
        self._run([self.python, "-W", "error", "-m", "compileall", "-q", "-o", "0", site])
        self.trainfleet("--version", says=version_of(self.root))
        self.trainfleet("machines", "--cloud", self.cloud, says="H100")
        self.trainfleet("train", "lm-tiny", code=3, says="trainfleet[train]")
        options = (
            f"--cloud {self.cloud} --ci none --name demo --owner ml@example.com --public-range 203.0.113.0/24"
        )
        words = ("init", str(self.repository), *options.split(), *ANSWERS[self.cloud], "--json")
        self.trainfleet(*words, says='"folder"')
        self.trainfleet("spec", "check", "dev", says="ok dev")
        self.trainfleet("rehearse", "dev", "--until", "policies", says="none")

    def trainfleet(self, *words: str, says: str, code: int = 0) -> None:
        """Run a command in the repository, if it exists; what it prints must contain a text."""
        where = self.repository if self.repository.is_dir() else self.folder
        printed = self._run([self.venv / "bin" / "trainfleet", *words], code, where)
        if says not in printed and not self.problems:
            self.problems.append(Problem(self.name, f"`trainfleet {' '.join(words)}` does not say {says}"))

    def uv(self, *words: str) -> str:
        """Run uv on the environment; returns what it prints."""
        return self._run([_uv(), *words])

    def _run(self, command: list[Any], code: int = 0, where: Path | None = None) -> str:
        """Run a command unless an earlier one has failed; returns what it prints."""
        if self.problems:
            return ""
        done = subprocess.run(
            list(map(str, command)),
            cwd=where or self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        printed = done.stdout + done.stderr
        if done.returncode != code:
            last = (printed.strip().splitlines() or ["no output"])[-1]
            words = " ".join([Path(command[0]).name, *map(str, command[1:])])
            self.problems.append(Problem(self.name, f"`{words}` ended with {done.returncode}: {last}"))
        return printed


def size(folder: Path) -> int:
    """The bytes that a folder takes on disk."""
    found = sum(each.lstat().st_blocks * 512 for each in folder.rglob("*"))
    return found + folder.lstat().st_blocks * 512


def check_all(
    root: Path, found: Distributions, pythons: Mapping[str, Path | None], folder: Path
) -> tuple[list[Installed], list[Problem]]:
    """Check the distributions with each Python and cloud, one after the other."""
    measured, problems = [], []
    for python, path in pythons.items():
        for cloud in CLOUDS if path else ():
            assert path is not None
            where = folder / f"{python}-{cloud}"
            where.mkdir(parents=True)
            installed, wrong = check(root, found, path, cloud, where)
            print(f"  {installed}{'' if not wrong else ', with problems'}", flush=True)
            measured.append(installed)
            problems += wrong
            shutil.rmtree(where)
    return measured, problems
