"""NodeGroup: one group of equal nodes, either a whole pool or one capacity of it."""

from __future__ import annotations

from typing import Any

from trainfleet.infra.spec.schema import Capacity, GpuPool

POOL_LABEL = "trainfleet.io/pool"
"""On the nodes of every pool: its name."""
CAPACITY_LABEL = "trainfleet.io/capacity"
"""On the nodes of a pool that lists several capacities: how the node is bought."""
RESERVING = (Capacity.RESERVED, Capacity.CAPACITY_BLOCK)
BY_REQUEST = (Capacity.FLEX_START, Capacity.QUEUED)
OWNERS: dict[str, tuple[Capacity, ...]] = {
    "reservation": RESERVING,
    "placement_group": (Capacity.RESERVED,),
    "max_run_hours": BY_REQUEST,
}
"""Settings of a pool that only groups of these capacities have."""


class NodeGroup(GpuPool):
    """A group with the settings of its pool. `name` is the group's own."""

    name: str
    capacity: Capacity
    pool: str
    """Name of the pool, which all its groups have as a label."""
    preferences: tuple[Capacity, ...] = ()
    """All capacities of the pool in order; empty if it declares one."""

    @property
    def preferred(self) -> Capacity:
        """The capacity that the pool uses first."""
        return self.preferences[0] if self.preferences else self.capacity

    @property
    def family(self) -> str:
        """The name of the group and of those that differ from it by zone only."""
        return f"{self.pool}-{self.capacity}" if self.preferences else self.pool

    @property
    def reservation_key(self) -> str:
        """The key of the pool that names the group's reservation."""
        both = self.capacity is Capacity.CAPACITY_BLOCK and Capacity.RESERVED in self.preferences
        return "capacity_block" if both else "reservation"

    @property
    def capacity_label(self) -> dict[str, str]:
        """The label that tells the groups of the pool apart; empty if it declares one capacity."""
        return {CAPACITY_LABEL: self.capacity.value} if self.preferences else {}


def groups_of_capacity(pool: GpuPool) -> tuple[NodeGroup, ...]:
    """A group for each capacity of a pool. The minimum is of the first."""
    if isinstance(pool.capacity, Capacity):
        return (_group(pool, pool.name, pool.capacity),)
    order = tuple(dict.fromkeys(pool.capacity))
    return tuple(
        _group(
            pool,
            f"{pool.name}-{capacity}",
            capacity,
            preferences=order,
            min_nodes=pool.min_nodes if capacity is order[0] else 0,
            **_own_settings(pool, capacity, order),
        )
        for capacity in order
    )


def _group(pool: GpuPool, name: str, capacity: Capacity, **changes: Any) -> NodeGroup:
    settings = {**dict(pool), "name": name, "capacity": capacity, "pool": pool.name}
    return NodeGroup.model_construct(**{**settings, **changes})


def _own_settings(pool: GpuPool, capacity: Capacity, order: tuple[Capacity, ...]) -> dict[str, Any]:
    """The settings of OWNERS, each on the groups that use it. If none does, the first keeps it, so that a
    rule reports it.
    """
    found: dict[str, Any] = {}
    for name, owners in OWNERS.items():
        used = set(owners) & set(order)
        if capacity not in owners and (used or capacity is not order[0]):
            found[name] = GpuPool.model_fields[name].default
    if capacity is Capacity.CAPACITY_BLOCK and Capacity.RESERVED in order:  # see reservation_key
        found["reservation"] = pool.capacity_block
    return found
