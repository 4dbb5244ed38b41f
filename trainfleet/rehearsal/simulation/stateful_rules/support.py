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
    calendar does not list is not judged.
    """
    inputs = plain(record.inputs)
    only, unless = row.get("only"), row.get("unless")
    if (only and _at(inputs, only[0]) != only[1]) or (unless and _at(inputs, unless[0]) == unless[1]):
        return ""
    found = re.match(r"\d+\.\d+", str(_at(inputs, row["property"]) or ""))
    day = today()
    for support in versions_of(row["cloud"]):
        if found and support.version == found[0]:
            if day < support.offered:
                return f"Kubernetes {found[0]} is offered from {support.offered}, and it is {day}"
            if day >= support.ends:
                return f"standard support of Kubernetes {found[0]} ended on {support.end}, and it is {day}"
    return ""


def _at(value: Any, path: str) -> Any:
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value
