"""Access to pod specifications, containers and Helm values in a resource.

A Helm release is one opaque resource, so policies check its values and the name of its chart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainfleet.policies.engine.accessors import at, listed
from trainfleet.policies.engine.rule import UNKNOWN, Json, Resource, Violation, until_unknown

ALLOWED = {
    "gpu-system/nvidia-device-plugin": "accesses the GPUs and the kubelet's socket",
    "gpu-system/aws-efa-k8s-device-plugin": "uses the host network to advertise its EFA devices",
    "gpu-system/infiniband-device-plugin": "uses the host network to advertise its InfiniBand adapters",
    "gpu-system/dcgm-exporter": "reads the GPUs' counters, for which the driver requires SYS_ADMIN",
    **{
        f"gpu-system/nccl-{fabric}": "copies the fabric's NCCL plugin to the node"
        for fabric in ("roce", "gpudirect-tcpx", "gpudirect-tcpxo")
    },
    **{
        f"gpu-system/devices-{fabric}": "gives pods the fabric's devices"
        for fabric in ("gpudirect-tcpx", "gpudirect-tcpxo")
    },
    "node-system/node-problem-detector": "reads the node's kernel log",
    "aws-hyperpod/health-monitoring-agent": "reads the node's kernel log; installed by SageMaker",
}
"""Privileged workloads and charts that policies allow, as namespace/name, with the reason. The setting
`allowed` adds more.
"""
ALLOWED_ROOT = {
    "training/shared-folders": "gives folders of the shared filesystem, which belongs to root, to trainings",
}
"""Workloads that may run as root without being privileged, as namespace/name, with the reason."""
CLOUD_NAMESPACES = {"aws-hyperpod": "SageMaker runs its node tests in it"}
"""Namespaces that a cloud requires by name for its own workloads, with the reason."""
HOST_FLAGS = ("hostNetwork", "hostPID", "hostIPC")
BASELINE_CAPABILITIES = frozenset(
    {
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    }
)
"""What a container may add by the Pod Security Standards, profile Baseline."""
CONTAINERS = ("containers", "initContainers", "ephemeralContainers")


def chart(resource: Resource) -> str:
    """Return the name of a release's chart, without its repository."""
    name = resource.props.get("chart")
    return name.rpartition("/")[2] if isinstance(name, str) else resource.name


def allowed(resource: Resource, namespace: str, name: str) -> bool:
    """Whether a workload is on the list of allowed privileged workloads."""
    return f"{namespace}/{name}" in {*ALLOWED, *listed(resource.settings.get("allowed"))}


def allowed_release(resource: Resource) -> bool:
    """Whether a release is allowed, by its chart."""
    return allowed(resource, resource.props.get("namespace") or "default", chart(resource))


def allowed_root(resource: Resource) -> bool:
    """Whether a workload may run as root."""
    metadata = resource.props.get("metadata") or {}
    return f"{metadata.get('namespace') or 'default'}/{metadata.get('name')}" in ALLOWED_ROOT


def allowed_workload(resource: Resource) -> bool:
    """Whether a workload is allowed, by its own name."""
    metadata = resource.props.get("metadata") or {}
    return allowed(resource, metadata.get("namespace") or "default", metadata.get("name") or resource.name)


def pod_specs(resource: Resource) -> Iterator[tuple[str, dict[str, Json]]]:
    """Yield path and value of every object with a list of containers, at any depth."""
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
    """Yield path, container and pod of every container."""
    for where, pod in pod_specs(resource):
        for kind in CONTAINERS:
            for index, container in enumerate(listed(pod.get(kind))):
                if isinstance(container, dict):
                    yield f"{where}.{kind}[{index}]", container, pod


def node_access(where: str, container: Mapping[str, Json]) -> tuple[Violation, ...]:
    """Return the node's ports that a container uses, and capabilities that the profile Baseline forbids."""

    def found() -> Iterator[Violation]:
        for index, port in enumerate(listed(container.get("ports"))):
            if isinstance(port, Mapping) and port.get("hostPort"):
                yield Violation(f"{where}.ports[{index}].hostPort is {port['hostPort']}")
        for name in listed(at(container, "securityContext.capabilities.add")):
            if str(name).removeprefix("CAP_") not in BASELINE_CAPABILITIES:
                yield Violation(f"{where}.securityContext.capabilities.add has {name}")

    return until_unknown(found())


def leaves(where: str, node: Json) -> Iterator[tuple[str, str, Json]]:
    """Yield path, key and value of every known value in a tree of objects."""
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
    """Yield path, key and value of every known Helm value of a release."""
    yield from leaves("values", resource.props.get("values"))
