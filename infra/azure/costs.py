"""What a platform and its planned resources are billed as on Azure: rows of prices.toml and machines. Imports
no Pulumi.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainfleet.infra.azure.layout import endpoint_kinds, platform_zones
from trainfleet.infra.azure.sizes import DEFAULT_DISK_GIB, SYSTEM_DISK_GIB, disk_tier, os_disk
from trainfleet.infra.catalog.cost import nat_costs, shared_filesystem_cost
from trainfleet.infra.catalog.machines import Machine
from trainfleet.infra.catalog.planned import Charge, Charges, Nodes, Plan, Planned, QuantityUnknown, one
from trainfleet.infra.cloud_support import StandingCost
from trainfleet.infra.spec.schema import PlatformSpec

DISK_KINDS = {"Premium": "premium", "StandardSSD": "standard-ssd", "Standard": "standard-hdd"}
"""The product of a managed disk's SKU; all of one tier have the same sizes."""
TIER_LETTER = {"premium": "P", "standard-ssd": "E", "standard-hdd": "S"}
GIB_PER_TIB = 1024


def standing_costs(spec: PlatformSpec) -> Iterator[StandingCost]:
    """The control plane, NAT, private endpoints and their DNS zones, the registry, the shared filesystem."""
    yield StandingCost("control-plane", 1)
    # Pools over several zones have a gateway of their own.
    yield from nat_costs(spec, len(platform_zones(spec)) + 1)
    # A vault for keys, and a second one where there are secrets.
    secrets_vault = spec.secrets.provider == "cloud" and bool(spec.secrets.names)
    kinds = endpoint_kinds(spec)
    yield StandingCost("endpoint", len(kinds) + secrets_vault)
    existing = spec.network.existing
    yield StandingCost("dns-zone", len(set(kinds) - set(existing.dns_zones if existing else ())))
    yield StandingCost("registry-Premium", 1)
    if (shared := spec.storage.shared_filesystem) and shared.kind == "nfs":
        yield StandingCost("files-premium-ZRS", shared.capacity_gib, "shared-filesystem")
    else:
        yield from shared_filesystem_cost(spec)


def node_disk(machine: Machine, gib: int | None, _fast: bool) -> Iterator[StandingCost]:
    """The root disk of a node. An ephemeral one is a part of the machine."""
    size = gib or SYSTEM_DISK_GIB
    if gib is None or os_disk(machine, size) == "Managed":
        yield StandingCost(f"disk-premium-P{disk_tier(size)}", 1)


def _cluster(cluster: Planned, _plan: Plan) -> Iterator[Charge | Nodes]:
    tier = cluster.get("sku.tier", "Free")
    if tier != "Free":
        row = "control-plane" if tier == "Standard" else f"control-plane-{tier}"
        yield Charge(row, 1, 1)
    for pool in cluster.items("agentPoolProfiles"):
        yield from _nodes(cluster.inner(pool), f"{cluster.name}/{pool.get('name', 'pool')}")


def _pool(pool: Planned, _plan: Plan) -> Iterator[Charge | Nodes]:
    yield from _nodes(pool, pool.name)


def _nodes(pool: Planned, name: str) -> Iterator[Charge | Nodes]:
    if pool.get("enableAutoScaling", False):
        least, most = pool.number("minCount"), pool.number("maxCount")
    else:
        least = most = pool.number("count", 1)
    size = pool.get("vmSize")
    if not isinstance(size, str):
        raise QuantityUnknown("vmSize")
    yield Nodes(name, size, least, most, pool.get("scaleSetPriority") == "Spot")
    # NOTE: without osDiskType AKS chooses an ephemeral disk where one fits, and a plan does not say so.
    # Premium SSD is what AKS gives sizes that support it.
    if pool.get("osDiskType", "Managed") == "Managed":
        tier = disk_tier(pool.number("osDiskSizeGB", DEFAULT_DISK_GIB) or DEFAULT_DISK_GIB)
        yield Charge(f"disk-premium-P{tier}", least, most)


def _machine(machine: Planned, _plan: Plan) -> Iterator[Charge | Nodes]:
    spot = machine.get("priority") == "Spot"
    size = machine.get("hardwareProfile.vmSize")
    if not isinstance(size, str):
        raise QuantityUnknown("hardwareProfile.vmSize")
    yield Nodes(machine.name, size, 1, 1, spot)
    for path in ("storageProfile.osDisk", "storageProfile.dataDisks"):
        for each in machine.items(path):
            disk = machine.inner(each)
            yield _disk_row(disk.get("managedDisk.storageAccountType"), disk.number("diskSizeGB", 30))


def _disk(disk: Planned, _plan: Plan) -> Iterator[Charge]:
    yield _disk_row(disk.get("sku.name"), disk.number("diskSizeGB"))


def _disk_row(sku: str | None, gib: float) -> Charge:
    kind = DISK_KINDS.get((sku or "Standard_LRS").partition("_")[0])
    if kind is None or (sku or "").endswith("ZRS"):
        return Charge(f"disk-{sku}", gib, gib)
    return Charge(f"disk-{kind}-{TIER_LETTER[kind]}{disk_tier(gib)}", 1, 1)


def _address(address: Planned, _plan: Plan) -> Iterator[Charge]:
    if address.get("publicIPAllocationMethod") == "Static" or address.get("sku.name") == "Standard":
        yield Charge("address", 1, 1)


def _registry(registry: Planned, _plan: Plan) -> Iterator[Charge]:
    yield Charge(f"registry-{registry.get('sku.name', 'Basic')}", 1, 1)


def _share(share: Planned, plan: Plan) -> Iterator[Charge]:
    """A share of a premium account is billed as provisioned. Others are billed by what they hold."""
    account = plan.linked(share, "accountName")
    sku = account.get("sku.name", "") if account else ""
    if sku.startswith("Premium_"):
        gib = share.number("shareQuota")
        yield Charge(f"files-premium-{sku.partition('_')[2]}", gib, gib, share.name)
    elif account is None:
        raise QuantityUnknown("accountName")


def _lustre(system: Planned, _plan: Plan) -> Iterator[Charge]:
    gib = system.number("storageCapacityTiB") * GIB_PER_TIB
    yield Charge(f"lustre-{system.get('sku.name')}", gib, gib, system.name)


CHARGES: Mapping[str, Charges] = {
    "azure-native:containerservice:ManagedCluster": _cluster,
    "azure-native:containerservice:AgentPool": _pool,
    "azure-native:compute:VirtualMachine": _machine,
    "azure-native:compute:Disk": _disk,
    "azure-native:network:NatGateway": one("nat"),
    "azure-native:network:PublicIPAddress": _address,
    "azure-native:network:PrivateEndpoint": one("endpoint"),
    "azure-native:network:LoadBalancer": one("load-balancer"),
    "azure-native:network:AzureFirewall": one("firewall"),
    "azure-native:network:BastionHost": one("bastion"),
    "azure-native:network:VirtualNetworkGateway": one("gateway"),
    "azure-native:privatedns:PrivateZone": one("dns-zone"),
    "azure-native:containerregistry:Registry": _registry,
    "azure-native:storage:FileShare": _share,
    "azure-native:storagecache:AmlFilesystem": _lustre,
    "azure-native:compute:CapacityReservation": one("capacity-reservation"),
    "azure-native:dbforpostgresql:Server": one("database"),
    "azure-native:redis:Redis": one("cache"),
}
"""Type to how it is billed. A row that prices.toml does not have is reported as without a price."""


def _budget(budget: Planned) -> float:
    """The monthly amount of a budget, which Azure states in the currency of the bill."""
    return budget.number("amount") if budget.get("timeGrain") == "Monthly" else 0


BUDGETS = {
    "azure-native:consumption:Budget": _budget,
    "azure-native:costmanagement:Budget": _budget,
}
"""Type to its monthly amount in USD."""
