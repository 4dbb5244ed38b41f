"""Rules between the agents of nodes and their cluster: which pods it admits, and which resources the
autoscaler must know of a pool without nodes.

A cloud shows neither at `up`: an agent has no pod before there is a node, and a pending pod does not fail an
apply.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from trainfleet.rehearsal.simulation.pulumi_values import plain

if TYPE_CHECKING:
    from trainfleet.rehearsal.simulation.cloud_object import CloudObject

Row = dict[str, Any]
QUOTA = "kubernetes:core/v1:ResourceQuota"
SETTINGS = "kubernetes:core/v1:ConfigMap"


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


def resources_of_empty_pools(row: Row, record: CloudObject, others: Iterable[CloudObject]) -> str:
    """Return which pool would never get its first node for a pod that requests a resource of this device
    plugin; empty if there is none.
    """
    others = list(others)
    spec = _at(plain(record.inputs), row["at"])
    if not any(row["image"] in str(each.get("image")) for each in spec.get("containers") or ()):
        return ""
    for pool in (other for other in others if other.token == row["pool"]):
        inputs = plain(pool.inputs)
        if not inputs.get(row["scales"]) or inputs.get(row["least"]) or not _selects(spec, inputs, row):
            continue
        for resource in _announced(spec, record, others):
            tag = row["tag"] + resource.replace("/", row["slash"])
            if tag not in (inputs.get("tags") or {}):
                return (
                    f"pool {inputs.get(row['name'])} starts without a node, and the autoscaler does not know"
                    f" that its nodes have {resource}, so a pod that requests it gets none: add the tag {tag}"
                )
    return ""


def _announced(spec: dict[str, Any], record: CloudObject, others: list[CloudObject]) -> Iterator[str]:
    """The resources of a shared RDMA device plugin, from the configuration that it mounts."""
    names = {(volume.get("configMap") or {}).get("name") for volume in spec.get("volumes") or ()}
    for other in others:
        if other.token == SETTINGS and _same_namespace(other, record) and _name(other) in names:
            for text in (plain(other.inputs).get("data") or {}).values():
                try:
                    document = json.loads(text)
                except ValueError:
                    continue
                for each in document.get("configList") or () if isinstance(document, dict) else ():
                    yield f"{each.get('resourcePrefix', 'rdma')}/{each['resourceName']}"


def _selects(spec: dict[str, Any], pool: dict[str, Any], row: Row) -> bool:
    """Whether the pods run on the nodes of a pool, as far as its labels tell."""
    labels = pool.get(row["labels"]) or {}
    selector = spec.get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    required = _at(spec, "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution")
    terms = required.get("nodeSelectorTerms") or ()
    return not terms or any(
        all(
            each["operator"] != "In" or labels.get(each["key"]) in each["values"]
            for each in term.get("matchExpressions") or ()
        )
        for term in terms
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


def _name(record: CloudObject) -> str:
    return str((plain(record.inputs).get("metadata") or {}).get("name"))


def _same_namespace(one: CloudObject, other: CloudObject) -> bool:
    return one.place == other.place and _namespace(one) == _namespace(other)


def _at(value: Any, path: str) -> dict[str, Any]:
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}
