"""Builds the pinned Pulumi engine once per machine and user, with the two plugins that Python programs need.

The pins are in trainfleet/pins/engine/go.mod and go.sum. The build folder is named after the digest of the
pins and the platform. It is never partial: the build runs in a sibling folder that is renamed at the end,
under a lock.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import tempfile
from pathlib import Path

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.toolchain import ENGINE, PINS, Progress, build_lock, cache_folder, find_go, pinned, run_go

PACKAGE = f"{ENGINE}/cmd/pulumi"
_VERSION_FLAG = "github.com/pulumi/pulumi/sdk/v3/go/common/version.Version"
SHIMS = {
    "pulumi-language-python": "trainfleet.rehearsal.engine.language",
    "pulumi-analyzer-policy-python": "trainfleet.rehearsal.engine.analyzer",
}

_SHIM = """#!/bin/sh
# Started by the engine in this folder: runs the Python of the current project that has Trainfleet installed.
folder=$PWD
while :; do
  for python in "$VIRTUAL_ENV/bin/python" "$folder/.venv/bin/python"; do
    [ -x "$python" ] && "$python" -c 'import {module}' 2>/dev/null && exec "$python" -u -m {module} "$@"
  done
  [ "$folder" = / ] && break
  folder=$(dirname "$folder")
done
exec "${{TRAINFLEET_PYTHON:-python3}}" -u -m {module} "$@"
"""


def key() -> str:
    """Return the digest that identifies a build: pins, shims and platform."""
    digest = hashlib.sha256()
    for part in (
        (PINS / "go.mod").read_bytes(),
        (PINS / "go.sum").read_bytes(),
        *(_shim(module).encode() for module in SHIMS.values()),
        platform.platform(terse=True).encode(),
    ):
        digest.update(part)
    digest.update(platform.machine().encode())
    return digest.hexdigest()[:16]


def built_engine(progress: Progress) -> tuple[Path, str]:
    """Return the cached engine and its version; build it first if it is missing.

    Raises:
        MissingToolError: Go is not installed and cannot be downloaded.
        TrainfleetError: the build failed.
    """
    folder = cache_folder() / f"engine-{key()}"
    version = pinned(ENGINE)
    engine = folder / "bin" / "pulumi"
    if engine.is_file():
        return engine, version
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with build_lock(folder.with_suffix(".lock"), progress):
            if not engine.is_file():
                _build(folder, version, progress)
    except OSError as error:
        raise TrainfleetError("cannot build the engine", [_unwritable(error, folder.parent)]) from error
    return engine, version


def _build(folder: Path, version: str, progress: Progress) -> None:
    for stale in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(stale, ignore_errors=True)
    work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        go = find_go(progress)
        source, target = work / "source", work / "bin"
        source.mkdir()
        target.mkdir()
        for name in ("go.mod", "go.sum"):
            shutil.copyfile(PINS / name, source / name)
        flags = f"-s -w -X {_VERSION_FLAG}={version}"
        progress(f"engine: building Pulumi {version} from its pins, once per machine (2 to 5 minutes)")
        command = [str(go), "build", "-trimpath", "-ldflags", flags, "-o", str(target / "pulumi"), PACKAGE]
        run_go(command, source, progress)
        write_shims(target)
        shutil.rmtree(source)
        os.replace(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def write_shims(folder: Path) -> None:
    """Write the executables that run Python programs and policy packs."""
    for name, module in SHIMS.items():
        shim = folder / name
        shim.write_text(_shim(module))
        shim.chmod(0o755)


def _shim(module: str) -> str:
    return _SHIM.format(module=module)


def _unwritable(error: OSError, folder: Path) -> Problem:
    return Problem(
        str(error.filename or folder),
        error.strerror or str(error),
        "free some space, or set XDG_CACHE_HOME to another cache folder",
    )
