"""Rows of azure-native: the rules by which the provider is generated from Azure's API definitions.

A property replaces a resource in three cases (forceNew in provider/pkg/gen/properties.go):

- It is part of the resource's address: its group, its parents, its name. The address is not a property of the
  resource, so it is an input without an output of the same name.
- It is a property of the resource itself, not of a nested type, that may be created but not updated
  (`x-ms-mutability`). Azure's management packages for Python say so (azure_models.py) for one API version
  each: a type that the installed SDK has of another version is not read.
- The provider lists it by hand (forceNewMap), unless it is in noForceNewMap.

Of a type that is not read, every other property but the tags is unclear.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Iterable, Mapping

from tools.knowledge.azure_models import Field, Resource, singular
from trainfleet.rehearsal.simulation.knowledge_table import Row
from trainfleet.rehearsal.simulation.schema import Package, Property, ResourceType, inputs_of

_ADDRESS = re.compile(r"(Name|^name|^scope|^resourceUri|^resourceId|^subscriptionId|^managementGroupId|Id)$")
_VERSION = re.compile(r"Uses Azure REST API version ([\w-]+)")
_NAMESPACES = {"privatedns": "network"}
"""The namespace of Azure that a module is part of, where it is not the module's name."""
NOT_READ = "not read"
LISTS = ("forceNewMap", "noForceNewMap")
Lists = Mapping[str, Mapping[str, list[str]]]
"""Properties by module and resource, as the provider lists them."""


def rows(
    package: Package, listed: Lists, spared: Lists, resources: Iterable[Resource] = ()
) -> dict[str, Row]:
    """Return a row for each type of the package.

    Args:
        package: the installed SDK.
        listed: the provider's variable `forceNewMap`.
        spared: the provider's variable `noForceNewMap`.
        resources: what the management packages say.
    """
    known = list(resources)
    found = {}
    for token in package.classes:
        resource = package.resource(token)
        if resource is None:
            continue
        listed_paths = (path for each in _listed(listed, token) for path in _places(each, resource.inputs))
        replace = {*address(resource), *listed_paths}
        model = match(resource, api_version(package, token), known)
        if model:
            replace |= read_row(resource, model)
        replace -= set(_listed(spared, token))
        file = f"{model.source} (API version {model.api_version})" if model else ""
        found[token] = Row(tuple(sorted(replace)), {}, {} if model else {"*": NOT_READ}, file=file)
    return found


def _listed(lists: Lists, token: str) -> Iterable[str]:
    _, module, name = token.split(":")
    modules = {each.lower(): resources for each, resources in lists.items()}
    return modules.get(module.split("/")[0], {}).get(name, ())


def match(resource: ResourceType, version: str, known: Iterable[Resource]) -> Resource | None:
    """Return what the management packages say of a type, if exactly one resource of its API version has its
    name, as many parts in its address, and every one of its inputs.
    """
    _, module, name = resource.token.split(":")
    module, expected = _NAMESPACES.get(module, module), singular(name)
    found = [
        each
        for each in known
        if (each.namespace, each.api_version) == (module, version)
        and expected in each.names
        and _has(each, resource)
    ]
    return found[0] if len({_shape(each) for each in found}) == 1 else None


def read_row(resource: ResourceType, model: Resource) -> set[str]:
    """Return the inputs that replace: those of the address, and those that may be created but not updated."""
    fields = _fields(model, resource)
    return _parts(model, resource) | {
        name for name in resource.inputs if name in fields and fields[name].create_only
    }


def _parts(model: Resource, resource: ResourceType) -> set[str]:
    """Return the inputs of a type that are part of its address."""
    fields = _fields(model, resource)
    return {
        name
        for name in resource.inputs
        if name not in fields or (fields[name].read_only and name.lower() in model.parameters)
    }


def _fields(model: Resource, resource: ResourceType) -> Mapping[str, Field]:
    """Return the properties of a model as the SDK has them: those of `properties` at the top."""
    return model.fields if "properties" in resource.inputs else {**model.properties, **model.fields}


def _has(model: Resource, resource: ResourceType) -> bool:
    """Return whether a model has every input of a type that is not part of the address."""
    parts, fields = _parts(model, resource), _fields(model, resource)
    rest = set(resource.inputs) - parts
    return len(parts - {"subscriptionId"}) == len(model.parameters) and all(
        not fields[name].read_only for name in rest
    )


def _shape(model: Resource) -> tuple[object, ...]:
    """Return what a row takes from a model."""
    fields = {**model.properties, **model.fields}
    return tuple(sorted(name for name, each in fields.items() if each.create_only))


@functools.cache
def _text(module: str) -> str:
    return inspect.getsource(importlib.import_module(module))


def api_version(package: Package, token: str) -> str:
    """Return the API version of a type by the SDK's documentation; empty if it does not say."""
    fqn, name = package.classes[token]
    cls = getattr(importlib.import_module(fqn), name)
    found = _VERSION.search(_text(cls.__module__))
    return found[1] if found else ""


def _places(name: str, inputs: Mapping[str, Property]) -> list[str]:
    """Return the paths of a listed property: its own, or those of the first nested types that have it."""
    if name in inputs:
        return [name]
    found = []
    for own, each in inputs.items():
        choices = (each.kind, *each.kind.choices)
        nested = [choice.cls for choice in choices if choice.name == "object" and choice.cls is not None]
        found += [f"{own}.{name}" for cls in nested if name in inputs_of(cls)]
    return found


def address(resource: ResourceType) -> list[str]:
    """Return the inputs that are part of a resource's address."""
    return [
        name
        for name, each in resource.inputs.items()
        if name not in resource.outputs and each.kind.name == "string" and _ADDRESS.search(name)
    ]
