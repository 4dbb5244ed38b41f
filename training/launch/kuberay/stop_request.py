"""Asks the ranks of a run to save and end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trainfleet.training.launch.kuberay.timeouts import timeouts
from trainfleet.training.launch.remote.kubernetes import ApiError, Cluster
from trainfleet.training.launch.remote.ray_job import stop_file

CONTAINER = "ray-worker"


def ask_ranks(cluster: Cluster, pods: list[dict[str, Any]], launch: str) -> int:
    """Ask the ranks to save and end, by creating the stop file in their pods; how many pods were asked.

    One rank that sees the file stops all of them, but a pod of an elastic run may have none: all are asked,
    at once, so that pods that do not answer cost one time-out.
    """

    def ask(pod: str) -> bool:
        try:
            cluster.execute(pod, CONTAINER, ["touch", stop_file(launch)])
        except ApiError:
            return False
        return True

    # Running is enough: on a busy machine a pod that trains may not be marked ready. The pod of drivers,
    # which has no rank, has another container.
    names = [
        pod["metadata"]["name"]
        for pod in pods
        if pod.get("status", {}).get("phase") == "Running"
        and CONTAINER in [each["name"] for each in pod.get("spec", {}).get("containers", [])]
    ]
    with ThreadPoolExecutor(timeouts(len(names)).asked_at_once) as threads:
        return sum(threads.map(ask, names))
