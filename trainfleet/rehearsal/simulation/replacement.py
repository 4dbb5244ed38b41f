"""Reads which property changes force a replacement, from one table per provider in replacements/.

The SDKs do not contain this (see `schema.py`), so the tables are written by hand, with sources, for the types
that the stacks use; the rehearsal reports missing types. A pattern covers a property and everything below it;
`[*]` is any list item.
"""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from trainfleet.errors import InputError, Problem

TABLE = Path(__file__).with_name("replacements")
Path_ = tuple[str, ...]


@dataclass(frozen=True)
class Rule:
    """The replacement rules of one type.

    `source` is the file that documents them. `delete_first` lists the properties of which two values cannot
    coexist.
    """

    source: str
    replace: tuple[Path_, ...]
    delete_first: tuple[Path_, ...] = ()

    def forces(self, path: Path_) -> bool:
        """Return whether changing the leaf at `path` (list items as `[0]`) replaces the resource."""
        return _matches(self.replace, path)

    def forces_delete_first(self, path: Path_) -> bool:
        """Return whether the old resource must be deleted before the new one is created."""
        return _matches(self.delete_first, path)


@functools.cache
def table(where: Path = TABLE) -> dict[str, Rule]:
    """Return the rules by type token, from one file or from every file in a folder.

    Raises:
        InputError: a file is not valid TOML, or an entry has no source or no list.
    """
    rules: dict[str, Rule] = {}
    for file in sorted(where.glob("*.toml")) if where.is_dir() else (where,):
        rules |= _read(file)
    return rules


def _read(file: Path) -> dict[str, Rule]:
    try:
        entries = tomllib.loads(file.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise InputError("the replacement table cannot be read", [Problem(str(file), str(error))]) from error
    problems = [
        Problem(f"{file.name} [{token}]", "needs `source` (text) and `replace` (list of paths)")
        for token, entry in entries.items()
        if not (
            isinstance(entry, dict)
            and isinstance(entry.get("source"), str)
            and isinstance(entry.get("replace"), list)
        )
    ]
    if problems:
        raise InputError("the replacement table is not complete", problems)
    return {
        token: Rule(
            entry["source"],
            tuple(map(split_path, entry["replace"])),
            tuple(map(split_path, entry.get("delete_first", ()))),
        )
        for token, entry in entries.items()
    }


def split_path(path: str) -> Path_:
    """Split `a.b[*].c` or `tags["x.y"]` into steps. A list item keeps its brackets."""
    return tuple(
        quoted or index or name
        for quoted, index, name in re.findall(r'\["([^"]+)"\]|(\[[0-9*]+\])|([^.\[\]]+)', path)
    )


def join_path(path: Path_) -> str:
    """Return steps in the syntax of the engine's property paths."""
    text = ""
    for step in path:
        if step.startswith("["):
            text += step
        elif re.fullmatch(r"[A-Za-z_$][\w$-]*", step):
            text += f".{step}" if text else step
        else:
            text += f'["{step}"]'
    return text


def _matches(patterns: tuple[Path_, ...], path: Path_) -> bool:
    steps = tuple("[*]" if step.startswith("[") else step for step in path)
    return any(
        tuple("[*]" if step.startswith("[") else step for step in pattern) == steps[: len(pattern)]
        for pattern in patterns
    )
