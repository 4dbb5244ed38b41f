"""SDKs that programs of the tests use and that Trainfleet does not depend on, unpacked once in the cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from trainfleet.toolchain import build_lock, cache_folder

WHEELS = (
    "pulumi-awsx==3.11.0",
    "pulumi-azuread==6.11.1",
    "pulumi-cloudinit==1.6.3",
    "pulumi-command==1.2.1",
    "pulumi-docker==5.2.0",
    "pulumi-eks==4.4.0",
    "pulumi-github==6.15.0",
    "pulumi-random==4.21.4",
    "pulumi-tls==5.6.2",
)


def sdks() -> Path:
    """Return the folder with the SDKs; skip the test if the package index cannot be reached."""
    folder = cache_folder() / f"sdks-{hashlib.sha256(repr(WHEELS).encode()).hexdigest()[:16]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with build_lock(folder.with_suffix(".lock"), lambda _: None):
        if not folder.is_dir():
            work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
            try:
                _unpack(work)
                os.replace(work / "unpacked", folder)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return folder


def _unpack(work: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run(
        [*command, "--dest", str(work), *WHEELS], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        pytest.skip(f"the SDKs of other packages cannot be downloaded: {done.stderr.strip()[-200:]}")
    for wheel in work.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(work / "unpacked")
