"""The cost of a platform at list prices: what always runs, and everything at full scale.

`node_costs` covers the nodes; `bill` adds the control plane, NAT, endpoints and the shared filesystem. Usage
by volume (objects, traffic, logs) is in neither. Prices are in infra/<cloud>/prices.toml, one table per row:

    what                                what is billed
    usd_per_hour or usd_per_gib_month   one of the two
    price_region, source                where the price applies, and where it is from
    price_date                          when it was in force; a source without a date says "undated"
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from trainfleet.infra.catalog.machines import Machine, machine_for_pool, sells_machines, system_machine
from trainfleet.infra.catalog.regions import at
from trainfleet.infra.cloud_support import StandingCost, support
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.spec.node_groups import node_groups
from trainfleet.infra.spec.schema import Capacity, PlatformSpec

HOURS_PER_MONTH = 730
PRICES = Path(__file__).parents[1]
NOT_COUNTED = (
    "objects and versions in buckets, traffic, logs and metrics, disks of nodes, secrets, keys, images, "
    "reservations' own terms"
)


@dataclass(frozen=True)
class PoolCost:
    """One pool, its machine and the list price per machine and hour (None = unknown)."""

    name: str
    machine: Machine
    min_nodes: int
    max_nodes: int
    usd_per_hour: float | None
    capacity: Capacity = Capacity.ON_DEMAND


@dataclass(frozen=True)
class NodeCosts:
    """The pools of a platform, the system pool first."""

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
        """Pools that the sums leave out because their machine has no known price."""
        return tuple(pool.name for pool in self.pools if pool.usd_per_hour is None)


def node_costs(spec: PlatformSpec) -> NodeCosts:
    """The cost of a platform's nodes. Pools whose machine is not known are left out, and nodes of
    an existing cluster cost nothing here.
    """
    if not sells_machines(spec.cloud):
        return NodeCosts(())
    system, size = system_machine(spec), spec.system_pool
    system = at(system, spec.region, Capacity.ON_DEMAND)
    price = system.usd_per_hour(Capacity.ON_DEMAND)
    found = [PoolCost("system", system, size.min_nodes, size.max_nodes, price)]
    found += [
        PoolCost(extra.name, system, extra.min_nodes, extra.max_nodes, price)
        for extra in support(spec.cloud).extra_pools(spec)
    ]
    for pool in node_groups(spec):
        try:
            machine = at(machine_for_pool(spec.cloud, pool), spec.region, pool.capacity)
        except LookupError:
            continue
        price = machine.usd_per_hour(pool.capacity)
        found.append(PoolCost(pool.name, machine, pool.min_nodes, pool.max_nodes, price, pool.capacity))
    return NodeCosts(tuple(found))


def standing_usd_per_hour(spec: PlatformSpec) -> float:
    """The cost of the nodes that always run."""
    return node_costs(spec).min_usd_per_hour


@dataclass(frozen=True)
class BillItem:
    """One line of a bill: the smallest and largest count, and the price of one by the hour (None
    = unknown).
    """

    name: str
    what: str
    least: float
    most: float
    usd_per_hour: float | None
    price_region: str = ""
    price_date: date | None = None
    source: str = ""

    @property
    def estimated(self) -> bool:
        """Whether the price is from a source without a date."""
        return self.usd_per_hour is not None and self.price_date is None

    @property
    def min_usd_per_hour(self) -> float | None:
        """Cost of the smallest count."""
        return None if self.usd_per_hour is None else self.usd_per_hour * self.least

    @property
    def max_usd_per_hour(self) -> float | None:
        """Cost of the largest count."""
        return None if self.usd_per_hour is None else self.usd_per_hour * self.most


@dataclass(frozen=True)
class Bill:
    """Everything that is billed by the hour and whose amount follows from the spec."""

    parts: tuple[BillItem, ...]

    @property
    def min_usd_per_hour(self) -> float:
        """What always runs. LayerFeatures without a price are left out."""
        return sum(part.min_usd_per_hour or 0.0 for part in self.parts)

    @property
    def max_usd_per_hour(self) -> float:
        """Everything at its largest. LayerFeatures without a price are left out."""
        return sum(part.max_usd_per_hour or 0.0 for part in self.parts)

    @property
    def unknown(self) -> tuple[str, ...]:
        """LayerFeatures that the sums leave out because their price is unknown."""
        return tuple(part.name for part in self.parts if part.usd_per_hour is None and part.most)

    @property
    def estimated(self) -> tuple[str, ...]:
        """LayerFeatures whose price has no date."""
        return tuple(part.name for part in self.parts if part.estimated and part.most)

    def as_json(self) -> dict[str, Any]:
        """Sums by the hour and month, and every part with the date and source of its price, as JSON."""
        low, high = self.min_usd_per_hour, self.max_usd_per_hour
        return {
            "usd_per_hour": {"min": round(low, 4), "max": round(high, 4)},
            "usd_per_month": {
                "min": round(low * HOURS_PER_MONTH, 2),
                "max": round(high * HOURS_PER_MONTH, 2),
            },
            "parts": [
                {**vars(part), "price_date": part.price_date.isoformat() if part.price_date else None}
                for part in self.parts
            ],
            "unpriced": list(self.unknown),
            "estimated": list(self.estimated),
            "not_counted": NOT_COUNTED,
        }


def bill(spec: PlatformSpec) -> Bill:
    """The bill of a platform by the hour. Empty on an existing cluster, whose owner pays for it."""
    if not sells_machines(spec.cloud):
        return Bill(())
    nodes = [_node_item(pool) for pool in node_costs(spec).pools]
    return Bill((*nodes, *(_standing_item(spec, each) for each in support(spec.cloud).standing_costs(spec))))


def nat_costs(spec: PlatformSpec, zones: int) -> Iterator[StandingCost]:
    """NAT gateways and their addresses. `zones`: how many gateways `nat: per-zone` creates."""
    if spec.network.existing is None:
        count = zones if spec.network.nat == "per-zone" else 1
        yield StandingCost("nat", count)
        yield StandingCost("address", count)


def shared_filesystem_cost(spec: PlatformSpec) -> Iterator[StandingCost]:
    """The shared filesystem, by its capacity in GiB."""
    if shared := spec.storage.shared_filesystem:
        row = f"lustre-{shared.throughput_mbps_per_tib}" if shared.kind == "lustre" else "nfs"
        yield StandingCost(row, shared.capacity_gib, "shared-filesystem")


def _node_item(pool: PoolCost) -> BillItem:
    spot = pool.capacity is Capacity.SPOT
    return BillItem(
        pool.name,
        f"{pool.machine.instance_type}{' (spot)' if spot else ''}",
        pool.min_nodes,
        pool.max_nodes,
        pool.usd_per_hour,
        pool.machine.price_region,
        None if spot else pool.machine.price_date,  # the catalogue's spot prices have no date
        pool.machine.source,
    )


def _standing_item(spec: PlatformSpec, cost: StandingCost) -> BillItem:
    price = prices().get(spec.cloud.value, {}).get(cost.row, {})
    by_hour = price.get("usd_per_hour")
    if by_hour is None and (by_month := price.get("usd_per_gib_month")) is not None:
        by_hour = by_month / HOURS_PER_MONTH
    return BillItem(
        cost.name or cost.row,
        price.get("what") or cost.row,
        cost.count,
        cost.count,
        by_hour,
        price.get("price_region", ""),
        price.get("price_date"),
        price.get("source", ""),
    )


@cache
def prices() -> dict[str, dict[str, dict[str, Any]]]:
    """Every prices.toml, by cloud and row."""
    files = {cloud.value: PRICES / cloud.value / "prices.toml" for cloud in Cloud}
    return {
        cloud: tomllib.loads(file.read_text(encoding="utf-8"))
        for cloud, file in files.items()
        if file.is_file()
    }
