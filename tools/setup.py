"""Sets up a checkout: a .venv with the locked packages, the project itself, and the Pulumi engine.

`make setup` runs it with the standard library only, so that a fresh python3 (3.11 to 3.13) is enough. A
finished step is recorded: a second run skips it, and an interrupted run resumes. uv uses the index that pip
is configured for (`pip config set global.index-url`).
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOCK = ROOT / "requirements.lock"
API_FACTS = ROOT / "packages" / "api-facts"
PROJECT_FILES = (
    ROOT / "pyproject.toml",
    ROOT / "trainfleet" / "__init__.py",
    API_FACTS / "pyproject.toml",
)
"""What the metadata of the editable installs is made of; the version is in `__init__.py`."""
STAMP = VENV / "trainfleet-setup.json"
OLDEST, NEWEST = (3, 11), (3, 13)


class SetupError(Exception):
    """Raised when a step cannot be done; the message says what to install or change."""


def main() -> int:
    """Run every step that is not done yet. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--no-engine", action="store_true", help="do not install the Pulumi engine (training only)"
    )
    arguments = parser.parse_args()
    started = time.monotonic()
    try:
        check_python()
        with one_at_a_time():
            step("environment", environment_key(), make_environment)
            step("packages", digest(LOCK), install_packages)
            step("project", digest(*PROJECT_FILES), install_project)
        if not arguments.no_engine:
            say("engine", time.monotonic(), run_engine())
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("setup: interrupted; run it again to resume", file=sys.stderr)
        return 130
    print(f"setup: ready in {time.monotonic() - started:.1f} s", flush=True)
    return 0


def check_python() -> None:
    """Reject a Python outside the tested range, and name one that is installed."""
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        found = [name for minor in (13, 12, 11) if (name := shutil.which(f"python3.{minor}"))]
        hint = f"run `make PYTHON={found[0]}`" if found else "install one"
        raise SetupError(f"Python 3.11 to 3.13 is needed, this is {sys.version.split()[0]}; {hint}")


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold the checkout's set-up lock; a second set-up waits for the first."""
    with (ROOT / ".setup.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("setup: another set-up is running here; waiting for it", flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def step(name: str, key: str, work: Callable[[], None]) -> None:
    """Do `work` unless it is recorded as done for this `key`."""
    done = read_stamp()
    if done.get(name) == key:
        return
    started = time.monotonic()
    print(f"setup: {name} ...", flush=True)
    work()
    done = read_stamp() | {name: key}
    temporary = STAMP.with_suffix(".tmp")
    temporary.write_text(json.dumps(done))
    os.replace(temporary, STAMP)
    say(name, started, "done")


def read_stamp() -> dict[str, str]:
    """The finished steps, with their keys."""
    try:
        done: dict[str, str] = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return done


def environment_key() -> str:
    """The key of the .venv: another Python or a moved checkout needs a new one."""
    return f"{sys.version.split()[0]} {ROOT}"


def make_environment() -> None:
    """Create .venv with the standard library's venv."""
    try:
        venv.create(VENV, clear=True, with_pip=True)
    except (subprocess.CalledProcessError, OSError) as error:
        fix = "on Debian and Ubuntu install python3-venv, and check that the disk is not full"
        raise SetupError(f"cannot create {VENV}: {error}; {fix}") from error


def install_packages() -> None:
    """Install every locked package by hash: uv first (by pip, from the same lock), then the rest by uv."""
    with_uv = VENV / "uv-only.txt"
    with_uv.write_text(lock_block("uv"))
    pip: list[str | Path] = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, "--require-hashes", "--no-deps", "-r", with_uv], "uv")
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    run(
        [VENV / "bin" / "uv", "pip", "install", *quiet, "--python", PYTHON, "--require-hashes", "-r", LOCK],
        "the locked packages",
        mirror(),
    )


def lock_block(name: str) -> str:
    """The lines of one package in the lock: its pin and hashes."""
    found = re.search(rf"^{name}==.*?(?=^\S|\Z)", LOCK.read_text(), re.MULTILINE | re.DOTALL)
    if not found:
        raise SetupError(f"{LOCK.name} does not pin {name}; run `make lock`")
    return found.group(0)


def mirror(python: Path = PYTHON) -> dict[str, str]:
    """The index that pip is configured for, as a variable for uv; empty when pip has none."""
    asked = subprocess.run(
        [python, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    ).stdout
    url = re.search(r"(?:global|install|:env:)\.index-url='([^']+)'", asked)
    return {"UV_DEFAULT_INDEX": url.group(1)} if url and "UV_DEFAULT_INDEX" not in os.environ else {}


def install_project() -> None:
    """Install the checkout itself in place, offline."""
    uv: list[str | Path] = [VENV / "bin" / "uv", "pip", "install", "--quiet", "--python", PYTHON]
    run([*uv, "--offline", "--no-deps", "--no-build-isolation", "-e", ROOT, "-e", API_FACTS], "the project")


def run_engine() -> str:
    """Find or build the Pulumi engine; returns the line to print for it."""
    finished = subprocess.run(
        [PYTHON, "-m", "trainfleet.rehearsal.engine.find"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if finished.returncode:
        raise SetupError("no Pulumi engine (see above); training works without it: `make setup ENGINE=no`")
    return finished.stdout.strip()


def run(command: list[str | Path], what: str, extra: dict[str, str] | None = None) -> None:
    """Run one installer, whose progress is shown."""
    finished = subprocess.run([str(part) for part in command], env=os.environ | (extra or {}), check=False)
    if finished.returncode:
        raise SetupError(
            f"could not install {what} (see above); check the network and the disk, then run it again"
        )


def digest(*paths: Path) -> str:
    """SHA-256 of the contents of files."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def say(name: str, started: float, what: str) -> None:
    """Print one line for a step, with its duration."""
    print(f"setup: {name}: {what} ({time.monotonic() - started:.1f} s)", flush=True)


if __name__ == "__main__":
    sys.exit(main())
