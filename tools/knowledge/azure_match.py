"""Finds the API model of each azure-native type, and what it says of the type's top-level properties.

The installed SDK does not have a type's address. An operation is the one that creates a type if it belongs
to a resource provider of the type's module, if it has the type's name (the SDK makes that from the
operation), if every parameter of its address is an input of the type, and if its model has at least half of
the type's other inputs.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools.knowledge.azure_models import Models, Operation, Visibility
from trainfleet.rehearsal.simulation.schema import Package, ResourceType

_ALIAS = re.compile(r'"azure-native:(\w+)(?:/\w+)?:(\w+)"')
_PLURAL = re.compile(r"(?<=\w\w)(ies|(?<=s)es|es|(?<!s)s|(?<![aeiou])y|e)$")
_ENOUGH = 0.5
"""Smallest share of a type's inputs that its model must have."""
Operations = Mapping[str, list[tuple[Models, Operation]]]


@dataclass(frozen=True)
class Mutability:
    """What a model says of a type's top-level inputs, without those of its address."""

    source: str
    address: tuple[str, ...]
    """Inputs that are parameters of the address."""
    replace: tuple[str, ...]
    """Inputs that can be given at creation only."""
    update: tuple[str, ...]
    read_only: tuple[str, ...]
    """Inputs of the SDK's version of the API that are outputs in the model's."""
    absent: tuple[str, ...]
    """Inputs that the model does not have, or of which it does not say when they can be given."""


@dataclass
class Names:
    """The names that types and modules have or had."""

    of_type: dict[str, set[str]] = field(default_factory=dict)
    """Comparable names by token."""
    of_module: dict[str, set[str]] = field(default_factory=dict)
    """Modules by module: a module's types may come from several resource providers."""


def names(package: Package) -> Names:
    """Return the names of types and modules from the aliases in the SDK's source."""
    found = Names()
    for token in package.classes:
        resource = package.resource(token)
        _, module, name = token.split(":")
        own = found.of_type.setdefault(token, {comparable(name)})
        modules = found.of_module.setdefault(module, {module})
        if resource is not None and resource.args is not None:
            for other, alias in _ALIAS.findall(Path(inspect.getfile(resource.args)).read_text()):
                modules.add(other.lower())
                own.add(comparable(alias))
    return found


def comparable(name: str) -> str:
    """Return a name in small letters and without the endings of plurals: `webappauthsetting`."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
    return "".join(_PLURAL.sub("", word.lower()) for word in words)


def match(token: str, resource: ResourceType, known: Names, operations: Operations) -> Mutability | None:
    """Return what the best operation of a type says; None if there is none, or if two best ones differ."""
    own, module = known.of_type[token], token.split(":")[1]
    best: list[tuple[tuple[int, float, str, str], Mutability]] = []
    for name in sorted(known.of_module[module]):
        for models, operation in operations.get(name, ()):
            parameters = {each.lower() for each in operation.parameters}
            inputs = {each.lower() for each in resource.inputs}
            if not parameters <= inputs:
                continue
            for model, rank in _models(own, models, operation):
                found = _read(resource, models, model, parameters)
                others = len(found.replace) + len(found.update)
                every = others + len(found.absent) + len(found.read_only)
                share = others / every if every else 1.0
                if share >= _ENOUGH:
                    best.append(((rank, share, models.api, models.date), found))
    if not best:
        return None
    first = max(order for order, _ in best)
    choices = [each for order, each in best if order == first]
    return choices[0] if all(each == choices[0] for each in choices) else None


def _models(own: set[str], models: Models, operation: Operation) -> Iterator[tuple[str, int]]:
    """Yield the models of an operation that may be a type's, with the higher number for the better name."""
    if comparable(operation.name) in own:
        yield operation.body, 2
    elif comparable(operation.body) in own:
        yield operation.body, 1
    for kind in models.kinds(operation.body):
        if comparable(kind) in own:
            yield kind, 2


def _read(resource: ResourceType, models: Models, model: str, parameters: Iterable[str]) -> Mutability:
    """Return what a model says of the inputs that are not in the address."""
    own = models.all_fields(model)
    inner = own["properties"].model if "properties" in own and "properties" not in resource.inputs else ""
    below = models.all_fields(inner) if inner else {}
    groups: dict[str, list[str]] = {
        "address": [],
        "replace": [],
        "update": [],
        "read_only": [],
        "absent": [],
    }
    address = set(parameters)
    for name in resource.inputs:
        kinds = {_effect(each[name].visibility) for each in (own, below) if name in each}
        if name.lower() in address:
            kinds = {"address"}
        groups[kinds.pop() if len(kinds) == 1 else "absent"].append(name)
    return Mutability(models.source, *(tuple(sorted(each)) for each in groups.values()))


def _effect(visibility: Visibility | None) -> str:
    """Return the group of a property, as provider/pkg/gen/properties.go of the provider decides it."""
    if visibility is None:
        return "absent"
    if visibility == {"read"}:
        return "read_only"
    return "replace" if "create" in visibility and "update" not in visibility else "update"
