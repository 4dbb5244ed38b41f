"""Gathers facts about AWS's input classes from botocore's API models.

`make facts` runs `python -m tools.api_facts.gather_aws --models FOLDER`, where FOLDER has the `botocore` that
`inputs.txt` pins.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.api_facts.botocore_models import (
    VERBS,
    Member,
    Model,
    forms,
    plain,
    read_models,
    schema,
)
from tools.api_facts.conflicts import exclusive
from tools.api_facts.gather import GatheredFact, agreed, scalar, write
from tools.api_facts.keywords import ITEMS, LENGTHS, NUMBERS, Entry, joined, split, without
from tools.api_facts.places import OPTIONAL
from trainfleet.rehearsal.simulation.schema import Kind, Package, Property, inputs_of, packages

_FREE = re.compile(
    r"(?i)names?|values?|keys?|.*document|.*policy|content|.*description|.*version|.*(?-i:[a-z](?:Names?|Window|Time[zZ]one))|timezone"
)
_ENOUGH = 0.4
_SAME = 0.75
_GENERIC = frozenset(
    [
        "type",
        "types",
        "status",
        "state",
        "name",
        "names",
        "key",
        "keys",
        "value",
        "values",
        "mode",
        "action",
        "actions",
        "format",
        "id",
        "ids",
        "arn",
        "source",
        "target",
        "version",
        "level",
        "scope",
        "method",
        "role",
        "operator",
        "unit",
        "description",
        "enabled",
        "configuration",
        "protocol",
        "engine",
        "region",
        "comparisonoperator",
        "category",
        "statistic",
    ]
)


class Gatherer:
    """Matches one resource with the model of its service.

    Input classes are matched by name with the inputs of the operations that create and change a resource, and
    with the structures inside. A property without a match gets a fact only if its name has one meaning in the
    whole service.
    """

    def __init__(self, models: list[Model], module: str) -> None:
        self.models, self.module = models, module
        self.found: dict[tuple[str, str], tuple[str, Entry]] = {}

    def resource(self, args: type, title: str) -> None:
        """Gather the facts of a resource's input class."""
        declared = inputs_of(args)
        for model in self.models:
            inputs = self.inputs(model, declared, title)
            for structure in inputs:
                self.object(model, structure, args, title, seen=())
        for model in self.models:
            self.rest(model, args, seen=())

    def inputs(self, model: Model, declared: dict[str, Property], title: str) -> list[str]:
        """Return the structures that match a resource's inputs, best match first."""
        title_words = plain(title)
        names = {plain(name) for name in declared} - {"tags", "region", "name"}
        scored = []
        for operation, structure in model.operations.items():
            noun = plain(VERBS.sub("", operation, count=1))
            alike = (
                2
                if noun in forms(title_words)
                else (
                    1
                    if noun.endswith(title_words)
                    or title_words.endswith(noun)
                    or noun.startswith(title_words)
                    else 0
                )
            )
            members = self.members(model, structure)
            shared = sum(any(form in members for form in forms(name)) for name in names) / max(1, len(names))
            if alike == 2 or (alike == 1 and shared >= _ENOUGH) or shared >= _SAME:
                scored.append((alike + shared * 2, operation, structure))
        scored.sort(key=lambda item: (-item[0], item[1]))
        best = scored[0][0] if scored else 0
        return [structure for score, _, structure in scored if score >= best - 1][:6]

    def members(self, model: Model, structure: str) -> dict[str, Member]:
        """Return the members of a structure and of its wrapper structures."""
        own = model.structures.get(structure, {})
        found = dict(own)
        wrappers = [
            shape
            for member, (shape, _) in own.items()
            if model.shapes[shape]["type"] == "structure" and _wraps(member, structure)
        ]
        for wrapper in wrappers:
            for member, shape in model.structures.get(wrapper, {}).items():
                found.setdefault(member, shape)
        return found

    def object(
        self, model: Model, structure: str, args: type, noun: str, seen: tuple[tuple[type, str], ...]
    ) -> None:
        """Gather the facts of an input class from the matching structure."""
        if (args, structure) in seen:
            return
        members = self.members(model, structure)
        for name, declared in inputs_of(args).items():
            member = _counterpart(members, plain(name), plain(noun), plain(structure))
            if member is None:
                continue
            cls = _class(declared.kind)
            if cls is not None:
                if inner := model.inner(member[0]):
                    self.object(model, inner, cls, name, (*seen, (args, structure)))
            else:
                self.take(model, args, name, declared, member)

    def rest(self, model: Model, args: type, seen: tuple[type, ...]) -> None:
        """Gather the facts of unmatched properties.

        Nested classes are matched by their members, other properties by the single meaning of their name in
        the service.
        """
        if args in seen:
            return
        untouched = not any((args.__name__, name) in self.found for name in inputs_of(args))
        structures = self.alike(model, args) if seen and untouched else []
        for structure in structures:
            self.object(model, structure, args, "", ())
        for name, declared in inputs_of(args).items():
            cls = _class(declared.kind)
            if cls is not None:
                self.rest(model, cls, (*seen, args))
            elif (
                scalar(declared.kind) == "text"
                and (args.__name__, name) not in self.found
                and plain(name) not in _GENERIC
            ):
                members = {member for form in forms(plain(name))[:2] for member in model.words.get(form, ())}
                entries = [model.entry(member) for member in sorted(members)]
                texts = [entry.get("enum") for _, entry, kind in entries if kind == "text"]
                if texts and all(texts) and len({tuple(values or ()) for values in texts}) == 1:
                    self.take(model, args, name, declared, sorted(members)[0])

    def alike(self, model: Model, args: type) -> list[str]:
        """Return the structures that match a nested class by their members and the end of its name."""
        names = [plain(name) for name in inputs_of(args)]
        title = plain(args.__name__.removesuffix("Args"))
        found = []
        for structure in sorted(model.reached & set(model.structures)):
            members = model.structures[structure]
            shared = sum(any(form in members for form in forms(name)) for name in names)
            if len(names) >= 2 and shared == len(names) and len(members) <= 2 * len(names) + 2:
                found.append((title.endswith(plain(structure)), structure))
        ended = [structure for ends, structure in found if ends]
        return ended if ended else [structure for _, structure in found] if len(found) == 1 else []

    def take(self, model: Model, args: type, name: str, declared: Property, member: Member) -> None:
        """Keep the facts of a shape for a property. Of two different shapes, keep what both allow."""
        leaf, entry, kind = model.entry(member)
        if kind != scalar(declared.kind):
            return
        key = (args.__name__, name)
        if not model.shapes[leaf].get("enum") and _FREE.fullmatch(name):
            entry.pop("enum", None)  # prose lists only some of the valid values
        kept = agreed(name, declared, entry)
        if key not in self.found:
            self.found[key] = (leaf, kept)
        else:
            earlier, before = self.found[key]
            self.found[key] = (earlier, _both(before, kept))


def _wraps(member: str, structure: str) -> bool:
    title = plain(re.sub(r"(Request|Input|Message|Type)$", "", VERBS.sub("", structure, count=1)))
    return (
        bool(title)
        and member.startswith(title)
        and bool(
            re.search(
                r"(config|configuration|data|options|settings|spec|specification|input|request|properties|)$",
                member,
            )
        )
    )


def _both(one: Entry, other: Entry) -> Entry:
    """Return the widest limits of two entries."""
    (one, also), (other, more) = split(one), split(other)
    found: Entry = {}
    if "enum" in one and "enum" in other:
        found["enum"] = sorted({*one["enum"], *other["enum"]})
    if "pattern" in one and one["pattern"] == other.get("pattern"):
        found["pattern"] = one["pattern"]
    for low, high in (NUMBERS, LENGTHS, ITEMS):
        found |= {key: min(one[key], other[key]) for key in (low,) if key in one and key in other}
        found |= {key: max(one[key], other[key]) for key in (high,) if key in one and key in other}
    return joined(found, sorted({*also, *more}) if also and more else ())


def _counterpart(members: dict[str, Member], name: str, noun: str, structure: str) -> Member | None:
    """Return the member that matches a property, by its name or with a noun as prefix."""
    for form in forms(name):
        if form in members:
            return members[form]
    title = re.sub(r"(request|input|message|type)$", "", structure)
    title = re.sub(r"^(create|put|register|run|update|modify|set|start)", "", title)
    for held in (noun, title):
        for length in range(len(held), 1, -1):
            for form in forms(name)[:2]:
                if f"{held[:length]}{form}" in members:
                    return members[f"{held[:length]}{form}"]
        if held and name.startswith(held) and name[len(held) :] in members:
            return members[name[len(held) :]]
    return None


def _class(kind: Kind) -> type | None:
    if kind.name in ("list", "map") and kind.item:
        return _class(kind.item)
    if kind.name == "union":
        return next((choice.cls for choice in kind.choices if choice.cls), None)
    return kind.cls


def gather(models: dict[str, Model], package: Package, settings: dict[str, Any]) -> Iterator[GatheredFact]:
    """Yield every fact of a package's input classes.

    `settings` (aws.toml) maps modules to services and lists exceptions.
    """
    services: dict[str, list[str]] = settings["services"]
    left_out = {f"{entry['class']}.{entry['property']}": entry.get("facts") for entry in settings["without"]}
    by_name = {plain(name): name for name in models}
    gatherers: dict[str, Gatherer] = {}
    for token in sorted(package.classes):
        module = token.split(":")[1].split("/")[0]
        resource = package.resource(token)
        if resource is None or resource.args is None:
            continue
        names = services.get(module) or [name for name in [by_name.get(plain(module))] if name]
        place = resource.args.__module__.split(".")[1]
        gatherer = gatherers.setdefault(
            place, Gatherer([models[name] for name in names if name in models], place)
        )
        gatherer.resource(resource.args, token.rsplit(":", 1)[-1])
    for place, gatherer in gatherers.items():
        for (cls, name), (shape, entry) in gatherer.found.items():
            key = f"{cls}.{name}"
            facts = left_out.get(key, []) if key in left_out else []
            kept = {} if key in left_out and facts is None else without(entry, *(facts or ()))
            if kept:
                yield GatheredFact(place, cls, name, shape, kept)


def relations(package: Package, settings: dict[str, Any]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return the rows about mutually exclusive properties, by module and type."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(dict)
    for token in sorted(package.classes):
        resource, short = package.resource(token), token.split(":", 1)[1]
        if (
            resource
            and resource.args
            and short not in settings["free"]
            and (rows := list(exclusive(resource.args)))
        ):
            found[short.partition("/")[0]][short] = rows
    return dict(found)


DOCUMENTS = {
    "ecs-containers": ("ecs", "ContainerDefinitions"),
    "batch-container": ("batch", "ContainerProperties"),
    "batch-nodes": ("batch", "NodeProperties"),
}
"""Properties whose text is JSON in the form of an API shape: the name in `bodies.py`, service and shape."""


def main(arguments: list[str]) -> int:
    """Gather and write the facts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--models", type=Path, required=True, help="the folder that botocore was installed into"
    )
    parser.add_argument("--out", type=Path, help="write all files here, not to their places")
    options = parser.parse_args(arguments)
    version = next(
        (
            path.name.split("-")[1].removesuffix(".dist")
            for path in options.models.glob("botocore-*.dist-info")
        ),
        "unknown",
    )
    models = read_models(options.models)
    settings = tomllib.loads(Path(__file__).with_name("aws.toml").read_text())
    package = packages()["aws"]
    source = (
        f"botocore {version}, botocore/data/*/service-2.json; documentation of pulumi-aws {package.version}"
    )
    counts = write(
        "aws", source, gather(models, package, settings), options.out, relations(package, settings)
    )
    for name, (service, shape) in DOCUMENTS.items():
        held = {"source": f"botocore {version}, {service}, {shape}", "schema": schema(models[service], shape)}
        folder = (options.out or OPTIONAL) / "aws_documents"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(held, sort_keys=True, indent=1) + "\n")
    sys.stdout.write(f"{sum(counts.values())} facts in {len(counts)} files\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
