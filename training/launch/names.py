"""Names that are made of the names of runs."""

from __future__ import annotations

import hashlib

_DIGITS = 8


def shortened(name: str, limit: int) -> str:
    """A name of at most `limit` characters: always the same for the same name, so that a second launch finds
    the first, and different ones for long names with the same beginning.
    """
    if len(name) <= limit:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGITS]
    return f"{name[: limit - _DIGITS - 1].rstrip('-')}-{digest}"
