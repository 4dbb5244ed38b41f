"""What a platform costs at list prices: the part that always runs, and everything at full scale.

`cost` is the nodes (rules, command line); `bill` adds what else runs by the hour: control plane, ways out,
endpoints, the
shared filesystem (diff). Easy to get wrong: a sum over parts without a known price is too low, so `unknown`
names them and
must be shown beside it. What is used by the byte (objects, traffic, logs) is in neither; `NOT_COUNTED` says
so.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from trainfleet.infra.azure.sizes import INLINE_NODES, INLINE_POOL
from trainfleet.infra.catalog.machines import Machine, machine_for_pool, system_machine
from trainfleet.infra.spec.schema import Capacity, Cloud, PlatformSpec

HOURS_PER_MONTH = 730
PRICES = Path(__file__).with_name("prices.toml")
NOT_COUNTED = "objects and versions in buckets, traffic, logs and metrics, disks of nodes, secrets, keys, images, reservations' own terms"


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
    """The cost of a platform's nodes; pools whose machine the cloud does not sell are left out. Nothing on
    cloud: local.
    """
    if spec.cloud is Cloud.LOCAL:
        return Cost(())
    system = system_machine(spec)
    pools = [
        PoolCost(
            "system",
            system,
            spec.system_pool.min_nodes,
            spec.system_pool.max_nodes,
            system.usd_per_hour(Capacity.ON_DEMAND),
        )
    ]
    if spec.cloud is Cloud.AZURE:
        # The pool without which AKS makes no cluster, beside the spec's own.
        pools.append(
            PoolCost(
                INLINE_POOL, system, *INLINE_NODES[spec.production], system.usd_per_hour(Capacity.ON_DEMAND)
            )
        )
    for pool in spec.gpu_pools:
        try:
            machine = machine_for_pool(spec.cloud, pool)
        except LookupError:
            continue
        pools.append(
            PoolCost(
                pool.name,
                machine,
                pool.min_nodes,
                pool.max_nodes,
                machine.usd_per_hour(pool.capacity),
                pool.capacity,
            )
        )
    return Cost(tuple(pools))


def standing_usd_per_hour(spec: PlatformSpec) -> float:
    """What the nodes cost that always run."""
    return cost(spec).min_usd_per_hour


@dataclass(frozen=True)
class Part:
    """One line of a bill: how many at least and at most, and what one costs by the hour (None = not known)."""

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
        """Whether the price stands on a page without a date, so that nobody can say whether it is today's."""
        return self.usd_per_hour is not None and self.price_date is None

    @property
    def min_usd_per_hour(self) -> float | None:
        """What always runs of it."""
        return None if self.usd_per_hour is None else self.usd_per_hour * self.least

    @property
    def max_usd_per_hour(self) -> float | None:
        """All of it."""
        return None if self.usd_per_hour is None else self.usd_per_hour * self.most


@dataclass(frozen=True)
class Bill:
    """Everything of a platform that is paid by the hour and whose amount a spec tells."""

    parts: tuple[Part, ...]

    @property
    def min_usd_per_hour(self) -> float:
        """What always runs, of the parts whose price is known."""
        return sum(part.min_usd_per_hour or 0.0 for part in self.parts)

    @property
    def max_usd_per_hour(self) -> float:
        """Everything at its largest, of the parts whose price is known."""
        return sum(part.max_usd_per_hour or 0.0 for part in self.parts)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Parts that are missing in the sums, because nobody has written down their price."""
        return tuple(part.name for part in self.parts if part.usd_per_hour is None and part.most)

    @property
    def estimated(self) -> tuple[str, ...]:
        """Parts whose price has no date."""
        return tuple(part.name for part in self.parts if part.estimated and part.most)

    def as_json(self) -> dict[str, Any]:
        """For scripts: sums by the hour and month, and every part with the date and source of its price."""
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
    """The bill of a platform by the hour. Empty on cloud: local, whose machines are paid elsewhere."""
    if spec.cloud is Cloud.LOCAL:
        return Bill(())
    nodes = [
        Part(
            pool.name,
            f"{pool.machine.instance_type}{' (spot)' if pool.capacity is Capacity.SPOT else ''}",
            pool.min_nodes,
            pool.max_nodes,
            pool.usd_per_hour,
            pool.machine.price_region,
            None
            if pool.capacity is Capacity.SPOT
            else pool.machine.price_date,  # the catalogue's spot prices are undated
            pool.machine.source,
        )
        for pool in cost(spec).pools
    ]
    return Bill((*nodes, *_standing(spec)))


def _standing(spec: PlatformSpec) -> Iterator[Part]:
    """What runs from the first day to the last, however many nodes there are."""
    zones = spec.network.zones
    if spec.cloud is Cloud.AWS:
        from trainfleet.infra.aws.layout import platform_zones

        zones = len(platform_zones(spec))  # pools may name a zone of their own
    if spec.cloud is Cloud.AZURE:
        from trainfleet.infra.azure.layout import platform_zones as azure_zones

        zones = len(azure_zones(spec)) + 1  # pools over several zones have a way out of their own
    yield _part(spec, "control-plane", 1)
    if spec.network.nat != "none":
        # A gateway of Google's serves the region; those of Amazon and Azure stand in one zone.
        ways_out = zones if spec.network.nat == "per-zone" and spec.cloud is not Cloud.GCP else 1
        yield _part(spec, "nat", ways_out)
        yield _part(spec, "address", ways_out)
    if spec.cloud is Cloud.AWS:
        from trainfleet.infra.aws.layout import endpoint_services

        yield _part(spec, "endpoint", len(endpoint_services(spec)) * zones)
    if spec.cloud is Cloud.AZURE:
        from trainfleet.infra.azure.layout import endpoint_kinds

        # Two vaults where there are secrets: one for keys, one for them.
        second = spec.secrets.provider == "cloud" and bool(spec.secrets.names)
        yield _part(spec, "endpoint", len(endpoint_kinds(spec)) + second)
    if shared := spec.storage.shared_filesystem:
        row = f"lustre-{shared.throughput_mbps_per_tib}" if shared.kind == "lustre" else "nfs"
        yield _part(spec, row, shared.capacity_gib, name="shared-filesystem")


def _part(spec: PlatformSpec, row: str, count: float, *, name: str = "") -> Part:
    price = prices().get(spec.cloud.value, {}).get(row, {})
    by_hour = price.get("usd_per_hour")
    if by_hour is None and (by_month := price.get("usd_per_gib_month")) is not None:
        by_hour = by_month / HOURS_PER_MONTH
    what = price.get("what") or row
    return Part(
        name or row,
        what,
        count,
        count,
        by_hour,
        price.get("price_region", ""),
        price.get("price_date"),
        price.get("source", ""),
    )


@cache
def prices() -> dict[str, dict[str, dict[str, Any]]]:
    """prices.toml by cloud and part."""
    return tomllib.loads(PRICES.read_text(encoding="utf-8"))
