"""What must be true of a Google Cloud project before the first `pulumi up`, and the request that shows it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from trainfleet.infra.catalog.machines import machine_for_pool
from trainfleet.infra.gcp import layout
from trainfleet.infra.gcp import preflight_answers as answers
from trainfleet.infra.gcp.layout import LOG_WRITER
from trainfleet.infra.preflight import PreflightCheck
from trainfleet.infra.spec.node_group import NodeGroup
from trainfleet.infra.spec.node_groups import node_groups, once_per_quota
from trainfleet.infra.spec.schema import Capacity, PlatformSpec

FIRST_APIS = ("cloudresourcemanager", "serviceusage")
"""APIs that must be enabled by hand, because the program enables the others through them."""


def checks(spec: PlatformSpec) -> Iterator[PreflightCheck]:
    """The checks of Google Cloud."""
    project, admins = spec.account, ", ".join(spec.kubernetes.admins)
    yield PreflightCheck(
        "caller",
        f"the caller may create clusters and set IAM policies in {project}"
        + (f", and is one of {admins}" if admins else ""),
        "cloudresourcemanager.projects.testIamPermissions",
        answer=partial(answers.caller, project=project, admins=spec.kubernetes.admins),
    )
    for name in FIRST_APIS:
        api = f"{name}.googleapis.com"
        yield PreflightCheck(
            "apis",
            f"{api} is enabled",
            "serviceusage.services.get",
            answer=partial(answers.enabled, project=project, api=api),
        )
    yield PreflightCheck(
        "members",
        f"the organization lets {LOG_WRITER} be granted a role; it writes the bucket's access log",
        "cloudresourcemanager.projects.getEffectiveOrgPolicy",
        answer=partial(answers.members, project=project),
    )
    version = spec.kubernetes.version
    yield PreflightCheck(
        "version",
        f"GKE offers Kubernetes {version} in the channel {answers.CHANNEL}",
        "container.projects.locations.getServerConfig",
        answer=partial(answers.version, project=project, region=spec.region, expected=version),
    )
    yield from _quotas(spec)
    for pool in node_groups(spec):
        yield from _capacity(pool, spec)
    yield from _names(spec)


def _capacity(pool: NodeGroup, spec: PlatformSpec) -> Iterator[PreflightCheck]:
    """Zones and reservation of a pool."""
    machine, zones = machine_for_pool(spec.cloud, pool).instance_type, layout.pool_zones(spec, pool)
    needs = f"{pool.name}: {machine} is offered in {', '.join(zones)}"
    offered = partial(answers.offered, project=spec.account, machine=machine, zones=zones)
    yield PreflightCheck("zones", needs, "compute.machineTypes.get", answer=offered)
    if pool.reservation:
        needs = f"{pool.name}: the reservation {pool.reservation} exists in {', '.join(zones)}"
        reserved = partial(
            answers.reservation,
            project=spec.account,
            name=pool.reservation,
            machine=machine,
            zones=zones,
            nodes=pool.max_nodes,
        )
        yield PreflightCheck("reservation", needs, "compute.reservations.get", answer=reserved)


def _names(spec: PlatformSpec) -> Iterator[PreflightCheck]:
    """The fixed names. Others get a random suffix; an id of a deleted service account can be used again."""
    cluster, account = layout.cluster_name(spec), layout.account_id(spec, "nodes")
    yield PreflightCheck(
        "names",
        f"no cluster {cluster} in {spec.region}",
        "container.clusters.get",
        answer=partial(answers.no_cluster, name=cluster, platform=spec.name),
    )
    yield PreflightCheck(
        "names",
        f"no service account {account}",
        "iam.serviceAccounts.get",
        answer=partial(answers.no_service_account, project=spec.account, name=account, platform=spec.name),
    )


def _quotas(spec: PlatformSpec) -> Iterator[PreflightCheck]:
    """GPUs by model and by how they are bought: preemptible GPUs have a quota of their own."""
    needed: dict[tuple[str, bool], int] = defaultdict(int)
    for pool in once_per_quota(node_groups(spec)):
        machine = machine_for_pool(spec.cloud, pool)
        spot = pool.capacity is Capacity.SPOT
        needed[str(machine.accelerator), spot] += machine.accelerators_per_node * pool.max_nodes
    for (model, spot), count in needed.items():
        metric = f"{'PREEMPTIBLE_' if spot else ''}NVIDIA_{model.upper().replace('-', '_')}_GPUS"
        yield PreflightCheck(
            "quota",
            f"{count} {'preemptible ' if spot else ''}{model} GPUs in {spec.region}",
            "compute.regions.get (quotas)",
            answer=partial(
                answers.quota,
                path=f"/compute/v1/projects/{spec.account}/regions/{spec.region}",
                metric=metric,
                needed=count,
            ),
        )
    if needed:
        total = sum(needed.values())
        path = f"/compute/v1/projects/{spec.account}"
        everywhere = partial(answers.quota, path=path, metric="GPUS_ALL_REGIONS", needed=total)
        needs = f"{total} GPUs in all regions"
        yield PreflightCheck("quota", needs, "compute.projects.get (quotas)", answer=everywhere)
