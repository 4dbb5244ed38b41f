"""Writes and deletes of a small file on a condition: that it does not exist, or still has the version that
was read. Of several processes that write on one condition, exactly one succeeds.

pyarrow offers no conditions, so object stores have a second client for these requests: conditional_clouds.py.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from trainfleet.errors import TrainfleetError

LOCK_S = 10.0
"""How long a write to a folder waits for those of other processes, which take milliseconds."""
_NO_LINKS = {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK}


class ConflictError(TrainfleetError):
    """Raised when a file does not have the version on which a write or delete depends."""


class UnsupportedConditionsError(TrainfleetError):
    """Raised when a store, or this machine's client of it, offers no conditional writes."""


class ConditionalFiles(Protocol):
    """Single attempts. Paths are relative, with slashes. A version is an opaque text; None: no such file.

    Attributes:
        certain: False if some stores of this kind ignore conditions, so that this one must be tried.
    """

    certain: bool

    def get(self, path: str) -> tuple[bytes, str] | None:
        """The content and version of a file, None if it does not exist."""

    def put(self, path: str, data: bytes, version: str | None) -> str:
        """Write a file that has this version, and return its new version.

        Raises:
            ConflictError: it has another one.
        """

    def delete(self, path: str, version: str) -> None:
        """Delete a file that has this version. A missing one is ignored.

        Raises:
            ConflictError: it has another one.
        """


class FolderFiles:
    """Conditional writes to a folder. The version of a file is the digest of its content.

    A lock (flock) orders the writers of one machine, and of several on file systems that share locks, such as
    NFS 4. A file is created by linking a complete one to its name, which exactly one process can do on file
    systems without such locks too.
    """

    certain = True

    def __init__(self, root: Path) -> None:
        self._root = root

    def get(self, path: str) -> tuple[bytes, str] | None:
        try:
            data = (self._root / path).read_bytes()
        except FileNotFoundError:
            return None
        return data, hashlib.sha256(data).hexdigest()

    def put(self, path: str, data: bytes, version: str | None) -> str:
        final = self._root / path
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary = final.with_name(f".{final.name}.{secrets.token_hex(8)}.part")
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            with self._locked(final):
                self._require(path, version)
                if version is not None or not _link(temporary, final):
                    os.replace(temporary, final)
        finally:
            temporary.unlink(missing_ok=True)
        from trainfleet.training.stores.folder import sync_folder

        sync_folder(final.parent)
        return hashlib.sha256(data).hexdigest()

    def delete(self, path: str, version: str) -> None:
        final = self._root / path
        if final.exists():
            with self._locked(final):
                if self.get(path) is not None:
                    self._require(path, version)
                    final.unlink()
                    # A writer that waits for this lock expects a version that no longer exists, or creates
                    # the file by a link, so that it needs no lock.
                    self._lock_path(final).unlink(missing_ok=True)

    def _require(self, path: str, version: str | None) -> None:
        found = self.get(path)
        if (found and found[1]) != version:
            raise ConflictError(f"{self._root / path} was changed by another process")

    @staticmethod
    def _lock_path(final: Path) -> Path:
        return final.with_name(f".{final.name}.lock")

    @contextlib.contextmanager
    def _locked(self, final: Path) -> Iterator[None]:
        from filelock import FileLock

        with FileLock(self._lock_path(final), timeout=LOCK_S):
            yield


def _link(source: Path, target: Path) -> bool:
    """Give a file a second name that must be new; False where the file system has no links.

    Raises:
        ConflictError: the name exists.
    """
    try:
        os.link(source, target)
    except FileExistsError as error:
        raise ConflictError(f"{target} was created by another process") from error
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    return True
