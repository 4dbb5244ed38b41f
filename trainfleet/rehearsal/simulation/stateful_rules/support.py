"""Versions over time: a managed cluster cannot be created with a Kubernetes version out of support."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trainfleet.dates import today
from trainfleet.kubernetes_support import versions_of
from trainfleet.rehearsal.simulation.pulumi_values import plain

if TYPE_CHECKING:
    from trainfleet.rehearsal.simulation.cloud_object import CloudObject


def unsupported(row: dict[str, Any], record: CloudObject) -> str:
    """Return why a cloud rejects the version of a new cluster on this day; empty if it does not.

    `only` and `unless` are a path and the value that it must or must not have. A version that the support
    calendar does not list is not checked.
    """
    inputs = plain(record.inputs)
    only, unless = row.get("only"), row.get("unless")
    if (only and at(inputs, only[0]) != only[1]) or (unless and at(inputs, unless[0]) == unless[1]):
        return ""
    found = re.match(r"\d+\.\d+", str(at(inputs, row["property"]) or ""))
    day = today()
    for support in versions_of(row["cloud"]):
        if found and support.version == found[0]:
            if day < support.offered:
                return f"Kubernetes {found[0]} is offered from {support.offered}, and it is {day}"
            if day >= support.ends:
                return f"standard support of Kubernetes {found[0]} ended on {support.end}, and it is {day}"
    return ""


def at(value: Any, path: str) -> Any:
    """Return the value at a dotted path of plain inputs, or None."""
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value


def skewed(row: dict[str, Any], pool: CloudObject, cluster: CloudObject) -> str:
    """Return why a cluster rejects the version or the image release of a node pool; empty if it does not."""
    inputs = plain(pool.inputs)
    if (only := row.get("only")) and at(inputs, only[0]) != only[1]:
        return ""
    nodes, control = (
        minor_of(at(inputs, row["property"])),
        minor_of(at(plain(cluster.inputs), row["version"])),
    )
    if nodes is None or control is None:
        return ""
    if not control - row["most"] <= nodes <= control:
        limit = f"at most {row['most']} minor versions older, and never newer"
        what = row.get("what", "nodes")
        return f"{what} of 1.{nodes} with a control plane of 1.{control}: {limit}"
    release = at(inputs, row["release"]) if "release" in row else None
    image = minor_of(release)
    if image is not None and image != nodes:
        return f"{row['release']} {release} is an image of 1.{image}, and the nodes have 1.{nodes}"
    return ""


def minor_of(version: Any) -> int | None:
    """Return the minor version of `1.35`, `1.35.2-gke.1` or `v1.35.0-eksbuild.2`; None for another text."""
    found = re.match(r"v?1\.(\d+)", str(version or ""))
    return int(found[1]) if found else None
