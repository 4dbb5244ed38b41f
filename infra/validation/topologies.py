"""Rules on the topology of GPU pools: Kueue places runs by labels of nodes that exist."""

from __future__ import annotations

from collections.abc import Iterator

from trainfleet.infra.catalog.machines import machine_for_pool
from trainfleet.infra.cloud_support import support
from trainfleet.infra.spec.schema import Capacity, GpuPool, PlatformSpec
from trainfleet.infra.spec.topology import HOST
from trainfleet.infra.spec.topology_levels import topology_levels
from trainfleet.infra.validation.finding import Finding
from trainfleet.infra.validation.pools import CLOUD, machine_choice
from trainfleet.pydantic_messages import Path

GIVEN = "levels: labels that you set on the nodes, from the widest to the closest"


def levels_of(spec: PlatformSpec, pool: GpuPool) -> tuple[str, ...]:
    """The levels of a pool without the node itself; empty if unknown."""
    if pool.topology is not None and pool.topology.levels:
        return pool.topology.levels
    try:
        machine = machine_for_pool(spec.cloud, pool)
    except LookupError:  # another rule reports the machine
        return ()
    return topology_levels(pool, machine)


def topology_has_its_queue(spec: PlatformSpec) -> Iterator[Finding]:
    """Kueue assigns the nodes, and without it the annotations of pods mean nothing."""
    for path, _ in _declared(spec):
        if not spec.queue.enabled:
            reads = (("queue", "enabled"),)
            yield Finding(path, "is applied by the queue, which is off", "queue.enabled: true", reads)


def topology_levels_are_known(spec: PlatformSpec) -> Iterator[Finding]:
    """A node without one of the labels is in no domain, so that no run would be admitted to it."""
    for path, pool in _declared(spec):
        topology, levels = pool.topology, levels_of(spec, pool)
        assert topology is not None
        if not levels:
            what = f"{spec.cloud} labels no nodes of this pool with their place in the network"
            yield Finding((*path, "levels"), what, GIVEN, machine_choice(path[:-1]))
        if HOST in levels:
            yield Finding((*path, "levels"), f"`{HOST}` is added as the lowest level", "leave it out")
        if len(set(levels)) < len(levels):
            yield Finding((*path, "levels"), "a label is listed twice", "each label once")
        if topology.required and levels and topology.required not in levels:
            what = f"`{topology.required}` is not a level of this pool"
            yield Finding((*path, "required"), what, f"one of {', '.join(levels)}")


def topology_has_its_nodes(spec: PlatformSpec) -> Iterator[Finding]:
    """Kueue admits a run to nodes that exist, and only then its pods are created, for which the cluster
    autoscaler would add nodes. A ProvisioningRequest adds them before (Kueue documentation, topology-aware
    scheduling).
    """
    for path, pool in _declared(spec):
        if not support(spec.cloud).creates_cluster:
            if not pool.labels:
                what = "is missing: a flavor with a topology selects its nodes by labels"
                yield Finding((*path[:-1], "labels"), what, "a label of these nodes", (path,))
        elif isinstance(pool.capacity, tuple):
            what = "places runs on nodes that exist, and the groups of a list get theirs on demand"
            yield Finding(path, what, "one capacity", ((*path[:-1], "capacity"),))
        elif pool.min_nodes < pool.max_nodes and pool.capacity is not Capacity.QUEUED:
            what = f"places runs on nodes that exist, and of {pool.max_nodes} only {pool.min_nodes} always do"
            fix = f"min_nodes: {pool.max_nodes}" if pool.max_nodes else "min_nodes equal to max_nodes"
            reads = tuple((*path[:-1], name) for name in ("min_nodes", "max_nodes", "capacity"))
            yield Finding(path, what, fix, (CLOUD, *reads))


def _declared(spec: PlatformSpec) -> Iterator[tuple[Path, GpuPool]]:
    for index, pool in enumerate(spec.gpu_pools):
        if pool.topology is not None:
            yield ("gpu_pools", index, "topology"), pool
