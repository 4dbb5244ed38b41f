"""What must be true of a Google Cloud project before the first `pulumi up`, and the request that shows it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from trainfleet.infra.catalog.machines import machine_for_pool
from trainfleet.infra.gcp import layout
from trainfleet.infra.preflight import PreflightCheck
from trainfleet.infra.spec.schema import Capacity, PlatformSpec

FIRST_APIS = ("cloudresourcemanager", "serviceusage")
"""APIs that must be enabled by hand, because the program enables the others through them."""


def checks(spec: PlatformSpec) -> Iterator[PreflightCheck]:
    """The checks of Google Cloud."""
    admins = ", ".join(spec.kubernetes.admins)
    yield PreflightCheck(
        "caller",
        f"the caller may create clusters and set IAM policies in {spec.account}"
        + (f", and is one of {admins}" if admins else ""),
        "cloudresourcemanager.projects.testIamPermissions",
    )
    for name in FIRST_APIS:
        yield PreflightCheck("apis", f"{name}.googleapis.com is enabled", "serviceusage.services.get")
    yield from _quotas(spec)
    for pool in spec.gpu_pools:
        machine = machine_for_pool(spec.cloud, pool).instance_type
        zones = ", ".join(layout.pool_zones(spec, pool))
        yield PreflightCheck(
            "zones", f"{pool.name}: {machine} is offered in {zones}", "compute.machineTypes.get"
        )
        if pool.reservation:
            needs = f"{pool.name}: the reservation {pool.reservation} exists in {zones}"
            yield PreflightCheck("reservation", needs, "compute.reservations.get")
    cluster = layout.cluster_name(spec)
    yield PreflightCheck("names", f"no cluster {cluster} in {spec.region}", "container.clusters.get")
    account = layout.account_id(spec, "nodes")
    needs = f"no service account {account}, also none deleted in the last 30 days"
    yield PreflightCheck("names", needs, "iam.serviceAccounts.get")


def _quotas(spec: PlatformSpec) -> Iterator[PreflightCheck]:
    """GPUs by model and by how they are bought: preemptible GPUs have a quota of their own."""
    needed: dict[str, int] = defaultdict(int)
    for pool in spec.gpu_pools:
        machine = machine_for_pool(spec.cloud, pool)
        kind = "preemptible " if pool.capacity is Capacity.SPOT else ""
        needed[f"{kind}{machine.accelerator}"] += machine.accelerators_per_node * pool.max_nodes
    for model, count in needed.items():
        yield PreflightCheck(
            "quota", f"{count} {model} GPUs in {spec.region}", "compute.regions.get (quotas)"
        )
    if needed:
        total = sum(needed.values())
        yield PreflightCheck("quota", f"{total} GPUs in all regions", "compute.projects.get (quotas)")
