"""What is lost when a resource is deleted or replaced, by type: data_loss.toml and data_loss_groups.toml."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem

TABLE = Path(__file__).with_name("data_loss.toml")
GROUPS = Path(__file__).with_name("data_loss_groups.toml")
PROVIDERS = "pulumi:providers:*"
"""The settings of any provider: what they replace is shown with its own resources."""
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
def table(file: Path = TABLE, groups: Path | None = GROUPS) -> dict[str, Loss]:
    """Return the rows by type token, or by token prefix (keys that end with `*`).

    Raises:
        InputError: a file is not TOML, a row lacks its kinds or its reason, a type has two rows, or a
            wildcard silences a family.
    """
    rows = [*_toml(file).items()]
    for group in _toml(groups).get("group", []) if groups else []:
        rows += [(token, group) for token in group.get("types", [])]
    wrong = [*_wrong(file.name, rows)]
    if wrong:
        raise InputError("the table of losses is incomplete", wrong)
    return {token: _loss(row) for token, row in rows}


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise InputError("the table of losses cannot be read", [Problem(str(file), str(error))]) from error


def _wrong(file: str, rows: list[tuple[str, dict[str, Any]]]) -> Iterator[Problem]:
    seen: set[str] = set()
    for token, row in rows:
        where = f"{file} [{token}]"
        loses = row.get("loses")
        if not loses or not set(loses) <= set(KINDS) or not isinstance(row.get("why"), str):
            yield Problem(where, f"needs `loses` (of {', '.join(KINDS)}) and `why`")
        elif token.endswith("*") and token != PROVIDERS and set(loses) <= QUIET:
            yield Problem(where, "silences types that nobody has named", "name each harmless type")
        elif token in seen:
            yield Problem(where, "has two rows")
        seen.add(token)


def _loss(row: dict[str, Any]) -> Loss:
    loses, updates = row["loses"], tuple(row.get("updates", ()))
    of_update = _loss(row["update"]) if "update" in row else None
    return Loss(tuple(loses), row["why"], not set(loses) <= QUIET, updates, of_update)


def loss_of(token: str) -> Loss | None:
    """Return what is lost with a resource of this type, or None without a row.

    A row for the type decides, then one for the kind in any API version, then the longest prefix.
    """
    rows = table()
    for name in (token, _any_version(token)):
        if name in rows:
            return rows[name]
        families = [key for key in rows if key.endswith("*") and name.startswith(key[:-1])]
        if families:
            return rows[max(families, key=len)]
    return None


def _any_version(token: str) -> str:
    """Return `kubernetes:apps/*:Deployment` and `azure-native:network:Subnet` for tokens with a version."""
    package, _, rest = token.partition(":")
    module, _, kind = rest.rpartition(":")
    if package == "kubernetes":
        return f"{package}:{module.rpartition('/')[0]}/*:{kind}"
    return f"{package}:{module.partition('/')[0]}:{kind}" if package == "azure-native" else token


def weight(loss: Loss | None) -> int:
    """Return the rank of a loss in the table (most important first); an unknown loss ranks first."""
    for index, row in enumerate(table().values()):
        if loss is not None and loss in (row, row.by_update):
            return index
    return -1
