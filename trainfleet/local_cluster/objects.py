"""The objects of a new cluster: DNS's service, the storage class, the roles of the cluster's own servers, and
KubeRay's definitions and role. Each `up` applies them, which reverts manual changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from trainfleet.infra.kubernetes.crds import definitions
from trainfleet.local_cluster import builds, dns, pins
from trainfleet.local_cluster.servers import PAUSE, STORAGE_CLASS
from trainfleet.local_cluster.state import State
from trainfleet.local_cluster.volumes import PROVISIONER

READ = ("get", "list", "watch")
WRITE = (*READ, "create", "update", "patch", "delete")
Rule = tuple[str, Sequence[str], Sequence[str]]

RULES: dict[str, Sequence[Rule]] = {
    "coredns": (
        ("", ("endpoints", "services", "pods", "namespaces"), READ),
        ("discovery.k8s.io", ("endpointslices",), READ),
    ),
    "network-policies": (
        ("", ("pods", "namespaces", "nodes"), READ),
        ("networking.k8s.io", ("networkpolicies",), READ),
    ),
    "volumes": (("", ("persistentvolumeclaims",), READ), ("", ("persistentvolumes",), WRITE)),
    "kwok": (
        ("", ("nodes", "pods"), WRITE),
        ("", ("nodes/status", "pods/status"), ("update", "patch")),
        ("", ("events",), ("create", "update", "patch")),
        ("coordination.k8s.io", ("leases",), WRITE),
        ("kwok.x-k8s.io", ("*",), READ),
    ),
}


def objects(state: State) -> list[dict[str, Any]]:
    """All objects, definitions first."""
    role = yaml.safe_load((builds.folder_of(pins.RAY_OPERATOR) / builds.ROLE_FILE).read_text())
    roles = [
        row
        for name, rules in RULES.items()
        for row in (_role(name, rules), _binding(name, f"trainfleet:{name}"))
    ]
    return [
        *definitions(pins.RAY_OPERATOR.version),
        *dns.objects(state, PAUSE),
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {
                "name": STORAGE_CLASS,
                "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
            },
            "provisioner": PROVISIONER,
            "reclaimPolicy": "Delete",
            "volumeBindingMode": "Immediate",
        },
        *roles,
        role,
        _binding("ray-operator", role["metadata"]["name"]),
    ]


def _role(name: str, rules: Sequence[Rule]) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": f"trainfleet:{name}"},
        "rules": [
            {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
            for group, resources, verbs in rules
        ],
    }


def _binding(user: str, role: str) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"trainfleet:{user}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": f"trainfleet:{user}"}],
    }
