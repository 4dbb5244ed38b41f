"""What must be true of an Azure subscription before the first `pulumi up`, and the request that shows it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from trainfleet.infra.azure import layout
from trainfleet.infra.azure.sizes import INLINE_NODES
from trainfleet.infra.catalog.machines import machine_for_pool, system_machine
from trainfleet.infra.preflight import PreflightCheck
from trainfleet.infra.spec.schema import Capacity, PlatformSpec

PROVIDERS = (
    "Microsoft.Compute",
    "Microsoft.ContainerRegistry",
    "Microsoft.ContainerService",
    "Microsoft.Insights",
    "Microsoft.KeyVault",
    "Microsoft.ManagedIdentity",
    "Microsoft.Network",
    "Microsoft.OperationalInsights",
    "Microsoft.Storage",
)
LOW_PRIORITY = "low-priority vCPUs"
ENCRYPTION_AT_HOST = "Microsoft.Compute/EncryptionAtHost"
INFINIBAND = "Microsoft.ContainerService/AKSInfinibandSupport"
"""Features that a subscription registers once (docs/first-apply/azure.md)."""


def checks(spec: PlatformSpec) -> Iterator[PreflightCheck]:
    """The checks of Azure."""
    admins = ", ".join(spec.kubernetes.admins)
    yield PreflightCheck(
        "caller",
        f"the caller may assign roles in {spec.account}"
        + (f", and is a member of one of the groups {admins}" if admins else ""),
        "Microsoft.Authorization/permissions (list); Microsoft Graph: me/checkMemberGroups",
    )
    lustre = spec.storage.shared_filesystem and spec.storage.shared_filesystem.kind == "lustre"
    metrics = ["Microsoft.Monitor"] if spec.monitoring.enabled else []
    for provider in (*PROVIDERS, *metrics, *(["Microsoft.StorageCache"] if lustre else [])):
        yield PreflightCheck("apis", f"{provider} is registered", "Microsoft.Resources/providers (get)")
    fabric = any(
        machine_for_pool(spec.cloud, pool).rdma == "infiniband" and pool.interconnect == "best"
        for pool in spec.gpu_pools
    )
    for feature in (ENCRYPTION_AT_HOST, *([INFINIBAND] if fabric else [])):
        yield PreflightCheck("apis", f"the feature {feature} is registered", "Microsoft.Features (get)")
    yield from _quotas(spec)
    for pool in spec.gpu_pools:
        size = machine_for_pool(spec.cloud, pool).instance_type
        zones = ", ".join(layout.pool_zones(spec, pool)) or "no zone"
        needs = f"{pool.name}: {size} is offered in {spec.region} ({zones}) without a restriction"
        yield PreflightCheck("zones", needs, "Microsoft.Compute/skus (list)")
        if pool.reservation:
            needs = f"{pool.name}: the group {layout.reservation_name(pool.reservation)} exists"
            yield PreflightCheck("reservation", needs, "Microsoft.Compute/capacityReservationGroups (get)")
    needs = f"no deleted vault whose name begins with {spec.name.replace('-', '')[:12]}"
    yield PreflightCheck("names", needs, "Microsoft.KeyVault/deletedVaults (list)")


def _quotas(spec: PlatformSpec) -> Iterator[PreflightCheck]:
    """vCPUs by family of sizes, and in total; spot pools share one quota of the region (vCPU quotas)."""
    needed: dict[str, int] = defaultdict(int)
    system = system_machine(spec)
    nodes = spec.system_pool.max_nodes + INLINE_NODES[spec.production][1]  # with AKS's pool for add-ons
    needed[f"vCPUs of the family of {system.instance_type}"] += system.vcpu * nodes
    for pool in spec.gpu_pools:
        machine = machine_for_pool(spec.cloud, pool)
        spot = pool.capacity is Capacity.SPOT
        quota = LOW_PRIORITY if spot else f"vCPUs of the family of {machine.instance_type}"
        needed[quota] += machine.vcpu * pool.max_nodes
    needed["vCPUs in total (Total Regional vCPUs)"] = sum(needed.values()) - needed.get(LOW_PRIORITY, 0)
    for quota, count in needed.items():
        needs = f"{count} {quota} in {spec.region}"
        yield PreflightCheck("quota", needs, "Microsoft.Compute/locations/usages (list)")
