"""What must be true of an AWS account before the first `pulumi up`, and the request that shows it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from trainfleet.infra.aws import layout
from trainfleet.infra.aws import preflight_answers as answers
from trainfleet.infra.catalog.machines import machine_for_pool, system_machine
from trainfleet.infra.preflight import PreflightCheck
from trainfleet.infra.spec.node_group import NodeGroup
from trainfleet.infra.spec.node_groups import node_groups, once_per_quota
from trainfleet.infra.spec.schema import Capacity, PlatformSpec
from trainfleet.infra.tags import PLATFORM_TAG

FAMILIES = {"p": "P", "g": "G and VT"}
"""First letter of a machine to its on-demand quota (EC2 user guide, on-demand instance quotas)."""
SPOT_FAMILIES = dict.fromkeys(("p2", "p3", "p4"), "P4, P3 and P2") | {"p": "P5", "g": "G and VT"}
"""The same for spot instances: first the generation, then the letter (EC2 user guide, Spot Instance quotas).
"""
STANDARD = "Standard (A, C, D, H, I, M, R, T, Z)"


def checks(spec: PlatformSpec) -> Iterator[PreflightCheck]:
    """The checks of AWS."""
    admins = ", ".join(spec.kubernetes.admins)
    yield PreflightCheck(
        "caller",
        f"the caller is one of {admins}" if admins else "the caller creates the cluster and administers it",
        "sts:GetCallerIdentity",
        answer=partial(answers.caller, admins=spec.kubernetes.admins, expected=spec.account),
    )
    version = spec.kubernetes.version
    yield PreflightCheck(
        "version",
        f"EKS offers Kubernetes {version} in standard support",
        "eks:DescribeClusterVersions",
        answer=partial(answers.version, expected=version),
    )
    yield from _quotas(spec)
    if not spec.network.existing:
        yield _zones(spec)
    for pool in node_groups(spec):
        yield from _capacity(pool, spec)
    if spec.budget:
        # A tag can be activated up to a day after its first use (pulumi-aws, costexplorer.CostAllocationTag),
        # and earlier cost counts only after a backfill (Cost Explorer API, StartCostAllocationTagBackfill).
        needs = f"cost allocation tag {PLATFORM_TAG} is active in the payer account, else no cost is counted"
        answer = partial(answers.cost_tag, tag=PLATFORM_TAG)
        yield PreflightCheck("budget", needs, "ce:ListCostAllocationTags", answer=answer)
    yield from _names(spec)


def _zones(spec: PlatformSpec) -> PreflightCheck:
    """The zones of the network. Accounts have different zones under one name in older regions."""
    names, control_plane = layout.platform_zones(spec), tuple(layout.control_plane_subnets(spec))
    return PreflightCheck(
        "zones",
        f"the account has {', '.join(sorted({*names, *control_plane}))}, and EKS places control planes in "
        f"{' and '.join(control_plane)}",
        "ec2:DescribeAvailabilityZones",
        answer=partial(answers.zones, names={*names, *control_plane}, control_plane=control_plane),
    )


def _capacity(pool: NodeGroup, spec: PlatformSpec) -> Iterator[PreflightCheck]:
    """Zones and reservation of a pool. EC2 does not know where SageMaker offers its machines."""
    machine, zones = machine_for_pool(spec.cloud, pool).instance_type, layout.pool_zones(spec, pool)
    if pool.kind == "nodes":
        needs = f"{pool.name}: {machine} is offered in {', '.join(zones)}"
        offered = partial(answers.offered, machine=machine, zones=zones)
        yield PreflightCheck("zones", needs, "ec2:DescribeInstanceTypeOfferings", answer=offered)
    if not pool.reservation:
        return
    needs = f"{pool.name}: {pool.reservation} is active"
    if pool.kind == "hyperpod":
        plan = partial(answers.training_plan, arn=pool.reservation, machine=machine, zones=zones)
        yield PreflightCheck("reservation", needs, "sagemaker:DescribeTrainingPlan", answer=plan)
        return
    reserved = partial(
        answers.reservation, name=pool.reservation, machine=machine, zones=zones, nodes=pool.max_nodes
    )
    yield PreflightCheck("reservation", needs, "ec2:DescribeCapacityReservations", answer=reserved)


def _names(spec: PlatformSpec) -> Iterator[PreflightCheck]:
    """The fixed names. Others get a random suffix."""
    cluster, own = layout.cluster_name(spec), spec.name
    yield PreflightCheck(
        "names",
        f"no cluster {cluster} in {spec.region}",
        "eks:DescribeCluster",
        answer=partial(answers.no_cluster, name=cluster, platform=own),
    )
    log_group = f"/aws/eks/{cluster}/cluster"
    yield PreflightCheck(
        "names",
        f"no log group {log_group}",
        "logs:DescribeLogGroups",
        answer=partial(answers.no_log_group, name=log_group, platform=own),
    )
    alias = f"alias/trainfleet/{own}/"
    yield PreflightCheck(
        "names",
        f"no key alias that begins with {alias}",
        "kms:ListAliases",
        answer=partial(answers.no_alias, prefix=alias, platform=own),
    )
    if spec.secrets.provider == "cloud" and spec.secrets.names:
        prefix = f"trainfleet/{own}/"
        needs = f"no secret whose name begins with {prefix}, also none that is scheduled for deletion"
        secret = partial(answers.no_secret, prefix=prefix, platform=own)
        yield PreflightCheck(
            "names", needs, "secretsmanager:ListSecrets (IncludePlannedDeletion)", answer=secret
        )


def _quotas(spec: PlatformSpec) -> Iterator[PreflightCheck]:
    """vCPUs by quota. Capacity blocks and HyperPod have their own limits."""
    needed: dict[str, int] = defaultdict(int)
    system = system_machine(spec)
    needed[f"Running On-Demand {STANDARD} instances"] += system.vcpu * spec.system_pool.max_nodes
    counted = (
        group
        for group in node_groups(spec)
        if group.kind == "nodes" and group.capacity is not Capacity.CAPACITY_BLOCK
    )
    for pool in once_per_quota(counted):
        machine = machine_for_pool(spec.cloud, pool)
        needed[quota_name(machine.instance_type, pool.capacity is Capacity.SPOT)] += (
            machine.vcpu * pool.max_nodes
        )
    for name, count in needed.items():
        yield PreflightCheck(
            "quota",
            f"{count} vCPUs of `{name}` in {spec.region}",
            "servicequotas:ListServiceQuotas (ec2)",
            answer=partial(answers.quota, name=name, needed=count),
        )


def quota_name(machine: str, spot: bool) -> str:
    """The quota of EC2 that limits a machine."""
    if not spot:
        return f"Running On-Demand {FAMILIES.get(machine[0], STANDARD)} instances"
    family = SPOT_FAMILIES.get(machine[:2]) or SPOT_FAMILIES.get(machine[0], STANDARD)
    return f"All {family} Spot Instance Requests"
