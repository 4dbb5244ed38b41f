"""What must be true of an AWS account before the first `pulumi up`, and the request that shows it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from trainfleet.infra.aws import layout
from trainfleet.infra.catalog.machines import machine_for_pool, system_machine
from trainfleet.infra.preflight import PreflightCheck
from trainfleet.infra.spec.schema import Capacity, GpuPool, PlatformSpec
from trainfleet.infra.tags import PLATFORM_TAG

FAMILIES = {"p": "P", "g": "G and VT"}
"""First letter of a machine to its quota (EC2 user guide, on-demand and Spot Instance quotas)."""
STANDARD = "Standard (A, C, D, H, I, M, R, T, Z)"


def checks(spec: PlatformSpec) -> Iterator[PreflightCheck]:
    """The checks of AWS."""
    admins = ", ".join(spec.kubernetes.admins)
    yield PreflightCheck(
        "caller",
        f"the caller is one of {admins}" if admins else "the caller creates the cluster and administers it",
        "sts:GetCallerIdentity",
    )
    yield from _quotas(spec)
    for pool in spec.gpu_pools:
        machine, zones = _machine(pool, spec), ", ".join(layout.pool_zones(spec, pool))
        needs = f"{pool.name}: {machine} is offered in {zones}"
        yield PreflightCheck("zones", needs, "ec2:DescribeInstanceTypeOfferings")
        if pool.reservation:
            yield PreflightCheck("reservation", f"{pool.name}: {pool.reservation} is active", _reserved(pool))
    if spec.budget:
        # A tag can be activated up to a day after its first use (pulumi-aws, costexplorer.CostAllocationTag),
        # and earlier cost counts only after a backfill (Cost Explorer API, StartCostAllocationTagBackfill).
        needs = f"cost allocation tag {PLATFORM_TAG} is active in the payer account, else no cost is counted"
        yield PreflightCheck("budget", needs, "ce:ListCostAllocationTags")
    cluster = layout.cluster_name(spec)
    yield PreflightCheck("names", f"no cluster {cluster} in {spec.region}", "eks:DescribeCluster")
    log_group = f"/aws/eks/{cluster}/cluster"
    yield PreflightCheck("names", f"no log group {log_group}", "logs:DescribeLogGroups")
    alias = f"alias/trainfleet/{spec.name}/"
    yield PreflightCheck("names", f"no key alias that begins with {alias}", "kms:ListAliases")
    if spec.secrets.provider == "cloud" and spec.secrets.names:
        prefix = f"trainfleet/{spec.name}/"
        needs = f"no secret whose name begins with {prefix}, also none that is scheduled for deletion"
        yield PreflightCheck("names", needs, "secretsmanager:ListSecrets (IncludePlannedDeletion)")


def _quotas(spec: PlatformSpec) -> Iterator[PreflightCheck]:
    """vCPUs by quota. Capacity blocks and HyperPod have their own limits."""
    needed: dict[str, int] = defaultdict(int)
    system = system_machine(spec)
    needed[f"Running On-Demand {STANDARD} instances"] += system.vcpu * spec.system_pool.max_nodes
    for pool in spec.gpu_pools:
        if pool.kind != "nodes" or pool.capacity is Capacity.CAPACITY_BLOCK:
            continue
        machine = machine_for_pool(spec.cloud, pool)
        family = FAMILIES.get(machine.instance_type[0], STANDARD)
        spot = pool.capacity is Capacity.SPOT
        quota = f"All {family} Spot Instance Requests" if spot else f"Running On-Demand {family} instances"
        needed[quota] += machine.vcpu * pool.max_nodes
    for quota, count in needed.items():
        needs = f"{count} vCPUs of `{quota}` in {spec.region}"
        yield PreflightCheck("quota", needs, "servicequotas:ListServiceQuotas (ec2)")


def _machine(pool: GpuPool, spec: PlatformSpec) -> str:
    return machine_for_pool(spec.cloud, pool).instance_type


def _reserved(pool: GpuPool) -> str:
    return "sagemaker:DescribeTrainingPlan" if pool.kind == "hyperpod" else "ec2:DescribeCapacityReservations"
