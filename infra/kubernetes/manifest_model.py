"""Typed documents: frozen dataclasses that become the JSON of chart values and custom resources.

Python rejects an undeclared key; None means absent. A field is the key in snake case, unless the class's KEYS
map it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(eq_default=False, frozen_default=True)
def document(declared: type[T]) -> type[T]:
    """Make a class a typed document: a frozen dataclass without __eq__ and __repr__, which would slow every
    preview.
    """
    return dataclass(frozen=True, eq=False, repr=False)(declared)


def plain(value: Any) -> Any:
    """The value as plain JSON types. Pulumi outputs are unchanged."""
    if is_dataclass(value) and not isinstance(value, type):
        given: dict[str, str] = getattr(value, "KEYS", {})
        pairs = (
            (given.get(each.name) or _camel(each.name), getattr(value, each.name)) for each in fields(value)
        )
        return {name: plain(member) for name, member in pairs if member is not None}
    if isinstance(value, dict):
        return {name: plain(member) for name, member in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def _camel(name: str) -> str:
    return re.sub(r"_([a-z0-9])", lambda found: found[1].upper(), name)
