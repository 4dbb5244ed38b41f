"""The Kubernetes model: names in metadata, custom kinds, and status.

A CustomResource has no SDK class. It is checked against its definition if the program defines it or the
project ships it. An unknown kind in a built-in group is rejected by name.
"""

# ruff: noqa: ARG002, PLR0917 - all clouds share these signatures; not every cloud uses every argument

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from trainfleet.rehearsal.simulation.check import TYPES, VALIDATION, Mistake, check_object, sourced
from trainfleet.rehearsal.simulation.cloud_model import CloudModel
from trainfleet.rehearsal.simulation.custom_resources import definition_mistakes, schema_mistakes, schemas_of
from trainfleet.rehearsal.simulation.facts.custom import custom_kinds
from trainfleet.rehearsal.simulation.kubeconfig import active_cluster, read
from trainfleet.rehearsal.simulation.kubernetes.manifests import decoded
from trainfleet.rehearsal.simulation.kubernetes.metadata import metadata_mistakes
from trainfleet.rehearsal.simulation.kubernetes.outputs import stored
from trainfleet.rehearsal.simulation.kubernetes.pods import template_mistakes
from trainfleet.rehearsal.simulation.kubernetes.validation import object_mistakes
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN, plain
from trainfleet.rehearsal.simulation.rules import broken
from trainfleet.rehearsal.simulation.schema import Package, ResourceType, sdk_module
from trainfleet.rehearsal.simulation.values import Identity, digest
from trainfleet.suggestions import did_you_mean

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
    """Return `apps/v1` for `kubernetes:apps/v1:Deployment`."""
    return token.split(":")[1]


def group_version_kind(token: str) -> str:
    """Return `ray.io/v1:RayCluster` for `kubernetes:ray.io/v1:RayCluster`."""
    return token.split(":", 1)[1]


def is_object(token: str) -> bool:
    """Return whether a type is an API object. A Helm release, for example, is not."""
    return not token.startswith("kubernetes:helm.sh/") and not token.endswith(
        ("Patch", "ConfigGroup", "ConfigFile", "Directory")
    )


_REACHED = ("kubeconfig", "context", "cluster")
"""The settings of a provider that choose the cluster."""


class KubernetesModel(CloudModel):
    """Kubernetes: objects are named in their metadata and unique by kind and namespace within a cluster."""

    region = "cluster"
    account = ""

    strict = True
    answers = {"kubernetes:yaml:decode": decoded}

    def __init__(self) -> None:
        self.definitions: dict[str, dict[str, Any]] = {}

    def check(self, package: Package, token: str, inputs: dict[str, Any]) -> list[Mistake]:
        if token not in package.classes:
            schema = (
                self.definitions.get(group_version_kind(token))
                or _shipped().get(group_version_kind(token))
                or _gathered(token)
            )
            return sourced(_check_custom(package, token, inputs, schema), VALIDATION)
        found = super().check(package, token, inputs)
        if is_object(token):
            wrong = {mistake.path for mistake in found}
            kind = token.rsplit(":", 1)[-1]
            more = [mistake for mistake in object_mistakes(kind, inputs) if mistake.path not in wrong]
            if kind == "CustomResourceDefinition":
                more += definition_mistakes(inputs)
                self.definitions |= schemas_of(inputs)
            found += sourced(more, VALIDATION)
        return found

    def with_name(
        self,
        resource: ResourceType | None,
        token: str,
        inputs: dict[str, Any],
        old: dict[str, Any],
        logical: str,
        random: str,
    ) -> dict[str, Any]:
        if not is_object(token):
            return super().with_name(resource, token, inputs, old, logical, random)
        metadata = inputs.get("metadata") or {}
        if not isinstance(metadata, dict) or "name" in metadata or metadata.get("generateName"):
            return inputs
        earlier = plain(old.get("metadata"))
        earlier = earlier if isinstance(earlier, dict) else {}
        kept = earlier.get("name") if AUTONAMED in (earlier.get("annotations") or {}) else None
        marked = {**(metadata.get("annotations") or {}), AUTONAMED: "true"}
        return {
            **inputs,
            "metadata": {**metadata, "name": kept or f"{logical}-{random[:8]}", "annotations": marked},
        }

    def physical_name(self, token: str, inputs: dict[str, Any]) -> str:
        if not is_object(token):
            return super().physical_name(token, inputs)
        metadata = plain(inputs.get("metadata"))
        metadata = metadata if isinstance(metadata, dict) else {}
        name, namespace = _known(metadata.get("name")), _known(metadata.get("namespace")) or "default"
        return name if not name or token.rsplit(":", 1)[-1] in _CLUSTER_SCOPED else f"{namespace}/{name}"

    def unique_key(self, token: str, inputs: dict[str, Any], scope: str) -> str:
        name = self.physical_name(token, inputs)
        return f"{token}|{token.rsplit(':', 1)[-1]} {name}" if name and not token.endswith("Patch") else ""

    def make_id(self, token: str, inputs: dict[str, Any], name: str, random: str) -> str:
        return name if is_object(token) else f"{_known(inputs.get('namespace')) or 'default'}/{name}"

    def identity(
        self, token: str, inputs: dict[str, Any], name: str, resource_id: str, region: str
    ) -> Identity:
        version = str(inputs.get("version") or "1")
        status = {
            "appVersion": version,
            "version": version,
            "status": "deployed",
            "revision": 1,
            "name": name,
            "chart": inputs.get("chart"),
        }
        return Identity(
            token,
            name,
            resource_id,
            region,
            "",
            {"status": {**status, "namespace": inputs.get("namespace") or "default"}},
        )

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
            return super().outputs(
                resource, token, inputs, logical, resource_id, region, preview=preview, place=place
            )
        return stored(token, inputs, resource_id, preview=preview)

    def place_of(self, settings: dict[str, Any]) -> str:
        """Return the cluster: its identifier, or else how it is reached, as in `config_replaces`."""
        named = settings.get("clusterIdentifier")
        reached = [settings.get(name) for name in _REACHED]
        cluster = active_cluster(*reached)
        parts = map(str, reached) if cluster is None else [json.dumps(cluster, sort_keys=True)]
        return str(named) if named else digest(*parts)[:12]

    def always_replaces(self, token: str, path: tuple[str, ...]) -> bool:
        if not is_object(token):
            return path in (("name",), ("namespace",))
        return path[:2] in (("metadata", "name"), ("metadata", "namespace")) or path == ("kind",)

    def delete_first(self, token: str, old: dict[str, Any], new: dict[str, Any]) -> bool:
        return self.physical_name(token, old) == self.physical_name(token, new) != ""

    def config_compared(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the settings with the kubeconfig as an object, as pulumi-kubernetes compares it."""
        return {**settings, "kubeconfig": read(given)} if (given := settings.get("kubeconfig")) else settings

    def config_replaces(self, olds: dict[str, Any], news: dict[str, Any]) -> list[str]:
        """Return the settings that replace everything, as pulumi-kubernetes does.

        With a `clusterIdentifier`, only its change replaces. Otherwise another active cluster does
        (provider/pkg/provider/provider.go, DiffConfig), or a kubeconfig that cannot be read, such as a path.
        """
        if olds.get("clusterIdentifier") or news.get("clusterIdentifier"):
            return (
                ["clusterIdentifier"]
                if olds.get("clusterIdentifier") != news.get("clusterIdentifier")
                else []
            )
        differing = [
            name for name in ("kubeconfig", "context", "cluster") if olds.get(name) != news.get(name)
        ]
        before, after = (
            active_cluster(each.get("kubeconfig"), each.get("context"), each.get("cluster"))
            for each in (olds, news)
        )
        return [] if before is not None and before == after else differing

    def drift_path(self, token: str) -> tuple[str, ...]:
        return ("metadata", "labels")


@functools.cache
def _shipped() -> dict[str, dict[str, Any]]:
    """Return the schemas of the definitions that the project ships, from the newest operator version."""
    from trainfleet.infra.kubernetes.crds import definitions, versions

    return {
        name: schema
        for definition in definitions(versions()[-1])
        for name, schema in schemas_of(definition).items()
    }


def _gathered(token: str) -> dict[str, Any] | None:
    """Return the schema of a kind of a well-known project, or None."""
    group, _, version = group_version(token).partition("/")
    return custom_kinds(group).get(f"{version}:{token.rsplit(':', 1)[-1]}")


def _check_custom(
    package: Package, token: str, inputs: dict[str, Any], schema: dict[str, Any] | None
) -> list[Mistake]:
    kind = token.rsplit(":", 1)[-1]
    siblings = [
        other.rsplit(":", 1)[-1] for other in package.classes if group_version(other) == group_version(token)
    ]
    if siblings:
        what = f"{kind!r} is not a kind of {group_version(token)}"
        return [Mistake("kind", what, did_you_mean(kind, siblings), source=TYPES)]
    mistakes = [
        Mistake(name, "missing required property") for name in ("apiVersion", "kind") if not inputs.get(name)
    ]
    metadata = inputs.get("metadata")
    if metadata:
        mistakes += check_object("metadata", metadata, _class("meta.v1", "ObjectMetaArgs"), strict=True)
    wrong = {mistake.path for mistake in mistakes}
    mistakes += [mistake for mistake in metadata_mistakes(kind, metadata) if mistake.path not in wrong]
    # Kinds whose definition comes with the cluster and not with a chart, such as GKE's networks, have rules
    # instead of a schema.
    wrong = {mistake.path for mistake in mistakes}
    mistakes += [mistake for mistake in broken("kubernetes", token, inputs) if mistake.path not in wrong]
    if schema is None:
        group = group_version(token).split("/")[0]
        kinds = [
            name.split(":")[1]
            for name in (*_shipped(), *(f"{group}/{name}" for name in custom_kinds(group)))
            if name.startswith(f"{group}/")
        ]
        if kinds and kind not in kinds:
            mistakes.append(Mistake("kind", f"{kind!r} is not a kind of {group}", did_you_mean(kind, kinds)))
        return mistakes
    mistakes += sourced(schema_mistakes(schema, inputs), f"the CustomResourceDefinition of {kind}")
    return mistakes + [
        mistake
        for path, template in _templates("spec", inputs.get("spec"))
        for mistake in _check_template(path, template)
    ]


_OF_PODS = ("containers", "initContainers", "volumes", "nodeSelector", "tolerations", "serviceAccountName")


def _templates(path: str, value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the pod templates in a custom resource: every `template` that contains a pod specification."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _templates(f"{path}[{index}]", item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if (
                name == "template"
                and isinstance(item, dict)
                and isinstance(item.get("spec"), dict)
                and any(part in item["spec"] for part in _OF_PODS)
            ):
                yield f"{path}.{name}", item
            else:
                yield from _templates(f"{path}.{name}", item)


def _check_template(path: str, template: dict[str, Any]) -> list[Mistake]:
    found = check_object(path, template, _class("core.v1", "PodTemplateSpecArgs"), strict=True)
    wrong = {mistake.path for mistake in found}
    below = [
        replace(mistake, path=f"{path}.{mistake.path}")
        for mistake in broken("kubernetes", "kubernetes:core/v1:PodTemplate", template)
    ]
    return found + [
        mistake for mistake in (*template_mistakes(path, template), *below) if mistake.path not in wrong
    ]


def _class(module: str, name: str) -> type:
    found: type = getattr(sdk_module(f"pulumi_kubernetes.{module}"), name)
    return found


def _known(value: Any) -> str:
    value = plain(value)
    return value if isinstance(value, str) and value != UNKNOWN else ""
