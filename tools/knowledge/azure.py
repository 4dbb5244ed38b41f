"""Rows of azure-native, as far as they follow from the installed SDK and the provider's own lists.

A part of a resource's address replaces it: its group, its parents, its name. The address is not a property of
the resource, so it is an input without an output of the same name. A top-level property whose
`x-ms-mutability` allows create but not update replaces too; Azure's API definitions say so, not the SDK.
Without them, every other property but the tags is unclear.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainfleet.rehearsal.simulation.knowledge_table import Row
from trainfleet.rehearsal.simulation.schema import Package, Property, ResourceType, inputs_of

_ADDRESS = re.compile(r"(Name|^name|^scope|^resourceUri|^resourceId|^subscriptionId|^managementGroupId|Id)$")
NOT_READ = "not read"


def rows(package: Package, listed: Mapping[str, Mapping[str, list[str]]]) -> dict[str, Row]:
    """Return a row for each type of the package.

    Args:
        package: the installed SDK.
        listed: the provider's variable `forceNewMap`: properties by module and resource.
    """
    modules = {module.lower(): resources for module, resources in listed.items()}
    found = {}
    for token in package.classes:
        resource = package.resource(token)
        if resource is None:
            continue
        _, module, name = token.split(":")
        given = modules.get(module.split("/")[0], {}).get(name, ())
        listed_paths = (path for each in given for path in _places(each, resource.inputs))
        replace = sorted({*address(resource), *listed_paths})
        found[token] = Row(tuple(replace), {}, {"*": NOT_READ})
    return found


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
