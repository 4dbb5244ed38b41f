"""Atomic file writes."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from trainfleet.errors import InputError, Problem


def write_whole(path: Path, data: str | bytes, mode: int = 0o644) -> None:
    """Replace `path` atomically: write a temporary file in its folder, fsync and rename it.

    Raises:
        InputError: the file cannot be written (permissions, read-only, disk full); `path` is unchanged.
    """
    payload = data.encode() if isinstance(data, str) else data
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise InputError(
            "cannot write a file",
            [Problem(str(path), error.strerror or str(error), "choose a folder that can be written")],
        ) from error
