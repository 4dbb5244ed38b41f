"""What a changed property does to a resource: updates it, replaces it, or nobody knows.

The SDKs do not contain this (see `schema.py`). The rules of a type come from its package's table, generated
for every type or written by `trainfleet knowledge update` (knowledge_table.py), and from rows by hand in
replacements/ for what neither says. A pattern covers a property and everything below it; `[*]` is any list
item.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.rehearsal.simulation.changes import changes, value_at
from trainfleet.rehearsal.simulation.comparison import Sameness, comparable
from trainfleet.rehearsal.simulation.conditions import Condition, Lookup, NotGivenError, condition
from trainfleet.rehearsal.simulation.knowledge_table import Row, Table, project_folder, tables
from trainfleet.rehearsal.simulation.property_paths import Path as Path_
from trainfleet.rehearsal.simulation.property_paths import covers, join_path, split_path

__all__ = [
    "TABLE",
    "Effect",
    "Rule",
    "Rules",
    "by_hand",
    "effect",
    "effects",
    "in_terms_of_new",
    "join_path",
    "source",
    "split_path",
    "table",
]
TABLE = Path(__file__).with_name("replacements")
_CUSTOM = {"kubernetes": Row(("kind", "metadata.name", "metadata.namespace"))}
"""Rows of types that no SDK lists: custom resources, which only these replace (the provider's diff.go)."""
_LABELS = ("tags", "labels")
"""Properties that are updated in place, whatever else of a type is unclear."""


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
    same: Sameness = field(default_factory=Sameness)
    settled: tuple[Path_, ...] = ()
    """Of a row by hand: unclear properties of the generated row that it answers; `()` is all of them."""

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
        unclear = tuple(each for each in self.unclear if each or path[0] not in _LABELS)
        return Effect.UNKNOWN if None in found or covers(unclear, path) else Effect.UPDATE


def effect(token: str, path: Path_, old: Any, new: Any) -> Effect:
    """Return what the provider does if the property at `path` changes from `old` to `new`.

    Args:
        token: type of the resource.
        path: the property, list items as `[0]`; `()` for all inputs of the resource.
        old: its plain value before, None if it was not set.
        new: its plain value after.

    Returns:
        UNKNOWN if no rule exists for the type, or if a rule depends on values that are not given here: give
        all inputs with the path `()`, or use `effects`, if they are available.
    """
    rule = table().get(token)
    if rule is None:
        return Effect.UNKNOWN

    def values(place: Path_) -> tuple[Any, Any]:
        if place[: len(path)] != path:
            raise NotGivenError(join_path(place))
        return value_at(old, place[len(path) :]), value_at(new, place[len(path) :])

    old = comparable(old, new, rule.same, path)
    return worst(rule.effect(change.path, values) for change in changes(old, new, path))


def effects(token: str, old: Any, new: Any, rules: Mapping[str, Rule] | None = None) -> dict[Path_, Effect]:
    """Return the effect of every leaf that differs between the old and new plain inputs of a resource.

    Give `old` as `in_terms_of_new` returns it: the order of a set does not count.
    """
    rule = (table() if rules is None else rules).get(token)

    def values(place: Path_) -> tuple[Any, Any]:
        return value_at(old, place), value_at(new, place)

    return {
        change.path: rule.effect(change.path, values) if rule else Effect.UNKNOWN
        for change in changes(old, new)
    }


def in_terms_of_new(token: str, old: Any, new: Any, rules: Mapping[str, Rule] | None = None) -> Any:
    """Return the old inputs with what is the same to the provider written as in the new ones."""
    rule = (table() if rules is None else rules).get(token)
    return comparable(old, new, rule.same if rule else _sameness(token, Row()))


def worst(found: Iterable[Effect]) -> Effect:
    """Return the effect that decides over several properties of one resource."""
    seen = set(found)
    return next((each for each in (Effect.REPLACE, Effect.UNKNOWN) if each in seen), Effect.UPDATE)


def source(token: str) -> str:
    """Return where the rules of a type come from; empty if there are none."""
    rule = table().get(token)
    return rule.source if rule else ""


class Rules(Mapping[str, Rule]):
    """The rules of all types, from tables and rows by hand; a type's rule is made when it is asked for."""

    def __init__(self, known: Mapping[str, Table], by_hand: Mapping[str, Rule]) -> None:
        self.known, self.by_hand = known, by_hand
        self._made: dict[str, Rule] = {}

    def __getitem__(self, token: str) -> Rule:
        if token not in self._made:
            found = self.known.get(token.split(":", 1)[0])
            row = found.types.get(token, _CUSTOM.get(found.package)) if found else None
            if row is None and token not in self.by_hand:
                raise KeyError(token)
            self._made[token] = (
                _merged(token, found, row, self.by_hand.get(token)) if found and row else self.by_hand[token]
            )
        return self._made[token]

    def __iter__(self) -> Iterator[str]:
        return iter(
            dict.fromkeys([*self.by_hand, *(token for each in self.known.values() for token in each.types)])
        )

    def __len__(self) -> int:
        return sum(1 for _ in self)


def table() -> Rules:
    """Return the rules of every type, with those of the project that contains the working directory.

    Raises:
        InputError: a table cannot be read.
    """
    return _table(project_folder())


@functools.cache
def _table(folder: Path | None) -> Rules:
    return Rules(tables(folder), by_hand())


def _merged(token: str, found: Table, row: Row, hand: Rule | None) -> Rule:
    """Return the rule of a type: what a row by hand says of a property goes before the generated row."""
    own = hand or Rule("", ())
    own_paths = {*(each.path for each in own.conditions), *own.unclear}
    replace = [each for path in (*found.every, *row.replace) if (each := split_path(path)) not in own_paths]
    conditions = [
        condition(path, text)
        for path, texts in row.when.items()
        if split_path(path) not in own_paths
        for text in texts
    ]
    unclear = [_any(path) for path in row.unclear]
    decided = (*own.settled, *own.replace, *own_paths)
    return Rule(
        "; ".join(filter(None, (found.where(token), own.source))),
        tuple(dict.fromkeys((*replace, *own.replace))),
        (*map(split_path, row.delete_first), *own.delete_first),
        (*conditions, *own.conditions),
        (*(each for each in unclear if not covers(decided, each) and () not in decided), *own.unclear),
        _sameness(token, row),
    )


def _any(path: str) -> Path_:
    return () if path == "*" else split_path(path)


def _sameness(token: str, row: Row) -> Sameness:
    return Sameness(
        frozenset(map(split_path, row.sets)),
        frozenset(map(split_path, row.caseless)),
        token.startswith("azure-native:"),
    )


@functools.cache
def by_hand(where: Path = TABLE) -> dict[str, Rule]:
    """Return the rows that are written by hand, from one file or from every file in a folder.

    Raises:
        InputError: a file is not valid TOML, or an entry has no source, says nothing, or has a condition that
            cannot be read.
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
    parts = ("replace", "when", "unclear", "settled", "delete_first")
    problems = [
        Problem(f"{file.name} [{token}]", f"needs `source` (text) and one of {', '.join(parts)}")
        for token, entry in entries.items()
        if not (isinstance(entry, dict) and isinstance(entry.get("source"), str) and set(parts) & set(entry))
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
        tuple(map(split_path, entry.get("replace", ()))),
        tuple(map(split_path, entry.get("delete_first", ()))),
        tuple(found),
        tuple(map(_any, entry.get("unclear", {}))),
        settled=tuple(map(_any, entry.get("settled", ()))),
    )
