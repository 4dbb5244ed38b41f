"""What a platform and its planned resources are billed as on Google Cloud: rows of prices.toml and machines.
Imports no Pulumi.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainfleet.infra.catalog.cost import nat_costs, shared_filesystem_cost
from trainfleet.infra.catalog.machines import Machine
from trainfleet.infra.catalog.planned import (
    Charge,
    Charges,
    Nodes,
    Plan,
    Planned,
    QuantityUnknown,
    machine_named,
    one,
)
from trainfleet.infra.cloud_support import StandingCost
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.gcp.layout import KEYS, SYSTEM_DISK_GIB, disk_type
from trainfleet.infra.spec.schema import PlatformSpec

DEFAULT_DISK = ("pd-balanced", 100)
"""The boot disk of a node without settings for it (GKE API, NodeConfig)."""
DEFAULT_MACHINE = "e2-medium"
DEFAULT_INSTANCE_DISK = ("pd-standard", 10)
"""The boot disk of an instance without settings for it (Compute Engine API; 10 GB: most images)."""


def standing_costs(spec: PlatformSpec) -> Iterator[StandingCost]:
    """The control plane, one NAT for the whole region, keys, secrets, the shared filesystem."""
    yield StandingCost("control-plane", 1)
    yield from nat_costs(spec, 1)
    yield StandingCost("key", len(KEYS))
    if spec.secrets.provider == "cloud" and spec.secrets.names:
        yield StandingCost("secret", len(spec.secrets.names))
    yield from shared_filesystem_cost(spec)


def node_disk(machine: Machine, gib: int | None, _fast: bool) -> Iterator[StandingCost]:
    """The boot disk of a node."""
    yield StandingCost(f"disk-{disk_type(machine)}", gib or SYSTEM_DISK_GIB)


def _cluster(cluster: Planned, _plan: Plan) -> Iterator[Charge | Nodes]:
    yield Charge("control-plane", 1, 1)
    for pool in cluster.items("nodePools"):
        yield from _nodes(cluster.inner(pool), f"{cluster.name}/{pool.get('name', 'pool')}")
    if cluster.get("enableAutopilot") or cluster.get("removeDefaultNodePool") or cluster.items("nodePools"):
        return
    yield from _nodes(cluster, f"{cluster.name}/default-pool")


def _node_pool(pool: Planned, _plan: Plan) -> Iterator[Charge | Nodes]:
    yield from _nodes(pool, pool.name)


def _nodes(pool: Planned, name: str) -> Iterator[Charge | Nodes]:
    least, most = _sizes(pool)
    kind = pool.get("nodeConfig.machineType", DEFAULT_MACHINE)
    spot = bool(pool.get("nodeConfig.spot", False) or pool.get("nodeConfig.preemptible", False))
    gpus = pool.get("nodeConfig.guestAccelerators.count")
    yield Nodes(name, kind, least, most, spot, gpus)
    disk, gib = DEFAULT_DISK
    row = f"disk-{pool.get('nodeConfig.diskType', disk)}"
    size = pool.number("nodeConfig.diskSizeGb", gib)
    yield Charge(row, size * least, size * most)
    machine = machine_named(Cloud.GCP, kind)
    if not (machine and machine.local_nvme_gb):  # the others include theirs
        for path in ("ephemeralStorageLocalSsdConfig", "localNvmeSsdBlockConfig"):
            count = pool.number(f"nodeConfig.{path}.localSsdCount")
            yield Charge("local-ssd", count * least, count * most)


def _sizes(pool: Planned) -> tuple[float, float]:
    """The least and most nodes of a pool. Per-zone figures count once for each of its zones."""
    if scaling := pool.items("autoscaling"):
        inner = pool.inner(scaling[0])
        if inner.get("totalMaxNodeCount") is not None:
            return inner.number("totalMinNodeCount"), inner.number("totalMaxNodeCount")
        zones = _zones(pool)
        return inner.number("minNodeCount") * zones, inner.number("maxNodeCount") * zones
    count = pool.number("nodeCount", pool.number("initialNodeCount", 0)) * _zones(pool)
    return count, count


REGION_ZONES = 3
"""The zones over which GKE spreads a regional pool that names none (GKE, regional clusters)."""


def _zones(pool: Planned) -> int:
    if zones := pool.get("nodeLocations", []):
        return len(zones)
    location = pool.get("location", "")
    zonal = isinstance(location, str) and location[-2:-1] == "-"
    return 1 if zonal or not location else REGION_ZONES


def _instance(instance: Planned, _plan: Plan) -> Iterator[Charge | Nodes]:
    spot = instance.get("scheduling.provisioningModel") == "SPOT" or bool(
        instance.get("scheduling.preemptible", False)
    )
    kind = instance.get("machineType")
    if not isinstance(kind, str):
        raise QuantityUnknown("machineType")
    yield Nodes(instance.name, kind.rpartition("/")[2], 1, 1, spot, instance.get("guestAccelerators.count"))
    disk, gib = DEFAULT_INSTANCE_DISK
    size = instance.number("bootDisk.initializeParams.size", gib)
    yield Charge(f"disk-{instance.get('bootDisk.initializeParams.type', disk)}", size, size)
    for interface in instance.items("networkInterfaces"):
        if instance.inner(interface).items("accessConfigs"):
            yield Charge("external-address", 1, 1)


def _disk(disk: Planned, _plan: Plan) -> Iterator[Charge]:
    kind, size = disk.get("type", DEFAULT_INSTANCE_DISK[0]), disk.number("size", DEFAULT_INSTANCE_DISK[1])
    yield Charge(f"disk-{kind.rpartition('/')[2]}", size, size)


def _nat(nat: Planned, _plan: Plan) -> Iterator[Charge]:
    yield Charge("nat", 1, 1)
    # Automatic addresses are created with the NAT, at least one; others are resources of their own.
    if nat.get("natIpAllocateOption", "AUTO_ONLY") == "AUTO_ONLY":
        yield Charge("address", 1, 1)


def _address(address: Planned, _plan: Plan) -> Iterator[Charge]:
    if address.get("addressType", "EXTERNAL") == "EXTERNAL":
        yield Charge("external-address", 1, 1)


def _filestore(instance: Planned, _plan: Plan) -> Iterator[Charge]:
    gib = instance.number("fileShares.capacityGb")
    yield Charge(f"filestore-{instance.get('tier')}", gib, gib, instance.name)


def _lustre(instance: Planned, _plan: Plan) -> Iterator[Charge]:
    gib = instance.number("capacityGib")
    yield Charge(f"lustre-{instance.get('perUnitStorageThroughput')}", gib, gib, instance.name)


CHARGES: Mapping[str, Charges] = {
    "gcp:container/cluster:Cluster": _cluster,
    "gcp:container/nodePool:NodePool": _node_pool,
    "gcp:compute/instance:Instance": _instance,
    "gcp:compute/disk:Disk": _disk,
    "gcp:compute/routerNat:RouterNat": _nat,
    "gcp:compute/address:Address": _address,
    "gcp:compute/globalAddress:GlobalAddress": _address,
    "gcp:compute/forwardingRule:ForwardingRule": one("load-balancer"),
    "gcp:compute/globalForwardingRule:GlobalForwardingRule": one("load-balancer"),
    "gcp:filestore/instance:Instance": _filestore,
    "gcp:lustre/instance:Instance": _lustre,
    "gcp:kms/cryptoKey:CryptoKey": one("key"),
    "gcp:secretmanager/secret:Secret": one("secret"),
    "gcp:sql/databaseInstance:DatabaseInstance": one("database"),
    "gcp:redis/instance:Instance": one("cache"),
    "gcp:compute/reservation:Reservation": one("reservation"),
    "gcp:compute/regionDisk:RegionDisk": one("regional-disk"),
    "gcp:compute/vPNTunnel:VPNTunnel": one("vpn"),
}
"""Type to how it is billed. A row that prices.toml does not have is reported as without a price."""


def _budget(budget: Planned) -> float:
    """The amount of a budget in USD; 0 if it is in another currency or for another time than a month."""
    monthly = budget.get("budgetFilter.calendarPeriod", "MONTH") == "MONTH"
    dollars = budget.get("amount.specifiedAmount.currencyCode", "USD") == "USD"
    return budget.number("amount.specifiedAmount.units") if monthly and dollars else 0


BUDGETS = {"gcp:billing/budget:Budget": _budget}
"""Type to its monthly amount in USD."""
