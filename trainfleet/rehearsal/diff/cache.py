"""Caches applied bases in the user's cache folder; the next diff against the same base is faster.

An entry is one file that is never partial. At most KEEP entries are kept.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from trainfleet.dates import today
from trainfleet.errors import TrainfleetError
from trainfleet.files import write_whole

KEEP = 12
FORMAT = 2
_PACKAGES = (
    "pulumi",
    "pulumi-policy",
    "pulumi-aws",
    "pulumi-gcp",
    "pulumi-azure-native",
    "pulumi-kubernetes",
)


def folder() -> Path:
    """Return the cache folder."""
    from trainfleet.toolchain import cache_folder

    return cache_folder() / "diff"


def key(tree: str, project: str, stack: str, engine: str, overlay: str = "") -> str:
    """Return the name of an entry; `overlay` names the locked packages with which the base ran."""
    digest = hashlib.sha256()
    parts = [
        str(FORMAT),
        tree,
        project,
        stack,
        engine,
        overlay,
        sys.version,
        today().isoformat(),
        *(_version(name) for name in _PACKAGES),
    ]
    for part in parts:
        digest.update(f"{part}\0".encode())
    digest.update(source_digest(Path(__file__).parents[2]).encode())
    return digest.hexdigest()[:32]


def source_digest(package: Path) -> str:
    """Return the digest of every file of a package by its path, without compiled modules.

    Any file may decide what a simulated cloud answers: code, rules, facts and prices in TOML and JSON, and
    the resource definitions of `infra`, which a checkout has as a link.
    """
    digest = hashlib.sha256()
    for folder, below, files in os.walk(package, followlinks=True):
        below[:] = sorted(name for name in below if name != "__pycache__")
        for name in sorted(files):
            file = Path(folder, name)
            if not name.endswith((".pyc", ".pyo")) and file.is_file():
                digest.update(f"{file.relative_to(package)}\0{file.stat().st_size}\0".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()


def load(name: str) -> dict[str, Any] | None:
    """Return an entry, or None if it is missing or unreadable."""
    file = folder() / f"{name}.json.gz"
    try:
        document = json.loads(gzip.decompress(file.read_bytes()))
        os.utime(file)
    except (OSError, EOFError, ValueError, gzip.BadGzipFile):
        return None
    return document if isinstance(document, dict) else None


def save(name: str, document: dict[str, Any]) -> None:
    """Store an entry and evict the least recently used ones. An unwritable cache is not an error."""
    with contextlib.suppress(OSError, TrainfleetError):
        target = folder()
        write_whole(target / f"{name}.json.gz", gzip.compress(json.dumps(document).encode(), 3))
        entries = sorted(target.glob("*.json.gz"), key=lambda file: file.stat().st_mtime, reverse=True)
        for old in entries[KEEP:]:
            old.unlink(missing_ok=True)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"
