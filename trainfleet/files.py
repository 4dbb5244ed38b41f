"""Files that are written whole or not at all. Used wherever a report, a state or a lock file is left behind."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from trainfleet.errors import InputError, Problem


def write_whole(path: Path, data: str | bytes, mode: int = 0o644) -> None:
    """Write `data` to `path` by way of a temporary sibling, fsync and rename; with `mode` 0o600 for its owner
    only.

    Raises:
        InputError: the folder cannot be written (missing rights, read-only, disk full); nothing is left
        behind.
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
