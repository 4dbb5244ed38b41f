"""Rules that only Google Cloud has, on node pools. Each cites its source."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainfleet.infra.gcp import layout, machine_zones
from trainfleet.infra.gcp.machine_zones import ACCELERATORS
from trainfleet.infra.spec.schema import Capacity, GpuPool, PlatformSpec
from trainfleet.infra.validation.finding import Finding, Rule
from trainfleet.infra.validation.pools import (
    CLOUD,
    capacity_choice,
    machine_choice,
    pools,
    pools_with_machine,
)
from trainfleet.pydantic_messages import Path

BY_REQUEST = (Capacity.FLEX_START, Capacity.QUEUED)
NO_ON_DEMAND = ("a3-ultragpu-", "a4-")
SPOT_OR_FLEX = ("a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g")
_OWNED_LABELS = ("cloud.google.com", "gke.io", "googleapis.com")
_RESERVATION = (
    r"(projects/[a-z0-9:.-]+/reservations/)?[a-z]([-a-z0-9]{0,61}[a-z0-9])?(/reservationBlocks/[a-z0-9-]+)?"
)


def gcp_machines_are_in_the_region(spec: PlatformSpec) -> Iterator[Finding]:
    """GKE rejects a pool in a zone that does not have its machine (Compute Engine guide, GPU regions and
    zones).
    """
    there = layout.zones(spec.region)
    for path, pool, machine in pools_with_machine(spec):
        sold = machine_zones.sold_in(machine.instance_type, spec.region)
        if machine.declared or sold is None or not there or (pool.zone and pool.zone not in there):
            continue
        reads = (*machine_choice(path), ("region",), ("network", "zones"), (*path, "zone"))
        where = layout.pool_zones(spec, pool)
        if not sold:
            elsewhere = ", ".join(machine_zones.regions_of(machine.instance_type))
            yield Finding(
                (*path, "accelerator"),
                f"{machine.instance_type} in {spec.region} is not in this catalogue",
                f"it is in {elsewhere}",
                reads,
            )
        elif not set(where) & set(sold):
            what = f"{machine.instance_type} in {' or '.join(where)} is not in this catalogue"
            yield Finding((*path, "zone"), what, f"zone: {' or '.join(sold)}", reads)


def gcp_rdma_is_in_one_zone(spec: PlatformSpec) -> Iterator[Finding]:
    """An RDMA network is in one zone, and the names of its interfaces are unique in a cluster (VPC guide,
    RDMA network profile).
    """
    first = ""
    for path, pool, machine in pools_with_machine(spec):
        if (
            not layout.uses_fabric(pool, machine)
            or machine.rdma != "roce"
            or not layout.pool_zones(spec, pool)
        ):
            continue
        zone = layout.pool_zones(spec, pool)[0]
        first = first or zone
        if zone != first:
            what = f"another pool has its RDMA network in {first}, and a cluster has one"
            yield Finding(
                (*path, "zone"),
                what,
                f"zone: {first}, or interconnect: none",
                (*machine_choice(path), ("region",)),
            )


def gcp_compact_is_not_queued(spec: PlatformSpec) -> Iterator[Finding]:
    """GKE rejects compact placement with queued provisioning (GKE guide, compact placement; cluster-toolkit's
    preconditions).
    """
    for path, pool in pools(spec):
        if pool.capacity is Capacity.QUEUED and pool.compact:
            yield Finding(
                (*path, "compact"),
                "queued nodes cannot be placed compactly",
                "false, or capacity: flex-start",
                capacity_choice(path),
            )


def gcp_queued_is_the_only_capacity(spec: PlatformSpec) -> Iterator[Finding]:
    """Queued nodes come for a ProvisioningRequest only, and the autoscaler never adds them for a pending pod
    (GKE guide, flex-start with queued provisioning), so they have no place in an order of preference.
    """
    for index, pool in enumerate(spec.gpu_pools):
        if not isinstance(pool.capacity, Capacity) and Capacity.QUEUED in pool.capacity:
            where: Path = ("gpu_pools", index, "capacity")
            what = "`queued` cannot be listed with other capacities: its nodes come by request only"
            yield Finding(where, what, "flex-start in the list, or a pool of its own", (CLOUD,))


def gcp_queued_pools_have_the_queue(spec: PlatformSpec) -> Iterator[Finding]:
    """Queued nodes are added for a ProvisioningRequest only, which Kueue creates for each job (GKE guide,
    flex-start with queued provisioning).
    """
    for path, pool in pools(spec):
        if pool.capacity is Capacity.QUEUED and not spec.queue.enabled:
            yield Finding(
                ("queue", "enabled"),
                f"is off, but nothing else requests the nodes of pool `{pool.name}`",
                "true, or capacity: flex-start",
                capacity_choice(path),
            )


def gcp_requested_pools_start_empty(spec: PlatformSpec) -> Iterator[Finding]:
    """Flex-start and queued nodes exist only while a workload requests them (GKE guide, DWS; no static node
    count).
    """
    for path, pool in pools(spec):
        if pool.capacity in BY_REQUEST and pool.min_nodes > 0:
            yield Finding(
                (*path, "min_nodes"),
                f"`{pool.capacity}` nodes exist only on request and end by themselves",
                "0",
                capacity_choice(path),
            )


def gcp_run_hours_have_effect(spec: PlatformSpec) -> Iterator[Finding]:
    """Only flex-start and queued nodes have a run time (GKE guide, flex-start, maxRunDuration)."""
    for path, pool in pools(spec):
        if (
            pool.max_run_hours != GpuPool.model_fields["max_run_hours"].default
            and pool.capacity not in BY_REQUEST
        ):
            fix = "leave it out, or capacity: flex-start or queued"
            yield Finding(
                (*path, "max_run_hours"),
                f"has no effect with capacity `{pool.capacity}`",
                fix,
                capacity_choice(path),
            )


def gcp_accelerators_have_a_name(spec: PlatformSpec) -> Iterator[Finding]:
    """GKE and its autoscaler know a GPU by its platform's name, which a pool's facts do not have (Compute
    Engine guide, GPU platforms).
    """
    for path, pool, machine in pools_with_machine(spec):
        if machine.declared and pool.accelerator not in ACCELERATORS:
            what = f"the name of `{pool.accelerator}` on GKE is not in this catalogue"
            reads = (CLOUD, (*path, "machine"))
            yield Finding((*path, "accelerator"), what, f"one of {', '.join(ACCELERATORS)}", reads)


def gcp_machines_are_bought_as_sold(spec: PlatformSpec) -> Iterator[Finding]:
    """A3 Ultra and A4 cannot be bought on demand, and small A3 High is Spot or flex-start only (Compute
    Engine guide, GPU machine types).
    """
    for path, pool, machine in pools_with_machine(spec):
        where, reads = (*path, "capacity"), (*machine_choice(path), (*path, "capacity"))
        if machine.instance_type.startswith(SPOT_OR_FLEX) and pool.capacity not in (
            Capacity.SPOT,
            *BY_REQUEST,
        ):
            yield Finding(
                where,
                f"Google offers {machine.instance_type} as Spot or flex-start only",
                "spot, flex-start or queued",
                reads,
            )
        elif machine.instance_type.startswith(NO_ON_DEMAND) and pool.capacity is Capacity.ON_DEMAND:
            yield Finding(
                where,
                f"Google does not offer {machine.instance_type} on demand",
                "reserved, spot, flex-start or queued",
                reads,
            )


def gcp_reservations_are_named(spec: PlatformSpec) -> Iterator[Finding]:
    """A reservation has its Compute Engine name, with its project if it is shared, and with a block if it has
    blocks (GKE guide, reservations).
    """
    for path, pool in pools(spec):
        if (
            pool.capacity is Capacity.RESERVED
            and pool.reservation
            and not re.fullmatch(_RESERVATION, pool.reservation)
        ):
            fix = "its name, or projects/PROJECT/reservations/NAME if it is shared"
            yield Finding(
                (*path, "reservation"),
                f"`{pool.reservation}` is not the name of a reservation",
                fix,
                capacity_choice(path),
            )


def gcp_labels_of_nodes_are_free(spec: PlatformSpec) -> Iterator[Finding]:
    """GKE sets labels of its own domains and rejects them from others (GKE guide, node labels)."""
    for path, pool in pools(spec):
        for key in pool.labels:
            domain = key.rpartition("/")[0]
            if any(domain == each or domain.endswith(f".{each}") for each in _OWNED_LABELS):
                yield Finding(
                    (*path, "labels", key),
                    f"labels of {domain} are set by GKE",
                    "a domain of your own, or none",
                    (CLOUD,),
                )


RULES: tuple[Rule, ...] = (
    gcp_machines_are_in_the_region,
    gcp_rdma_is_in_one_zone,
    gcp_compact_is_not_queued,
    gcp_queued_is_the_only_capacity,
    gcp_queued_pools_have_the_queue,
    gcp_requested_pools_start_empty,
    gcp_run_hours_have_effect,
    gcp_accelerators_have_a_name,
    gcp_machines_are_bought_as_sold,
    gcp_reservations_are_named,
    gcp_labels_of_nodes_are_free,
)
