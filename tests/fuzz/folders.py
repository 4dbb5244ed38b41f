"""Folders that a target creates once, for all its inputs."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

_created: list[Path] = []


def kept_folder() -> Path:
    """Create a folder that is removed with the session or, outside of tests, with the process."""
    _created.append(Path(tempfile.mkdtemp(prefix="trainfleet-fuzz-")))
    return _created[-1]


@atexit.register
def remove_folders() -> None:
    """Remove the folders of all targets."""
    while _created:
        shutil.rmtree(_created.pop(), ignore_errors=True)
