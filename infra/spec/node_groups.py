"""The node groups of a platform: what the clouds create for its GPU pools.

A pool with one capacity is one group. A pool that lists several has a group for each, in order of preference,
and on clouds whose groups belong in one zone, for each of its zones. Everything below the spec (rules, costs,
clouds, contract) reads groups, so that all clouds treat pools alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trainfleet.infra.cloud_support import support
from trainfleet.infra.spec.node_group import NodeGroup, groups_of_capacity
from trainfleet.infra.spec.schema import Capacity, GpuPool, PlatformSpec


def node_groups(spec: PlatformSpec) -> tuple[NodeGroup, ...]:
    """Every node group, in the order of the pools and of their capacities."""
    return tuple(group for pool in spec.gpu_pools for group in groups_of(spec, pool))


def once_per_quota(groups: Iterable[NodeGroup]) -> tuple[NodeGroup, ...]:
    """One group of each pool that draws on a quota of spot nodes, and one of others.

    The groups of a pool share its work: its jobs need at most `max_nodes`, wherever they get them.
    """
    found: dict[tuple[str, bool], NodeGroup] = {}
    for group in groups:
        found.setdefault((group.pool, group.capacity is Capacity.SPOT), group)
    return tuple(found.values())


def groups_of(spec: PlatformSpec, pool: GpuPool) -> tuple[NodeGroup, ...]:
    """The node groups of one pool, in order of preference."""
    return tuple(zonal for group in groups_of_capacity(pool) for zonal in _by_zone(spec, group))


def _by_zone(spec: PlatformSpec, group: NodeGroup) -> Iterator[NodeGroup]:
    zones = support(spec.cloud).group_zones(spec, group)
    if not zones:
        yield group
    share, rest = divmod(group.min_nodes, len(zones) or 1)
    for index, zone in enumerate(zones):
        name = f"{group.name}-{zone.removeprefix(spec.region).strip('-')}"
        nodes = share + (index < rest)
        yield group.model_copy(update={"name": name, "zone": zone, "min_nodes": nodes})
