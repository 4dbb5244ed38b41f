"""The token of a Ray cluster, which KubeRay keeps in a Secret. It must reach neither a log nor a file."""

from __future__ import annotations

import base64

from trainfleet.errors import InputError, Problem
from trainfleet.training.launch.remote.kubernetes import Cluster

KEY = "auth_token"


def token_of(cluster: Cluster, ray_cluster: str) -> str:
    """The token.

    Raises:
        InputError: the cluster has no token.
    """
    secret = cluster.get("Secret", ray_cluster)
    data = (secret or {}).get("data", {})
    if KEY not in data:
        raise InputError(
            "no token",
            [
                Problem(
                    ray_cluster, "has no Secret with a token; was it created without token authentication?"
                )
            ],
        )
    return base64.b64decode(data[KEY]).decode()
