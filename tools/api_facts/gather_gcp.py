"""Gathers facts about gcp's input classes from Google's discovery documents and the SDK's documentation.

Run `python -m tools.api_facts.gather_gcp --documents FOLDER [--module NAME ...]` after
an SDK upgrade. FOLDER is `googleapiclient/discovery_cache/documents` of google-api-python-client. Classes are
matched by name, and only if most of their properties match.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
import tomllib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.api_facts.discovery import Api, facts, inner, normal, read_apis
from tools.api_facts.gather import final
from tools.api_facts.keywords import LENGTHS, NUMBERS, Entry, without
from tools.api_facts.naming import name_rule
from tools.api_facts.places import folder_of
from trainfleet.rehearsal.simulation.schema import Kind, Property, documents_of, inputs_of, packages

LEAST = 0.5
"""The least share of an input class's properties that a matching schema must have."""
_ANYWHERE = frozenset(
    map(
        normal,
        (
            "project",
            "region",
            "zone",
            "location",
            "labels",
            "annotations",
            "name",
            "parent",
            "deletionPolicy",
            "deletionProtection",
            "etag",
        ),
    )
)
_SCALARS = {"string": False, "enum": False, "integer": True, "number": True}


@dataclass
class GatheredFacts:
    """The facts of one SDK module."""

    types: dict[str, dict[str, Entry]] = field(default_factory=lambda: defaultdict(dict))
    sources: set[str] = field(default_factory=set)

    def add(self, cls: type, name: str, found: Entry) -> None:
        """Add the facts of a property. If two sources differ, keep neither."""
        held = self.types[cls.__name__]
        held[name] = found if name not in held or held[name] == found else {}


def scalar(kind: Kind) -> str:
    """Return the name of a scalar type, or of the scalar items of a list."""
    if kind.name == "union":
        return next((choice.name for choice in kind.choices if choice.name in _SCALARS), "")
    return scalar(kind.item) if kind.name == "list" and kind.item else kind.name


def input_class(kind: Kind) -> type | None:
    """Return the class of an object or of a list's items."""
    if kind.name == "union":
        return next((choice.cls for choice in kind.choices if choice.cls is not None), None)
    return input_class(kind.item) if kind.name == "list" and kind.item else kind.cls


# API documents
# ---------------------------------------------------------------------------------------------------------


@dataclass
class Documents:
    """The APIs behind one SDK module."""

    apis: list[Api]

    def best(self, cls: type, name: str) -> list[tuple[Api, int, str]]:
        """Return the schema of each version that best matches a class by its properties and its name."""
        own = {normal(key) for key in inputs_of(cls)} - _ANYWHERE
        found = []
        for api in self.apis:
            for index, schemas in enumerate(api.versions):
                scored = [(self._score(own, schemas[schema], schema, name), schema) for schema in schemas]
                score, schema = max(scored, default=(0.0, ""))
                if score >= LEAST + 0.3:
                    found.append((score, api, index, schema))
        most = max((score for score, *_ in found), default=0)
        return [(api, index, schema) for score, api, index, schema in found if score >= most - 0.25]

    @staticmethod
    def _score(own: set[str], properties: dict[str, Any], schema: str, name: str) -> float:
        shared = len(own & set(properties))
        part = shared / max(1, len(own))
        if part < LEAST or not shared:
            return 0
        same = normal(re.sub(r"^GoogleCloud(.*?V\d+(?:(?:alpha|beta|main)\d*)?)", "", schema))
        alike = difflib.SequenceMatcher(None, same, normal(name)).ratio()
        return part + alike * 0.8

    def walk(
        self, gathered: GatheredFacts, cls: type, places: list[tuple[Api, int, str]], depth: int = 0
    ) -> None:
        """Add the facts of the schemas at `places` to a class and to its nested classes."""
        for name, declared in inputs_of(cls).items():
            entries = self.entries(places, name)
            if not entries:
                continue
            kind = scalar(declared.kind)
            nested = input_class(declared.kind)
            if nested is not None and depth < 10:
                inside = [
                    (api, index, schema)
                    for api, index, entry in entries
                    if (schema := inner(entry).get("$ref", ""))
                ]
                inside = [place for place in inside if self._fits(nested, place)]
                if inside:
                    self.walk(gathered, nested, inside, depth + 1)
            elif kind in _SCALARS and declared.kind.name != "map":
                self.add(
                    gathered,
                    cls,
                    name,
                    declared,
                    facts([entry for *_, entry in entries], number=_SCALARS[kind]),
                )

    def entries(self, places: list[tuple[Api, int, str]], name: str) -> list[tuple[Api, int, Entry]]:
        """Return a property in every version, even if the SDK has lifted it out of a nested object."""
        found = []
        for api, index, schema in places:
            properties = api.versions[index][schema]
            if normal(name) in properties:
                found.append((api, index, properties[normal(name)]))
                continue
            below = [
                deeper[normal(name)]
                for entry in properties.values()
                if (deeper := api.versions[index].get(entry.get("$ref", ""), {})) and normal(name) in deeper
            ]
            if len(below) == 1 and normal(name) not in (
                "type",
                "name",
                "id",
                "kind",
                "state",
                "mode",
                "value",
            ):
                found.append((api, index, below[0]))
        return found

    @staticmethod
    def _fits(nested: type, place: tuple[Api, int, str]) -> bool:
        api, index, schema = place
        own = {normal(key) for key in inputs_of(nested)}
        return len(own & set(api.versions[index].get(schema, {}))) >= LEAST * len(own)

    def add(self, gathered: GatheredFacts, cls: type, name: str, declared: Property, found: Entry) -> None:
        """Add the facts of the API unless the SDK's documentation contradicts them."""
        docs = declared.docs
        if not found:
            return
        if docs.closed and docs.values:
            return  # the provider accepts what it documents
        values = found.get("enum", [])
        known = {*docs.values, *map(str, declared.kind.values)}
        if values and known and not known & set(values):
            return  # the provider's names differ from the API's
        if docs.numbers != (None, None) or scalar(declared.kind) not in ("integer", "number"):
            found = without(found, *NUMBERS)
        if docs.length != (None, None):
            found = without(found, *LENGTHS)
        if found:
            gathered.add(cls, name, found)


# Names
# ---------------------------------------------------------------------------------------------------------

_NAMES = re.compile(r"name|id|\w+(?:Id|Name)")
_PLACE = "(?:.+/)?"


def from_prose(gathered: GatheredFacts, cls: type, seen: set[type]) -> None:
    """Add the name rules that only the SDK's documentation contains."""
    seen.add(cls)
    documents = documents_of(cls)
    for name, declared in inputs_of(cls).items():
        if _NAMES.fullmatch(name) and scalar(declared.kind) == "string":
            add_name(gathered, cls, name, declared, documents.get(name, ""))
        nested = input_class(declared.kind)
        if nested is not None and nested not in seen:
            from_prose(gathered, nested, seen)


def add_name(gathered: GatheredFacts, cls: type, name: str, declared: Property, text: str) -> None:
    """Add the rule of a name that may have its path as a prefix."""
    found = name_rule(text)
    if (
        not found
        or gathered.types[cls.__name__].get(name, {}).keys() & {"pattern", "enum"}
        or declared.docs.values
        or declared.docs.pattern
    ):
        return
    if "maxLength" in found:
        low, high = found.get("minLength") or 1, found["maxLength"]
        found["pattern"] = f"(?=[^/]{{{low},{high}}}$){found['pattern']}"
    if "(default)" in text:
        found["pattern"] = rf"(?:\(default\)|{found['pattern']})"
    gathered.add(
        cls, name, {**gathered.types[cls.__name__].pop(name, {}), "pattern": f"{_PLACE}{found['pattern']}"}
    )


def own_name(gathered: GatheredFacts, cls: type, places: list[tuple[Api, int, str]]) -> None:
    """Add the rule of the id that the caller chooses when it creates a resource."""
    docs = [rules for api, index, schema in places if (rules := api.ids[index].get(schema))]
    inputs = inputs_of(cls)
    for parameter, text in docs[0].items() if docs else ():
        name = next((own for own in inputs if normal(own) == parameter), "name" if len(docs[0]) == 1 else "")
        if name in inputs and scalar(inputs[name].kind) == "string":
            add_name(gathered, cls, name, inputs[name], text)


# Files
# ---------------------------------------------------------------------------------------------------------


def gather(documents: Path, only: set[str]) -> dict[str, GatheredFacts]:
    """Return the facts of each SDK module."""
    package = packages()["gcp"]
    names = tomllib.loads(Path(__file__).with_name("gcp.toml").read_text())
    doubtful = {(entry["class"], entry["property"]) for entry in names["without"]}
    result: dict[str, GatheredFacts] = defaultdict(GatheredFacts)
    apis: dict[str, Documents] = {}
    for token in sorted(package.classes):
        module = token.split(":")[1].split("/")[0]
        resource = package.resource(token)
        if resource is None or resource.args is None or (only and module not in only):
            continue
        gathered = result[module]
        from_prose(gathered, resource.args, set())
        if re.search("I[aA][mM]", token):
            continue
        if module not in apis:
            apis[module] = Documents(read_apis(documents, names["apis"].get(module, [module])))
            gathered.sources |= {f"{api.name} revision {api.revision}" for api in apis[module].apis}
        own = apis[module]
        if places := own.best(resource.args, token.split(":")[-1]):
            own.walk(gathered, resource.args, places)
            own_name(gathered, resource.args, places)
    for gathered in result.values():
        for cls, properties in gathered.types.items():
            gathered.types[cls] = {
                name: found for name, found in properties.items() if found and (cls, name) not in doubtful
            }
    return result


def written(gathered: GatheredFacts, source: str) -> str:
    """Return the text of a facts file: shapes named by their facts, sorted, one per line."""
    shapes: dict[str, str] = {}
    types: dict[str, dict[str, str]] = {}
    for cls in sorted(gathered.types):
        for name in sorted(gathered.types[cls]):
            text = json.dumps(final(gathered.types[cls][name]), sort_keys=True)
            shapes.setdefault(text, f"s{len(shapes) + 1}")
            types.setdefault(cls, {})[name] = shapes[text]
    lines = [f' "source": {json.dumps(source)}']
    lines.append(
        ' "shapes": {\n'
        + ",\n".join(f"  {json.dumps(name)}: {text}" for text, name in shapes.items())
        + "\n }"
    )
    lines.append(
        ' "types": {\n'
        + ",\n".join(f"  {json.dumps(cls)}: {json.dumps(types[cls])}" for cls in types)
        + "\n }"
    )
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main(options: list[str]) -> int:
    """Gather and write the facts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--documents", type=Path, required=True, help="the discovery documents of google-api-python-client"
    )
    parser.add_argument("--module", action="append", default=[], help="only this module of the SDK")
    arguments = parser.parse_args(options)
    for module, gathered in sorted(gather(arguments.documents, set(arguments.module)).items()):
        file = folder_of("gcp", module) / f"{module}.json"
        if not any(gathered.types.values()):
            file.unlink(missing_ok=True)
            continue
        source = (
            f"Google API discovery documents: {', '.join(sorted(gathered.sources))}"
            if gathered.sources
            else f"the documentation of pulumi-gcp {packages()['gcp'].version}"
        )
        file.write_text(written(gathered, source))
        sys.stdout.write(f"{file.name}: {sum(map(len, gathered.types.values()))} facts\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
