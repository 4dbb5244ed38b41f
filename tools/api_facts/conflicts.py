"""Reads mutually exclusive properties from an SDK's documentation, as rows for `rules/reader.py`.

The provider itself rejects these combinations (ConflictsWith, ExactlyOneOf), and its documentation describes
them in fixed phrases.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trainfleet.rehearsal.simulation.schema import Kind, documents_of, inputs_of

Row = dict[str, Any]
_NAMES = r"(`\w+`(?:(?:, | and | or |, and |, or )`\w+`)*)"
_CONFLICT = re.compile(
    rf"(?:^|\. |\) |; )(?:Conflicts with|Cannot be used with|Mutually exclusive with):? (?:the )?{_NAMES}(?:"
    r" arguments?)?(?=\.|$)",
    re.I,
)
_EXACTLY = re.compile(
    rf"(?:^|\. )(?:You must specify )?Exactly one of (?:either )?{_NAMES} (?:must be"
    r" (?:specified|configured|set|provided|defined)|is required)(?=\.|$)",
    re.I,
)


def _class(kind: Kind) -> type | None:
    if kind.name in ("list", "map") and kind.item:
        return _class(kind.item)
    if kind.name == "union":
        return next((choice.cls for choice in kind.choices if choice.cls), None)
    return kind.cls


def exclusive(args: type, path: str = "", seen: tuple[type, ...] = ()) -> Iterator[Row]:
    """Yield a row for every set of mutually exclusive properties in an input class and its nested classes."""
    if args in seen:
        return
    from pulumi import _types

    names = {python: wire for python, wire, _ in _types._py_properties(args)}
    place = {"at": path} if path else {}
    found: set[tuple[str, tuple[str, ...]]] = set()
    for name, document in documents_of(args).items():
        words = " ".join(document.split())
        for match in _CONFLICT.finditer(words):
            for other in re.findall(r"`(\w+)`", match[1]):
                if other in names and names[other] != name:
                    found.add(("at_most_one", tuple(sorted((name, names[other])))))
        for match in _EXACTLY.finditer(words):
            listed = [names.get(other, "") for other in re.findall(r"`(\w+)`", match[1])]
            if all(listed) and name in listed and len(set(listed)) > 1:
                found.add(("exactly_one", tuple(sorted(set(listed)))))
    declared = inputs_of(args)
    for relation, group in sorted(found):
        if any(declared[name].kind.name == "boolean" for name in group if name in declared):
            continue  # an explicit false does not conflict
        yield {**place, relation: list(group)}
    for name, held in declared.items():
        if cls := _class(held.kind):
            yield from exclusive(cls, f"{path}.{name}" if path else name, (*seen, args))
