"""Finds the Pulumi engine: TRAINFLEET_PULUMI, else a recent enough one on PATH, else one built from the pins.

A build is shared by all checkouts of a user on a machine. Concurrent callers wait for the same build.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainfleet.errors import MissingToolError, Problem

MINIMUM = (3, 200, 0)
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Engine:
    """A usable Pulumi command line. `built` means built from the pins, without its own language hosts."""

    path: Path
    version: str
    built: bool = False


def find_engine(progress: Progress | None = None) -> Engine:
    """Return an engine; build it if none is installed.

    Raises:
        MissingToolError: TRAINFLEET_PULUMI is not a usable Pulumi, or no Pulumi is installed and none can be
        built.
    """
    if named := os.environ.get("TRAINFLEET_PULUMI"):
        return _named(Path(named))
    if (found := installed()) is not None:
        return found
    from trainfleet.rehearsal.engine.build import built_engine

    return Engine(*built_engine(progress or (lambda _: None)), built=True)


def installed() -> Engine | None:
    """Return the Pulumi on PATH if it is new enough, else None."""
    found = shutil.which("pulumi")
    version = version_of(Path(found)) if found else None
    return Engine(Path(found), version) if found and version and is_enough(version) else None


def is_enough(version: str) -> bool:
    """Return whether a version is at least MINIMUM."""
    numbers = re.match(r"v?(\d+)\.(\d+)\.(\d+)", version.strip())
    return numbers is not None and tuple(map(int, numbers.groups())) >= MINIMUM


def version_of(path: Path) -> str | None:
    """Return the output of `pulumi version` without the `v`, or None if the command fails."""
    try:
        with tempfile.TemporaryDirectory() as home:  # 3.274 writes a log of each command into its home
            environment = {**os.environ, "PULUMI_SKIP_UPDATE_CHECK": "true", "PULUMI_HOME": home}
            output = subprocess.run(
                [str(path), "version"],
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
                env=environment,
            ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"v?(\d+\.\d+\.\d+\S*)", output)
    return match.group(1) if match else None


def _named(path: Path) -> Engine:
    version = version_of(path)
    if version is None or not is_enough(version):
        what = (
            f"is Pulumi {version}, older than {'.'.join(map(str, MINIMUM))}"
            if version
            else "cannot be run as Pulumi"
        )
        raise MissingToolError(
            "TRAINFLEET_PULUMI names no usable engine",
            [Problem(str(path), what, "unset it, or name a newer pulumi")],
        )
    return Engine(path, version)


def main() -> None:
    """`python -m trainfleet.rehearsal.engine.find`: make sure that an engine exists.

    Progress goes to stderr, and one line with the result to stdout.
    """
    import sys

    from trainfleet.console import run

    def find() -> None:
        engine = find_engine(lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201 - setup shows it unchanged
        print(f"Pulumi {engine.version}{' (built from the pins)' if engine.built else ''}: {engine.path}")  # noqa: T201

    sys.exit(run(find))


if __name__ == "__main__":
    main()
