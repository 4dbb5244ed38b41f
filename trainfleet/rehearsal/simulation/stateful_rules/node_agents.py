"""Rules between the agents of nodes and their cluster. A cloud shows them after `up` only: an agent has no pod
before there is a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from trainfleet.rehearsal.simulation.pulumi_values import plain

if TYPE_CHECKING:
    from trainfleet.rehearsal.simulation.cloud_object import CloudObject

Row = dict[str, Any]
QUOTA = "kubernetes:core/v1:ResourceQuota"


def critical_pods(row: Row, record: CloudObject, others: Iterable[CloudObject]) -> str:
    """Return why the cluster would admit no pod of this workload; empty if it would."""
    others = list(others)
    name = _at(plain(record.inputs), row["at"]).get("priorityClassName")
    namespace = _namespace(record)
    if name not in row["classes"] or namespace in row["except"] or not _runs_on(record, row, others):
        return ""
    quotas = [each for each in others if each.token == QUOTA and _same_namespace(each, record)]
    if any(name in list(_admitted(quota)) for quota in quotas):
        return ""
    return (
        f"GKE would admit no pod of it: class {name} needs a ResourceQuota in namespace {namespace} whose"
        f" scopeSelector has scopeName PriorityClass and {name}"
    )


def _runs_on(record: CloudObject, row: Row, others: list[CloudObject]) -> bool:
    """Whether the object is in a cluster of the row's type: its provider names the cluster, or there is no
    cluster of another type.
    """
    clusters = [other for other in others if other.token in CLUSTERS]
    own = [cluster for cluster in clusters if cluster.token == row["cluster"]]
    return any(cluster.id in record.place for cluster in own) or (bool(own) and len(own) == len(clusters))


CLUSTERS = (
    "aws:eks/cluster:Cluster",
    "gcp:container/cluster:Cluster",
    "azure-native:containerservice:ManagedCluster",
)


def _admitted(quota: CloudObject) -> Iterator[str]:
    """The priority classes that a quota is for."""
    spec = plain(quota.inputs).get("spec") or {}
    for term in (spec.get("scopeSelector") or {}).get("matchExpressions") or ():
        if term.get("scopeName") == "PriorityClass" and term.get("operator") == "In":
            yield from term.get("values") or ()


def _namespace(record: CloudObject) -> str:
    return str((plain(record.inputs).get("metadata") or {}).get("namespace") or "default")


def _same_namespace(one: CloudObject, other: CloudObject) -> bool:
    return one.place == other.place and _namespace(one) == _namespace(other)


def _at(value: Any, path: str) -> dict[str, Any]:
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}
