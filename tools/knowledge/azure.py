"""Rows of azure-native: from the address of a type, the provider's own lists, and the models of Azure's APIs.

A property replaces the resource in three cases (provider/pkg/gen/properties.go and
provider/pkg/provider/diff.go):

- It is a part of the address: the group, the parents, the name.
- The provider lists it in `forceNewMap`.
- It is a top-level property whose `x-ms-mutability` allows create but not update, and the provider does not
  list it in `noForceNewMap`. Below the top level the provider updates in place what only creation takes.

The last is read from Azure's management packages for Python (azure_models.py). Without a model of the type,
every property but the address, the listed ones and the tags is unclear.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tools.knowledge.azure_match import Mutability, Operations, match, names
from trainfleet.rehearsal.simulation.knowledge_table import Row
from trainfleet.rehearsal.simulation.schema import Package, Property, ResourceType, inputs_of

Listed = Mapping[str, Mapping[str, list[str]]]
"""A variable of the provider's: properties by module and resource."""
_ADDRESS = re.compile(r"(Name|^name|^scope|^resourceUri|^resourceId|^subscriptionId|^managementGroupId|Id)$")
NOT_READ = "not read"
READ_ONLY = "an output in the API version that was read"
_IN_PLACE = {"azure-native:elasticsan:ElasticSan": ("baseSizeTiB", "extendedCapacitySizeTiB")}
"""Properties that later versions of the provider list in `noForceNewMap` (pull request 4795, 2026-08-13)."""
_OLDER = {"compute": ("location",)}
"""By module: properties that only creation takes in the models, but not yet in the SDK's versions of the API
(for compute common-types/v1/common.json of Azure/azure-rest-api-specs, 08272fc)."""


def rows(package: Package, listed: Listed, never: Listed, operations: Operations) -> dict[str, Row]:
    """Return a row for each type of the package.

    Args:
        package: the installed SDK.
        listed: the provider's variable `forceNewMap`.
        never: the provider's variable `noForceNewMap`.
        operations: what creates resources, by resource provider (azure_models.by_namespace).
    """
    known = names(package) if operations else None
    found = {}
    for token in package.classes:
        resource = package.resource(token)
        if resource is not None:
            model = match(token, resource, known, operations) if known else None
            found[token] = _row(token, resource, model, listed, never)
    return found


def _row(token: str, resource: ResourceType, model: Mutability | None, listed: Listed, never: Listed) -> Row:
    forced = {path for each in _listed(listed, token) for path in _places(each, resource.inputs)}
    if model is None:
        return Row(tuple(sorted({*address(resource), *forced})), {}, {"*": NOT_READ})
    kept = {*_listed(never, token), *_IN_PLACE.get(token, ()), *_OLDER.get(token.split(":")[1], ())}
    decided = {*model.replace, *model.update}
    place = {*model.address, *(name for name in address(resource) if name not in decided)}
    replace = {*place, *forced, *(name for name in model.replace if name not in kept)}
    unclear = dict.fromkeys(model.absent, NOT_READ) | dict.fromkeys(model.read_only, READ_ONLY)
    return Row(
        tuple(sorted(replace)),
        {},
        {name: why for name, why in sorted(unclear.items()) if name not in replace and name not in kept},
        file=f"with {model.source}",
    )


def _listed(variable: Listed, token: str) -> list[str]:
    """Return the properties of a type in a variable of the provider's, whose modules have capital letters."""
    _, module, name = token.split(":")
    found = next((each for own, each in variable.items() if own.lower() == module.split("/")[0]), {})
    return found.get(name, [])


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
