"""What the simulated Kubernetes knows beyond the SDK: names in metadata, kinds that are the user's own, status.

A CustomResource has no class of its own: its metadata is checked, its spec is not, and a kind that claims a built-in
group without being in it is refused by name. Easy to get wrong: a Helm release is no object of the API.
"""

# ruff: noqa: ARG002, PLR0917 - clouds differ in what they look at; the questions are the same

from __future__ import annotations

from typing import Any

from rehearsal.clouds.check import Mistake, check_object
from rehearsal.clouds.habits import Habits
from rehearsal.clouds.schema import Package, ResourceType
from rehearsal.clouds.values import CREATED, Identity, digest
from rehearsal.clouds.wire import UNKNOWN, plain
from trainfleet.nearest import did_you_mean

AUTONAMED = "pulumi.com/autonamed"
_CLUSTER_SCOPED = {
    "Namespace",
    "PersistentVolume",
    "StorageClass",
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "PriorityClass",
    "RuntimeClass",
    "CSIDriver",
    "IngressClass",
    "ValidatingWebhookConfiguration",
    "MutatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}


def group_version(token: str) -> str:
    """Return `apps/v1` of `kubernetes:apps/v1:Deployment`."""
    return token.split(":")[1]


def is_object(token: str) -> bool:
    """Say whether a type is an object of the API (a Helm release is not)."""
    return not token.startswith("kubernetes:helm.sh/") and not token.endswith(("Patch", "ConfigGroup", "ConfigFile", "Directory"))


class KubernetesHabits(Habits):
    """Kubernetes: objects named in their metadata, unique by kind and namespace in a cluster."""

    region = "cluster"
    account = ""

    def check(self, package: Package, token: str, inputs: dict[str, Any]) -> list[Mistake]:
        return super().check(package, token, inputs) if token in package.classes else _check_custom(package, token, inputs)

    def with_name(
        self, resource: ResourceType | None, token: str, inputs: dict[str, Any], old: dict[str, Any], logical: str, random: str
    ) -> dict[str, Any]:
        if not is_object(token):
            return super().with_name(resource, token, inputs, old, logical, random)
        metadata = inputs.get("metadata") or {}
        if not isinstance(metadata, dict) or "name" in metadata or metadata.get("generateName"):
            return inputs
        earlier = plain(old.get("metadata")) or {}
        kept = earlier.get("name") if AUTONAMED in (earlier.get("annotations") or {}) else None
        marked = {**(metadata.get("annotations") or {}), AUTONAMED: "true"}
        return {**inputs, "metadata": {**metadata, "name": kept or f"{logical}-{random[:8]}", "annotations": marked}}

    def physical_name(self, token: str, inputs: dict[str, Any]) -> str:
        if not is_object(token):
            return super().physical_name(token, inputs)
        metadata = plain(inputs.get("metadata")) or {}
        name, namespace = _known(metadata.get("name")), _known(metadata.get("namespace")) or "default"
        return name if not name or token.rsplit(":", 1)[-1] in _CLUSTER_SCOPED else f"{namespace}/{name}"

    def unique_key(self, token: str, inputs: dict[str, Any], scope: str) -> str:
        name = self.physical_name(token, inputs)
        return f"{scope} {token}|{token.rsplit(':', 1)[-1]} {name}" if name and not token.endswith("Patch") else ""

    def make_id(self, token: str, inputs: dict[str, Any], name: str, random: str) -> str:
        return name if is_object(token) else f"{_known(inputs.get('namespace')) or 'default'}/{name}"

    def identity(self, token: str, inputs: dict[str, Any], name: str, resource_id: str, region: str) -> Identity:
        version = str(inputs.get("version") or "1")
        status = {"appVersion": version, "version": version, "status": "deployed", "revision": 1, "name": name, "chart": inputs.get("chart")}
        return Identity(token, name, resource_id, region, "", {"status": {**status, "namespace": inputs.get("namespace") or "default"}})

    def outputs(
        self,
        resource: ResourceType | None,
        token: str,
        inputs: dict[str, Any],
        logical: str,
        resource_id: str,
        region: str,
        *,
        preview: bool,
        place: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        if not is_object(token):
            return super().outputs(resource, token, inputs, logical, resource_id, region, preview=preview, place=place)
        result = {key: value for key, value in inputs.items() if not key.startswith("__")}
        metadata = result.get("metadata") or {}
        computed = {"uid": digest(token, resource_id)[:36], "resourceVersion": "1", "generation": 1, "creationTimestamp": CREATED}
        if isinstance(metadata, dict):
            result["metadata"] = {**metadata, **{key: UNKNOWN if preview else value for key, value in computed.items()}}
        if token.endswith(":Service"):
            address = {"loadBalancer": {"ingress": [{"hostname": f"{digest(resource_id)[:12]}.rehearsal.example"}]}}
            result["status"] = UNKNOWN if preview else address
        return result

    def always_replaces(self, token: str, path: tuple[str, ...]) -> bool:
        if not is_object(token):
            return path in (("name",), ("namespace",))
        return path[:2] in (("metadata", "name"), ("metadata", "namespace")) or path == ("kind",)

    def delete_first(self, token: str, old: dict[str, Any], new: dict[str, Any]) -> bool:
        return self.physical_name(token, old) == self.physical_name(token, new) != ""

    def config_replaces(self, olds: dict[str, Any], news: dict[str, Any]) -> list[str]:
        """As pulumi-kubernetes: with `clusterIdentifier` only its change replaces, else a new or unknown kubeconfig, context or cluster."""
        if olds.get("clusterIdentifier") or news.get("clusterIdentifier"):
            return ["clusterIdentifier"] if olds.get("clusterIdentifier") != news.get("clusterIdentifier") else []
        return [name for name in ("kubeconfig", "context", "cluster") if olds.get(name) != news.get(name)]

    def drift_path(self, token: str) -> tuple[str, ...]:
        return ("metadata", "labels")


def _check_custom(package: Package, token: str, inputs: dict[str, Any]) -> list[Mistake]:
    from pulumi_kubernetes.meta.v1 import ObjectMetaArgs

    kind = token.rsplit(":", 1)[-1]
    siblings = [other.rsplit(":", 1)[-1] for other in package.classes if group_version(other) == group_version(token)]
    if siblings:
        return [Mistake("kind", f"{kind!r} is not a kind of {group_version(token)}", did_you_mean(kind, siblings))]
    mistakes = [Mistake(name, "missing required property") for name in ("apiVersion", "kind") if not inputs.get(name)]
    metadata = inputs.get("metadata")
    return mistakes + (check_object("metadata", metadata, ObjectMetaArgs) if metadata else [])


def _known(value: Any) -> str:
    value = plain(value)
    return value if isinstance(value, str) and value != UNKNOWN else ""
