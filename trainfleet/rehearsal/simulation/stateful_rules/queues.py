"""Relations between job queues in a cluster and the node pools of its cloud."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trainfleet.rehearsal.simulation.pulumi_values import plain

if TYPE_CHECKING:
    from trainfleet.rehearsal.simulation.cloud_object import CloudObject

FLAVOR = "kubernetes:kueue.x-k8s.io/v1beta2:ResourceFlavor"
CHECK = "kubernetes:kueue.x-k8s.io/v1beta2:AdmissionCheck"
CONFIG = "kubernetes:kueue.x-k8s.io/v1beta2:ProvisioningRequestConfig"


def requested_pools(row: dict[str, Any], record: CloudObject, others: list[CloudObject]) -> str:
    """Return which flavor of a cluster queue has nodes that are added for a ProvisioningRequest only, without
    an admission check that makes one.
    """
    spec = plain(record.inputs).get("spec") or {}
    pools = [plain(other.inputs) for other in others if other.token == row["pool"]]
    requested = [pool for pool in pools if (pool.get(row["switch"]) or {}).get("enabled")]
    for name in sorted(_flavors(spec)):
        selected = (_spec(others, FLAVOR, name) or {}).get("nodeLabels")
        labels = [(pool.get("nodeConfig") or {}).get("labels") or {} for pool in requested]
        on_request = selected and any(selected.items() <= each.items() for each in labels)
        if on_request and row["class"] not in _classes(spec, name, others):
            return (
                f"nodes of flavor {name} are added for a ProvisioningRequest of class {row['class']} only,"
                " and no admission check of the queue makes one for it"
            )
    return ""


def placed_flavors(row: dict[str, Any], record: CloudObject, others: list[CloudObject]) -> str:
    """Return which flavor of a cluster queue places pods in a topology that does not exist, or selects no
    nodes.
    """
    spec = plain(record.inputs).get("spec") or {}
    for name in sorted(_flavors(spec)):
        flavor = _spec(others, FLAVOR, name) or {}
        topology = flavor.get("topologyName")
        if not topology:
            continue
        if _spec(others, row["of"], topology) is None:
            return f"flavor {name} places pods in the topology {topology}, which does not exist"
        if not flavor.get("nodeLabels"):
            return f"flavor {name} has a topology and no nodeLabels"
    return ""


def _flavors(spec: Mapping[str, Any]) -> set[str]:
    """The names of the flavors of a cluster queue."""
    groups = spec.get("resourceGroups") or ()
    return {str(flavor["name"]) for group in groups for flavor in group.get("flavors") or ()}


def _classes(spec: Mapping[str, Any], flavor: str, others: list[CloudObject]) -> Iterator[str]:
    """The provisioning classes that the queue's admission checks request for a flavor."""
    for each in (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ():
        if flavor not in (each.get("onFlavors") or (flavor,)):
            continue
        check = _spec(others, CHECK, each["name"]) or {}
        if check.get("controllerName") == "kueue.x-k8s.io/provisioning-request":
            config = _spec(others, CONFIG, (check.get("parameters") or {}).get("name")) or {}
            yield str(config.get("provisioningClassName"))


def _spec(others: list[CloudObject], token: str, name: Any) -> dict[str, Any] | None:
    """The spec of a custom resource that is not in a namespace."""
    for other in others:
        inputs = plain(other.inputs)
        if other.token == token and (inputs.get("metadata") or {}).get("name") == name:
            return inputs.get("spec") or {}
    return None
