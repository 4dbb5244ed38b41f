"""How policies look into workloads: every pod specification in a resource, every container, and every value of
a Helm release.

A Helm release is one opaque resource, so its values are checked in its place; what a chart does by itself
is known by the chart's name.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainfleet.policies.engine.accessors import listed
from trainfleet.policies.engine.rule import UNKNOWN, Json, Resource

ALLOWED = {
    "gpu-system/nvidia-device-plugin": "reaches the GPUs and the kubelet's socket",
    "gpu-system/aws-efa-k8s-device-plugin": "shares the node's network, whose EFA devices it hands out",
    "gpu-system/infiniband-device-plugin": "shares the node's network, whose InfiniBand adapters it hands out",
    "gpu-system/dcgm-exporter": "reads the GPUs' counters, for which their driver asks for SYS_ADMIN",
    **{
        f"gpu-system/nccl-{fabric}": "copies the fabric's NCCL plugin to the node"
        for fabric in ("roce", "gpudirect-tcpx", "gpudirect-tcpxo")
    },
    **{
        f"gpu-system/devices-{fabric}": "gives pods the fabric's devices"
        for fabric in ("gpudirect-tcpx", "gpudirect-tcpxo")
    },
    "node-system/node-problem-detector": "reads the kernel's log of the node",
    "aws-hyperpod/health-monitoring-agent": "reads the kernel's log of the node; SageMaker's own",
}
"""Workloads and charts that may do what others may not, as namespace/name, with the reason. More in the
setting `allowed`.
"""
CLOUDS_OWN = {"aws-hyperpod": "SageMaker runs its own tests of nodes in it"}
"""Namespaces that a cloud asks for by name and runs things of its own in, with the reason."""
HOST_FLAGS = ("hostNetwork", "hostPID", "hostIPC")
CONTAINERS = ("containers", "initContainers", "ephemeralContainers")


def chart(resource: Resource) -> str:
    """The name of a release's chart, without a repository before it."""
    name = resource.props.get("chart")
    return name.rpartition("/")[2] if isinstance(name, str) else resource.name


def allowed(resource: Resource, namespace: str, name: str) -> bool:
    """Whether a workload may do what others may not."""
    return f"{namespace}/{name}" in {*ALLOWED, *listed(resource.settings.get("allowed"))}


def allowed_release(resource: Resource) -> bool:
    """The same for a release, by its chart."""
    return allowed(resource, resource.props.get("namespace") or "default", chart(resource))


def allowed_workload(resource: Resource) -> bool:
    """The same for a workload, by its own name."""
    metadata = resource.props.get("metadata") or {}
    return allowed(resource, metadata.get("namespace") or "default", metadata.get("name") or resource.name)


def pod_specs(resource: Resource) -> Iterator[tuple[str, dict[str, Json]]]:
    """Every object with a list of containers, wherever it stands."""
    yield from _pod_specs("spec", resource.props.get("spec"))


def _pod_specs(where: str, node: Json) -> Iterator[tuple[str, dict[str, Json]]]:
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield from _pod_specs(f"{where}[{index}]", item)
    if isinstance(node, dict):
        if isinstance(node.get("containers"), list):
            yield where, node
            return
        for key, value in node.items():
            yield from _pod_specs(f"{where}.{key}", value)


def containers(resource: Resource) -> Iterator[tuple[str, dict[str, Json], dict[str, Json]]]:
    """Every container with its place and its pod."""
    for where, pod in pod_specs(resource):
        for kind in CONTAINERS:
            for index, container in enumerate(listed(pod.get(kind))):
                if isinstance(container, dict):
                    yield f"{where}.{kind}[{index}]", container, pod


def leaves(where: str, node: Json) -> Iterator[tuple[str, str, Json]]:
    """Every known value in a tree of objects, with its place and its key."""
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield from leaves(f"{where}[{index}]", item)
    elif isinstance(node, dict):
        for key, value in node.items():
            if isinstance(value, dict | list):
                yield from leaves(f"{where}.{key}", value)
            elif value is not UNKNOWN:
                yield f"{where}.{key}", key, value


def release_values(resource: Resource) -> Iterator[tuple[str, str, Json]]:
    """Every known value that a release gives to its chart."""
    yield from leaves("values", resource.props.get("values"))
