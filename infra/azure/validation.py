"""Rules that Azure alone has, known before the engine starts. Each has its source in its docstring."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from ipaddress import IPv4Network

from trainfleet.infra.azure.layout import (
    KEPT_ADDRESSES,
    LARGEST_PREFIX,
    LONGEST_LOGS,
    LONGEST_PREFIX,
    NODES_AT_MOST,
    REGIONS,
    SHORTEST_LOGS,
    ZONES,
    has_zones,
    plan,
    pool_zones,
)
from trainfleet.infra.azure.sizes import (
    INLINE_NODES,
    INLINE_POOL,
    LARGEST_DISK_GIB,
    LUSTRE_MOST_TIB,
    LUSTRE_STEPS_TIB,
    NFS_MOST_GIB,
    reservable,
)
from trainfleet.infra.catalog.machines import machine_for_pool
from trainfleet.infra.spec.schema import Capacity, Cloud, GpuPool, PlatformSpec
from trainfleet.infra.validation.finding import Finding, Rule
from trainfleet.pydantic_messages import Path
from trainfleet.suggestions import nearest

KUBERNETES_VERSIONS = ("1.34", "1.35", "1.36")
"""What AKS supports without long-term support in November 2026: the newest three minors (AKS release
calendar).
"""
NODES_PER_POOL = 1000
"""AKS documentation, quotas and limits: nodes of one pool."""
MOST_RANGES = 100
"""Container Registry service tiers: public IP rules of a registry. The API server itself would take 200."""
LONGEST_RECOVERY = 365
"""Storage, soft delete for blobs: 1 to 365 days."""
TAGS, TAG_KEY, TAG_VALUE, OWN_TAGS = 50, 512, 256, 5
_GUID = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_GROUP_ID = rf"/subscriptions/{_GUID}/resourceGroups/[^/]+/providers/Microsoft\.Compute/capacityReservationGroups/[^/]+"
_CIDR: Path = ("network", "cidr")
_ON_AZURE: Path = ("cloud",)
_PRIVATE = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")))
_AKS_OWN = tuple(map(IPv4Network, ("172.30.0.0/16", "172.31.0.0/16")))


def azure_region_is_known(spec: PlatformSpec) -> Iterator[Finding]:
    """A region is written without spaces and in small letters, and the provider finds a misspelt one only
    when it asks (Azure regions list).
    """
    if _on_azure(spec) and spec.region and spec.region not in REGIONS:
        match = nearest(spec.region, REGIONS)
        fix = (
            f"did you mean `{match}`?"
            if match
            else "for example eastus, eastus2, westus3, westeurope, swedencentral"
        )
        yield Finding(("region",), f"`{spec.region}` is not a region of azure", fix, (_ON_AZURE,))


def azure_region_has_zones(spec: PlatformSpec) -> Iterator[Finding]:
    """A region has three availability zones or none at all (Azure reliability documentation, list of
    regions).
    """
    if not _in_region(spec):
        return
    there = max(REGIONS[spec.region], 1)
    if spec.network.zones > there:
        what = f"{spec.region} has {there} zones" if has_zones(spec.region) else f"{spec.region} has no zones"
        yield Finding(("network", "zones"), what, f"at most {there}", (_ON_AZURE, ("region",)))


def azure_zone_is_a_number(spec: PlatformSpec) -> Iterator[Finding]:
    """Zones are called 1, 2 and 3, and which building is meant differs per subscription (Azure reliability
    documentation, zone mapping).
    """
    for path, pool in _pools(spec):
        where = (*path, "zone")
        if pool.zone and spec.region in REGIONS and not has_zones(spec.region):
            yield Finding(where, f"{spec.region} has no zones", "leave it out", (_ON_AZURE, ("region",)))
        elif pool.zone and pool.zone not in ZONES:
            yield Finding(
                where,
                f"`{pool.zone}` is not a zone of azure",
                'one zone in quotes: "1", "2" or "3"',
                (_ON_AZURE,),
            )


def azure_network_size(spec: PlatformSpec) -> Iterator[Finding]:
    """A virtual network is a /8 at most (Virtual Network FAQ); below a /20, Managed Lustre does not get the
    /24 that it asks for.
    """
    length = spec.network.cidr.prefixlen
    if _on_azure(spec) and not LARGEST_PREFIX <= length <= LONGEST_PREFIX:
        what = (
            "too small to be divided into subnets"
            if length > LONGEST_PREFIX
            else "larger than a virtual network can be"
        )
        yield Finding(
            _CIDR,
            f"{spec.network.cidr} is {what}",
            f"a /{LARGEST_PREFIX} to a /{LONGEST_PREFIX}",
            (_ON_AZURE,),
        )


def azure_network_is_private(spec: PlatformSpec) -> Iterator[Finding]:
    """Public addresses inside hide their owners, and AKS keeps 172.30.0.0/15 for itself (AKS documentation,
    networking prerequisites).
    """
    if not _on_azure(spec):
        return
    cidr = spec.network.cidr
    if not any(cidr.subnet_of(each) for each in _PRIVATE):
        yield Finding(
            _CIDR,
            f"{cidr} is not a private range",
            "inside 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or 100.64.0.0/10",
            (_ON_AZURE,),
        )
    elif any(cidr.overlaps(each) for each in _AKS_OWN):
        yield Finding(
            _CIDR,
            f"{cidr} takes addresses that AKS keeps for itself",
            "a range apart from 172.30.0.0/15",
            (_ON_AZURE,),
        )


def azure_network_has_a_way_out(spec: PlatformSpec) -> Iterator[Finding]:
    """Entra ID has no private endpoint (Private Link documentation, available services), and without it no
    pod gets its identity.
    """
    if _on_azure(spec) and spec.network.nat == "none":
        yield Finding(
            ("network", "nat"),
            "pods on azure get their identity from Entra ID, which answers outside only",
            "single or per-zone",
            (_ON_AZURE,),
        )


def azure_nodes_have_addresses(spec: PlatformSpec) -> Iterator[Finding]:
    """Nodes take addresses of their subnet, pods a /24 per node of a range beside it (AKS documentation,
    Azure CNI Overlay, IP planning).

    While a pool is updated it has a third more nodes, so that much must fit as well.
    """
    if (
        not _in_region(spec)
        or not LARGEST_PREFIX <= spec.network.cidr.prefixlen <= LONGEST_PREFIX
        or _odd_zones(spec)
    ):
        return
    counts: dict[str, int] = {}
    inline = INLINE_NODES[spec.production][1]
    wanted = [
        ((), spec.system_pool.max_nodes + inline),
        *((pool_zones(spec, pool), pool.max_nodes) for pool in spec.gpu_pools),
    ]
    for zones, nodes in wanted:
        zone = zones[0] if len(zones) == 1 and spec.network.nat == "per-zone" else ""
        counts[zone] = counts.get(zone, 0) + nodes + math.ceil(nodes / 3)
    reads: tuple[Path, ...] = (_ON_AZURE, ("region",), ("network", "zones"), ("system_pool",), ("gpu_pools",))
    total = sum(counts.values())
    if total > NODES_AT_MOST:
        most = "the pods' range serves"
        yield Finding(
            ("gpu_pools",),
            f"at full scale there are {total} nodes with those of an update, {most} {NODES_AT_MOST}",
            "fewer nodes",
            reads,
        )
        return
    planned = plan(spec)
    for zone, nodes in counts.items():
        subnet = planned.zonal[zone] if zone else planned.nodes
        there = subnet.num_addresses - KEPT_ADDRESSES
        if nodes > there:
            length = spec.network.cidr.prefixlen - math.ceil(math.log2(nodes / there))
            yield Finding(
                _CIDR,
                f"at full scale {nodes} nodes need addresses of {subnet}, which has {there}",
                f"a /{length} or larger",
                reads,
            )
            return


def azure_pool_sizes(spec: PlatformSpec) -> Iterator[Finding]:
    """One node pool has at most 1000 nodes (AKS documentation, quotas and limits)."""
    sizes: list[tuple[Path, int]] = [
        (("system_pool",), spec.system_pool.max_nodes),
        *((path, pool.max_nodes) for path, pool in _pools(spec)),
    ]
    for path, nodes in sizes if _on_azure(spec) else ():
        if nodes > NODES_PER_POOL:
            yield Finding(
                (*path, "max_nodes"),
                f"a node pool of AKS has at most {NODES_PER_POOL} nodes",
                f"at most {NODES_PER_POOL}",
                (_ON_AZURE,),
            )


def azure_pool_names(spec: PlatformSpec) -> Iterator[Finding]:
    """AKS makes no cluster without one pool inside it (AKS API, agentPoolProfiles), and on this platform that
    one has a name of its own.
    """
    for path, pool in _pools(spec):
        if pool.name == INLINE_POOL:
            yield Finding(
                (*path, "name"),
                f"`{INLINE_POOL}` is the pool in which AKS runs its own add-ons",
                "another name",
                (_ON_AZURE,),
            )


def azure_capacity_is_sold(spec: PlatformSpec) -> Iterator[Finding]:
    """Flex-start and queued provisioning are Google's (Google Kubernetes Engine documentation); Azure sells
    on demand, spot and reserved.
    """
    for path, pool in _pools(spec):
        if pool.capacity in (Capacity.FLEX_START, Capacity.QUEUED):
            yield Finding(
                (*path, "capacity"),
                f"azure does not sell `{pool.capacity}`",
                "on-demand, spot or reserved",
                (_ON_AZURE,),
            )


def azure_capacity_can_be_reserved(spec: PlatformSpec) -> Iterator[Finding]:
    """No capacity can be reserved of the ND series and of NCads H100 v5 (Azure, on-demand capacity
    reservation, limitations, 2026-02-17).
    """
    for path, pool in _pools(spec):
        try:
            machine = machine_for_pool(spec.cloud, pool)
        except LookupError:
            continue
        if pool.capacity is Capacity.RESERVED and not reservable(machine):
            yield Finding(
                (*path, "capacity"),
                f"azure reserves no capacity of {machine.instance_type}",
                "on-demand, with quota that Azure granted for it, or another machine",
                (
                    _ON_AZURE,
                    *((*path, name) for name in ("accelerator", "per_node", "instance_type", "interconnect")),
                ),
            )


def azure_reservation_is_a_group(spec: PlatformSpec) -> Iterator[Finding]:
    """A node pool is launched into a capacity reservation group, named by its resource id (AKS agent pools,
    capacityReservationGroupID).
    """
    for path, pool in _pools(spec):
        if (
            pool.capacity is Capacity.RESERVED
            and pool.reservation
            and not re.fullmatch(_GROUP_ID, pool.reservation)
        ):
            yield Finding(
                (*path, "reservation"),
                f"`{pool.reservation}` is not the id of a capacity reservation group",
                "/subscriptions/…/resourceGroups/…/providers/Microsoft.Compute/capacityReservationGroups/…",
                (_ON_AZURE, (*path, "capacity")),
            )


def azure_reserved_is_where_it_is(spec: PlatformSpec) -> Iterator[Finding]:
    """Reserved capacity takes no proximity placement group (Azure, on-demand capacity reservation,
    limitations).
    """
    for path, pool in _pools(spec):
        if pool.capacity is Capacity.RESERVED and pool.compact:
            yield Finding(
                (*path, "compact"),
                "azure does not place reserved capacity",
                "leave it out",
                (_ON_AZURE, (*path, "capacity")),
            )


def azure_root_disk(spec: PlatformSpec) -> Iterator[Finding]:
    """The root disk of a node is at most 2048 GiB (AKS agent pools, osDiskSizeGB)."""
    for path, pool in _pools(spec):
        if pool.disk_gib > LARGEST_DISK_GIB:
            yield Finding(
                (*path, "disk_gib"),
                f"{pool.disk_gib} GiB is more than a node's root disk can have",
                f"at most {LARGEST_DISK_GIB}",
                (_ON_AZURE,),
            )


def azure_labels_are_free(spec: PlatformSpec) -> Iterator[Finding]:
    """AKS refuses labels of its own domain on node pools (AKS documentation, use labels, reserved system
    labels).
    """
    for path, pool in _pools(spec):
        for key in pool.labels:
            domain = key.rpartition("/")[0]
            if domain == "azure.com" or domain.endswith(".azure.com"):
                yield Finding(
                    (*path, "labels", key),
                    "labels of azure.com are set by AKS",
                    "a domain of your own, or none",
                    (_ON_AZURE,),
                )


def azure_people_are_groups(spec: PlatformSpec) -> Iterator[Finding]:
    """With local accounts off, members of Entra groups log in and nobody else; a group is named by its object
    id (AKS, managed Entra ID).
    """
    if not _on_azure(spec):
        return
    if not spec.kubernetes.admins:
        yield Finding(
            ("kubernetes", "admins"),
            "is empty, and AKS without local accounts would let nobody in",
            "the object id of an Entra group to which whoever applies belongs",
            (_ON_AZURE,),
        )
    for name in ("admins", "launchers"):
        for index, group in enumerate(getattr(spec.kubernetes, name)):
            if not re.fullmatch(_GUID, group):
                yield Finding(
                    ("kubernetes", name, index),
                    f"`{group}` is not the object id of a group",
                    "a GUID, for example from: az ad group show -g NAME --query id",
                    (_ON_AZURE,),
                )


def azure_kubernetes_is_sold(spec: PlatformSpec) -> Iterator[Finding]:
    """AKS supports the newest three minors (AKS documentation, supported Kubernetes versions)."""
    if _on_azure(spec) and spec.kubernetes.version not in KUBERNETES_VERSIONS:
        yield Finding(
            ("kubernetes", "version"),
            f"Kubernetes {spec.kubernetes.version} is not one of those this release runs on AKS",
            f"one of {', '.join(KUBERNETES_VERSIONS)}",
            (_ON_AZURE,),
        )


def azure_logs_are_kept_as_sold(spec: PlatformSpec) -> Iterator[Finding]:
    """A Log Analytics workspace keeps logs for 30 to 730 days (Azure Monitor, data retention)."""
    days = spec.kubernetes.log_retention_days
    if _on_azure(spec) and not SHORTEST_LOGS <= days <= LONGEST_LOGS:
        yield Finding(
            ("kubernetes", "log_retention_days"),
            f"Log Analytics does not keep logs for {days} days",
            f"{SHORTEST_LOGS} to {LONGEST_LOGS}",
            (_ON_AZURE,),
        )


def azure_objects_come_back(spec: PlatformSpec) -> Iterator[Finding]:
    """Deleted objects can be brought back for 365 days at most (Storage, soft delete for blobs)."""
    if _on_azure(spec) and spec.storage.retention_days > LONGEST_RECOVERY:
        yield Finding(
            ("storage", "retention_days"),
            f"azure brings deleted objects back for {LONGEST_RECOVERY} days, not for {spec.storage.retention_days}",
            f"at most {LONGEST_RECOVERY}",
            (_ON_AZURE,),
        )


def azure_filesystem_is_sold(spec: PlatformSpec) -> Iterator[Finding]:
    """Managed Lustre comes in steps that depend on its speed (its documentation, throughput and sizes), an
    NFS share up to 100 TiB (Files).
    """
    wish = spec.storage.shared_filesystem
    if not _on_azure(spec) or wish is None:
        return
    path: Path = ("storage", "shared_filesystem")
    size = wish.capacity_gib
    reads: tuple[Path, ...] = (_ON_AZURE, (*path, "kind"), (*path, "throughput_mbps_per_tib"))
    if wish.kind == "nfs":
        if size > NFS_MOST_GIB:
            yield Finding(
                (*path, "capacity_gib"),
                f"{size} GiB is more than one share can have",
                f"at most {NFS_MOST_GIB}",
                reads,
            )
        return
    if wish.throughput_mbps_per_tib not in LUSTRE_STEPS_TIB:
        sold = ", ".join(map(str, LUSTRE_STEPS_TIB))
        yield Finding(
            (*path, "throughput_mbps_per_tib"),
            f"Managed Lustre is not sold with {wish.throughput_mbps_per_tib} MB/s for each TiB",
            f"one of {sold}",
            (_ON_AZURE, (*path, "kind")),
        )
        return
    step = LUSTRE_STEPS_TIB[wish.throughput_mbps_per_tib] * 1024
    if size > LUSTRE_MOST_TIB * 1024:
        yield Finding(
            (*path, "capacity_gib"),
            f"{size} GiB is more than one filesystem can have",
            f"at most {LUSTRE_MOST_TIB * 1024}",
            reads,
        )
    elif size % step:
        above = math.ceil(size / step) * step
        yield Finding(
            (*path, "capacity_gib"),
            f"Managed Lustre of {wish.throughput_mbps_per_tib} MB/s for each TiB is not sold with {size} GiB",
            f"{above}: {step}, and more in steps of {step}",
            reads,
        )


def azure_ranges_are_few(spec: PlatformSpec) -> Iterator[Finding]:
    """A registry takes 100 ranges (Container Registry service tiers), and whoever reaches the control plane
    reaches the images as well.
    """
    if _on_azure(spec) and len(spec.network.allowed_cidrs) > MOST_RANGES:
        yield Finding(
            ("network", "allowed_cidrs"),
            f"{len(spec.network.allowed_cidrs)} ranges are too many",
            f"at most {MOST_RANGES}",
            (_ON_AZURE,),
        )


def azure_tags_are_free(spec: PlatformSpec) -> Iterator[Finding]:
    r"""Keys without <>%&\?/, 512 long, values 256, 50 in all, letters' case aside (Azure Resource Manager,
    tag limitations)."""
    if not _on_azure(spec):
        return
    seen: dict[str, str] = {"name": "Name"}
    for key in spec.tags:
        where: Path = ("tags", key)
        if re.search(r"[<>%&\\?/]", key):
            yield Finding(
                where, "is not the key of a tag on azure", r"a key without < > % & \ ? /", (_ON_AZURE,)
            )
        elif re.match(r"(microsoft|azure|windows)", key.lower()):
            yield Finding(
                where,
                "tags that start with microsoft, azure or windows are kept by Azure",
                "another key",
                (_ON_AZURE,),
            )
        elif key.lower() in seen:
            yield Finding(
                where,
                f"is the same tag as `{seen[key.lower()]}` on azure, which does not tell capitals apart",
                "another key",
                (_ON_AZURE,),
            )
        seen.setdefault(key.lower(), key)


RULES: tuple[Rule, ...] = (
    azure_region_is_known,
    azure_region_has_zones,
    azure_zone_is_a_number,
    azure_network_size,
    azure_network_is_private,
    azure_network_has_a_way_out,
    azure_nodes_have_addresses,
    azure_pool_sizes,
    azure_pool_names,
    azure_capacity_is_sold,
    azure_capacity_can_be_reserved,
    azure_reservation_is_a_group,
    azure_reserved_is_where_it_is,
    azure_root_disk,
    azure_labels_are_free,
    azure_people_are_groups,
    azure_kubernetes_is_sold,
    azure_logs_are_kept_as_sold,
    azure_objects_come_back,
    azure_filesystem_is_sold,
    azure_ranges_are_few,
    azure_tags_are_free,
)


def _on_azure(spec: PlatformSpec) -> bool:
    return spec.cloud is Cloud.AZURE


def _in_region(spec: PlatformSpec) -> bool:
    return _on_azure(spec) and spec.region in REGIONS


def _odd_zones(spec: PlatformSpec) -> bool:
    """Whether a pool names a zone that has its own finding."""
    return spec.network.zones > len(ZONES) or any(
        pool.zone and pool.zone not in ZONES for pool in spec.gpu_pools
    )


def _pools(spec: PlatformSpec) -> Iterator[tuple[Path, GpuPool]]:
    if _on_azure(spec):
        for index, pool in enumerate(spec.gpu_pools):
            yield ("gpu_pools", index), pool
