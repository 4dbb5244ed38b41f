"""Rules on pools that list several capacities in order of preference."""

from __future__ import annotations

from collections.abc import Iterator

from trainfleet.infra.spec.node_group import RESERVING
from trainfleet.infra.spec.schema import Capacity, PlatformSpec
from trainfleet.infra.validation.finding import Finding
from trainfleet.infra.validation.pools import pools
from trainfleet.pydantic_messages import Path


def capacities_are_distinct(spec: PlatformSpec) -> Iterator[Finding]:
    """Each capacity of a pool is one node group, so it has one place in the order."""
    for index, pool in enumerate(spec.gpu_pools):
        order = () if isinstance(pool.capacity, Capacity) else pool.capacity
        for place, capacity in enumerate(order):
            if capacity in order[:place]:
                where: Path = ("gpu_pools", index, "capacity", place)
                yield Finding(where, f"`{capacity}` is listed already", "each capacity once")


def hyperpod_has_one_capacity(spec: PlatformSpec) -> Iterator[Finding]:
    """HyperPod's instance groups keep their nodes: no autoscaler chooses among them."""
    for index, pool in enumerate(spec.gpu_pools):
        if pool.kind == "hyperpod" and not isinstance(pool.capacity, Capacity):
            path: Path = ("gpu_pools", index)
            what = "a HyperPod pool has one capacity: nothing chooses among its instance groups"
            yield Finding((*path, "capacity"), what, "one capacity", ((*path, "kind"),))


def capacity_block_belongs(spec: PlatformSpec) -> Iterator[Finding]:
    """A pool with one reservation names it in `reservation`. `capacity_block` is for a second one."""
    for index, pool in enumerate(spec.gpu_pools):
        order = () if isinstance(pool.capacity, Capacity) else pool.capacity
        if pool.capacity_block and not set(RESERVING) <= set(order):
            path: Path = ("gpu_pools", index)
            what = "has no effect: `capacity` does not list both reserved and capacity-block"
            yield Finding(
                (*path, "capacity_block"), what, "write it in `reservation`", ((*path, "capacity"),)
            )


def groups_have_unique_names(spec: PlatformSpec) -> Iterator[Finding]:
    """A node group is named after its pool and capacity, which may be the name of another pool."""
    names = {pool.name: index for index, pool in enumerate(spec.gpu_pools)}
    for path, group in pools(spec):
        other = names.get(group.name)
        if group.name != group.pool and other is not None:
            what = f"`{group.name}` is the name of a node group of pool `{group.pool}`"
            reads = ((*path, "name"), (*path, "capacity"))
            yield Finding(("gpu_pools", other, "name"), what, "another name", reads)
