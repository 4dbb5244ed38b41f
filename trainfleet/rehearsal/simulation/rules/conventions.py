"""Applies rules/conventions.toml: rules for all types, based on a property's name or documentation."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainfleet.rehearsal.simulation.check import Mistake
from trainfleet.rehearsal.simulation.json_schema import KEYWORDS, Violation, violations
from trainfleet.rehearsal.simulation.rules.predicates import WORDS
from trainfleet.rehearsal.simulation.rules.reader import RULES, known
from trainfleet.rehearsal.simulation.schema import Kind, Property, ResourceType, documents_of, inputs_of

_NUMBERS = ("integer", "number")


@dataclass(frozen=True)
class Convention:
    """A rule for every property whose name matches `names` (a pattern) and whose kind is `kind` (number,
    text, json).

    It has keywords of JSON Schema or a predicate of `predicates.py`. It may require a pattern in the
    documentation (`says`), exclude one (`unless`), and exclude properties (`but`, a pattern for
    `Class.property`).
    """

    packages: tuple[str, ...]
    names: re.Pattern[str]
    kind: str
    limits: dict[str, Any]
    """Keywords and predicates, with their arguments."""
    say: str
    says: re.Pattern[str]
    unless: re.Pattern[str]
    but: re.Pattern[str]
    source: str

    def holds_for(self, package: str, cls: str, name: str, declared: Property, document: str) -> bool:
        """Return whether the convention applies to a property of an input class."""
        scalar = _scalar(declared.kind)
        kind = "number" if scalar in _NUMBERS else "text" if scalar in ("string", "enum") else scalar
        return (
            package in self.packages
            and kind == self.kind
            and self.names.fullmatch(name) is not None
            and self.says.search(document) is not None
            and self.unless.search(document) is None
            and self.but.fullmatch(f"{cls}.{name}") is None
        )


def _scalar(kind: Kind) -> str:
    if kind.name == "union":  # text, or an enum class
        return next(
            (choice.name for choice in kind.choices if choice.name in ("string", *_NUMBERS)), kind.name
        )
    return _scalar(kind.item) if kind.name == "list" and kind.item else kind.name


@functools.cache
def conventions() -> tuple[Convention, ...]:
    """Return every convention in the file."""
    entries = tomllib.loads((RULES / "conventions.toml").read_text())["convention"]
    return tuple(_convention(entry) for entry in entries)


def _convention(entry: dict[str, Any]) -> Convention:
    never = re.compile(r"(?!)")
    return Convention(
        tuple(entry["packages"]),
        re.compile(entry["names"]),
        entry["kind"],
        {name: argument for name, argument in entry.items() if name in WORDS or name in KEYWORDS},
        entry.get("say", ""),
        re.compile(entry.get("says", ""), re.I | re.S),
        re.compile(entry["unless"], re.I | re.S) if "unless" in entry else never,
        re.compile(entry["but"]) if "but" in entry else never,
        entry["source"],
    )


@functools.cache
def _held(package: str, args: type) -> dict[str, tuple[Convention, ...]]:
    """Return the conventions that apply to each property of an input class."""
    documents = documents_of(args)
    found = {
        name: tuple(
            convention
            for convention in conventions()
            if convention.holds_for(
                package, args.__name__, name, declared, " ".join(documents.get(name, "").split())
            )
        )
        for name, declared in inputs_of(args).items()
    }
    return {name: held for name, held in found.items() if held}


def unusual(package: str, resource: ResourceType, inputs: dict[str, Any]) -> list[Mistake]:
    """Return every convention that plain inputs violate."""
    return list(dict.fromkeys(_object(package, resource.args, "", inputs))) if resource.args else []


def _object(package: str, args: type, path: str, value: dict[str, Any]) -> Iterator[Mistake]:
    held, declared = _held(package, args), inputs_of(args)
    for name, item in value.items():
        if name in declared and known(item):
            yield from _value(
                package, declared[name].kind, held.get(name, ()), f"{path}.{name}" if path else name, item
            )


def _value(
    package: str, kind: Kind, held: tuple[Convention, ...], path: str, value: Any
) -> Iterator[Mistake]:
    if not known(value):
        return
    if isinstance(value, list):
        item = kind.item or kind
        for index, entry in enumerate(value):
            yield from _value(package, item, held, f"{path}[{index}]", entry)
    elif isinstance(value, dict):
        choices = (
            [choice for choice in kind.choices if choice.cls is not None] if kind.name == "union" else [kind]
        )
        if len(choices) == 1 and choices[0].cls is not None:
            yield from _object(package, choices[0].cls, path, value)
        elif kind.name == "map" and kind.item is not None and kind.item.cls is not None:
            for name, entry in value.items():
                yield from _value(package, kind.item, held, f'{path}["{name}"]', entry)
    elif value != "" and not isinstance(value, bool):
        for convention in held:
            for what, fix in _broken(value, convention.limits):
                yield Mistake(
                    path, what, convention.say or fix, documented=True, source=f"rule: {convention.source}"
                )


def _broken(value: Any, limits: dict[str, Any]) -> list[Violation]:
    predicates = (WORDS[name](value, argument) for name, argument in limits.items() if name in WORDS)
    return [*violations(value, limits), *(each for found in predicates for each in found)]
