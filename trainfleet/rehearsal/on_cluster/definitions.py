"""CustomResourceDefinitions generated from the bundled schemas; they validate objects without the charts.

Source of the schemas: `trainfleet/rehearsal/simulation/facts/kubernetes`.
"""

from __future__ import annotations

from typing import Any

from trainfleet.rehearsal.simulation.facts.custom import custom_kinds

Schema = dict[str, Any]

KINDS: dict[str, dict[str, tuple[str, str]]] = {
    "prometheus-operator-crds": {
        "monitoring.coreos.com/v1:PodMonitor": ("podmonitors", "Namespaced"),
        "monitoring.coreos.com/v1:ServiceMonitor": ("servicemonitors", "Namespaced"),
        "monitoring.coreos.com/v1:PrometheusRule": ("prometheusrules", "Namespaced"),
    },
    "kueue": {
        "kueue.x-k8s.io/v1beta2:ResourceFlavor": ("resourceflavors", "Cluster"),
        "kueue.x-k8s.io/v1beta2:Topology": ("topologies", "Cluster"),
        "kueue.x-k8s.io/v1beta2:ClusterQueue": ("clusterqueues", "Cluster"),
        "kueue.x-k8s.io/v1beta2:AdmissionCheck": ("admissionchecks", "Cluster"),
        "kueue.x-k8s.io/v1beta2:ProvisioningRequestConfig": ("provisioningrequestconfigs", "Cluster"),
        "kueue.x-k8s.io/v1beta2:LocalQueue": ("localqueues", "Namespaced"),
        "kueue.x-k8s.io/v1beta2:WorkloadPriorityClass": ("workloadpriorityclasses", "Cluster"),
    },
    "external-secrets": {
        "external-secrets.io/v1:ClusterSecretStore": ("clustersecretstores", "Cluster"),
        "external-secrets.io/v1:ExternalSecret": ("externalsecrets", "Namespaced"),
    },
    "cert-manager": {
        "cert-manager.io/v1:Certificate": ("certificates", "Namespaced"),
        "cert-manager.io/v1:Issuer": ("issuers", "Namespaced"),
    },
}
"""The kinds that the stacks use from each chart, with plural and scope."""
PROVIDED: dict[str, tuple[str, str]] = {
    "networking.gke.io/v1:Network": ("networks", "Cluster"),
    "networking.gke.io/v1:GKENetworkParamSet": ("gkenetworkparamsets", "Cluster"),
}
"""Kinds that are built into a cloud's managed clusters and belong to no chart."""
OPEN = {"x-kubernetes-preserve-unknown-fields": True}


def definitions_of(chart: str) -> list[dict[str, Any]]:
    """Return the definitions that replace a chart's own; empty if the stacks use none of them."""
    return [_definition(kind, plural, scope) for kind, (plural, scope) in KINDS.get(chart, {}).items()]


def provided(kind: str) -> dict[str, Any] | None:
    """Return the definition of a kind (group/version:Kind) that is built into managed clusters, else None."""
    return _definition(kind, *PROVIDED[kind]) if kind in PROVIDED else None


def _definition(kind: str, plural: str, scope: str) -> dict[str, Any]:
    api_version, _, short = kind.partition(":")
    group, _, version = api_version.partition("/")
    schema = structural(custom_kinds(group)[f"{version}:{short}"])
    schema["properties"] = {**schema.get("properties", {}), "status": {"type": "object", **OPEN}}
    names = {"kind": short, "listKind": f"{short}List", "plural": plural, "singular": short.lower()}
    versions = [{"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "names": names, "scope": scope, "versions": versions},
    }


def structural(schema: Schema) -> Schema:
    """Return the structural form of a schema, which the API server requires.

    Every node gets a type, and nodes without a known schema preserve unknown fields.
    """
    if schema.get("x-kubernetes-int-or-string"):
        return {
            key: value for key, value in schema.items() if key in ("x-kubernetes-int-or-string", "pattern")
        }
    made = {
        key: value
        for key, value in schema.items()
        if key not in ("properties", "items", "additionalProperties")
    }
    if properties := schema.get("properties"):
        made["properties"] = {name: structural(held) for name, held in properties.items()}
    for key in ("items", "additionalProperties"):
        if key in schema:
            made[key] = structural(schema[key]) if isinstance(schema[key], dict) else dict(OPEN)
    kind = made.setdefault(
        "type",
        "object" if properties or "additionalProperties" in made else "array" if "items" in made else "",
    )
    if kind == "array":
        made.setdefault("items", dict(OPEN))
        _without_unkeyed_maps(made)
    elif kind == "object" and not properties and "additionalProperties" not in made:
        made |= OPEN
    elif not kind:
        return dict(OPEN)
    return made


def _without_unkeyed_maps(made: Schema) -> None:
    """Drop list-map keys that are not required: they would need a default, and defaults are omitted."""
    keys = made.get("x-kubernetes-list-map-keys") or ()
    if not set(keys) <= set(made["items"].get("required") or ()):
        made.pop("x-kubernetes-list-map-keys", None)
        made.pop("x-kubernetes-list-type", None)
