"""The RayJob of one launch. It has the name of the run, so a later launch replaces it by one of its own."""

from __future__ import annotations

from typing import Any

from trainfleet.training.launch.remote.deletion import delete_own
from trainfleet.training.launch.remote.kubernetes import Cluster

LAUNCH_ANNOTATION = "trainfleet.io/launch"


def launch_of(job: dict[str, Any]) -> str:
    """The launch that created a RayJob."""
    return str(job["metadata"].get("annotations", {}).get(LAUNCH_ANNOTATION, ""))


def own_job(cluster: Cluster, name: str, launch: str) -> dict[str, Any] | None:
    """The RayJob of a launch; None if it is gone, or if that of another launch has its name."""
    job = cluster.get("RayJob", name)
    return job if job is not None and launch_of(job) == launch else None


def delete_job(cluster: Cluster, name: str, uid: str) -> None:
    """Delete a RayJob and what it owns, unless one with another UID has replaced it."""
    delete_own(cluster, "RayJob", name, uid)
