"""Names that a cloud keeps after a deletion, so that nothing new can have them for days or for ever.

An update that deletes and creates under one name is refused, and so is an apply after a destroy. A name that
the provider generates differs each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN, plain
from trainfleet.rehearsal.simulation.stateful_rules.references import logical_name

if TYPE_CHECKING:
    from trainfleet.rehearsal.simulation.cloud_object import CloudObject

Row = dict[str, Any]
KEPT_NAME_KINDS: Mapping[str, set[str]] = {"kept_name": {"type", "name", "say", "source"}}


def keeps_name(row: Row, gone: CloudObject) -> bool:
    """Return whether the name of a deleted resource stays taken: its settings may free it at once."""
    return not _has_any(plain(gone.inputs), row.get("free", {}))


def name_kept(row: Row, record: CloudObject, deleted: Iterable[CloudObject]) -> str:
    """Return which deleted resource still has the name of a new one; empty if none has, or if the new one
    restores it.
    """
    inputs = plain(record.inputs)
    name = _name(row, inputs)
    if UNKNOWN in name or _has_any(inputs, row.get("restored", {})):
        return ""
    for gone in deleted:
        theirs = plain(gone.inputs)
        if gone.token != record.token or _name(row, theirs) != name or not keeps_name(row, gone):
            continue
        if "unless_same" in row and theirs.get(row["unless_same"]) == inputs.get(row["unless_same"]):
            continue
        return f"the name {name[-1]} of {logical_name(gone)}, which was deleted, is still taken: {row['say']}"
    return ""


def _name(row: Row, inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """The values that make a name unique. Azure ignores their case."""
    values = tuple(str(inputs.get(each)) for each in row["name"])
    return tuple(map(str.lower, values)) if row["type"].startswith("azure-native:") else values


def _has_any(inputs: Any, settings: Mapping[str, Any]) -> bool:
    """Whether one of these settings, by path, has its value."""
    for path, expected in settings.items():
        value = inputs
        for step in path.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        if value == expected:
            return True
    return False
