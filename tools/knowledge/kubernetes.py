"""Rows of the Kubernetes provider: its list of properties that cannot be changed (provider/diff.go)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainfleet.rehearsal.simulation.knowledge_table import Row
from trainfleet.rehearsal.simulation.property_paths import join_path, split_path
from trainfleet.rehearsal.simulation.schema import Package

VARIABLE = "github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/provider.forceNew"
MODULE = "github.com/pulumi/pulumi-kubernetes/provider/v4"
_MUTABLE_ONLY_IF_ASKED = {
    "kubernetes:core/v1:Secret": ("data", "stringData", "type"),
    "kubernetes:core/v1:ConfigMap": ("binaryData", "data"),
}
"""Replaced unless the provider's enableSecretMutable or enableConfigMapMutable is on (forceNewProperties)."""


def rows(listed: Mapping[str, Any], package: Package) -> dict[str, Row]:
    """Return a row for each type of the package.

    Args:
        listed: the provider's variable `forceNew`: properties by API group, version and kind.
        package: the installed SDK.
    """
    found: dict[str, Row] = {}
    for token in package.classes:
        _, place, kind = token.split(":")
        group, _, version = place.rpartition("/")
        properties = listed.get(group or "core", {}).get(version, {}).get(kind, [])
        paths = {split_path(each.removeprefix(".")) for each in properties}
        resource = package.resource(token)
        if resource is not None and "metadata" in resource.inputs:
            paths |= {("metadata", "name"), ("metadata", "namespace")}  # metadataForceNewProperties
        paths |= {(each,) for each in _MUTABLE_ONLY_IF_ASKED.get(token, ())}
        highest = [path for path in paths if not any(path[:size] in paths for size in range(1, len(path)))]
        found[token] = Row(tuple(sorted(map(join_path, highest))))
    return found
