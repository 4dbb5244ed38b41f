"""Rules that only Azure has, on node pools. Each cites its source."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainfleet.infra.azure.layout import GUID, pool_zones
from trainfleet.infra.azure.sizes import INLINE_POOL, LARGEST_DISK_GIB, reservable
from trainfleet.infra.spec.schema import Capacity, PlatformSpec
from trainfleet.infra.validation.finding import Finding, Rule
from trainfleet.infra.validation.pools import CLOUD, machine_choice, pools, pools_with_machine
from trainfleet.pydantic_messages import Path

NODES_PER_POOL = 1000
"""AKS documentation, quotas and limits: nodes of one pool."""
_GROUP_ID = (
    rf"/subscriptions/{GUID}/resourceGroups/[^/]+"
    r"/providers/Microsoft\.Compute/capacityReservationGroups/[^/]+"
)


def azure_pool_sizes(spec: PlatformSpec) -> Iterator[Finding]:
    """One node pool has at most 1000 nodes (AKS documentation, quotas and limits)."""
    sizes: list[tuple[Path, int]] = [
        (("system_pool",), spec.system_pool.max_nodes),
        *((path, pool.max_nodes) for path, pool in pools(spec)),
    ]
    for path, nodes in sizes:
        if nodes > NODES_PER_POOL:
            yield Finding(
                (*path, "max_nodes"),
                f"a node pool of AKS has at most {NODES_PER_POOL} nodes",
                f"at most {NODES_PER_POOL}",
                (CLOUD,),
            )


def azure_pool_names(spec: PlatformSpec) -> Iterator[Finding]:
    """AKS requires one pool inside the cluster resource (AKS API, agentPoolProfiles). Its name is
    reserved.
    """
    for path, pool in pools(spec):
        if pool.name == INLINE_POOL:
            yield Finding(
                (*path, "name"),
                f"`{INLINE_POOL}` is the pool for the add-ons of AKS",
                "another name",
                (CLOUD,),
            )


def azure_capacity_can_be_reserved(spec: PlatformSpec) -> Iterator[Finding]:
    """The ND series and NCads H100 v5 cannot be reserved (Azure, on-demand capacity reservation, limitations,
    2026-02-17).
    """
    for path, pool, machine in pools_with_machine(spec):
        if pool.capacity is Capacity.RESERVED and not reservable(machine):
            yield Finding(
                (*path, "capacity"),
                f"azure does not reserve capacity of {machine.instance_type}",
                "on-demand, with quota that Azure granted for it, or another machine",
                machine_choice(path),
            )


def azure_reservation_is_a_group(spec: PlatformSpec) -> Iterator[Finding]:
    """A node pool is launched into a capacity reservation group, named by its resource id (AKS agent pools,
    capacityReservationGroupID).
    """
    for path, pool in pools(spec):
        if (
            pool.capacity is Capacity.RESERVED
            and pool.reservation
            and not re.fullmatch(_GROUP_ID, pool.reservation)
        ):
            yield Finding(
                (*path, "reservation"),
                f"`{pool.reservation}` is not the id of a capacity reservation group",
                "/subscriptions/…/resourceGroups/…/providers/Microsoft.Compute/capacityReservationGroups/…",
                (CLOUD, (*path, "capacity")),
            )


def azure_reserved_is_not_compact(spec: PlatformSpec) -> Iterator[Finding]:
    """Reserved capacity cannot be in a proximity placement group (Azure, on-demand capacity reservation,
    limitations).
    """
    for path, pool in pools(spec):
        if pool.capacity is Capacity.RESERVED and pool.compact:
            yield Finding(
                (*path, "compact"),
                "reserved capacity cannot be placed compactly on azure",
                "leave it out",
                (CLOUD, (*path, "capacity")),
            )


def azure_root_disk(spec: PlatformSpec) -> Iterator[Finding]:
    """The root disk of a node is at most 2048 GiB (AKS agent pools, osDiskSizeGB)."""
    for path, pool in pools(spec):
        if pool.disk_gib > LARGEST_DISK_GIB:
            yield Finding(
                (*path, "disk_gib"),
                f"{pool.disk_gib} GiB is more than a node's root disk can have",
                f"at most {LARGEST_DISK_GIB}",
                (CLOUD,),
            )


def azure_labels_are_free(spec: PlatformSpec) -> Iterator[Finding]:
    """AKS rejects labels of its own domain on node pools (AKS documentation, use labels, reserved system
    labels).
    """
    for path, pool in pools(spec):
        for key in pool.labels:
            domain = key.rpartition("/")[0]
            if domain == "azure.com" or domain.endswith(".azure.com"):
                yield Finding(
                    (*path, "labels", key),
                    "labels of azure.com are set by AKS",
                    "a domain of your own, or none",
                    (CLOUD,),
                )


def azure_zone_is_chosen(spec: PlatformSpec) -> Iterator[Finding]:
    """Not every zone has every machine, and each subscription numbers the zones differently, so no catalogue
    can tell the zone (Azure Resource Manager, SKUs, locationInfo.zones; reliability documentation, zone
    mapping).
    """
    for path, pool, machine in pools_with_machine(spec):
        zones = pool_zones(spec, pool)
        if not pool.zone and len(zones) == 1 and spec.network.zones > 1:
            size = machine.instance_type
            yield Finding(
                (*path, "zone"),
                f"is zone {zones[0]} by default, which may not have {size} in your subscription",
                f"one that has it: az vm list-skus -l {spec.region} --size {size} --zone --all -o table",
                (*machine_choice(path), ("region",), ("network", "zones")),
            )


NOTICES: tuple[Rule, ...] = (azure_zone_is_chosen,)
RULES: tuple[Rule, ...] = (
    azure_pool_sizes,
    azure_pool_names,
    azure_capacity_can_be_reserved,
    azure_reservation_is_a_group,
    azure_reserved_is_not_compact,
    azure_root_disk,
    azure_labels_are_free,
)
