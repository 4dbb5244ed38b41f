"""What a listing of a store tells of one file or folder."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A file or folder in a listing; `modified` is in seconds since 1970, None if the store does not tell."""

    name: str
    folder: bool
    bytes: int = 0
    modified: float | None = None
