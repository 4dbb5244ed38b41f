"""Reads what a bridged provider itself checks: the schemas in its Go source, as facts and as rules between properties.

`read_services(folder)` is used by `gather_gcp.py`. Pulumi's plugin runs these very checks before it asks the API. Easy to get wrong:
`ConflictsWith` and its kin name absolute paths with `.0.` for a block's one item, and count a block that is not there as nothing to check.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rehearsal.clouds.facts.golang import Node, Reader, declarations, returned

RELATIONS = {"ConflictsWith": "at_most_one", "ExactlyOneOf": "exactly_one", "AtLeastOneOf": "at_least_one", "RequiredWith": "together"}


@dataclass
class Field:
    """One property of a provider's schema: its facts, its fields where it is a block, and its relations by kind."""

    facts: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Field] = field(default_factory=dict)
    relations: dict[str, list[str]] = field(default_factory=dict)
    type: str = ""
    input: bool = True
    replaces: bool = False


def read_services(folder: Path) -> dict[str, Field]:
    """Return the schema of every resource below `folder` (one folder of Go files per service) by the provider's name of it."""
    found: dict[str, Field] = {}
    for service in sorted(path for path in folder.iterdir() if path.is_dir()):
        found |= _Service(service).resources()
    return found


class _Service:
    """The declarations of one package of Go."""

    def __init__(self, folder: Path) -> None:
        self.declared: dict[str, Any] = {}
        self.registered: dict[str, str] = {}
        for file in sorted(folder.glob("*.go")):
            if not file.name.endswith("_test.go") and not re.match(r"data_source|.*sweeper", file.name):
                self._file(file.read_text())

    def _file(self, source: str) -> None:
        if "schema." not in source and "[]string" not in source:
            return
        for block in re.findall(r"registry\.Schema\{(.*?)\}\.Register", source, re.S):
            named = re.search(r'Name:\s*"(\w+)".*?Schema:\s*(\w+)\(', block, re.S)
            if named and "SchemaTypeResource" in block:
                self.registered[named[1]] = named[2]
        self.declared |= {name: body for name, body in declarations(source) if name not in ("_", "init")}

    def resources(self) -> dict[str, Field]:
        found = {}
        for name, function in self.registered.items():
            resource = self.called(function)
            fields = self.schema(resource.get("Schema")) if isinstance(resource, Node) else {}
            if fields:
                found[name] = Field(fields=fields)
        return found

    def called(self, name: str) -> Any:
        """Return what a function of the package returns, or nothing; a variable of its own stands for what it was set to first."""
        body = self.declared.get(name, [])
        value = next(returned(body), None)
        if isinstance(value, Node) and value.kind == "name" and value.name not in self.declared:
            start = next((at for at in range(len(body) - 1) if body[at] == ("name", value.name) and body[at + 1][1] == ":="), None)
            value = Reader(body[start + 2 :]).expression() if start is not None else None
        return value

    def resolved(self, value: Any, depth: int = 0) -> Any:
        """Return what a name or a call stands for."""
        if not isinstance(value, Node) or depth > 4:
            return value
        if value.kind == "call" and value.name in self.declared:
            return self.resolved(self.called(value.name), depth + 1)
        if value.kind == "name" and value.name in self.declared:
            return self.resolved(Reader(self.declared[value.name]).expression(), depth + 1)
        return value

    def schema(self, value: Any, depth: int = 0) -> dict[str, Field]:
        value = self.resolved(value)
        if isinstance(value, Node) and value.kind == "call" and value.name.endswith("MergeSchemas"):
            return {name: entry for part in value.values() for name, entry in self.schema(part, depth).items()}
        if not isinstance(value, Node) or value.kind != "literal" or depth > 12:
            return {}
        return {name: self.field(entry, depth) for name, entry in value.parts if isinstance(name, str)}

    def field(self, value: Any, depth: int) -> Field:
        value = self.resolved(value)
        if not isinstance(value, Node) or value.kind != "literal":
            return Field()
        kind = value.get("Type")
        result = Field(type=kind.name.removeprefix("schema.Type") if isinstance(kind, Node) else "")
        result.input = bool(value.get("Required") or value.get("Optional"))
        result.replaces = bool(value.get("ForceNew"))
        result.facts = self.facts(value.get("ValidateFunc"))
        element = self.resolved(value.get("Elem"))
        if isinstance(element, Node) and element.kind == "literal":
            if "Resource" in element.name or element.get("Schema") is not None:
                result.fields = self.schema(element.get("Schema"), depth + 1)
            else:
                result.facts = {**result.facts, **self.facts(element.get("ValidateFunc"))}
        most, least = value.get("MaxItems"), value.get("MinItems")
        if (isinstance(most, int) and most > 1) or (isinstance(least, int) and least > 1):
            result.facts["count"] = [least if isinstance(least, int) else None, most if isinstance(most, int) else None]
        for word, relation in RELATIONS.items():
            if names := self.strings(value.get(word)):
                result.relations[relation] = names
        return result

    def strings(self, value: Any) -> list[str]:
        value = self.resolved(value)
        if not isinstance(value, Node) or value.kind != "literal":
            return []
        found = [self.resolved(entry) for entry in value.values()]
        return [str(entry) for entry in found] if all(isinstance(entry, str) for entry in found) else []

    def facts(self, check: Any) -> dict[str, Any]:  # noqa: PLR0911 - one line per check
        """Return what a check of the provider asks, nothing where it is not understood."""
        if not isinstance(check, Node):
            return {}
        name = check.name.rsplit(".", 1)[-1]
        given = [self.resolved(part) for part in check.values()]
        if name in NAMED:
            return dict(NAMED[name])
        if name in ("ValidateEnum", "StringInSlice") and given:
            return self._values(given)
        if name in ("IntInSlice",) and isinstance(given[0], Node):
            return {"values": [str(entry) for entry in given[0].values() if isinstance(entry, int)]}
        if name in ("IntBetween", "FloatBetween", "IntAtLeast", "FloatAtLeast", "IntAtMost", "FloatAtMost", "StringLenBetween"):
            return _limits(name, given)
        if name in ("ValidateRegexp", "StringMatch") and given:
            return _pattern(given[0])
        if name == "ValidateRFC1035Name" and all(isinstance(entry, int) for entry in given):
            return {"length": [int(given[0]), int(given[1])], "pattern": "[a-z]([-a-z0-9]*[a-z0-9])?"}
        if name in ("All", "OrEmpty"):
            merged: dict[str, Any] = {}
            for part in check.values():
                merged |= self.facts(part)
            return merged
        return {}

    def _values(self, given: list[Any]) -> dict[str, Any]:
        values = [value for value in self.strings(given[0]) if value]
        if not values:
            return {}
        if len(given) > 1 and given[1] is True:  # in any capitals
            return {"pattern": f"(?i:{'|'.join(map(re.escape, values))})"}
        return {"values": sorted(set(values))}


def _limits(name: str, given: list[Any]) -> dict[str, Any]:
    if not given or not all(isinstance(entry, (int, float)) for entry in given):
        return {}
    pair = [None, given[0]] if name.endswith("AtMost") else [given[0], given[1] if len(given) > 1 else None]
    return {"length" if name.startswith("String") else "range": pair}


def _pattern(given: Any) -> dict[str, Any]:
    """Return a search as an expression for the whole text."""
    expression = str(given.parts[0][1]) if isinstance(given, Node) and given.kind == "call" and given.parts else given
    return whole(expression) if isinstance(expression, str) and "{{" not in expression else {}


def whole(expression: str) -> dict[str, Any]:
    """Return an expression that is searched for as one that the whole text matches; nothing where Python has no such expression."""
    expression = re.sub(r"\\z", r"$", re.sub(r"\[\[:(?:alnum|word):\]", "[A-Za-z0-9", expression))
    inside = re.fullmatch(r"\^(.*)\$", expression, re.S)
    bare = inside is not None and not _alternatives(inside[1]) and not inside[1].endswith("\\")
    found = inside[1] if inside and bare else f"(?s:.*)(?:{expression})(?s:.*)"
    try:
        re.compile(found)
    except re.error:
        return {}
    return {"pattern": found}


def _alternatives(expression: str) -> bool:
    """Say whether an expression has an alternative outside of all brackets."""
    bare = re.sub(r"\\.|\[(?:\\.|[^\]])*\]", "", expression)
    depth = 0
    for sign in bare:
        depth += (sign == "(") - (sign == ")")
        if sign == "|" and depth == 0:
            return True
    return False


_GO_DURATION = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|ms|s|m|h)(?:(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|ms|s|m|h))*|0"
_TIMESTAMP = r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)"
NAMED: dict[str, dict[str, Any]] = {
    "ValidateGCEName": {"pattern": "[a-z]([-a-z0-9]{0,61}[a-z0-9])?"},
    "ValidateRFC3339Time": {"pattern": r"([01]\d|2[0-3]):[0-5]\d"},
    "ValidateHourlyOnly": {"pattern": r"([01]?\d|2[0-3]):00"},
    "ValidateRFC3339Date": {"pattern": _TIMESTAMP},
    "IsRFC3339Time": {"pattern": _TIMESTAMP},
    "ValidateDuration": {"pattern": _GO_DURATION},
    "ValidateNonNegativeDuration": {"pattern": _GO_DURATION},
    "ValidateBase64String": {"pattern": r"(?:[A-Za-z0-9+/\n]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?\n?"},
    "ValidateIpAddress": {"pattern": r"(?:\d{1,3}\.){3}\d{1,3}|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*"},
    "ValidateIpCidrRange": {"pattern": r"(?:(?:\d{1,3}\.){3}\d{1,3}|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)/\d{1,3}"},
    "IsCIDR": {"pattern": r"(?:(?:\d{1,3}\.){3}\d{1,3}|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)/\d{1,3}"},
    "StringIsJSON": {"json": True},
    "IsPortNumber": {"range": [1, 65535]},
    "IsPortNumberOrZero": {"range": [0, 65535]},
    "ValidateProjectID": {"pattern": r"(?:[a-z0-9.-]+:)?[a-z][-a-z0-9]{4,28}[a-z0-9]"},
}
"""Checks that have a name of their own in the provider, and the rule of the API behind it."""


def walk(fields: dict[str, Field], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Field]]:
    """Yield every property with its path."""
    for name, entry in fields.items():
        yield (*path, name), entry
        yield from walk(entry.fields, (*path, name))
