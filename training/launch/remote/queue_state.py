"""Why Kueue holds a run back, read at a version of its API that the cluster serves."""

from __future__ import annotations

from typing import Any

from trainfleet.training.launch.remote.kubernetes import ApiError, Cluster
from trainfleet.training.launch.remote.pod_diagnostics import queued

GROUP = "/apis/kueue.x-k8s.io"
VERSIONS = ("v1beta2", "v1beta1")
"""Versions of the API whose workloads have the conditions that are read, newest first."""


def why_queued(cluster: Cluster, held: dict[str, Any], queue: str) -> str:
    """What an object that Kueue suspends waits for.

    Raises:
        ApiError: the cluster does not answer.
    """
    try:
        group = cluster.request("GET", GROUP)
    except ApiError as error:
        if error.status != 404:
            raise
        return f"queued in `{queue}`, but the cluster has no Kueue, which would admit it"
    served = [str(each.get("version")) for each in group.get("versions", [])]
    version = next((each for each in VERSIONS if each in served), None)
    if version is None:
        return f"queued in `{queue}`; Kueue serves {', '.join(served)}, which this Trainfleet cannot read"
    workloads = cluster.request("GET", f"{GROUP}/{version}/namespaces/{cluster.namespace}/workloads")
    owned = [each for each in workloads.get("items", []) if _owns(held, each)]
    return queued(owned[0] if owned else None, queue)


def _owns(held: dict[str, Any], workload: dict[str, Any]) -> bool:
    owners = workload.get("metadata", {}).get("ownerReferences", [])
    return any(each.get("uid") == held["metadata"]["uid"] for each in owners)
