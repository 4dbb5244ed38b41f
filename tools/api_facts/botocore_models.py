"""Reads AWS's API models from botocore: structures, scalars with their constraints, JSON schemas."""

from __future__ import annotations

import functools
import gzip
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from tools.api_facts.gather import anchored, usable
from tools.api_facts.keywords import ITEMS, LENGTHS, NUMBERS, Entry, limits
from tools.api_facts.prose import promised

Shape = dict[str, Any]
Member = tuple[str, str]
"""The name of a member's shape, and the member's documentation."""
VERBS = re.compile(
    r"(?:BatchCreate|Create|Put|Register|Run|Update|Modify|Set|Start|Enable|Associate|Attach|Add|Import|Publish|Allocate|Request|Configure|Authorize"
    r"|Change|Provision|Grant|Purchase|Subscribe|Apply|Upload|Invite|Share|Deploy|Upsert|Define|Accept)(?=[A-Z0-9])"
)
KINDS = {
    "string": "text",
    "integer": "number",
    "long": "number",
    "float": "number",
    "double": "number",
    "boolean": "boolean",
    "structure": "object",
}


def plain(name: str) -> str:
    """Return a name normalized for comparison: lowercase letters and digits."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def forms(name: str) -> list[str]:
    """Return a normalized name in the singular and plural forms that a provider may use."""
    found = [name, f"{name}s", f"{name}list", f"{name}set", f"{name}es"]
    if name.endswith("ies"):
        found.append(f"{name[:-3]}y")
    if name.endswith("y"):
        found.append(f"{name[:-1]}ies")
    if name.endswith("s"):
        found += [name[:-1], name[:-2] if name.endswith("es") else name[:-1], f"{name[:-1]}list"]
    return found


class Model:
    """The API model of one service."""

    def __init__(self, name: str, document: dict[str, Any]) -> None:
        self.name = name
        self.shapes: dict[str, Shape] = document["shapes"]
        self.operations: dict[str, str] = {
            name: operation["input"]["shape"]
            for name, operation in document["operations"].items()
            if "input" in operation and VERBS.match(name)
        }
        self.version = str(document["metadata"].get("apiVersion", ""))

    @functools.cached_property
    def structures(self) -> dict[str, dict[str, Member]]:
        """Return the members of every structure, both by normalized name."""
        return {
            name: {
                plain(member): (held["shape"], held.get("documentation", ""))
                for member, held in shape.get("members", {}).items()
            }
            for name, shape in self.shapes.items()
            if shape["type"] == "structure" and not shape.get("exception")
        }

    @functools.cached_property
    def reached(self) -> frozenset[str]:
        """Return every shape that an operation's input contains."""
        found: set[str] = set()
        todo = list(self.operations.values())
        while todo:
            name = todo.pop()
            if name in found:
                continue
            found.add(name)
            shape = self.shapes[name]
            todo += [held["shape"] for held in shape.get("members", {}).values()]
            todo += [shape[key]["shape"] for key in ("member", "value") if key in shape]
        return frozenset(found)

    @functools.cached_property
    def words(self) -> dict[str, list[Member]]:
        """Return the members of all input structures by normalized name."""
        found: dict[str, list[Member]] = defaultdict(list)
        for structure in sorted(self.reached & set(self.structures)):
            for name, member in self.structures[structure].items():
                found[name].append(member)
        return found

    def inner(self, name: str) -> str:
        """Return the structure behind a shape, which may be a list or an `Items` wrapper; empty if there is
        none.
        """
        shape = self.shapes[name]
        while shape["type"] == "list" or (
            shape["type"] == "structure" and "Items" in shape["members"] and "Quantity" in shape["members"]
        ):
            name = shape["member"]["shape"] if shape["type"] == "list" else shape["members"]["Items"]["shape"]
            shape = self.shapes[name]
        return name if shape["type"] == "structure" else ""

    def leaf(self, name: str) -> tuple[str, Shape, Shape | None]:
        """Return the name and shape of a scalar or of a list's scalar items, and the list."""
        shape = self.shapes[name]
        holder = None
        while shape["type"] == "list":
            holder, name = shape, shape["member"]["shape"]
            shape = self.shapes[name]
        return name, shape, holder

    def entry(self, member: Member) -> tuple[str, Entry, str]:
        """Return the name, the facts and the kind of a member's scalar."""
        name, document = member
        leaf, shape, holder = self.leaf(name)
        entry: Entry = {}
        low, high = shape.get("min"), shape.get("max")
        if shape["type"] == "string":
            if shape.get("enum"):
                entry["enum"] = sorted(set(shape["enum"]))
            else:
                if (low or 0) > 0 or high:
                    entry |= limits(LENGTHS, low or None, high)
                if (pattern := anchored(shape.get("pattern", ""))) and usable(pattern):
                    entry["pattern"] = pattern
        elif KINDS.get(shape["type"]) == "number" and (low is not None or high is not None):
            entry |= limits(NUMBERS, low, high)
        if holder and holder.get("max"):
            entry |= limits(ITEMS, None, holder["max"])
        kind = KINDS.get(shape["type"], "")
        if not set(entry) - {"maxItems"} and (
            documented := promised(document or shape.get("documentation", ""), kind)
        ):
            entry |= documented
        return leaf, entry, kind


def read_models(folder: Path) -> dict[str, Model]:
    found = {}
    for service in sorted(path for path in (folder / "botocore" / "data").iterdir() if path.is_dir()):
        versions = sorted(path for path in service.iterdir() if path.is_dir())
        file = next(
            (file for version in reversed(versions) for file in version.glob("service-2.json*")), None
        )
        if file is not None:
            found[service.name] = Model(
                service.name,
                json.loads(gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()),
            )
    return found


def schema(model: Model, name: str, seen: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a JSON schema with the constraints of a shape."""
    shape = model.shapes[name]
    kind = shape["type"]
    if name in seen:
        return {}
    if kind == "structure":
        found: dict[str, Any] = {
            "type": "object",
            "properties": {
                key: schema(model, held["shape"], (*seen, name)) for key, held in shape["members"].items()
            },
        }
        return found | ({"required": shape["required"]} if shape.get("required") else {})
    if kind == "list":
        return {"type": "array", "items": schema(model, shape["member"]["shape"], (*seen, name))}
    if kind == "map":
        return {
            "type": "object",
            "additionalProperties": schema(model, shape["value"]["shape"], (*seen, name)),
        }
    if kind == "string":
        return {"type": "string", "enum": sorted(shape["enum"])} if shape.get("enum") else {"type": "string"}
    return {"type": {"boolean": "boolean", "integer": "integer", "long": "integer"}.get(kind, "number")}
