"""Reads rules/<package>.toml and applies it to a resource's inputs."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any

from trainfleet.api_limits import limits
from trainfleet.errors import InputError, Problem
from trainfleet.rehearsal.simulation.check import Mistake
from trainfleet.rehearsal.simulation.facts.relations import gathered_rows
from trainfleet.rehearsal.simulation.json_schema import KEYWORDS, fault, violations
from trainfleet.rehearsal.simulation.pulumi_values import SIGNATURE, UNKNOWN
from trainfleet.rehearsal.simulation.rules.predicates import WORDS

RULES = Path(__file__).parent
_RELATIONS = (
    "exactly_one",
    "at_most_one",
    "at_least_one",
    "together",
    "ordered",
    "unique",
    "inside",
    "needs",
    "forbids",
    "never",
)
_LIMITING = WORDS.keys() | KEYWORDS.keys()
_KEYS = {"path", "at", "when", "say", "soft", "limit", *_RELATIONS, *WORDS, *KEYWORDS}


@dataclass(frozen=True)
class Rule:
    """Rows for the types that match (patterns for tokens without their package), and their source.

    A row checks one value (`path` and keywords of JSON Schema, a predicate of `predicates.py`, or `limit`,
    the name of an entry of `api_limits.toml`) or several (`exactly_one`, `at_most_one`, `at_least_one`,
    `together`, `ordered`, `unique`, `inside`), optionally under `at` and only `when` another value matches. A
    dotted path covers all items of a list (`[]` at its end: the list itself); `**.` is any depth, and `*` is
    any part of a name.
    """

    types: tuple[str, ...]
    source: str
    rows: tuple[dict[str, Any], ...]
    but: tuple[str, ...] = ()

    def holds_for(self, short: str) -> bool:
        """Return whether the rule applies to a type, whose token has no package."""
        return any(fnmatchcase(short, pattern) for pattern in self.types) and not any(
            fnmatchcase(short, pattern) for pattern in self.but
        )


@functools.cache
def rules(package: str, where: Path = RULES) -> tuple[Rule, ...]:
    """Return the rules of a package; empty if it has no file.

    Raises:
        InputError: the file is not valid TOML, or an entry lacks a key or has an unknown one.
    """
    file = where / f"{package}.toml"
    if not file.is_file():
        return ()
    try:
        entries = tomllib.loads(file.read_text()).get("rule", [])
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise InputError("the rules cannot be read", [Problem(str(file), str(error))]) from error
    problems = [
        problem for index, entry in enumerate(entries) for problem in _faults(file.name, index, entry)
    ]
    if problems:
        raise InputError("the rules cannot be read", problems)
    return tuple(
        Rule(tuple(entry["types"]), entry["source"], tuple(entry["rows"]), tuple(entry.get("but", ())))
        for entry in entries
    )


def _faults(file: str, index: int, entry: dict[str, Any]) -> Iterator[Problem]:
    where = f"{file} rule {index + 1} {entry.get('types', '')}"
    for name, kind in (("types", list), ("source", str), ("rows", list)):
        if not isinstance(entry.get(name), kind):
            yield Problem(where, f"needs `{name}`")
    for row in entry.get("rows", []):
        if row.get("limit", next(iter(limits()))) not in limits():
            yield Problem(where, f"api_limits.toml has no {row['limit']}")
        if text := fault(row):
            yield Problem(where, text)
        if unknown := sorted(set(row) - _KEYS):
            yield Problem(where, f"a row says {', '.join(unknown)}, which nothing reads")
        if "path" not in row and not set(row) & set(_RELATIONS):
            yield Problem(where, f"a row asks nothing: {row}")


@functools.cache
def rules_of(package: str, token: str) -> tuple[dict[str, Any], ...]:
    """Return the rows that apply to a type."""
    # azure-native puts the API version in the module.
    short = re.sub(r"/v\d{8}\w*(?=:)", "", token.split(":", 1)[-1])
    return (
        *(
            {"source": rule.source, **limits().get(row.get("limit", ""), {}), **row}
            for rule in rules(package)
            if rule.holds_for(short)
            for row in rule.rows
        ),
        *gathered_rows(package, short),
    )


def softened(package: str, token: str) -> frozenset[str]:
    """Return the paths, without list indexes, for which mistakes based on documentation are discarded.

    A rule either declares the documentation unreliable (`soft`) or reports the mistake better (`enum`).
    """
    return frozenset(
        row["path"]
        for row in rules_of(package, token)
        if row.get("soft") or ("enum" in row and "when" not in row)
    )


def broken(package: str, token: str, inputs: dict[str, Any]) -> list[Mistake]:
    """Return every rule that plain inputs violate."""
    found: dict[Mistake, str] = {}
    for row in rules_of(package, token):
        for mistake in _apply(row, inputs):
            found.setdefault(mistake, row.get("source", "the API's model"))
    return [replace(mistake, source=f"rule: {source}") for mistake, source in found.items()]


def _apply(row: dict[str, Any], inputs: dict[str, Any]) -> Iterator[Mistake]:
    for path, scope in find(inputs, row["at"]) if "at" in row else [("", inputs)]:
        if isinstance(scope, dict) and _holds(row.get("when"), scope):
            yield from _values(row, path, scope)
            yield from _relations(row, path, scope)


def _values(row: dict[str, Any], path: str, scope: dict[str, Any]) -> Iterator[Mistake]:
    if "path" not in row or not row.keys() & _LIMITING:
        return
    words = [(word, row[word]) for word in row if word in WORDS]
    for where, value in find(scope, row["path"]):
        if not known(value) or value in ("", [], {}):
            continue
        found = violations(value, row)
        for word, argument in words:
            if word == "document" or not isinstance(value, (list, dict)):
                found += WORDS[word](value, argument)
        for what, fix in found:
            yield Mistake(_join(path, where), what, row.get("say", fix) if "did you mean" not in fix else fix)


def _relations(row: dict[str, Any], path: str, scope: dict[str, Any]) -> Iterator[Mistake]:
    say = row.get("say", "")
    yield from _together(row, path, scope, say)
    for name in row.get("needs", ()):
        if not _is_given(scope, name):
            yield Mistake(
                _join(path, name),
                f"missing, because {_reason(row, scope)}" if "when" in row else "missing required property",
                say,
            )
    for name in row.get("forbids", ()):
        if _is_given(scope, name):
            yield Mistake(
                _join(path, name), f"{_value(scope, name)} is not allowed, because {_reason(row, scope)}", say
            )
    if row.get("never") and "path" in row:
        for where, value in find(scope, row["path"]):
            yield Mistake(_join(path, where), f"{value!r} is not allowed, because {_reason(row, scope)}", say)
    yield from _ordered(row, path, scope, say)
    if "inside" in row:
        yield from _inside(row, path, scope, say)
    if "unique" in row:
        yield from _unique(row, path, scope, say)


def _together(row: dict[str, Any], path: str, scope: dict[str, Any], say: str) -> Iterator[Mistake]:
    for relation in ("exactly_one", "at_most_one", "at_least_one", "together"):
        if relation not in row:
            continue
        names = row[relation]
        given = [name for name in names if _is_given(scope, name)]
        words = ", ".join(f"`{name}`" for name in names)
        if relation in ("exactly_one", "at_most_one") and len(given) > 1:
            yield Mistake(
                _join(path, given[-1]),
                f"{_value(scope, given[-1])} conflicts with `{given[0]}`",
                say or f"give one of {words}",
            )
        # An explicitly empty list counts as given.
        empty = relation == "at_least_one" and any(name in scope for name in names)
        if relation in ("exactly_one", "at_least_one") and not given and not empty:
            yield Mistake(_join(path, names[0]), f"missing: one of {words} is needed", say)
        if relation == "together" and 0 < len(given) < len(names):
            missing = next(name for name in names if name not in given)
            yield Mistake(
                _join(path, missing), f"missing, because `{given[0]}` is given", say or f"give all of {words}"
            )


def _ordered(row: dict[str, Any], path: str, scope: dict[str, Any], say: str) -> Iterator[Mistake]:
    names = row.get("ordered", ())
    numbers = [
        (name, value)
        for name in names
        for _, value in find(scope, name)
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    ]
    for (low, first), (high, second) in pairwise(numbers):
        if first > second:
            yield Mistake(
                _join(path, low),
                f"{first} is more than `{high}`, which is {second}",
                say or f"`{low}` must be at most `{high}`",
            )


def _inside(row: dict[str, Any], path: str, scope: dict[str, Any], say: str) -> Iterator[Mistake]:
    """Check that an address or range is inside another range."""
    inner, outer = row["inside"]
    large = scope.get(outer)
    for where, small in find(scope, inner):
        if not (isinstance(small, str) and isinstance(large, str) and known(small) and known(large)):
            continue
        with contextlib.suppress(ValueError, TypeError):  # invalid ranges are reported elsewhere
            inside, outside = (
                ipaddress.ip_network(small, strict=False),
                ipaddress.ip_network(large, strict=False),
            )
            if not inside.subnet_of(outside):  # type: ignore[arg-type] # subnet_of raises TypeError if the IP versions differ
                yield Mistake(_join(path, where), f"{small!r} is not inside `{outer}`, which is {large}", say)


def _unique(row: dict[str, Any], path: str, scope: dict[str, Any], say: str) -> Iterator[Mistake]:
    seen: dict[str, str] = {}
    for where, value in find(scope, row["unique"]):
        if known(value) and not isinstance(value, (dict, list)):
            if str(value) in seen:
                yield Mistake(
                    _join(path, where),
                    f"{value!r} is given twice, first in {seen[str(value)]}",
                    say or "each must be different",
                )
            seen.setdefault(str(value), where)


def _holds(condition: Any, scope: dict[str, Any]) -> bool:
    """Return whether a condition, or every condition of a list, is certain to hold.

    A condition on a value that is not known yet does not hold, unless it is `given = true`.
    """
    if not isinstance(condition, dict):
        return all(_holds(part, scope) for part in condition or ())
    values = [value for _, value in find(scope, condition["path"]) if value is not None]
    if any(not known(value) for value in values):
        return bool(condition.get("given"))
    if "given" in condition:
        return bool(bool(values) == condition["given"])
    if "is" in condition:
        return any(value in condition["is"] for value in values)
    return bool(values) and all(value not in condition["is_not"] for value in values)


def _reason(row: dict[str, Any], scope: dict[str, Any]) -> str:
    conditions = row.get("when") or []
    parts = []
    for condition in conditions if isinstance(conditions, list) else [conditions]:
        value = next((value for _, value in find(scope, condition["path"]) if value is not None), None)
        parts.append(
            f"`{condition['path']}` is"
            " "
            f"{'not given' if value is None else 'given' if isinstance(value, (dict, list)) else repr(value)}"
        )
    return " and ".join(parts) or "of the API's rule"


def _is_given(scope: dict[str, Any], name: str) -> bool:
    return any(value is not None and value != [] for _, value in find(scope, name))


def _value(scope: dict[str, Any], name: str) -> str:
    value = next((value for _, value in find(scope, name)), None)
    return "the value" if not known(value) or isinstance(value, (dict, list)) else repr(value)


def known(value: Any) -> bool:
    """Return whether a value is known and not a wrapped secret."""
    return not (value is None or value == UNKNOWN or (isinstance(value, dict) and SIGNATURE in value))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


def find(value: Any, path: str, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value at a path with its own full path, including list indexes."""
    yield from _find(value, tuple(path.split(".")), where)


def _find(value: Any, parts: tuple[str, ...], where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _find(item, parts, f"{where}[{index}]")
        return
    if not parts:
        yield where, value
        return
    if not isinstance(value, dict) or SIGNATURE in value:
        return
    head, rest = parts[0], parts[1:]
    if head == "**":
        yield from _find(value, rest, where)
    for name, item in value.items():
        if name.startswith("__"):
            continue
        below = f"{where}.{name}" if where else name
        if head == "**":
            if isinstance(item, (dict, list)):
                yield from _find(item, parts, below)
        elif name == head or ("*" in head and fnmatchcase(name, head)):
            if rest == ("[]",):
                yield below, item
            else:
                yield from _find(item, rest, below)
