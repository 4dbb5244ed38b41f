"""Deletion of what a launch has created, where a later launch creates objects of the same names."""

from __future__ import annotations

from trainfleet.training.launch.remote.kubernetes import ApiError, Cluster


def delete_own(cluster: Cluster, kind: str, name: str, uid: str) -> None:
    """Delete an object and what it owns, unless one with another UID has replaced it.

    Raises:
        ApiError: the cluster rejects the request.
    """
    options = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": "Background",
        "preconditions": {"uid": uid},
    }
    try:
        cluster.delete(kind, name, options)
    except ApiError as error:
        if error.status != 409:
            raise
