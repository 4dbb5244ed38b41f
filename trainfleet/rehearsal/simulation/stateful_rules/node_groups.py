"""Relations of node groups: to how their machines are bought, and to the order in which they are used.

An autoscaler shows neither at `up`: the first pod that needs a node finds out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN, plain

if TYPE_CHECKING:
    from trainfleet.rehearsal.simulation.cloud_object import CloudObject

Row = dict[str, Any]
BLOCK = "capacity-block"


def bought_as(row: Row, record: CloudObject, others: list[CloudObject]) -> str:
    """Return why a node group's capacity type contradicts its launch template."""
    group = plain(record.inputs)
    used = (group.get("launchTemplate") or {}).get("id")
    template: dict[str, Any] = next(
        (plain(each.inputs) for each in others if each.token == row["template"] and each.id == used), {}
    )
    capacity = group.get("capacityType") or "ON_DEMAND"
    market = (template.get("instanceMarketOptions") or {}).get("marketType")
    target = (template.get("capacityReservationSpecification") or {}).get("capacityReservationTarget") or {}
    reservation = target.get("capacityReservationId") or target.get("capacityReservationResourceGroupArn")
    if UNKNOWN in (capacity, market) or not template:
        return ""
    if capacity == "SPOT" and reservation:
        return f"a Spot Instance cannot run in reservation {reservation}: use two node groups"
    if market == "spot":
        return (
            "the template requests Spot Instances, which a managed node group rejects: set capacityType SPOT"
        )
    if (market == BLOCK) != (capacity == "CAPACITY_BLOCK"):
        return f"capacityType {capacity} contradicts the template's market type {market or '(none)'}"
    if capacity == "CAPACITY_BLOCK" and not reservation:
        return "the template does not name the capacity block as the target of its instances"
    return ""


def class_pools(row: Row, record: CloudObject, others: list[CloudObject]) -> str:
    """Return which node pool of a compute class is not associated with it."""
    inputs = plain(record.inputs)
    own = str((inputs.get("metadata") or {}).get("name"))
    named = {
        name
        for rule in (inputs.get("spec") or {}).get("priorities") or ()
        for name in rule.get("nodepools") or ()
    }
    for pool in (other for other in others if other.token == row["pool"]):
        name = str(plain(pool.outputs).get("name") or pool.id.rpartition("/")[2])
        if name not in named:
            continue
        config = plain(pool.inputs).get("nodeConfig") or {}
        label = (config.get("labels") or {}).get(row["label"])
        taints = {each.get("value") for each in config.get("taints") or () if each.get("key") == row["label"]}
        if label != own or own not in taints:
            missing = "label" if label != own else "taint"
            return (
                f"node pool {name} has no {missing} {row['label']}={own}, so GKE adds no node to it for pods"
                f" of the class"
            )
    return ""


def expander_order(row: Row, record: CloudObject, others: list[CloudObject]) -> str:
    """Return what an autoscaler with the expander `priority` lacks."""
    release = plain(record.inputs)
    arguments = (release.get("values") or {}).get("extraArgs") or {}
    if release.get("chart") != row["chart"] or "priority" not in str(arguments.get("expander")).split(","):
        return ""
    namespace = str(release.get("namespace") or "default")
    for other in others:
        inputs = plain(other.inputs)
        metadata = inputs.get("metadata") or {}
        there = (metadata.get("name"), str(metadata.get("namespace") or "default"))
        if other.token == row["order"] and other.place == record.place and there == (row["name"], namespace):
            return (
                "" if "priorities" in (inputs.get("data") or {}) else f"{row['name']} has no key priorities"
            )
    return (
        f"its expander `priority` reads ConfigMap {row['name']} of namespace {namespace}, without which node"
        " groups have no order: create it before"
    )
