"""Temporary folders that live as long as their process. The next process removes those of a killed one."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from trainfleet import process

LONGEST_ROOT = 15 if sys.platform == "darwin" else 19
"""Characters of the temporary folder that leave enough for the longest socket of Ray, which is
`/tf-PID-RANDOM/ray/session_DATE_TIME_PID/sockets/plasma_store` below it."""


@contextlib.contextmanager
def workspace(kind: str = "") -> Iterator[Path]:
    """A private temporary folder with a short path; removes those of processes that were killed.

    The path is short because Ray creates sockets in it, whose paths are limited to 107 characters (104 on
    macOS). A temporary folder with a long path, such as that of macOS, is therefore not used.

    Args:
        kind: follows the process id in the folder's name.
    """
    root = Path(tempfile.gettempdir())
    root = root if len(str(root)) <= LONGEST_ROOT else Path("/tmp")
    for old in root.glob("tf-*-*"):
        with contextlib.suppress(OSError, ValueError):
            if not process.alive(int(old.name.split("-")[1])) and old.stat().st_uid == os.getuid():
                shutil.rmtree(old, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f"tf-{os.getpid()}-{kind}", dir=root))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


@functools.cache
def key_files() -> Path:
    """The process's folder for certificates and keys that a library needs as files.

    The Kubernetes client writes those of a kubeconfig, and removes them at the end of the process only.
    """
    stack = contextlib.ExitStack()
    folder = stack.enter_context(workspace("keys-"))
    atexit.register(stack.close)
    return folder
