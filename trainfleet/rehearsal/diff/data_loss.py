"""What is lost when a resource is deleted or replaced: data_loss.toml, a row per type or family of types."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem

TABLE = Path(__file__).with_name("data_loss.toml")
KINDS = ("data", "keys", "access", "work", "addresses", "secrets", "downtime", "nothing")
QUIET = frozenset({"nothing", "downtime"})
"""Losses that a later apply repairs."""


@dataclass(frozen=True)
class Loss:
    """What is lost with a resource of one type. `loud`: a later apply does not restore it. `updates`: the
    properties whose update in place loses it too.
    """

    kinds: tuple[str, ...]
    why: str
    loud: bool
    updates: tuple[str, ...] = ()
    by_update: Loss | None = None
    """What these updates lose, where it is something else."""

    def comes_with(self, path: str) -> bool:
        """Whether an update of this property loses it."""
        return any(path == each or path.startswith((f"{each}.", f"{each}[")) for each in self.updates)


@functools.cache
def table(file: Path = TABLE) -> dict[str, Loss]:
    """Return the rows by type token, or by token prefix (keys that end with `*`).

    Raises:
        InputError: the file is not TOML, or a row lacks its kinds or its reason.
    """
    try:
        rows = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise InputError("the table of losses cannot be read", [Problem(str(file), str(error))]) from error
    wrong = [
        Problem(f"{file.name} [{token}]", f"needs `loses` (of {', '.join(KINDS)}) and `why`")
        for token, row in rows.items()
        if not row.get("loses") or not set(row["loses"]) <= set(KINDS) or not isinstance(row.get("why"), str)
    ]
    if wrong:
        raise InputError("the table of losses is incomplete", wrong)
    return {token: _loss(row) for token, row in rows.items()}


def _loss(row: dict[str, Any]) -> Loss:
    loses, updates = row["loses"], tuple(row.get("updates", ()))
    of_update = _loss(row["update"]) if "update" in row else None
    return Loss(tuple(loses), row["why"], not set(loses) <= QUIET, updates, of_update)


def loss_of(token: str) -> Loss | None:
    """Return what is lost with a resource of this type, or None without a row. The longest prefix wins."""
    rows = table()
    if token in rows:
        return rows[token]
    families = [key for key in rows if key.endswith("*") and token.startswith(key[:-1])]
    return rows[max(families, key=len)] if families else None


def weight(loss: Loss | None) -> int:
    """Return the rank of a loss in the table (most important first); an unknown loss ranks first."""
    for index, row in enumerate(table().values()):
        if loss is not None and loss in (row, row.by_update):
            return index
    return -1
