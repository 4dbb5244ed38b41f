"""Checks a value against the keywords of JSON Schema that limit it.

API limits, rules and definitions of custom resources are written with these keywords. Patterns are Python's
(`re.search`), a `.` also matches the end of a line, and a `$` at the end is the end of the text.

A bridged provider converts "3" to 3 and 3 to "3". So keywords of numbers also limit a string that spells
one, keywords of strings limit the text of any scalar, and values of `enum` are compared as text. What must
not be converted is rejected by its type, which is checked elsewhere.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any

from trainfleet.suggestions import did_you_mean

Schema = dict[str, Any]
Violation = tuple[str, str]
"""What is wrong, and how to fix it."""
_LONGEST = 80


def violations(value: Any, schema: Schema) -> list[Violation]:
    """Return how a known value breaks the keywords of a schema. Other keys are ignored.

    A value is checked on its own: entries of a list or a map are not (`items`, `properties`).
    """
    found: list[Violation] = []
    for key, argument in schema.items():
        if (check := KEYWORDS.get(key)) is not None:
            found += check(value, argument, schema)
    return found


def shown(value: Any) -> str:
    """Return a value in the form that a message shows."""
    text = repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def number_of(value: Any) -> float | None:
    """Return the number that a value is or spells, or None."""
    if isinstance(value, (bool, list, dict)):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


@functools.cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Return a pattern as it is searched for.

    Raises:
        re.error: it is not a pattern.
    """
    return re.compile(re.sub(r"(?<!\\)((?:\\\\)*)\$$", r"\1\\Z", pattern), re.DOTALL)


def fault(schema: Schema) -> str:
    """Return what is wrong with a schema itself; empty if nothing is."""
    for key, argument in schema.items():
        kind = _ARGUMENTS.get(key)
        if kind is not None and (not isinstance(argument, kind) or isinstance(argument, bool)):
            return f"{key} = {argument!r} is not what the keyword takes"
        for inner in argument if key == "anyOf" else [argument] if key in ("not", "propertyNames") else ():
            unknown = sorted(set(inner) - KEYWORDS.keys())
            if text := f"{', '.join(unknown)} in {key}, which nothing reads" if unknown else fault(inner):
                return text
    try:
        compiled(schema.get("pattern", ""))
    except re.error as error:
        return f"pattern: {error}"
    return ""


def _limits(low: float | None, high: float | None, what: str = "") -> str:
    words = (
        f"from {low:.15g} to {high:.15g}"
        if low is not None and high is not None
        else f"at most {high:.15g}"
        if high is not None
        else f"at least {low:.15g}"
    )
    return f"{words} {what}".rstrip()


def _range(value: Any, schema: Schema) -> list[Violation]:
    low, high = schema.get("minimum"), schema.get("maximum")
    return [(f"{shown(value)} is out of range", f"it must be {_limits(low, high)}")]


def _minimum(value: Any, low: float, schema: Schema) -> list[Violation]:
    number = number_of(value)
    if number is None or number > low or (number == low and schema.get("exclusiveMinimum") is not True):
        return []
    return _range(value, schema)


def _maximum(value: Any, high: float, schema: Schema) -> list[Violation]:
    number = number_of(value)
    if number is None or number < high or (number == high and schema.get("exclusiveMaximum") is not True):
        return []
    return _range(value, schema)


def _multiple_of(value: Any, size: float, _: Schema) -> list[Violation]:
    number = number_of(value)
    if number is None or math.isclose(number / size, round(number / size), rel_tol=1e-12):
        return []
    return [(f"{shown(value)} is not a multiple of {size}", f"it must be a multiple of {size}")]


def _length(value: Any, schema: Schema) -> list[Violation]:
    low, high = schema.get("minLength") or None, schema.get("maxLength")
    what = f"{shown(value)} has {len(str(value))} characters"
    return [(what, f"it must have {_limits(low, high, 'characters')}")]


def _min_length(value: Any, low: int, schema: Schema) -> list[Violation]:
    return _length(value, schema) if not isinstance(value, (list, dict)) and len(str(value)) < low else []


def _max_length(value: Any, high: int, schema: Schema) -> list[Violation]:
    return _length(value, schema) if not isinstance(value, (list, dict)) and len(str(value)) > high else []


def _pattern(value: Any, pattern: str, _: Schema) -> list[Violation]:
    if isinstance(value, (list, dict)) or compiled(pattern).search(str(value)):
        return []
    quantity = "Ki" in pattern or "KMGTPE" in pattern
    fix = "a quantity is like 500m, 4 or 8Gi" if quantity else f"it must match {pattern}"
    return [(f"{shown(value)} is not valid here", fix)]


def _enum(value: Any, values: list[Any], _: Schema) -> list[Violation]:
    if isinstance(value, (list, dict)):
        return []
    known = [str(choice) for choice in values]
    if str(value) in known:
        return []
    return [(f"{shown(value)} is not one of the values", did_you_mean(str(value), known))]


def _entries(value: Any, low: int | None, high: int | None) -> list[Violation]:
    return [(f"has {len(value)} entries", f"it must have {_limits(low or None, high, 'entries')}")]


def _items(value: Any, _: int, schema: Schema) -> list[Violation]:
    low, high = schema.get("minItems"), schema.get("maxItems")
    if not isinstance(value, list) or (low or 0) <= len(value) <= (len(value) if high is None else high):
        return []
    return _entries(value, low, high)


def _properties(value: Any, _: int, schema: Schema) -> list[Violation]:
    low, high = schema.get("minProperties"), schema.get("maxProperties")
    if not isinstance(value, dict) or (low or 0) <= len(value) <= (len(value) if high is None else high):
        return []
    return _entries(value, low, high)


def _property_names(value: Any, names: Schema, _: Schema) -> list[Violation]:
    return [
        (f"{shown(key)} is not a valid key", fix.replace("it must", "a key must", 1))
        for key in (value if isinstance(value, dict) else ())
        for _, fix in violations(key, names)[:1]
    ]


def _any_of(value: Any, schemas: list[Schema], _: Schema) -> list[Violation]:
    found: list[Violation] = []
    for schema in schemas:
        if not (found := violations(value, schema)):
            return []
    return found


def _not(value: Any, schema: Schema, _: Schema) -> list[Violation]:
    # A definition of a custom resource may also forbid what no keyword here checks, such as `required`.
    if isinstance(value, (list, dict)) or schema.keys() - KEYWORDS.keys() or violations(value, schema):
        return []
    forbidden = schema.get("pattern") or shown(schema)
    return [(f"{shown(value)} is not valid here", f"it must not match {forbidden}")]


def _first(check: Callable[[Any, Any, Schema], list[Violation]], other: str) -> Any:
    """Check two keywords at once that limit the same thing, so that one message gives both."""

    def once(value: Any, argument: Any, schema: Schema) -> list[Violation]:
        return [] if other in schema else check(value, argument, schema)

    return once


KEYWORDS: dict[str, Callable[[Any, Any, Schema], list[Violation]]] = {
    "enum": _enum,
    "minimum": _minimum,
    "maximum": _maximum,
    "multipleOf": _multiple_of,
    "minLength": _min_length,
    "maxLength": _max_length,
    "pattern": _pattern,
    "minItems": _items,
    "maxItems": _first(_items, "minItems"),
    "minProperties": _properties,
    "maxProperties": _first(_properties, "minProperties"),
    "propertyNames": _property_names,
    "anyOf": _any_of,
    "not": _not,
}
_NUMBER = (int, float)
_ARGUMENTS: dict[str, Any] = {
    "enum": list,
    "minimum": _NUMBER,
    "maximum": _NUMBER,
    "multipleOf": _NUMBER,
    "minLength": int,
    "maxLength": int,
    "pattern": str,
    "minItems": int,
    "maxItems": int,
    "minProperties": int,
    "maxProperties": int,
    "propertyNames": dict,
    "anyOf": list,
    "not": dict,
}
