"""The message from the launcher to the follower of a run on KubeRay."""

from __future__ import annotations

from typing import Any

from trainfleet.training.launch.remote.follower import Detached, FollowerSpec
from trainfleet.training.launch.remote.workload_check import WorkloadCheck


class KubeRaySpec(FollowerSpec):
    """A run on a cluster, and how to reach it."""

    context: str | None
    kubeconfig: str
    kube_context: str
    namespace: str
    job: str
    launch: str
    cluster: str | None
    """A long-lived Ray cluster; None: one of the run's own."""
    pods: int
    """Of the Ray cluster, besides the head."""
    queue: str
    tried: str
    """The cluster and pool, for messages."""
    cluster_objects: list[dict[str, Any]]
    """What creates the long-lived Ray cluster, if any."""
    objects: list[dict[str, Any]]
    """The Kubernetes objects of the run, in the order in which they are created."""
    check: WorkloadCheck | None
    """What validates the workload before the objects are created."""
    attach: bool
    detached: Detached
