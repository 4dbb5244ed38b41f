"""Upgrades of Kubernetes: the steps that a control plane or a node pool may take, and the nodes that a
control plane would leave too far behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainfleet.rehearsal.simulation.pulumi_values import plain
from trainfleet.rehearsal.simulation.stateful_rules.support import at, minor_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trainfleet.rehearsal.simulation.cloud_object import CloudObject

Row = dict[str, Any]


def running_minor(record: CloudObject, path: str) -> int | None:
    """The minor version that the program states, or with which the cloud created the nodes."""
    return minor_of(at(plain(record.inputs), path)) or minor_of(record.version)


def first_version(record: CloudObject, skews: Iterable[Row], others: Sequence[CloudObject]) -> str:
    """The version that the cloud gives to new nodes for which the program states none: the control plane's.

    A control plane has nodes of its own where its API takes an inline pool; they get its version.
    """
    for row in skews:
        if record.token == row["of"]:
            return str(at(plain(record.inputs), row["version"]) or "")
        cluster = cluster_of(record, row, others) if record.token == row["type"] else None
        if cluster is not None and not at(plain(record.inputs), row["property"]):
            return str(at(plain(cluster.inputs), row["version"]) or "")
    return ""


def wrong_step(row: Row, before: CloudObject, record: CloudObject) -> str:
    """Return why a cloud refuses this change of a version; empty if it does not."""
    old, new = (minor_of(at(plain(each.inputs), row["property"])) for each in (before, record))
    if old is None or new is None:
        return ""
    change = f"{row['what']} goes from 1.{old} to 1.{new}"
    if new > old + 1:
        return f"{change}: one minor version at a time, so 1.{old + 1} comes first"
    if new < old - row["back"]:
        return f"{change}: {row['say']}"
    return ""


def left_behind(record: CloudObject, skews: Iterable[Row], others: Sequence[CloudObject]) -> str:
    """Return which nodes do not work with the new version of their control plane; empty if all do."""
    for row in skews:
        control = minor_of(at(plain(record.inputs), row["version"]))
        if row["of"] != record.token or control is None or "only" in row:
            continue
        named = [
            (_logical(other), running_minor(other, row["property"]))
            for other in others
            if other.token == row["type"] and cluster_of(other, row, [record]) is not None
        ]
        if row.get("inline"):
            named.append((row["inline"], minor_of(record.version)))
        for name, nodes in sorted(named, key=lambda each: each[0]):
            if nodes is not None and not control - row["most"] <= nodes <= control:
                there = f"the nodes of {name} have 1.{nodes}, and the control plane would have 1.{control}"
                return f"{there}: at most {row['most']} minor versions older, and never newer"
    return ""


def cluster_of(pool: CloudObject, row: Row, others: Sequence[CloudObject]) -> CloudObject | None:
    """The control plane that a node pool names."""
    named = at(plain(pool.inputs), row["by"])
    for other in others:
        names = (other.id, plain(other.outputs).get("name"), plain(other.inputs).get("name"))
        if other.token == row["of"] and isinstance(named, str) and named in names:
            return other
    return None


def _logical(record: CloudObject) -> str:
    return record.urn.rsplit("::", 1)[-1]
