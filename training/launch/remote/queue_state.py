"""What Kueue says of a run and of its queue, read at a version of its API that the cluster serves."""

from __future__ import annotations

from typing import Any

from trainfleet.training.launch.remote.kubernetes import ApiError, Cluster
from trainfleet.training.launch.remote.pod_diagnostics import queued

GROUP = "/apis/kueue.x-k8s.io"
VERSIONS = ("v1beta2", "v1beta1")
"""Versions of the API whose workloads have the conditions that are read, newest first."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


def queue_exists(cluster: Cluster, queue: str) -> bool:
    """Whether the namespace has this LocalQueue. Without it, Kueue would hold a run back for ever.

    Raises:
        ApiError: it may not be read, or the cluster does not answer.
    """
    try:
        for version in _served(cluster)[:1]:
            cluster.request("GET", f"{GROUP}/{version}/namespaces/{cluster.namespace}/localqueues/{queue}")
            return True
    except ApiError as error:
        if error.status != 404:
            raise
    return False


def why_queued(cluster: Cluster, held: dict[str, Any], queue: str) -> str:
    """What an object that Kueue suspends, or a pod that it gates, waits for.

    Raises:
        ApiError: the cluster does not answer.
    """
    try:
        served = _served(cluster)
    except ApiError as error:
        if error.status != 404:
            raise
        return f"queued in `{queue}`, but the cluster has no Kueue, which would admit it"
    version = next((each for each in VERSIONS if each in served), None)
    if version is None:
        return f"queued in `{queue}`; Kueue serves {', '.join(served)}, which this Trainfleet cannot read"
    workloads = cluster.request("GET", f"{GROUP}/{version}/namespaces/{cluster.namespace}/workloads")
    owned = [each for each in workloads.get("items", []) if _owns(held, each)]
    return queued(owned[0] if owned else None, queue)


def _served(cluster: Cluster) -> list[str]:
    """The versions of Kueue's API that the cluster serves, the preferred one first."""
    return [str(each.get("version")) for each in cluster.request("GET", GROUP).get("versions", [])]


def _owns(held: dict[str, Any], workload: dict[str, Any]) -> bool:
    owners = workload.get("metadata", {}).get("ownerReferences", [])
    return any(each.get("uid") == held["metadata"]["uid"] for each in owners)
