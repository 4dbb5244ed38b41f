"""Rules that only Azure has, on location, network and services. Each cites its source."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from ipaddress import IPv4Network

from trainfleet.infra.azure import validation_pools
from trainfleet.infra.azure.layout import (
    GUID,
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
    LONGEST_RECOVERY,
    LUSTRE_MOST_TIB,
    LUSTRE_STEPS_TIB,
    NFS_MOST_GIB,
)
from trainfleet.infra.spec.node_groups import node_groups
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.validation.existing_network import EXISTING, in_own_network
from trainfleet.infra.validation.finding import Finding, Rule
from trainfleet.infra.validation.network import CIDR, PRIVATE_RANGES, is_private
from trainfleet.infra.validation.pools import CLOUD, pools
from trainfleet.pydantic_messages import Path
from trainfleet.suggestions import nearest

MOST_RANGES = 100
"""Container Registry service tiers: public IP rules of a registry. The API server accepts 200."""
NOT_INTEGRATED = ("qatarcentral",)
"""Regions without API Server VNet Integration (AKS documentation; Microsoft Q&A 5865050, 2026-04-20)."""
_AKS_OWN = tuple(map(IPv4Network, ("172.30.0.0/16", "172.31.0.0/16")))


def azure_region_is_known(spec: PlatformSpec) -> Iterator[Finding]:
    """A region is written in lower case without spaces, and the provider finds a misspelt one only with its
    first call (Azure regions list).
    """
    if spec.region and spec.region not in REGIONS:
        match = nearest(spec.region, REGIONS)
        fix = (
            f"did you mean `{match}`?"
            if match
            else "for example eastus, eastus2, westus3, westeurope, swedencentral"
        )
        yield Finding(("region",), f"`{spec.region}` is not a region of azure", fix, (CLOUD,))


def azure_region_has_zones(spec: PlatformSpec) -> Iterator[Finding]:
    """A region has three availability zones or none at all (Azure reliability documentation, list of
    regions).
    """
    if spec.region not in REGIONS:
        return
    there = max(REGIONS[spec.region], 1)
    if spec.network.zones > there:
        what = f"{spec.region} has {there} zones" if has_zones(spec.region) else f"{spec.region} has no zones"
        yield Finding(("network", "zones"), what, f"at most {there}", (CLOUD, ("region",)))


def azure_api_server_is_in_the_network(spec: PlatformSpec) -> Iterator[Finding]:
    """The control plane reads its key in a private vault, for which AKS requires API Server VNet Integration
    (AKS documentation, KMS etcd encryption). It is not in every region (API Server VNet Integration, limited
    availability).
    """
    if spec.region in NOT_INTEGRATED:
        yield Finding(
            ("region",),
            f"AKS does not place API servers in a network in {spec.region}",
            "another region",
            (CLOUD,),
        )


def azure_zone_is_a_number(spec: PlatformSpec) -> Iterator[Finding]:
    """Zones are numbered 1 to 3, and each subscription has its own mapping to data centers (Azure reliability
    documentation, zone mapping).
    """
    for path, pool in pools(spec):
        where = (*path, "zone")
        if pool.zone and spec.region in REGIONS and not has_zones(spec.region):
            yield Finding(where, f"{spec.region} has no zones", "leave it out", (CLOUD, ("region",)))
        elif pool.zone and pool.zone not in ZONES:
            yield Finding(
                where,
                f"`{pool.zone}` is not a zone of azure",
                'one zone in quotes: "1", "2" or "3"',
                (CLOUD,),
            )


def azure_network_size(spec: PlatformSpec) -> Iterator[Finding]:
    """A virtual network is a /8 at most (Virtual Network FAQ); below a /20, Managed Lustre does not get the
    /24 that it needs.
    """
    length = spec.network.cidr.prefixlen
    if not LARGEST_PREFIX <= length <= LONGEST_PREFIX:
        what = (
            "too small to be divided into subnets"
            if length > LONGEST_PREFIX
            else "larger than a virtual network can be"
        )
        yield Finding(
            CIDR,
            f"{spec.network.cidr} is {what}",
            f"a /{LARGEST_PREFIX} to a /{LONGEST_PREFIX}",
            (CLOUD,),
        )


def azure_network_is_private(spec: PlatformSpec) -> Iterator[Finding]:
    """Public addresses hide their real owners, and AKS reserves 172.30.0.0/15 (AKS documentation, networking
    prerequisites). A range that is too large is named for its size alone.
    """
    cidr = spec.network.cidr
    if cidr.prefixlen < LARGEST_PREFIX:
        return
    if not is_private(cidr):
        yield Finding(
            CIDR,
            f"{cidr} is not a private range",
            PRIVATE_RANGES,
            (CLOUD,),
        )
    elif any(cidr.overlaps(each) for each in _AKS_OWN):
        yield Finding(
            CIDR,
            f"{cidr} overlaps addresses that AKS reserves",
            "a range outside 172.30.0.0/15",
            (CLOUD,),
        )


def azure_nodes_have_addresses(spec: PlatformSpec) -> Iterator[Finding]:
    """Nodes take addresses of their subnet, pods a /24 per node of a separate range (AKS documentation, Azure
    CNI Overlay, IP planning).

    During an update, a pool has a third more nodes.
    """
    if (
        spec.region not in REGIONS
        or not LARGEST_PREFIX <= spec.network.cidr.prefixlen <= LONGEST_PREFIX
        or _odd_zones(spec)
    ):
        return
    counts: dict[str, int] = {}
    inline = INLINE_NODES[spec.production][1]
    requested = [
        ((), spec.system_pool.max_nodes + inline),
        *((pool_zones(spec, pool), pool.max_nodes) for pool in node_groups(spec)),
    ]
    for zones, nodes in requested:
        zone = zones[0] if len(zones) == 1 and spec.network.nat == "per-zone" else ""
        counts[zone] = counts.get(zone, 0) + nodes + math.ceil(nodes / 3)
    reads: tuple[Path, ...] = (CLOUD, ("region",), ("network", "zones"), ("system_pool",), ("gpu_pools",))
    total = sum(counts.values())
    if total > NODES_AT_MOST:
        yield Finding(
            ("gpu_pools",),
            f"at full scale there are {total} nodes during an update, the pods' range serves {NODES_AT_MOST}",
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
                CIDR,
                f"at full scale {nodes} nodes need addresses of {subnet}, which has {there}",
                f"a /{length} or larger",
                reads,
            )
            return


def azure_people_are_groups(spec: PlatformSpec) -> Iterator[Finding]:
    """Local accounts are disabled, so only members of Entra groups can log in. A group is named by its object
    id (AKS, managed Entra ID).
    """
    if not spec.kubernetes.admins:
        yield Finding(
            ("kubernetes", "admins"),
            "is empty, and without local accounts nobody could log in to AKS",
            "the object id of an Entra group that includes the identity that applies",
            (CLOUD,),
        )
    for name in ("admins", "launchers"):
        for index, group in enumerate(getattr(spec.kubernetes, name)):
            if not re.fullmatch(GUID, group):
                yield Finding(
                    ("kubernetes", name, index),
                    f"`{group}` is not the object id of a group",
                    "a GUID, for example from: az ad group show -g NAME --query id",
                    (CLOUD,),
                )


def azure_logs_are_kept_as_sold(spec: PlatformSpec) -> Iterator[Finding]:
    """A Log Analytics workspace keeps logs for 30 to 730 days (Azure Monitor, data retention)."""
    days = spec.kubernetes.log_retention_days
    if not SHORTEST_LOGS <= days <= LONGEST_LOGS:
        yield Finding(
            ("kubernetes", "log_retention_days"),
            f"Log Analytics does not keep logs for {days} days",
            f"{SHORTEST_LOGS} to {LONGEST_LOGS}",
            (CLOUD,),
        )


def azure_objects_come_back(spec: PlatformSpec) -> Iterator[Finding]:
    """Deleted objects can be restored for at most 365 days (Storage, soft delete for blobs)."""
    if spec.storage.retention_days > LONGEST_RECOVERY:
        yield Finding(
            ("storage", "retention_days"),
            f"azure restores deleted objects for {LONGEST_RECOVERY} days, not {spec.storage.retention_days}",
            f"at most {LONGEST_RECOVERY}",
            (CLOUD,),
        )


def azure_filesystem_is_sold(spec: PlatformSpec) -> Iterator[Finding]:
    """Managed Lustre comes in steps that depend on its speed (its documentation, throughput and sizes), an
    NFS share up to 100 TiB (Files).
    """
    shared = spec.storage.shared_filesystem
    if shared is None:
        return
    path: Path = ("storage", "shared_filesystem")
    size = shared.capacity_gib
    reads: tuple[Path, ...] = (CLOUD, (*path, "kind"), (*path, "throughput_mbps_per_tib"))
    if shared.kind == "nfs":
        if size > NFS_MOST_GIB:
            yield Finding(
                (*path, "capacity_gib"),
                f"{size} GiB is more than one share can have",
                f"at most {NFS_MOST_GIB}",
                reads,
            )
        return
    if shared.throughput_mbps_per_tib not in LUSTRE_STEPS_TIB:
        sold = ", ".join(map(str, LUSTRE_STEPS_TIB))
        yield Finding(
            (*path, "throughput_mbps_per_tib"),
            f"Managed Lustre is not sold with {shared.throughput_mbps_per_tib} MB/s for each TiB",
            f"one of {sold}",
            (CLOUD, (*path, "kind")),
        )
        return
    step = LUSTRE_STEPS_TIB[shared.throughput_mbps_per_tib] * 1024
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
            f"Managed Lustre of {shared.throughput_mbps_per_tib} MB/s for each TiB "
            f"is not sold with {size} GiB",
            f"{above}: {step}, and more in steps of {step}",
            reads,
        )


def azure_ranges_are_few(spec: PlatformSpec) -> Iterator[Finding]:
    """A registry accepts 100 ranges (Container Registry service tiers), and every range that reaches the
    control plane also reaches the images.
    """
    if len(spec.kubernetes.access.public_ranges) > MOST_RANGES:
        yield Finding(
            ("kubernetes", "access", "public_ranges"),
            f"{len(spec.kubernetes.access.public_ranges)} ranges are too many",
            f"at most {MOST_RANGES}",
            (CLOUD,),
        )


def azure_owner_encrypts_an_existing_network(spec: PlatformSpec) -> Iterator[Finding]:
    """Encryption is a setting of the virtual network (Virtual Network encryption)."""
    if spec.network.existing is not None and spec.network.encryption:
        what = "is a setting of the existing network"
        yield Finding(("network", "encryption"), what, "leave it out, and set it there", (EXISTING, CLOUD))


def azure_tags_are_free(spec: PlatformSpec) -> Iterator[Finding]:
    r"""Keys without <>%&\?/, 512 long, values 256, 50 in all, ignoring case (Azure Resource Manager,
    tag limitations)."""
    seen: dict[str, str] = {"name": "Name"}
    for key in spec.tags:
        where: Path = ("tags", key)
        if re.search(r"[<>%&\\?/]", key):
            yield Finding(where, "is not a valid tag key on azure", r"a key without < > % & \ ? /", (CLOUD,))
        elif re.match(r"(microsoft|azure|windows)", key.lower()):
            yield Finding(
                where,
                "tags that start with microsoft, azure or windows are reserved by Azure",
                "another key",
                (CLOUD,),
            )
        elif key.lower() in seen:
            yield Finding(
                where,
                f"is the same tag as `{seen[key.lower()]}` on azure, which ignores case",
                "another key",
                (CLOUD,),
            )
        seen.setdefault(key.lower(), key)


def _odd_zones(spec: PlatformSpec) -> bool:
    """Whether another rule reports a zone."""
    return spec.network.zones > len(ZONES) or any(
        pool.zone and pool.zone not in ZONES for pool in spec.gpu_pools
    )


RULES: tuple[Rule, ...] = (
    azure_region_is_known,
    azure_region_has_zones,
    azure_api_server_is_in_the_network,
    azure_zone_is_a_number,
    in_own_network(azure_network_size),
    azure_network_is_private,
    in_own_network(azure_nodes_have_addresses),
    azure_people_are_groups,
    azure_logs_are_kept_as_sold,
    azure_objects_come_back,
    azure_filesystem_is_sold,
    azure_ranges_are_few,
    azure_owner_encrypts_an_existing_network,
    azure_tags_are_free,
    *validation_pools.RULES,
)
