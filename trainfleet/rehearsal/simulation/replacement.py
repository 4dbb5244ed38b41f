"""What a changed property does to a resource: updates it, replaces it, or nobody knows.

The SDKs do not contain this (see `schema.py`); the rules come from one table per package in replacements/, by
type token. A pattern covers a property and everything below it; `[*]` is any list item.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.rehearsal.simulation.changes import changes, value_at
from trainfleet.rehearsal.simulation.conditions import Condition, Lookup, NotGivenError, condition
from trainfleet.rehearsal.simulation.property_paths import Path as Path_
from trainfleet.rehearsal.simulation.property_paths import covers, join_path, split_path

__all__ = ["TABLE", "Effect", "Rule", "effect", "effects", "join_path", "source", "split_path", "table"]
TABLE = Path(__file__).with_name("replacements")


class Effect(StrEnum):
    """What the provider does with a changed property."""

    UPDATE = "update"
    REPLACE = "replace"
    UNKNOWN = "unknown"
    """No rule for the type, or a rule that these values do not decide. The engine updates in place."""


@dataclass(frozen=True)
class Rule:
    """The replacement rules of one type.

    `source` is what documents them. `delete_first` lists the properties of which two values cannot coexist,
    `conditions` those that replace in some cases only, `unclear` those whose case the source decides in code
    that the tables cannot express.
    """

    source: str
    replace: tuple[Path_, ...]
    delete_first: tuple[Path_, ...] = ()
    conditions: tuple[Condition, ...] = ()
    unclear: tuple[Path_, ...] = ()

    def forces(self, path: Path_) -> bool:
        """Return whether changing the leaf at `path` (list items as `[0]`) always replaces the resource."""
        return covers(self.replace, path)

    def forces_delete_first(self, path: Path_) -> bool:
        """Return whether the old resource must be deleted before the new one is created."""
        return covers(self.delete_first, path)

    def effect(self, path: Path_, values: Lookup) -> Effect:
        """Return the effect of the changed leaf at `path`."""
        if self.forces(path):
            return Effect.REPLACE
        found = [each.holds(path, values) for each in self.conditions if covers((each.path,), path)]
        if True in found:
            return Effect.REPLACE
        return Effect.UNKNOWN if None in found or covers(self.unclear, path) else Effect.UPDATE


def effect(token: str, path: Path_, old: Any, new: Any) -> Effect:
    """Return what the provider does if the property at `path` changes from `old` to `new`.

    Args:
        token: type of the resource.
        path: the property, list items as `[0]`; `()` for all inputs of the resource.
        old: its plain value before, None if it was not set.
        new: its plain value after.

    Returns:
        UNKNOWN if there is no rule for the type, or if a rule depends on values that are not given here: give
        all inputs with the path `()`, or use `effects`, if they are at hand.
    """
    rule = table().get(token)
    if rule is None:
        return Effect.UNKNOWN

    def values(wanted: Path_) -> tuple[Any, Any]:
        if wanted[: len(path)] != path:
            raise NotGivenError(join_path(wanted))
        return value_at(old, wanted[len(path) :]), value_at(new, wanted[len(path) :])

    return worst(rule.effect(change.path, values) for change in changes(old, new, path))


def effects(token: str, old: Any, new: Any, rules: Mapping[str, Rule] | None = None) -> dict[Path_, Effect]:
    """Return the effect of every leaf that differs between the old and new plain inputs of a resource."""
    rule = (table() if rules is None else rules).get(token)

    def values(wanted: Path_) -> tuple[Any, Any]:
        return value_at(old, wanted), value_at(new, wanted)

    return {
        change.path: rule.effect(change.path, values) if rule else Effect.UNKNOWN
        for change in changes(old, new)
    }


def worst(found: Iterable[Effect]) -> Effect:
    """Return the effect that decides over several properties of one resource."""
    seen = set(found)
    return next((each for each in (Effect.REPLACE, Effect.UNKNOWN) if each in seen), Effect.UPDATE)


def source(token: str) -> str:
    """Return where the rules of a type come from; empty if there are none."""
    rule = table().get(token)
    return rule.source if rule else ""


@functools.cache
def table(where: Path = TABLE) -> dict[str, Rule]:
    """Return the rules by type token, from one file or from every file in a folder.

    Raises:
        InputError: a file is not valid TOML, or an entry has no source, no list, or a condition that cannot
            be read.
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
    return {token: _rule(file, token, entry) for token, entry in entries.items()}


def _rule(file: Path, token: str, entry: dict[str, Any]) -> Rule:
    found = []
    for path, texts in entry.get("when", {}).items():
        for text in [texts] if isinstance(texts, str) else texts:
            try:
                found.append(condition(path, text))
            except ValueError as error:
                where = Problem(f"{file.name} [{token}] {path}", str(error))
                raise InputError("the replacement table has a wrong condition", [where]) from error
    return Rule(
        entry["source"],
        tuple(map(split_path, entry["replace"])),
        tuple(map(split_path, entry.get("delete_first", ()))),
        tuple(found),
        tuple(map(split_path, entry.get("unclear", {}))),
    )
