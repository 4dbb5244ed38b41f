"""Programs of Debian's packages for the tests, unpacked in a folder and not installed: installing one would
start a server here.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def unpacked(folder: Path, *packages: str) -> Path:
    """The packages' files below `folder`; skips the test where they cannot be fetched."""
    if not shutil.which("apt-get"):
        pytest.skip(f"{packages[0]} is taken from Debian, and here is no apt-get")
    fetched, into = folder / "packages", folder / "unpacked"
    fetched.mkdir(parents=True)
    done = subprocess.run(
        ["apt-get", "download", *packages], cwd=fetched, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(
            f"Debian's {packages[0]} cannot be fetched: {(done.stderr.strip().splitlines() or ['apt-get failed'])[-1]}"
        )
    for package in fetched.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(into)], check=True)
    return into
