"""A folder as a store. Files reach the disk before their name appears, names before dependent writes."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from trainfleet.training.stores.conditional import FolderFiles
from trainfleet.training.stores.entry import Entry

_PART = ".part"
_CHUNK = 1 << 22


class FolderOutput:
    """A file written under a temporary name in the same folder, then renamed."""

    def __init__(self, path: Path) -> None:
        self._final, self._temporary = path, path.with_name(f".{path.name}{_PART}")
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            sync_folder(path.parent.parent)
        self._file = self._temporary.open("wb", buffering=0)

    def write(self, data: Any) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def close(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._temporary, self._final)
        sync_folder(self._final.parent)

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
            self._temporary.unlink(missing_ok=True)


class FolderBackend:
    """Folder `Backend`."""

    local = True

    def __init__(self, root: Path) -> None:
        self.root = root
        self.conditional = FolderFiles(root)

    def create(self, path: str) -> FolderOutput:
        return FolderOutput(self.root / path)

    def read(self, path: str, offset: int, length: int | None) -> bytes:
        with (self.root / path).open("rb") as file:
            file.seek(offset)
            return file.read() if length is None else file.read(length)

    def chunks(self, path: str) -> Iterator[bytes]:
        with (self.root / path).open("rb", buffering=0) as file:
            while data := file.read(_CHUNK):
                yield data

    def sizes(self, prefix: str) -> dict[str, int]:
        found = {}
        for folder, _, names in os.walk(self.root / prefix):
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    path = Path(folder) / name
                    found[path.relative_to(self.root).as_posix()] = path.stat().st_size
        return found

    def entries(self, prefix: str) -> list[Entry]:
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self.root / prefix) as listing:
            for each in listing:
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    status = each.stat()
                    found.append(Entry(each.name, each.is_dir(), status.st_size, status.st_mtime))
        return found

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files in this order, then the folders left empty."""
        parents = set()
        for path in paths:
            (self.root / path).unlink(missing_ok=True)
            parents.add((self.root / path).parent)
        for parent in sorted(parents, key=lambda each: len(each.parts), reverse=True):
            if parent != self.root:
                with contextlib.suppress(OSError):
                    parent.rmdir()

    def remove_folder(self, prefix: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.root / prefix)

    def prune(self) -> None:
        """Remove empty folders."""
        for folder, _, _ in os.walk(self.root, topdown=False):
            if Path(folder) != self.root:
                with contextlib.suppress(OSError):  # not empty
                    Path(folder).rmdir()


def sync_folder(path: Path) -> None:
    """Sync a folder's entries to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
