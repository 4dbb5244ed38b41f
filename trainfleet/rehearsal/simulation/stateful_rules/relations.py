"""Relations between resources without which a cloud rejects one of them, or the resource cannot work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN, plain

if TYPE_CHECKING:
    from trainfleet.rehearsal.simulation.cloud_object import CloudObject

Row = dict[str, Any]
Check = Callable[[Row, "CloudObject", "list[CloudObject]"], str]


def separate(row: Row, record: CloudObject, others: list[CloudObject]) -> str:
    """Return which other resource of the same owner has an overlapping folder."""
    inputs = plain(record.inputs)
    for other in others:
        theirs = plain(other.inputs)
        if other.token != record.token or theirs.get(row["of"]) != inputs.get(row["of"]):
            continue
        for path in row["paths"]:
            own, taken = (f"{each.get(path)}".rstrip("/") + "/" for each in (inputs, theirs))
            if UNKNOWN not in own + taken and (own.startswith(taken) or taken.startswith(own)):
                return f"{path} {inputs.get(path)} overlaps {theirs.get(path)} of {_logical(other)}"
    return ""


RELATION_KINDS: Mapping[str, set[str]] = {"separate": {"type", "of", "paths", "source"}}
RELATION_CHECKS: Mapping[str, Check] = {"separate": separate}


def _logical(record: CloudObject) -> str:
    return record.urn.rsplit("::", 1)[-1]
