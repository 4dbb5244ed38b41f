"""Names, zones and address ranges of a platform on Azure, computed from the spec alone.

Zones are the numbers 1 to 3 that Azure maps per subscription, and a subnet spans them all. Some regions have
none. Storage accounts, vaults and registries have short, globally unique names.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from ipaddress import IPv4Network

from trainfleet.api_limits import limit
from trainfleet.errors import InputError, Problem
from trainfleet.infra.spec.named import Named
from trainfleet.infra.spec.node_group import NodeGroup
from trainfleet.infra.spec.node_groups import node_groups
from trainfleet.infra.spec.schema import Capacity, PlatformSpec

GUID = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
ZONES = ("1", "2", "3")
REGIONS: dict[str, int] = dict.fromkeys(
    [
        "australiaeast",
        "austriaeast",
        "belgiumcentral",
        "brazilsouth",
        "canadacentral",
        "centralindia",
        "centralus",
        "chilecentral",
        "eastasia",
        "eastus",
        "eastus2",
        "francecentral",
        "germanywestcentral",
        "indonesiacentral",
        "israelcentral",
        "italynorth",
        "japaneast",
        "japanwest",
        "koreacentral",
        "malaysiawest",
        "mexicocentral",
        "newzealandnorth",
        "northeurope",
        "norwayeast",
        "polandcentral",
        "qatarcentral",
        "southafricanorth",
        "southcentralus",
        "southeastasia",
        "spaincentral",
        "swedencentral",
        "switzerlandnorth",
        "uaenorth",
        "uksouth",
        "westeurope",
        "westus2",
        "westus3",
    ],
    3,
) | dict.fromkeys(
    [
        "australiacentral",
        "australiacentral2",
        "australiasoutheast",
        "brazilsoutheast",
        "canadaeast",
        "francesouth",
        "germanynorth",
        "jioindiacentral",
        "jioindiawest",
        "koreasouth",
        "northcentralus",
        "norwaywest",
        "southafricawest",
        "southindia",
        "switzerlandwest",
        "uaecentral",
        "ukwest",
        "westcentralus",
        "westindia",
        "westus",
    ],
    0,
)
"""Number of availability zones by region of the public cloud (Azure reliability documentation, list of
regions).
"""
LARGEST_PREFIX, LONGEST_PREFIX = 8, 20
"""A longer prefix leaves Managed Lustre less than the /24 that it needs."""
POD_PREFIX = 14
NODES_AT_MOST = 2 ** (24 - POD_PREFIX)
"""With the overlay, every node takes a /24 of the pods' range (AKS documentation, Azure CNI Overlay, IP
address planning).
"""
POD_RANGES = ("10.244.0.0/14", "172.20.0.0/14")
SERVICE_RANGES = ("172.24.0.0/16", "10.100.0.0/16")
KEPT_ADDRESSES = 5
"""Addresses of every subnet that Azure reserves (Virtual Network FAQ)."""
SHORTEST_LOGS: int = limit("azure.log_retention_days", "minimum")
LONGEST_LOGS: int = limit("azure.log_retention_days", "maximum")
"""Days for which a Log Analytics workspace keeps logs interactively."""
PRIVATE_ZONES = {
    "blob": "privatelink.blob.core.windows.net",
    "dfs": "privatelink.dfs.core.windows.net",
    "file": "privatelink.file.core.windows.net",
    "vault": "privatelink.vaultcore.azure.net",
    "registry": "privatelink.azurecr.io",
}
"""By the kind of a private endpoint (its group id): the DNS zone that must answer for it (Private Link
documentation, DNS values).
"""


@dataclass(frozen=True)
class Plan:
    """The divided range of the platform: `nodes` for pools over several zones, `zonal` for pools in one."""

    nodes: IPv4Network
    zonal: dict[str, IPv4Network]
    lustre: IPv4Network
    endpoints: IPv4Network
    control_plane: IPv4Network


def cluster_name(spec: PlatformSpec) -> str:
    """The AKS cluster's name: fixed, because contexts and commands use it. Unique within its
    resource group.
    """
    return f"trainfleet-{spec.name}"


def global_name(spec: Named, what: str, seed: str) -> str:
    """A globally unique name for a storage account, vault or registry: 3 to 24 lower case letters and digits.

    `seed` is the resource group's name, which differs after the platform is recreated. NOTE: a deleted vault
    reserves its name for its recovery time.
    """
    plain = spec.name.replace("-", "")
    return f"{plain[:12]}{what[:4]}{hashlib.sha256(f'{spec.account}/{seed}/{what}'.encode()).hexdigest()[:8]}"


def node_pool_name(name: str, *unchangeable: object) -> str:
    """The name of a node pool: 1 to 12 lower case letters and digits, ending in a digest of what cannot
    change.

    With another machine or zone the pool has another name, so the new one can exist next to the old one while
    pods move.
    """
    plain = name.replace("-", "")
    return f"{plain[:7]}{hashlib.sha256(repr((name, *unchangeable)).encode()).hexdigest()[:5]}"


def reservation_name(reservation: str) -> str:
    """A name for a capacity reservation group: its own, and a digest of its id, which differs by resource
    group.
    """
    digest = hashlib.sha256(reservation.lower().encode()).hexdigest()[:5]
    return f"{reservation.rpartition('/')[2]}-{digest}"


def has_zones(region: str) -> bool:
    """Whether the region has availability zones."""
    return REGIONS.get(region, 0) > 0


def platform_zones(spec: PlatformSpec) -> tuple[str, ...]:
    """The zones of the platform: the first `network.zones`, and every zone of a GPU pool. Empty in a region
    without zones.
    """
    if not has_zones(spec.region):
        return ()
    named = [pool.zone for pool in spec.gpu_pools if pool.zone]
    return tuple(sorted({*ZONES[: spec.network.zones], *named}))


def pool_zones(spec: PlatformSpec, pool: NodeGroup) -> tuple[str, ...]:
    """The zones of a pool: one if it is compact, reserved, uses InfiniBand or names a zone, else all."""
    zones = platform_zones(spec)
    bound = pool.compact or pool.interconnect == "best" or pool.capacity is Capacity.RESERVED
    if pool.zone and zones:
        return (pool.zone,)
    return zones[:1] if bound else zones


def shared_volume_zones(spec: PlatformSpec) -> tuple[str, ...]:
    """The zone of the shared filesystem: that of the first pool with a single zone, close to its readers."""
    bound = [zones for pool in node_groups(spec) if len(zones := pool_zones(spec, pool)) == 1]
    return bound[0] if bound else platform_zones(spec)[:1]


def plan(spec: PlatformSpec) -> Plan:
    """Divide the platform's range: half for nodes, a sixteenth each per zone, for Lustre, endpoints and the
    control plane.

    Raises:
        InputError: the range is too small, or a pool names a zone that Azure does not have.
    """
    cidr = spec.network.cidr
    problems = []
    if cidr.prefixlen > LONGEST_PREFIX:
        problems.append(
            Problem(
                "network.cidr",
                f"{cidr} is too small to be divided into subnets",
                f"a range of /{LONGEST_PREFIX} or larger",
            )
        )
    problems += [
        Problem("gpu_pools", f"`{zone}` is not a zone of Azure", "1, 2 or 3")
        for zone in platform_zones(spec)
        if zone not in ZONES
    ]
    if problems:
        raise InputError("the network cannot be planned", problems)
    half, _ = cidr.subnets(prefixlen_diff=1)
    parts = list(cidr.subnets(prefixlen_diff=4))[8:]
    zonal = {zone: parts[ZONES.index(zone)] for zone in platform_zones(spec)}
    return Plan(
        half, zonal, lustre=parts[3], endpoints=parts[4], control_plane=next(parts[5].subnets(new_prefix=28))
    )


def pod_cidr(cidr: IPv4Network) -> str:
    """A range for pods outside the network, for 1024 nodes with 256 addresses each (overlay)."""
    return _apart_from(cidr, POD_RANGES)


def service_cidr(cidr: IPv4Network) -> str:
    """A range for Kubernetes services that overlaps neither the network nor the pods."""
    return _apart_from(cidr, SERVICE_RANGES)


def dns_address(cidr: IPv4Network) -> str:
    """The address of the cluster's DNS: the tenth of the services' range, as AKS itself would choose."""
    return str(IPv4Network(service_cidr(cidr))[10])


def log_retention(days: int) -> int:
    """The retention nearest to `days` that Log Analytics supports."""
    return min(max(days, SHORTEST_LOGS), LONGEST_LOGS)


def endpoint_kinds(spec: PlatformSpec) -> tuple[str, ...]:
    """The kinds of private endpoint that this platform has."""
    shared = spec.storage.shared_filesystem
    kinds = ["blob", "registry", "vault"]
    if hierarchical(spec):
        kinds.append("dfs")
    if shared and shared.kind == "nfs":
        kinds.append("file")
    return tuple(sorted(kinds))


def hierarchical(spec: PlatformSpec) -> bool:
    """Whether the bucket has a hierarchical namespace, which excludes versioning (Data Lake Storage, known
    issues).
    """
    return not spec.storage.versioning


def open_to(spec: PlatformSpec) -> tuple[str, ...]:
    """The public ranges that may reach the control plane, the registry, the vaults and the bucket."""
    return tuple(map(str, spec.kubernetes.access.public_ranges))


def clients(spec: PlatformSpec) -> tuple[str, ...]:
    """The private ranges behind the hub that may reach the same."""
    return tuple(map(str, spec.kubernetes.access.private_ranges))


def single_addresses(ranges: tuple[str, ...]) -> tuple[str, ...]:
    """The ranges as a storage account's firewall accepts them: /31 and /32 as plain addresses (Storage, IP
    network rules).
    """
    found: list[str] = []
    for text in ranges:
        network = IPv4Network(text)
        found += [str(address) for address in network] if network.prefixlen > 30 else [text]
    return tuple(found)


def _apart_from(cidr: IPv4Network, ranges: tuple[str, ...]) -> str:
    return next(text for text in ranges if not IPv4Network(text).overlaps(cidr))


IDENTITY_PURPOSES = ("cluster", "kubelet", "disks", "data", "flow-logs", "training", "secrets")


def identity_purposes(spec: PlatformSpec) -> tuple[str, ...]:
    """The purposes for which a platform has a managed identity each."""
    optional = {
        "flow-logs": spec.network.flow_logs and spec.network.existing is None,
        "secrets": spec.secrets.provider == "cloud" and bool(spec.secrets.names),
    }
    return tuple(purpose for purpose in IDENTITY_PURPOSES if optional.get(purpose, True))
