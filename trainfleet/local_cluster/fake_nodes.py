"""Nodes that are not there: the scheduler, quotas, selectors, taints and SkyPilot's label detection answer
for them as for real ones.

kwok plays their kubelet: a pod that is bound to one is `Running` at once and runs nothing. Easy to get wrong:
a pod without a
toleration must not land on one by chance, so each carries a taint even where the pool has none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.infra.outputs.contract import PlatformOutputs, PoolOutput, load_outputs
from trainfleet.local_cluster.kubectl import kubectl
from trainfleet.local_cluster.state import State

ANNOTATION = "kwok.x-k8s.io/node"
LABEL = "trainfleet.io/simulated"
CPUS, MEMORY = "96", "768Gi"
_SHORT = re.compile(r"(?P<name>[a-z0-9][a-z0-9.-]*):(?P<gpus>\d+)(?::(?P<labels>.*))?")


@dataclass(frozen=True)
class FakeNode:
    name: str
    gpus: int
    labels: dict[str, str] = field(default_factory=dict)
    taints: list[dict[str, str]] = field(default_factory=list)
    resources: dict[str, str] = field(default_factory=dict)


def wanted(outputs: Iterable[Path], short: Iterable[str]) -> list[FakeNode]:
    """The nodes that flags ask for.

    Raises:
        InputError: a file that is no stack's outputs, or a text that is no node.
    """
    nodes = [
        of_pool(platform, pool)
        for path in outputs
        for platform in [load_outputs(path)]
        for pool in platform.pools
    ]
    return nodes + [parse(text) for text in short]


def of_pool(platform: PlatformOutputs, pool: PoolOutput) -> FakeNode:
    """One node of a pool, with the labels that its pods select and a taint for each of their tolerations."""
    labels = {
        **pool.node_selector,
        "node.kubernetes.io/instance-type": pool.instance_type,
        "topology.kubernetes.io/region": platform.region,
    }
    labels |= accelerator_labels(platform.cloud, pool.accelerator, pool.per_node)
    taints = [_taint(toleration) for toleration in pool.tolerations if toleration.get("key")]
    resources = {pool.rdma_resource: str(pool.rdma_nics)} if pool.rdma_resource and pool.rdma_nics else {}
    return FakeNode(f"{platform.name}-{pool.name}", pool.per_node, labels, taints, resources)


def accelerator_labels(cloud: str, accelerator: str, count: int) -> dict[str, str]:
    """What tells a launcher which GPU a node has: GKE's own labels, SkyPilot's on the other clouds (as
    infra/*/gpu_pools.py sets them).
    """
    if not count:
        return {}
    if cloud == "gcp":
        from trainfleet.infra.gcp.node_config import ACCELERATORS

        return {
            "cloud.google.com/gke-accelerator": ACCELERATORS[accelerator],
            "cloud.google.com/gke-accelerator-count": str(count),
        }
    return {"skypilot.co/accelerator": accelerator.lower(), "nvidia.com/gpu.present": "true"}


def parse(text: str) -> FakeNode:
    """A node written as `NAME:GPUS[:KEY=VALUE,...]`.

    Raises:
        InputError: it is not written so.
    """
    found = _SHORT.fullmatch(text)
    pairs = [pair.partition("=") for pair in (found["labels"] or "").split(",") if pair] if found else []
    if found is None or any(not (key and sign and value) for key, sign, value in pairs):
        raise InputError(
            "not a node",
            [
                Problem(
                    "--fake-node",
                    f"{text!r} is not NAME:GPUS[:KEY=VALUE,...]",
                    "big:8:skypilot.co/accelerator=h100",
                )
            ],
        )
    return FakeNode(found["name"], int(found["gpus"]), {key: value for key, _, value in pairs})


def as_object(node: FakeNode) -> dict[str, Any]:
    """The Node object."""
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


def apply(it: State, nodes: list[FakeNode]) -> None:
    """Make the nodes, their capacity too."""
    if not nodes:
        return
    document = json.dumps({"apiVersion": "v1", "kind": "List", "items": [as_object(node) for node in nodes]})
    flags = ("apply", "--server-side", "--force-conflicts", "--field-manager=trainfleet-cluster", "-f", "-")
    kubectl(it, *flags, given=document)
    kubectl(it, *flags, "--subresource=status", given=document)
    kubectl(it, "wait", "--for=condition=Ready", "--timeout=60s", *(f"node/{node.name}" for node in nodes))


def _taint(toleration: dict[str, str]) -> dict[str, str]:
    effect = toleration.get("effect") or "NoSchedule"
    return {
        "key": toleration["key"],
        "value": toleration.get("value", "true" if toleration.get("operator") == "Equal" else ""),
        "effect": effect,
    }
