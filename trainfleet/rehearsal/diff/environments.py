"""The provider SDKs of each side: what the locks of base and head say, and an overlay with the locked ones.

An overlay is a folder with the locked Pulumi packages of one side that differ from the installed ones. It is
first in the path of that side's program. All other packages are the installed ones, and the simulated clouds
answer with the installed SDKs, so the page says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from trainfleet.errors import InputError, Problem
from trainfleet.rehearsal.diff.locks import Lock, Pin, read_lock

MODES = ("own", "same")
KEEP = 6
TIMEOUT_S = 600


@dataclass(frozen=True)
class Upgrade:
    """A package that base and head lock in different versions; empty where a side does not lock it."""

    package: str
    before: str
    after: str

    @property
    def provider(self) -> bool:
        """Whether it is Pulumi or one of its providers."""
        return is_pulumi(self.package)


@dataclass(frozen=True)
class Environments:
    """What differs between the sides, and the overlay of each; None = the installed packages."""

    base: Path | None = None
    head: Path | None = None
    upgrades: tuple[Upgrade, ...] = ()
    notes: tuple[str, ...] = ()
    packages: tuple[str, ...] = field(default=())
    """The provider packages that differ between the sides."""


class UnavailableEnvironmentError(Exception):
    """Raised when an overlay cannot be built; the message says why."""


def is_pulumi(package: str) -> bool:
    """Return whether a package is Pulumi or one of its providers, by its name."""
    return package == "pulumi" or package.startswith("pulumi-")


def upgrades(base: Lock, head: Lock) -> tuple[Upgrade, ...]:
    """Return the packages that differ, Pulumi's first."""
    found = [
        Upgrade(name, old.shown if old else "", new.shown if new else "")
        for name in sorted({*base.pins, *head.pins})
        if (old := base.pins.get(name)) != (new := head.pins.get(name))
        and (old.shown if old else "") != (new.shown if new else "")
    ]
    return tuple(sorted(found, key=lambda each: not each.provider))


def prepare(
    roots: tuple[Path, Path], prefix: str, mode: str, begin: Callable[[str], None] = lambda _: None
) -> Environments:
    """Compare the locks of base and head, and build the overlays that are needed.

    Args:
        roots: the project folders of base and head.
        prefix: the project's folder below the repository's top.
        mode: `own`: with the SDKs that each side locks; `same`: with the installed ones; empty: `own` if the
            sides differ and it can be built.
        begin: called with what takes time.

    Raises:
        InputError: `own` is asked for and cannot be had.
    """
    locks = read_lock(roots[0], prefix), read_lock(roots[1], prefix)
    different = upgrades(*locks)
    packages = tuple(each.package for each in different if each.provider)
    locked = [_locked(lock) for lock in locks]
    if mode == "same" or not (packages or mode == "own"):
        return Environments(None, None, different, tuple(_installed_instead(locked, packages)), packages)
    try:
        begin("preparing the provider SDKs that each side locks")
        base, head = [overlay(pins) if pins else None for pins in locked]
    except UnavailableEnvironmentError as error:
        if mode == "own":
            raise InputError(
                "the environment of a side cannot be built",
                [
                    Problem(
                        "--environments own", str(error), "--environments same, with the installed packages"
                    )
                ],
            ) from error
        note = f"Both sides ran with the installed provider SDKs, not with the locked ones: {error}"
        return Environments(None, None, different, (note,), packages)
    notes = [
        f"{label} ran with {_names(pins)} as locked; all other packages, and the SDKs with which the"
        " simulated clouds answer, are the installed ones."
        for label, pins in zip(("The base", "The head"), locked, strict=True)
        if pins
    ]
    return Environments(base, head, different, (*notes, *_not_pinned(locks, packages)), packages)


def _locked(lock: Lock) -> list[Pin]:
    """Return the locked Pulumi packages whose version is not the installed one."""
    return [
        pin
        for name, pin in sorted(lock.pins.items())
        if is_pulumi(name) and pin.version and pin.version != (_installed(name) or pin.version)
    ]


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _names(pins: Iterable[Pin]) -> str:
    return ", ".join(f"{pin.name} {pin.version}" for pin in pins)


def _installed_instead(locked: list[list[Pin]], packages: tuple[str, ...]) -> list[str]:
    others = dict.fromkeys(pin.name for pins in locked for pin in pins)
    if not others:
        return []
    shown = ", ".join(f"{name} {_installed(name)}" for name in others)
    why = "" if packages else " (both sides lock the same; --environments own runs with it)"
    return [f"Both sides ran with the installed {shown}, not with the locked version{why}."]


def _not_pinned(locks: tuple[Lock, Lock], packages: tuple[str, ...]) -> list[str]:
    loose = [
        name for name in packages if any(name in lock.pins and not lock.pins[name].version for lock in locks)
    ]
    return [f"{', '.join(loose)}: only exact versions run, so the installed version ran."] if loose else []


def overlay(pins: list[Pin]) -> Path:
    """Return the folder with these packages, from the cache or built with uv.

    Raises:
        UnavailableEnvironmentError: uv is missing, or cannot install the packages.
    """
    from trainfleet.toolchain import build_lock, cache_folder

    requirements = "\n".join(pin.requirement for pin in pins) + "\n"
    name = hashlib.sha256(f"{sys.version}\0{requirements}".encode()).hexdigest()[:24]
    folder = cache_folder() / "environments"
    target = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with build_lock(folder / f"{name}.lock", lambda _: None, "environment"):
            if not target.is_dir():
                _build(folder, target, requirements)
            os.utime(target)
        _evict(folder)
    except OSError as error:
        raise UnavailableEnvironmentError(f"{error.filename or folder}: {error.strerror or error}") from error
    return target


def _build(folder: Path, target: Path, requirements: str) -> None:
    next_to = Path(sys.executable).with_name("uv")
    uv = str(next_to) if next_to.is_file() else shutil.which("uv")
    if uv is None:
        raise UnavailableEnvironmentError("uv is not installed (pip install uv)")
    with tempfile.TemporaryDirectory(dir=folder, prefix="building-") as temporary:
        listed = Path(temporary) / "requirements.txt"
        listed.write_text(requirements)
        command = [uv, "pip", "install", "--quiet", "--no-deps", "--python", sys.executable]
        try:
            done = subprocess.run(
                [*command, "--target", str(Path(temporary) / "packages"), "-r", str(listed)],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise UnavailableEnvironmentError(f"uv did not end within {TIMEOUT_S} s") from error
        if done.returncode != 0:
            what = " ".join(done.stderr.split())[-400:]
            raise UnavailableEnvironmentError(
                f"uv cannot install {' '.join(requirements.split())[:200]}: {what}"
            )
        (Path(temporary) / "packages").rename(target)


def _evict(folder: Path) -> None:
    entries = sorted(
        (path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("building-")),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    for old in entries[KEEP:]:
        with contextlib.suppress(OSError):
            shutil.rmtree(old)
