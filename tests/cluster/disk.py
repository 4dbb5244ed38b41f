"""A disk for a cluster in a sparse file: a test can fill it without taking space of this machine's disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

LEFT = 64 << 20
"""What a full disk has left for the servers, in bytes."""


@contextlib.contextmanager
def disk_in_a_file(folder: Path, size: int) -> Iterator[Path]:
    """A mounted file system of `size` bytes, until the end of the block."""
    image, mounted = folder / "image", folder / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(size)
    lazy = ("-E", "lazy_itable_init=1,lazy_journal_init=1")
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", *lazy, str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(mounted)], check=True)
    yield mounted
    subprocess.run(["umount", str(mounted)], check=True)
    image.unlink()


@contextlib.contextmanager
def filled(disk: Path) -> Iterator[Path]:
    """A file that fills the disk until it is removed, at the latest at the end of the block."""
    filler = disk / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - LEFT)
    try:
        yield filler
    finally:
        filler.unlink(missing_ok=True)
