"""What a platform's nodes cost at list prices: the part that always runs, and everything at full scale.

Used by the rules (budget) and the command line. Easy to get wrong: a sum over machines without a known price is too
low, so `Cost.unknown` names them and must be shown beside it. Storage, traffic and the control plane are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from infra.machines import Machine, machine_for_pool, system_machine
from infra.spec import Capacity, Cloud, PlatformSpec

HOURS_PER_MONTH = 730


@dataclass(frozen=True)
class PoolCost:
    """One pool, the machine that serves it and its list price per machine and hour (None = not known)."""

    name: str
    machine: Machine
    min_nodes: int
    max_nodes: int
    usd_per_hour: float | None
    capacity: Capacity = Capacity.ON_DEMAND


@dataclass(frozen=True)
class Cost:
    """All pools of a platform, the system pool first."""

    pools: tuple[PoolCost, ...]

    @property
    def min_usd_per_hour(self) -> float:
        """What always runs."""
        return sum((pool.usd_per_hour or 0.0) * pool.min_nodes for pool in self.pools)

    @property
    def max_usd_per_hour(self) -> float:
        """Every pool at its largest."""
        return sum((pool.usd_per_hour or 0.0) * pool.max_nodes for pool in self.pools)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Pools that are missing in the sums, because their machine has no known price."""
        return tuple(pool.name for pool in self.pools if pool.usd_per_hour is None)


def cost(spec: PlatformSpec) -> Cost:
    """The cost of a platform's nodes; pools whose machine the cloud does not sell are left out. Nothing on cloud: local."""
    if spec.cloud is Cloud.LOCAL:
        return Cost(())
    system = system_machine(spec)
    pools = [PoolCost("system", system, spec.system_pool.min_nodes, spec.system_pool.max_nodes, system.usd_per_hour(Capacity.ON_DEMAND))]
    for pool in spec.gpu_pools:
        try:
            machine = machine_for_pool(spec.cloud, pool)
        except LookupError:
            continue
        pools.append(PoolCost(pool.name, machine, pool.min_nodes, pool.max_nodes, machine.usd_per_hour(pool.capacity), pool.capacity))
    return Cost(tuple(pools))


def standing_usd_per_hour(spec: PlatformSpec) -> float:
    """What the nodes cost that always run."""
    return cost(spec).min_usd_per_hour
