"""What must be true of an AWS account before the first `pulumi up`, and the request that shows it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from trainfleet.infra.aws import layout
from trainfleet.infra.catalog.machines import machine_for_pool, system_machine
from trainfleet.infra.preflight import PreflightCheck
from trainfleet.infra.spec.schema import Capacity, GpuPool, PlatformSpec

FAMILIES = {"p": "P", "g": "G and VT"}
"""First letter of a machine to its quota (EC2 user guide, on-demand and Spot Instance quotas)."""
SPOT_FAMILIES = {"p2": "P4, P3 and P2", "p3": "P4, P3 and P2", "p4": "P4, P3 and P2", "p": "P5"}
"""The same for spot machines, whose P quota is divided (EC2 user guide, Spot Instance quotas)."""
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
        spot = pool.capacity is Capacity.SPOT
        family = _family(machine.instance_type, spot=spot)
        quota = f"All {family} Spot Instance Requests" if spot else f"Running On-Demand {family} instances"
        needed[quota] += machine.vcpu * pool.max_nodes
    for quota, count in needed.items():
        needs = f"{count} vCPUs of `{quota}` in {spec.region}"
        yield PreflightCheck("quota", needs, "servicequotas:ListServiceQuotas (ec2)")


def _family(instance_type: str, *, spot: bool) -> str:
    first, series = instance_type[0], instance_type[:2]
    names = FAMILIES | SPOT_FAMILIES if spot else FAMILIES
    return names.get(series, names.get(first, STANDARD))


def _machine(pool: GpuPool, spec: PlatformSpec) -> str:
    return machine_for_pool(spec.cloud, pool).instance_type


def _reserved(pool: GpuPool) -> str:
    return "sagemaker:DescribeTrainingPlan" if pool.kind == "hyperpod" else "ec2:DescribeCapacityReservations"
