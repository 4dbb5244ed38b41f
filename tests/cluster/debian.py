"""Programs of Debian packages, unpacked into a folder. Installing the packages would start servers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def unpacked(folder: Path, *packages: str) -> Path:
    """Unpack the packages below `folder`. Skips the test if they cannot be downloaded."""
    if not shutil.which("apt-get"):
        pytest.skip(f"{packages[0]} is a Debian package, and apt-get is not installed")
    fetched, into = folder / "packages", folder / "unpacked"
    fetched.mkdir(parents=True)
    done = subprocess.run(
        ["apt-get", "download", *packages], cwd=fetched, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["apt-get failed"])[-1]
        pytest.skip(f"the Debian package {packages[0]} cannot be downloaded: {reason}")
    for package in fetched.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(into)], check=True)
    return into
