"""Rows from a Pulumi package schema: what `pulumi package get-schema` prints for an installed provider.

A property is marked `willReplaceOnChanges` if the provider replaces the resource when it changes, and
`replaceOnChanges` if the engine does so for it. A schema does not say under which condition a provider's code
replaces, nor which lists are sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.rehearsal.simulation.knowledge_table import Row, Table
from trainfleet.rehearsal.simulation.property_paths import join_path

_DEEPEST = 12
"""Types can contain themselves."""


def from_schema(schema: Mapping[str, Any], *, date: str, source: str, before: Table | None = None) -> Table:
    """Return the table of a package.

    Args:
        schema: the package schema.
        date: the day on which the schema was read, as YYYY-MM-DD.
        source: what the schema is from, for `trainfleet knowledge show`.
        before: the available table; its sets, conditions and unclear properties are kept for the types of the
            schema, which cannot say them.

    Raises:
        InputError: the schema is not a package schema, or does not mark replacement.
    """
    name, resources = schema.get("name"), schema.get("resources")
    if not isinstance(name, str) or not isinstance(resources, dict) or not resources:
        raise InputError("this is not a package schema", [Problem(source, "needs `name` and `resources`")])
    types = {token: _row(schema, each, before, token) for token, each in resources.items()}
    if not any(row.replace for row in types.values()):
        fix = "no property has `willReplaceOnChanges`; get the schema from a newer provider"
        raise InputError("the package schema does not mark replacement", [Problem(source, fix)])
    version = str(schema.get("version") or "unknown")
    every = before.every if before else ()
    return Table(name, source, version, date, version, types, every)


def _row(schema: Mapping[str, Any], resource: Mapping[str, Any], before: Table | None, token: str) -> Row:
    found = tuple(
        sorted({join_path(path) for path in _marked(schema, resource.get("inputProperties") or {})})
    )
    old = before.types.get(token) if before else None
    if old is None:
        return Row(found)
    unclear = {
        path: why for path, why in old.unclear.items() if path not in found and why not in SCHEMA_KNOWS
    }
    when = {path: texts for path, texts in old.when.items() if path not in found}
    return Row(found, when, unclear, old.delete_first, old.sets, old.caseless)


SCHEMA_KNOWS = (
    "newer than the source",
    "not read",
    "an output in the API version that was read",
    "a part of the schema that cannot be read",
)
"""Reasons of unclear properties that a package schema settles."""


def _marked(
    schema: Mapping[str, Any],
    properties: Mapping[str, Any],
    above: tuple[str, ...] = (),
    inside: tuple[str, ...] = (),
) -> Iterator[tuple[str, ...]]:
    """Yield the highest marked paths."""
    for name, given in properties.items():
        path = (*above, name)
        if given.get("willReplaceOnChanges") or given.get("replaceOnChanges"):
            yield path
            continue
        kind, steps = given, path
        while kind.get("type") == "array" and isinstance(kind.get("items"), dict):
            kind, steps = kind["items"], (*steps, "[*]")
        for choice in (kind, *kind.get("oneOf", ())):
            reference = str(choice.get("$ref", ""))
            nested = schema.get("types", {}).get(reference.removeprefix("#/types/"))
            if nested and reference not in inside and len(inside) < _DEEPEST:
                yield from _marked(schema, nested.get("properties") or {}, steps, (*inside, reference))
