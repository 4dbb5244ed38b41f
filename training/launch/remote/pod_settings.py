"""Settings of the pods that launchers create. Pure. They comply with Pod Security's `restricted` profile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trainfleet.training.launch.remote.secret_variables import secret_variables
from trainfleet.training.launch.remote.storage_env import trust_variables

Document = dict[str, Any]

USER_ID = 1000
"""Of the image's user. A cluster that enforces runAsNonRoot rejects a user that is known by name only."""


LOST_NODE_S = 0
"""How long the pods of a run stay on a node that no longer answers, after Kubernetes noticed (50 s by
default). By then Ray has counted the pod as lost for half a minute and the run needs another. Kubernetes' own
default is five minutes."""


def lost_node_tolerations() -> list[Document]:
    """Tolerations that let a lost node's pods be replaced soon. Admission (DefaultTolerationSeconds) keeps
    them.
    """
    return [
        {
            "key": f"node.kubernetes.io/{key}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": LOST_NODE_S,
        }
        for key in ("not-ready", "unreachable")
    ]


def pod_security() -> Document:
    """The securityContext of a pod."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def restricted() -> Document:
    """The securityContext of a container."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def environment(values: Mapping[str, str], ca_file: str, secrets: Iterable[str]) -> list[Document]:
    """The variables of a container that imports Trainfleet and opens the run's storage.

    Args:
        values: where the stores are.
        ca_file: the CA of a private store; empty for a cloud's own.
        secrets: the platform's secrets (`PlatformOutputs.secrets`).
    """
    own = {
        "HOME": "/tmp",
        "USER": "trainfleet",  # Python looks up the user's name, and the image may not have one
        "PYTHONUNBUFFERED": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }
    trusted = trust_variables(values, ca_file) if ca_file else {}
    return variables({**own, **values, **trusted}) + secret_variables(secrets)


def variables(values: Mapping[str, str]) -> list[Document]:
    """Variables of a container, by name."""
    return [{"name": key, "value": value} for key, value in sorted(values.items())]
