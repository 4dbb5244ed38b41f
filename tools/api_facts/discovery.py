"""Reads Google's discovery documents: the values, formats and documented limits of schema properties.

The documents are in `googleapiclient/discovery_cache/documents` of google-api-python-client.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.api_facts.keywords import LENGTHS, NUMBERS, limits
from trainfleet.rehearsal.simulation.docstrings import read

Schemas = dict[str, dict[str, dict[str, Any]]]
FORMATS: dict[str, dict[str, Any]] = {
    "google-duration": {"pattern": r"-?\d+(\.\d{1,9})?s"},
    "google-datetime": {"pattern": r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)"},
    "date": {"pattern": r"\d{4}-\d\d-\d\d"},
    "uint32": {"minimum": 0, "maximum": 2**32 - 1},
    "uint64": {"minimum": 0},
}
"""The facts of a format. Source: developers.google.com/discovery/v1/type-format."""


@dataclass
class Api:
    """All versions of one API, with normalized property names (see `normal`)."""

    name: str
    revision: str = ""
    versions: list[Schemas] = field(default_factory=list)
    ids: list[dict[str, dict[str, str]]] = field(default_factory=list)
    """For each version, the description of the id that the caller chooses: by schema and parameter."""

    def pairs(self) -> Iterator[tuple[int, str]]:
        """Yield every schema with the index of its version."""
        for index, schemas in enumerate(self.versions):
            for name in schemas:
                yield index, name


def normal(name: str) -> str:
    """Return a name normalized for comparison: lowercase, singular, without underscores."""
    bare = name.replace("_", "").lower()
    if bare.endswith("ies"):
        return bare[:-3] + "y"
    if bare.endswith(("sses", "xes", "ches", "shes")):
        return bare[:-2]
    return bare[:-1] if bare.endswith("s") and not bare.endswith("ss") else bare


def read_apis(folder: Path, names: list[str]) -> list[Api]:
    """Return the APIs with these names that the folder contains."""
    found = []
    for name in names:
        api = Api(name)
        for file in (
            sorted(folder.glob(f"{name}.v*.json"))
            + sorted(folder.glob(f"{name}.alpha.json"))
            + sorted(folder.glob(f"{name}.beta.json"))
        ):
            document = json.loads(file.read_text())
            api.versions.append(
                {schema: _properties(body) for schema, body in document.get("schemas", {}).items()}
            )
            api.ids.append(_ids(document))
            api.revision = max(api.revision, str(document.get("revision", "")))
        if api.versions:
            found.append(api)
    return found


def _ids(holder: dict[str, Any]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for method in holder.get("methods", {}).values():
        for name, entry in method.get("parameters", {}).items() if method.get("httpMethod") == "POST" else ():
            if name.endswith("Id") and entry.get("location") == "query" and name != "requestId":
                found.setdefault(str(method.get("request", {}).get("$ref", "")), {})[normal(name)] = str(
                    entry.get("description", "")
                )
    for inside in holder.get("resources", {}).values():
        for schema, held in _ids(inside).items():
            found.setdefault(schema, {}).update(held)
    return found


def _properties(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {normal(name): entry for name, entry in body.get("properties", {}).items()}


def inner(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the items of a list, or the property itself."""
    while entry.get("type") == "array":
        entry = entry.get("items", {})
    return entry


def facts(entries: list[dict[str, Any]], *, number: bool) -> dict[str, Any]:
    """Return the facts on which all versions of one property agree."""
    plain = [inner(entry) for entry in entries]
    if plain and all(entry.get("enum") for entry in plain):
        return {"enum": sorted({str(value) for entry in plain for value in entry["enum"]})}
    formats = {str(entry.get("format")) for entry in plain}
    found: dict[str, Any] = {}
    if len(formats) == 1 and ("minimum" in FORMATS.get(one := formats.pop(), {})) == number:
        found |= FORMATS.get(one, {})
    patterns = {entry["pattern"] for entry in plain if "pattern" in entry}
    if len(patterns) == 1 and not number:
        found.setdefault("pattern", patterns.pop())
    return found | _described(plain, number=number)


def _described(entries: list[dict[str, Any]], *, number: bool) -> dict[str, Any]:
    docs = [read(str(entry.get("description", "")), number=number) for entry in entries]
    if not docs:
        return {}
    found: dict[str, Any] = {}
    if number and all(one.numbers != (None, None) for one in docs):
        found |= limits(NUMBERS, *_widest([one.numbers for one in docs]))
    if not number and all(one.length != (None, None) for one in docs):
        found |= limits(LENGTHS, *_widest([one.length for one in docs]))
    if not number and all(one.values and one.closed for one in docs):
        values = {value for one in docs for value in (*one.values, *_words(one.mentioned))}
        # Other words in prose are often only examples.
        if all(re.fullmatch(r"[A-Z][A-Z0-9_]+", value) for value in values):
            found["enum"] = sorted(values)
    return found


def _words(mentioned: frozenset[str]) -> set[str]:
    return {word for word in mentioned if re.fullmatch(r"[\w.-]{1,60}", word)}


def _widest(limits: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    lows, highs = [low for low, _ in limits], [high for _, high in limits]
    return (None if None in lows else min(lows)), (None if None in highs else max(highs))
