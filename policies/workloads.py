"""Pods: none that is privileged or shares the node's network, processes or memory, outside of the named ones.

A Helm release is one opaque resource, so its values are judged in its place; what a chart does by itself is known by the
chart's name. Easy to get wrong: a pod specification stands at a different depth in each kind, so it is searched for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from policies.rule import UNKNOWN, Json, Resource, Rule, Violation, is_true, listed

ALLOWED = {
    "gpu-system/nvidia-device-plugin": "reaches the GPUs and the kubelet's socket",
    "gpu-system/aws-efa-k8s-device-plugin": "shares the node's network, whose EFA devices it hands out",
}
"""Workloads and charts that may, as namespace/name, with the reason. More can be named in the policy's setting `allowed`."""
HOST_FLAGS = ("hostNetwork", "hostPID", "hostIPC")
CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
PRIVILEGED_CHARTS = {
    "nvidia-device-plugin",
    "aws-efa-k8s-device-plugin",
    "gpu-operator",
    "dcgm-exporter",
    "prometheus-node-exporter",
    "node-problem-detector",
}
"""Charts whose own templates ask for what the values do not show."""
KINDS = (
    "core/v1:Pod",
    "core/v1:ReplicationController",
    "apps/v1:Deployment",
    "apps/v1:DaemonSet",
    "apps/v1:ReplicaSet",
    "apps/v1:StatefulSet",
    "batch/v1:Job",
    "batch/v1:CronJob",
    "ray.io/v1:RayCluster",
    "ray.io/v1:RayJob",
    "ray.io/v1:RayService",
)


def pods(resource: Resource) -> Iterable[Violation]:
    metadata = resource.props.get("metadata") or {}
    if _allowed(resource, metadata.get("namespace") or "default", metadata.get("name") or resource.name):
        return
    for where, pod in _pod_specs("spec", resource.props.get("spec")):
        for flag in HOST_FLAGS:
            if is_true(pod.get(flag)):
                yield Violation(f"{where}.{flag} is true")
        for kind in CONTAINERS:
            for index, container in enumerate(listed(pod.get(kind))):
                if is_true((container.get("securityContext") or {}).get("privileged")):
                    yield Violation(f"{where}.{kind}[{index}].securityContext.privileged is true")


def release(resource: Resource) -> Iterable[Violation]:
    chart = resource.props.get("chart")
    name = chart.rpartition("/")[2] if isinstance(chart, str) else resource.name
    if _allowed(resource, resource.props.get("namespace") or "default", name):
        return
    if name in PRIVILEGED_CHARTS:
        yield Violation(f"the chart {name} runs privileged pods and is not among the named ones")
    for where, key, value in _leaves("values", resource.props.get("values")):
        if key in (*HOST_FLAGS, "privileged") and is_true(value):
            yield Violation(f"{where} is true")


def _allowed(resource: Resource, namespace: str, name: str) -> bool:
    return f"{namespace}/{name}" in {*ALLOWED, *listed(resource.settings.get("allowed"))}


def _pod_specs(where: str, node: Json) -> Iterator[tuple[str, dict[str, Json]]]:
    """Every object with a list of containers, wherever it stands."""
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield from _pod_specs(f"{where}[{index}]", item)
    if isinstance(node, dict):
        if isinstance(node.get("containers"), list):
            yield where, node
            return
        for key, value in node.items():
            yield from _pod_specs(f"{where}.{key}", value)


def _leaves(where: str, node: Json) -> Iterator[tuple[str, str, Json]]:
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield from _leaves(f"{where}[{index}]", item)
    elif isinstance(node, dict):
        for key, value in node.items():
            if isinstance(value, dict | list):
                yield from _leaves(f"{where}.{key}", value)
            elif value is not UNKNOWN:
                yield f"{where}.{key}", key, value


NO_PRIVILEGED_POD = Rule(
    name="no-privileged-pod",
    statement="No pod is privileged or shares the node's network, processes or memory, outside of the named ones.",
    fix="drop the flag; a device plugin or exporter that needs it is named in the policy's setting `allowed` as namespace/name",
    references=("CIS Kubernetes 5.2.2 to 5.2.5", "CKV_K8S_16", "CKV_K8S_17", "CKV_K8S_18", "CKV_K8S_19", "KSV-0017"),
    checks={**{f"kubernetes:{kind}": pods for kind in KINDS}, "kubernetes:helm.sh/v3:Release": release},
    settings={"allowed": {"type": "array", "items": {"type": "string"}}},
)
RULES = (NO_PRIVILEGED_POD,)
