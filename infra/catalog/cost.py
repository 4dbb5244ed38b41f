"""The cost of a platform at list prices, estimated from its spec: what always runs, and everything at full
scale.

`node_costs` covers the nodes; `bill` adds their disks, the control plane, NAT, endpoints, keys, secrets and
the shared filesystem. Usage by volume (objects, traffic, logs) is in neither. planned.py prices the resources
of a plan with the same rows: infra/<cloud>/prices.toml, one table per row:

    what                    what is billed
    usd_per_hour, usd_per_month, usd_per_gib_month or usd_per_gb (of a month's traffic)
                            one of the four
    price_region, source    where the price applies, and where it is from
    price_date              when it was in force; a source without a date says "undated"
    in_region               the price in other regions, where it is known
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
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
EVERY_REGION = "every region"
NOT_COUNTED = "objects and versions in buckets, traffic, logs and metrics, images, reservations' own terms"


@dataclass(frozen=True)
class PoolCost:
    """One pool, its machine and the list price per machine and hour (None = unknown)."""

    name: str
    machine: Machine
    min_nodes: int
    max_nodes: int
    usd_per_hour: float | None
    capacity: Capacity = Capacity.ON_DEMAND
    disk_gib: int | None = None
    """Size of the root disk; None = the system pool's."""
    fast_image_pull: bool = False


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
        found.append(
            PoolCost(
                pool.name,
                machine,
                pool.min_nodes,
                pool.max_nodes,
                price,
                pool.capacity,
                pool.disk_gib,
                pool.fast_image_pull,
            )
        )
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
    region: str = ""
    """Where it runs; empty if that is not known."""
    resources: tuple[str, ...] = ()
    """Names of the planned resources that it covers; empty in an estimate from a spec."""

    @property
    def elsewhere(self) -> bool:
        """Whether the price is of another region than the one where it runs."""
        return (
            self.usd_per_hour is not None
            and bool(self.region and self.price_region)
            and self.price_region not in (EVERY_REGION, self.region)
        )

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
    planned: bool = False
    """Whether it prices planned resources. Otherwise it is an estimate from a spec."""
    not_known: tuple[str, ...] = ()
    """Types of planned resources of which it is not known whether they are billed."""
    by_usage: tuple[str, ...] = ()
    """What is billed by use, without an assumption on how much."""
    unused_usage: tuple[str, ...] = ()
    """Assumptions by which nothing in the plan is billed."""
    budget_usd_per_month: float | None = None

    @property
    def min_usd_per_hour(self) -> float:
        """What always runs. Parts without a price are left out."""
        return sum(part.min_usd_per_hour or 0.0 for part in self.parts)

    @property
    def max_usd_per_hour(self) -> float:
        """Everything at its largest. Parts without a price are left out."""
        return sum(part.max_usd_per_hour or 0.0 for part in self.parts)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Parts that the sums leave out because their price is unknown."""
        return tuple(part.name for part in self.parts if part.usd_per_hour is None and part.most)

    @property
    def estimated(self) -> tuple[str, ...]:
        """Parts whose price has no date."""
        return tuple(part.name for part in self.parts if part.estimated and part.most)

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """Parts whose price is of another region."""
        return tuple(part.name for part in self.parts if part.elsewhere and part.most)

    def share_of_budget(self, usd_per_hour: float) -> float | None:
        """Return a cost as a share of the budget; None without a budget."""
        budget = self.budget_usd_per_month
        return usd_per_hour * HOURS_PER_MONTH / budget if budget else None

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
            "elsewhere": list(self.elsewhere),
            "planned": self.planned,
            "not_known": list(self.not_known),
            "by_usage": list(self.by_usage),
            "unused_usage": list(self.unused_usage),
            "budget_usd_per_month": self.budget_usd_per_month,
            "share_of_budget": {"min": self.share_of_budget(low), "max": self.share_of_budget(high)},
            "not_counted": "" if self.planned else NOT_COUNTED,
        }


@dataclass(frozen=True)
class CostLimits:
    """The most that a stack may cost, in USD a month; None = no limit."""

    always: float | None = None
    """For what always runs: every pool at its smallest."""
    largest: float | None = None
    """With every pool at its largest."""

    def exceeded(self, cost: Bill) -> list[str]:
        """Return in words which limits a cost is above. Parts without a price are not counted."""
        limits = (
            ("what always runs", cost.min_usd_per_hour, self.always),
            ("with all pools at their largest", cost.max_usd_per_hour, self.largest),
        )
        return [
            f"${usd * HOURS_PER_MONTH:,.0f} a month, {what}, is above the limit of ${limit:,.0f}"
            for what, usd, limit in limits
            if limit is not None and usd * HOURS_PER_MONTH > limit
        ]


def bill(spec: PlatformSpec) -> Bill:
    """The bill of a platform by the hour. Empty on an existing cluster, whose owner pays for it."""
    if not sells_machines(spec.cloud):
        return Bill(())
    pools = node_costs(spec).pools
    costs = [*_disks(spec, pools), *support(spec.cloud).standing_costs(spec)]
    standing = (
        priced(
            spec.cloud,
            each.row,
            each.count,
            each.count if each.most is None else each.most,
            spec.region,
            name=each.name,
        )
        for each in costs
    )
    budget = spec.budget.monthly_usd if spec.budget else None
    return Bill((*(_node_item(pool, spec.region) for pool in pools), *standing), budget_usd_per_month=budget)


def _disks(spec: PlatformSpec, pools: Iterable[PoolCost]) -> Iterator[StandingCost]:
    """The root disks of all nodes, one cost per row of prices.toml."""
    least, most = dict[str, float](), dict[str, float]()
    for pool in pools:
        for disk in support(spec.cloud).node_disk(pool.machine, pool.disk_gib, pool.fast_image_pull):
            least[disk.row] = least.get(disk.row, 0) + disk.count * pool.min_nodes
            most[disk.row] = most.get(disk.row, 0) + disk.count * pool.max_nodes
    for row in most:
        yield StandingCost(row, least[row], most=most[row])


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


def machine_item(  # noqa: PLR0917 - one per column
    name: str, machine: Machine, least: float, most: float, capacity: Capacity, region: str
) -> BillItem:
    """Return the cost of nodes of a machine.

    Args:
        name: of the line on the bill.
        machine: with the price of the region (`regions.at`).
        least: number of nodes that always run.
        most: the largest number of nodes.
        capacity: how they are bought.
        region: where they run.
    """
    spot = capacity is Capacity.SPOT
    return BillItem(
        name,
        f"{machine.instance_type}{' (spot)' if spot else ''}",
        least,
        most,
        machine.usd_per_hour(capacity),
        machine.price_region,
        None if spot else machine.price_date,  # the catalogue's spot prices have no date
        machine.source,
        region,
    )


def _node_item(pool: PoolCost, region: str) -> BillItem:
    return machine_item(pool.name, pool.machine, pool.min_nodes, pool.max_nodes, pool.capacity, region)


def priced(cloud: Cloud, row: str, least: float, most: float, region: str, *, name: str = "") -> BillItem:
    """Return the cost of a row of prices.toml, in the row's own unit: pieces, GiB, or GB a month.

    Args:
        cloud: whose prices.toml.
        row: its name there; a row that does not exist has no price.
        least: how many units there are always.
        most: the largest number of units.
        region: where they are.
        name: of the line on the bill; empty = the row's.
    """
    price = prices().get(cloud.value, {}).get(row, {})
    unit = next((unit for unit in UNITS if unit in price), None)
    local = price.get("in_region", {}).get(region)
    amount = None if unit is None else (price[unit] if local is None else local) / UNITS[unit]
    return BillItem(
        name or row,
        price.get("what") or row,
        least,
        most,
        amount,
        price.get("price_region", "") if local is None else region,
        price.get("price_date"),
        price.get("source", ""),
        region,
    )


UNITS = {
    "usd_per_hour": 1,
    "usd_per_month": HOURS_PER_MONTH,
    "usd_per_gib_month": HOURS_PER_MONTH,
    "usd_per_gb": HOURS_PER_MONTH,
}
"""Columns with a price, and by what to divide them for a price by the hour."""


@cache
def prices() -> dict[str, dict[str, dict[str, Any]]]:
    """Every prices.toml, by cloud and row."""
    files = {cloud.value: PRICES / cloud.value / "prices.toml" for cloud in Cloud}
    return {
        cloud: tomllib.loads(file.read_text(encoding="utf-8"))
        for cloud, file in files.items()
        if file.is_file()
    }
