"""What must be true of an Azure subscription before the first `pulumi up`, and the request that shows it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from trainfleet.infra.azure import layout
from trainfleet.infra.azure import preflight_answers as answers
from trainfleet.infra.azure.sizes import INLINE_NODES
from trainfleet.infra.catalog.machines import machine_for_pool, system_machine
from trainfleet.infra.preflight import PreflightCheck
from trainfleet.infra.spec.node_group import NodeGroup
from trainfleet.infra.spec.node_groups import node_groups, once_per_quota
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
        "Microsoft.Authorization/permissions (list); Microsoft Graph: checkMemberGroups",
        answer=partial(answers.caller, admins=spec.kubernetes.admins),
    )
    yield from _registered(spec)
    version = spec.kubernetes.version
    yield PreflightCheck(
        "version",
        f"AKS offers Kubernetes {version} in {spec.region}",
        "Microsoft.ContainerService/locations/kubernetesVersions (list)",
        answer=partial(answers.version, region=spec.region, expected=version),
    )
    yield from _quotas(spec)
    for pool in node_groups(spec):
        yield from _capacity(pool, spec)
    cluster = layout.cluster_name(spec)
    yield PreflightCheck(
        "names",
        f"no other cluster {cluster} in {spec.region}",
        "Microsoft.ContainerService/managedClusters (list)",
        answer=partial(answers.no_cluster, name=cluster, platform=spec.name),
    )
    prefix = spec.name.replace("-", "")[:12]
    yield PreflightCheck(
        "names",
        f"no deleted vault whose name begins with {prefix}",
        "Microsoft.KeyVault/deletedVaults (list)",
        answer=partial(answers.no_deleted_vault, prefix=prefix, region=spec.region),
    )


def _registered(spec: PlatformSpec) -> Iterator[PreflightCheck]:
    """Resource providers and their features."""
    lustre = spec.storage.shared_filesystem and spec.storage.shared_filesystem.kind == "lustre"
    metrics = ["Microsoft.Monitor"] if spec.monitoring.enabled else []
    for provider in (*PROVIDERS, *metrics, *(["Microsoft.StorageCache"] if lustre else [])):
        yield PreflightCheck(
            "apis",
            f"{provider} is registered",
            "Microsoft.Resources/providers (get)",
            answer=partial(answers.provider, name=provider),
        )
    fabric = any(
        machine_for_pool(spec.cloud, pool).rdma == "infiniband" and pool.interconnect == "best"
        for pool in node_groups(spec)
    )
    for feature in (ENCRYPTION_AT_HOST, *([INFINIBAND] if fabric else [])):
        yield PreflightCheck(
            "apis",
            f"the feature {feature} is registered",
            "Microsoft.Features (get)",
            answer=partial(answers.feature, name=feature),
        )


def _capacity(pool: NodeGroup, spec: PlatformSpec) -> Iterator[PreflightCheck]:
    """Zones and reservation of a pool."""
    size, zones = machine_for_pool(spec.cloud, pool).instance_type, layout.pool_zones(spec, pool)
    shown = ", ".join(zones) or "no zone"
    needs = f"{pool.name}: {size} is offered in {spec.region} ({shown}) without a restriction"
    offered = partial(answers.offered, size=size, region=spec.region, zones=zones)
    yield PreflightCheck("zones", needs, "Microsoft.Compute/skus (list)", answer=offered)
    if pool.reservation:
        needs = f"{pool.name}: the group {layout.reservation_name(pool.reservation)} exists"
        reserved = partial(
            answers.reservation, group=pool.reservation, size=size, zones=zones, nodes=pool.max_nodes
        )
        request = "Microsoft.Compute/capacityReservationGroups/capacityReservations (list)"
        yield PreflightCheck("reservation", needs, request, answer=reserved)


def _quotas(spec: PlatformSpec) -> Iterator[PreflightCheck]:
    """vCPUs by family of sizes, and in total; spot pools share one quota of the region (vCPU quotas)."""
    needed: dict[str, int] = defaultdict(int)
    system = system_machine(spec)
    nodes = spec.system_pool.max_nodes + INLINE_NODES[spec.production][1]  # with AKS's pool for add-ons
    needed[system.instance_type] += system.vcpu * nodes
    for pool in once_per_quota(node_groups(spec)):
        machine = machine_for_pool(spec.cloud, pool)
        quota = answers.SPOT_QUOTA if pool.capacity is Capacity.SPOT else machine.instance_type
        needed[quota] += machine.vcpu * pool.max_nodes
    needed[answers.TOTAL_QUOTA] = sum(needed.values()) - needed.get(answers.SPOT_QUOTA, 0)
    names = {
        answers.SPOT_QUOTA: "low-priority vCPUs",
        answers.TOTAL_QUOTA: "vCPUs in total (Total Regional vCPUs)",
    }
    for quota, count in needed.items():
        what = names.get(quota, f"vCPUs of the family of {quota}")
        yield PreflightCheck(
            "quota",
            f"{count} {what} in {spec.region}",
            "Microsoft.Compute/locations/usages (list)",
            answer=partial(answers.quota, region=spec.region, quota=quota, needed=count),
        )
