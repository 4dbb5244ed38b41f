"""Makes rehearsal/clouds/facts/azure_native from the types that Azure publishes for Bicep.

    python -m rehearsal.clouds.facts.gather_azure --types FOLDER [--module NAME ...]

`--types` is the folder `generated` of Azure's bicep-types-az. Run by hand when the SDK moves. Easy to get wrong: only the version of the API that
the SDK's class names is read, and a resource is matched by its name and by most of its properties.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections import defaultdict
from importlib import import_module
from pathlib import Path

from rehearsal.clouds.facts import FACTS
from rehearsal.clouds.facts.bicep import Type, Types
from rehearsal.clouds.facts.discovery import normal
from rehearsal.clouds.facts.gather_gcp import Entry, Gathered, input_class, scalar, written
from rehearsal.clouds.schema import Kind, Package, Property, ResourceType, inputs_of, packages

LEAST = 0.5
_NUMBERS = ("integer", "number")
_VERSION = re.compile(r"Uses Azure REST API version ([\w-]+)\.")


def api_version(package: Package, token: str) -> str:
    """Return the version of the API that a class says it uses."""
    fqn, name = package.classes[token]
    found = _VERSION.search(Path(str(import_module(getattr(import_module(fqn), name).__module__).__file__)).read_text())
    return found[1] if found else ""


def matched(resource: ResourceType, kind: str, types: dict[str, Type]) -> str:
    """Return the resource type whose last part is the class's name and which has most of its properties, or nothing."""
    own = {name.lower() for name in resource.inputs}
    best, found = 0.0, ""
    for name, body in types.items():
        last = normal(name.rsplit("/", 1)[-1])
        if not (normal(kind).endswith(last) or last.endswith(normal(kind))):
            continue
        shared = len(own & {one.lower() for one in body.properties()})
        score = shared / max(1, len(own)) + (0.5 if last == normal(kind) else 0) - 0.02 * name.count("/")
        if score > best:
            best, found = score, name
    return found if best >= LEAST else ""


def walk(gathered: Gathered, cls: type, types: list[Type], depth: int = 0) -> None:
    """Add the facts of types to the properties of an input class, and of what is inside."""
    beside: dict[str, list[Type]] = defaultdict(list)
    for one in types:
        for name, inner in one.properties().items():
            beside[name.lower()].append(inner)
    for name, declared in inputs_of(cls).items():
        found = beside.get(name.lower(), [])
        if not found:
            continue
        for nested in _classes(declared):
            if depth < 8:
                walk(gathered, nested, _like(nested, [variant for one in found for variant in (one, *one.variants())]), depth + 1)
        all_of = [one.facts() for one in found]
        if all(entry == all_of[0] for entry in all_of):
            add(gathered, cls, name, declared, all_of[0])


def _classes(declared: Property) -> list[type]:
    kind = declared.kind.item if declared.kind.name == "list" and declared.kind.item else declared.kind
    if kind.name == "union":
        return [choice.cls for choice in kind.choices if choice.cls is not None]
    nested = input_class(kind)
    return [nested] if nested else []


def _like(cls: type, types: list[Type]) -> list[Type]:
    own = {name.lower() for name in inputs_of(cls)}
    return [one for one in types if len(own & {name.lower() for name in one.properties()}) >= LEAST * len(own)]


def add(gathered: Gathered, cls: type, name: str, declared: Property, entry: Entry) -> None:
    """Add facts where the SDK's type and documentation do not say otherwise."""
    kind, said = scalar(declared.kind), declared.said
    kept = dict(entry)
    if kind == "string" and said.values:
        kept.pop("values", None)
    if kind == "enum" and set(kept.get("values", ())) <= enum_values(declared.kind):
        kept.pop("values", None)  # else two sets of one name clash in the SDK, or it lags behind
    if kind in _NUMBERS:
        kept = {key: value for key, value in kept.items() if key in ("range", "count")}
        if said.numbers != (None, None):
            kept.pop("range", None)
    elif kind in ("string", "enum"):
        kept.pop("range", None)
        if said.length != (None, None):
            kept.pop("length", None)
    else:
        kept = {key: value for key, value in kept.items() if key == "count"}
    if declared.kind.name != "list":
        kept.pop("count", None)
    if "values" not in kept:
        kept.pop("open", None)
    if kept:
        gathered.add(cls, name, kept)


def enum_values(kind: Kind) -> set[str]:
    """Return the values of an enum, or of a list's items."""
    if kind.name == "list" and kind.item:
        return enum_values(kind.item)
    return {str(value) for choice in (kind, *kind.choices) for value in choice.values}


def names(gathered: Gathered, resource: ResourceType, kind: str, types: dict[str, Type]) -> None:
    """Add the rules of a resource's own name and of its parent's, which stand in the path and not in the body."""
    body = {name.lower() for name in types[kind].properties()} - {"name"}
    path = {name: entry for name, entry in resource.inputs.items() if name.lower() not in body and scalar(entry.kind) == "string"}
    own = [name for name, entry in path.items() if not entry.required]
    parents = [name for name, entry in path.items() if entry.required and name not in ("resourceGroupName", "scope")]
    above = kind.rpartition("/")[0]
    assert resource.args is not None
    for found, which in ((own, kind), (parents, above)):
        if len(found) == 1 and which in types and "name" in (properties := types[which].properties()):
            entry = {key: value for key, value in properties["name"].facts().items() if key in ("length", "pattern")}
            add(gathered, resource.args, found[0], resource.inputs[found[0]], entry)


def gather(types: Types, only: set[str]) -> dict[str, Gathered]:
    """Return what is found for each module of the SDK."""
    package = packages()["azure-native"]
    settings = tomllib.loads((FACTS / "azure.toml").read_text())
    result: dict[str, Gathered] = defaultdict(Gathered)
    for token in sorted(package.classes):
        _, module, kind = token.split(":")
        if "/" in module or (only and module not in only):
            continue
        resource, version = package.resource(token), api_version(package, token)
        if resource is None or resource.args is None or not version:
            continue
        for provider in settings["providers"].get(module, [f"microsoft.{module}"]):
            bodies = types.resources(provider, version)
            if name := matched(resource, kind, bodies):
                walk(result[module], resource.args, [bodies[name]])
                names(result[module], resource, name, bodies)
                break
    without = {(entry["class"], entry["property"]) for entry in settings["without"]}
    for gathered in result.values():
        for cls, properties in gathered.types.items():
            gathered.types[cls] = {name: found for name, found in properties.items() if found and (cls, name) not in without}
    return result


def main(arguments: list[str]) -> int:
    """Gather and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--types", type=Path, required=True, help="the folder `generated` of bicep-types-az")
    parser.add_argument("--module", action="append", default=[], help="only this module of the SDK")
    options = parser.parse_args(arguments)
    folder = FACTS / "azure_native"
    folder.mkdir(exist_ok=True)
    total = 0
    for module, gathered in sorted(gather(Types(options.types), set(options.module)).items()):
        file = folder / f"{module}.json"
        count = sum(map(len, gathered.types.values()))
        if count:
            file.write_text(written(gathered, "Azure's published resource types (bicep-types-az), of the API version that the class names"))
        else:
            file.unlink(missing_ok=True)
        total += count
    sys.stdout.write(f"{total} facts\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
