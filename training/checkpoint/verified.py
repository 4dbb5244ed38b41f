"""The files of a checkpoint that this rank has compared with the manifest, kept in memory until they are
loaded, so that a restore reads each file once.

A rank keeps its share: about what it holds in host memory while it saves.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trainfleet.training.checkpoint.files import READERS, Kept, TornError
from trainfleet.training.stores import Store

_DATA = re.compile(r"__(\d+)_\d+\.distcp")
KEPT_READ_ONLY = 1 << 30
"""Bytes that a process keeps which loads no optimizer: its state may be most of a checkpoint."""
Manifest = Mapping[str, Mapping[str, Any]]


def share_of(files: Collection[str], rank: int, world_size: int) -> list[str]:
    """The files that a rank verifies. With as many ranks as have written them, those that it wrote, which it
    loads if it is sharded as they were; rank 0 also the description and the plain values, which it reads.
    """
    writers = {int(found[1]) for file in files if (found := _DATA.fullmatch(file))}
    described = sorted(file for file in files if not _DATA.fullmatch(file))
    data = sorted(file for file in files if _DATA.fullmatch(file))
    if writers == set(range(world_size)):
        mine = [file for file in data if file.startswith(f"__{rank}_")]
    else:
        mine = data[rank::world_size]
    return [*described, *mine] if rank == 0 else mine


class VerifiedFiles:
    """Files of the checkpoint that was verified last."""

    def __init__(self, limit: int | None = None) -> None:
        """`limit`: bytes to keep; None for all. Files above it are verified, and read again to be loaded."""
        self.limit = limit
        self._name = ""
        self._kept: dict[str, memoryview] = {}

    def verify(self, store: Store, name: str, files: Manifest) -> None:
        """Require that these files of a checkpoint are those of its manifest, and keep them.

        Raises:
            TornError: a file differs.
            StoreError: the store does not respond.
        """
        self.release()
        keep, size = dict[str, int](), 0
        for file in sorted(files):
            size += files[file]["bytes"]
            if self.limit is None or size <= self.limit:
                keep[file] = files[file]["bytes"]

        def verified(file: str) -> memoryview | None:
            content = bytearray(keep[file]) if file in keep else None
            digest = store.hash(f"{name}/{file}", content)
            if digest != files[file]["sha256"]:
                raise TornError(f"{file} was altered (its checksum differs)")
            return None if content is None else memoryview(content).toreadonly()

        with ThreadPoolExecutor(min(READERS, len(files)) or 1) as pool:
            found = dict(zip(sorted(files), pool.map(verified, sorted(files)), strict=True))
        self._name, self._kept = name, {file: each for file, each in found.items() if each is not None}

    def of(self, name: str) -> Kept:
        """The files of a checkpoint that are kept: the content by the name, None for others."""
        return self._kept.get if name == self._name else lambda _: None

    def release(self) -> None:
        """Free the memory: the checkpoint is loaded, or it is not the one to load."""
        self._name, self._kept = "", {}
