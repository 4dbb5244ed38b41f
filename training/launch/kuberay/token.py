"""The token of a Ray cluster, which KubeRay keeps in a Secret. It must reach neither a log nor a file."""

from __future__ import annotations

from trainfleet.errors import InputError, Problem
from trainfleet.training.launch.remote.kubernetes import Cluster

VARIABLE = "RAY_AUTH_TOKEN"
"""KubeRay sets it in the containers of Ray (controllers/ray/common/pod.go of KubeRay 1.6)."""


def token_of(cluster: Cluster, head: str) -> str:
    """The token, as the head's pod has it: launchers may run commands in pods, and not read Secrets.

    Args:
        cluster: the cluster.
        head: the name of the head's pod.

    Raises:
        InputError: the head has no token.
    """
    pod = cluster.get("Pod", head) or {}
    containers = [each["name"] for each in pod.get("spec", {}).get("containers", [])]
    # KubeRay's first container is Ray's (RayContainerIndex).
    token = cluster.execute(head, containers[0], ["printenv", VARIABLE]).strip() if containers else ""
    if not token:
        problem = Problem(head, f"has no {VARIABLE}; was the cluster created without token authentication?")
        raise InputError("no token", [problem])
    return token
