"""Findings in a JSON document, and the checks that several kinds of documents share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN
from trainfleet.suggestions import did_you_mean

Finding = tuple[str, str, str]
"""The path in the document, what is wrong, and how to fix it."""


def shortened(value: Any) -> str:
    """Return a value as text of at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def below(where: str, name: str) -> str:
    """Return the path of a key in the object at a path, which is empty for the document."""
    return f"{where}.{name}" if where else name


def unknown_keys(
    where: str, value: dict[str, Any], known: frozenset[str] | tuple[str, ...]
) -> Iterator[Finding]:
    """Yield the keys of an object that its format does not have."""
    for key in value:
        if key not in known:
            yield below(where, key), "unknown key", did_you_mean(key, known)


def missing_keys(where: str, value: dict[str, Any], names: tuple[str, ...]) -> Iterator[Finding]:
    """Yield the keys that an object needs and does not have."""
    for name in names:
        if name not in value:
            yield f"{where}.{name}", "missing", ""


def not_an_object(value: Any) -> Iterator[Finding]:
    """Yield a finding if a document is not an object."""
    if not isinstance(value, dict):
        yield "", "is not a JSON object", ""


def number(where: str, value: Any, low: float, high: float) -> Iterator[Finding]:
    """Yield a finding if a known value is not a number from `low` to `high`."""
    if value is None or (isinstance(value, str) and (UNKNOWN in value or value.startswith("{%"))):
        return
    if isinstance(value, (str, bool, list, dict)):
        yield where, f"must be a number, not {value!r}", ""
    elif not low <= value <= high:
        yield where, f"{value} is out of range", f"it must be from {low:g} to {high:.15g}"


def dicts(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list; none where the value is not a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
