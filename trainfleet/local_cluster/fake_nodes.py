"""Simulated nodes: the scheduler, quotas, selectors, taints and SkyPilot's label detection treat them as
real.

kwok acts as their kubelet: a pod that is bound to one is `Running` at once and runs nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.infra.outputs.contract import NodeGroupOutput, PlatformOutputs, PoolOutput, load_outputs
from trainfleet.local_cluster.kubectl import kubectl
from trainfleet.local_cluster.state import State

ANNOTATION = "kwok.x-k8s.io/node"
LABEL = "trainfleet.io/simulated"
CPUS, MEMORY = "96", "768Gi"
EXAMPLE = "big:8:skypilot.co/accelerator=h100"
_NODE = re.compile(r"(?P<name>[a-z0-9][a-z0-9.-]*):(?P<gpus>\d+)(?::(?P<labels>.*))?")


@dataclass(frozen=True)
class FakeNode:
    """A node, and what it has beyond CPU and memory."""

    name: str
    gpus: int
    labels: dict[str, str] = field(default_factory=dict)
    taints: list[dict[str, str]] = field(default_factory=list)
    resources: dict[str, str] = field(default_factory=dict)


def from_flags(outputs: Iterable[Path], texts: Iterable[str]) -> list[FakeNode]:
    """One node for each node group in the files with stack outputs, and for each
    `NAME:GPUS[:KEY=VALUE,...]`.

    Raises:
        InputError: a file does not contain stack outputs, or a text is not a valid node.
    """
    platforms = [load_outputs(path) for path in outputs]
    nodes = [node for platform in platforms for pool in platform.pools for node in of_pool(platform, pool)]
    return nodes + [parse(text) for text in texts]


def of_pool(platform: PlatformOutputs, pool: PoolOutput) -> list[FakeNode]:
    """One node of each group of a pool, with the labels that its pods select and a taint for each of their
    tolerations.
    """
    labels = {
        **pool.node_selector,
        "node.kubernetes.io/instance-type": pool.instance_type,
        "topology.kubernetes.io/region": platform.region,
    }
    labels |= accelerator_labels(platform.cloud, pool.accelerator, pool.per_node)
    taints = [_taint(toleration) for toleration in pool.tolerations if toleration.get("key")]
    resources = {pool.rdma_resource: str(pool.rdma_nics)} if pool.rdma_resource and pool.rdma_nics else {}
    groups = {pool.name: {}} if not pool.groups else {each.name: _labels_of(each) for each in pool.groups}
    return [
        FakeNode(f"{platform.name}-{name}", pool.per_node, labels | own, taints, resources)
        for name, own in groups.items()
    ]


def _labels_of(group: NodeGroupOutput) -> dict[str, str]:
    return group.node_selector | ({"topology.kubernetes.io/zone": group.zone} if group.zone else {})


def accelerator_labels(cloud: str, accelerator: str, count: int) -> dict[str, str]:
    """The labels by which launchers detect a node's GPU: GKE's own, and SkyPilot's on the other clouds (as
    trainfleet.infra sets them).
    """
    if not count:
        return {}
    if cloud == "gcp":
        from trainfleet.infra.gcp.machine_zones import ACCELERATORS

        return {
            "cloud.google.com/gke-accelerator": ACCELERATORS[accelerator],
            "cloud.google.com/gke-accelerator-count": str(count),
        }
    return {"skypilot.co/accelerator": accelerator.lower(), "nvidia.com/gpu.present": "true"}


def parse(text: str) -> FakeNode:
    """Parse `NAME:GPUS[:KEY=VALUE,...]`.

    Raises:
        InputError: the text does not have this form.
    """
    found = _NODE.fullmatch(text)
    pairs = [pair.partition("=") for pair in (found["labels"] or "").split(",") if pair] if found else []
    if found is None or any(not (key and sign and value) for key, sign, value in pairs):
        raise InputError(
            "not a valid node",
            [Problem("--fake-node", f"{text!r} is not NAME:GPUS[:KEY=VALUE,...]", EXAMPLE)],
        )
    return FakeNode(found["name"], int(found["gpus"]), {key: value for key, _, value in pairs})


def as_object(node: FakeNode) -> dict[str, Any]:
    """The Node object. It always has a taint, so that no other pod is scheduled on it."""
    amounts = {"cpu": CPUS, "memory": MEMORY, "pods": "110", "ephemeral-storage": "500Gi", **node.resources}
    if node.gpus:
        amounts["nvidia.com/gpu"] = str(node.gpus)
    labels = {
        "kubernetes.io/hostname": node.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        LABEL: "true",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": labels | node.labels, "annotations": {ANNOTATION: "fake"}},
        "spec": {"taints": node.taints or [{"key": LABEL, "value": "true", "effect": "NoSchedule"}]},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def apply(state: State, nodes: list[FakeNode]) -> None:
    """Create the nodes with their capacity."""
    if not nodes:
        return
    document = json.dumps({"apiVersion": "v1", "kind": "List", "items": [as_object(node) for node in nodes]})
    flags = ("apply", "--server-side", "--force-conflicts", "--field-manager=trainfleet-cluster", "-f", "-")
    kubectl(state, *flags, stdin=document)
    kubectl(state, *flags, "--subresource=status", stdin=document)
    kubectl(state, "wait", "--for=condition=Ready", "--timeout=60s", *(f"node/{node.name}" for node in nodes))


def _taint(toleration: dict[str, str]) -> dict[str, str]:
    effect = toleration.get("effect") or "NoSchedule"
    return {
        "key": toleration["key"],
        "value": toleration.get("value", "true" if toleration.get("operator") == "Equal" else ""),
        "effect": effect,
    }
