"""Asks the ranks of a run to save and end."""

from __future__ import annotations

import contextlib
from typing import Any

from trainfleet.training.launch.remote import pod_diagnostics
from trainfleet.training.launch.remote.kubernetes import ApiError, Cluster
from trainfleet.training.launch.remote.ray_job import stop_file


def ask_ranks(cluster: Cluster, pods: list[dict[str, Any]], launch: str) -> int:
    """Ask every rank to save and end, by creating the stop file in its pod; how many pods were asked."""
    asked = 0
    for pod in pods:
        # Running is enough: on a busy machine a pod that trains may not be marked ready.
        if pod_diagnostics.node_type(pod) == "worker" and pod.get("status", {}).get("phase") == "Running":
            with contextlib.suppress(ApiError):
                cluster.execute(pod["metadata"]["name"], "ray-worker", ["touch", stop_file(launch)])
                asked += 1
    return asked
