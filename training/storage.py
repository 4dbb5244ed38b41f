"""Where checkpoints are kept: a folder, written whole or not at all. The seam where object stores come in later.

Used by `training.checkpoint` alone. Easy to get wrong: a folder without its marker does not exist; the marker is
written last, after everything else has reached the disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from training import fault

MARKER = "COMMITTED"
_CHUNK = 1 << 20


class TornError(Exception):
    """Raised when a committed folder is not what its marker says: a file is missing, cut short or altered."""


class FolderStore:
    """Named folders below one folder, each visible only once it is whole."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def begin(self, name: str) -> Path:
        """A fresh folder to write into; it is not visible yet."""
        aside = self._aside(name)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        return aside

    def commit(self, name: str, note: dict[str, Any]) -> Path:
        """Make what was written under `begin(name)` visible, with `note` in its marker.

        Raises:
            OSError: the disk is full or read-only; the name is then still invisible.
        """
        aside, final = self._aside(name), self.root / name
        files = {path.relative_to(aside).as_posix(): path for path in sorted(aside.rglob("*")) if path.is_file()}
        manifest = {relative: {"bytes": path.stat().st_size, "sha256": _digest(path, sync=True)} for relative, path in files.items()}
        _sync_folder(aside)
        fault.strike("in-save", name)
        self.withdraw(name)
        aside.rename(final)
        _sync_folder(self.root)
        fault.strike("before-marker", name)
        marker = final / f".{MARKER}"
        with marker.open("w", encoding="utf-8") as file:
            json.dump({"note": note, "files": manifest}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(marker, final / MARKER)
        _sync_folder(final)
        return final

    def committed(self) -> dict[str, dict[str, Any]]:
        """The notes of all visible folders by name, in the order of their names."""
        found = {}
        for path in sorted(self.root.glob(f"*/{MARKER}")):
            try:
                found[path.parent.name] = dict(json.loads(path.read_text(encoding="utf-8"))["note"])
            except (OSError, ValueError, KeyError, TypeError):
                found[path.parent.name] = {}
        return found

    def open(self, name: str) -> Path:
        """A visible folder, its files compared with the marker's sizes and checksums.

        Raises:
            TornError: it is not what was committed; says which file and how.
        """
        folder = self.root / name
        try:
            manifest = json.loads((folder / MARKER).read_text(encoding="utf-8"))["files"]
            expected = {relative: (entry["bytes"], entry["sha256"]) for relative, entry in manifest.items()}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TornError(f"{MARKER} cannot be read") from error
        for relative, (size, digest) in expected.items():
            path = folder / relative
            if not path.is_file():
                raise TornError(f"{relative} is missing")
            if path.stat().st_size != size:
                raise TornError(f"{relative} has {path.stat().st_size} bytes instead of {size}")
            if _digest(path) != digest:
                raise TornError(f"{relative} is not what was written (its checksum differs)")
        return folder

    def withdraw(self, name: str) -> None:
        """Remove a folder: the marker first, so that a half-removed one is never taken for whole."""
        folder = self.root / name
        with contextlib.suppress(FileNotFoundError):
            (folder / MARKER).unlink()
        shutil.rmtree(folder, ignore_errors=True)

    def discard_unfinished(self) -> None:
        """Remove what a killed process left behind: folders set aside, and folders without a marker."""
        for path in self.root.glob("*"):
            if path.is_dir() and not (path / MARKER).is_file():
                shutil.rmtree(path, ignore_errors=True)

    def _aside(self, name: str) -> Path:
        return self.root / f"{name}.tmp"


def _digest(path: Path, sync: bool = False) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
        if sync:
            os.fsync(file.fileno())
    return digest.hexdigest()


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
