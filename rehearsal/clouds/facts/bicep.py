"""Reads Azure's resource types as Bicep has them (`generated/<spec>/<provider>/<version>/types.json`): lengths, ranges, patterns, sets of values.

`Types(folder)` is used by `gather_azure.py`. Easy to get wrong: a set with plain text beside its values is open, and what a resource's body
calls `properties` the SDK has drawn out.
"""

from __future__ import annotations

import functools
import json
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rehearsal.clouds.facts.providers import whole

Node = dict[str, Any]
_READ_ONLY = 2


@dataclass(frozen=True)
class Type:
    """One type inside one file."""

    file: Path
    index: int

    @property
    def node(self) -> Node:
        return _nodes(self.file)[self.index]

    def at(self, reference: Node) -> Type:
        """Return the type behind a reference of the same file."""
        return Type(self.file, int(str(reference["$ref"]).rsplit("/", 1)[-1]))

    def properties(self) -> dict[str, Type]:
        """Return the properties that a program may give, by their own names; `properties` inside is drawn out too."""
        node = self.node
        if node["$type"] == "ArrayType":
            return self.at(node["itemType"]).properties()
        held = {**node.get("properties", {}), **node.get("baseProperties", {})}
        found = {name: self.at(entry["type"]) for name, entry in held.items() if not int(entry.get("flags", 0)) & _READ_ONLY}
        for name, inner in list(found.items()):
            if name == "properties":
                found = {**inner.properties(), **found}
        return found

    def variants(self) -> list[Type]:
        """Return the objects that a discriminated object may be."""
        node = self.node
        if node["$type"] == "ArrayType":
            return self.at(node["itemType"]).variants()
        return [self.at(entry) for entry in node.get("elements", {}).values()] if node["$type"] == "DiscriminatedObjectType" else []

    def facts(self) -> Node:
        """Return what the type says of a value."""
        node = self.node
        kind = node["$type"]
        if kind == "ArrayType":
            limits = _limits(node, "minLength", "maxLength")
            return {**self.at(node["itemType"]).facts(), **({"count": limits} if limits else {})}
        if kind == "IntegerType":
            limits = _limits(node, "minValue", "maxValue")
            return {"range": limits} if limits else {}
        if kind == "StringType":
            limits = _limits(node, "minLength", "maxLength")
            found: Node = {"length": limits} if limits and limits != [1, None] else {}
            return {**found, **(_pattern(node["pattern"]) if "pattern" in node else {})}
        if kind == "UnionType":
            parts = [self.at(entry).node for entry in node["elements"]]
            values = [part["value"] for part in parts if part["$type"] == "StringLiteralType"]
            others = [part for part in parts if part["$type"] != "StringLiteralType"]
            if not values or any(part["$type"] != "StringType" for part in others):
                return {}
            return {"values": sorted(values), **({"open": True} if others else {})}
        return {}


def _pattern(expression: str) -> Node:
    """Return an expression for the whole text; ids of resources are the same in any capitals."""
    found = whole(expression)
    if "subscriptions" in expression.lower() and found:
        found["pattern"] = f"(?i:{found['pattern']})"
    return found


def _limits(node: Node, low: str, high: str) -> list[int | None] | None:
    least, most = node.get(low), node.get(high)
    least = None if least is not None and abs(least) >= 2**31 - 1 else least
    most = None if most is not None and most >= 2**31 - 1 else most
    return [least, most] if (least or most is not None) else None


@functools.lru_cache(maxsize=8)
def _nodes(file: Path) -> list[Node]:
    nodes: list[Node] = json.loads(file.read_text())
    return nodes


class Types:
    """The files below a folder by provider and version."""

    def __init__(self, folder: Path) -> None:
        self.files: dict[str, dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
        for file in folder.glob("*/*/*/types.json"):
            self.files[file.parent.parent.name.lower()][file.parent.name].append(file)

    def resources(self, provider: str, version: str) -> dict[str, Type]:
        """Return the bodies of a provider's resource types; of the version at or next after the one asked for."""
        versions = self.files.get(provider, {})
        wanted = version if version in versions else next((one for one in sorted(versions) if one >= version), "")
        found = {}
        for file in versions.get(wanted, ()):
            for node in _nodes(file):
                if node["$type"] == "ResourceType" and re.search("@", node["name"]):
                    name = node["name"].split("@")[0].partition("/")[2]
                    found[name] = Type(file, int(node["body"]["$ref"].rsplit("/", 1)[-1]))
        return found
