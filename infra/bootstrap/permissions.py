"""What each resource type of a stack needs: the permissions of `plan` and of `apply`, from the cloud's
permissions.toml.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

READ, WRITE = "read", "write"


@cache
def rows(cloud: str) -> dict[str, dict[str, Any]]:
    """Resource type to its row: `read`, `write` and, for types that only some platforms have, `option`."""
    file = Path(__file__).with_name(cloud) / "permissions.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def needed(cloud: str, kind: str, options: Sequence[str] = ()) -> tuple[str, ...]:
    """The permissions of one kind (`read` or `write`) that platforms with these options need, sorted."""
    found: set[str] = set()
    for row in rows(cloud).values():
        if row.get("option", "") in ("", *options):
            found |= set(row[kind])
    return tuple(sorted(found))
