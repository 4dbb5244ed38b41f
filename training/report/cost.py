"""Cost of a run at the catalogue prices of the platform that it was launched for.

Prices are per node, and a worker takes one GPU. Without a platform or a price the cost is unknown, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PoolCost:
    """The node hours and cost of a run's launches in one pool of a platform.

    Attributes:
        nodes: maximum number of nodes at one time.
        node_hours: over all launches.
        usd_per_node_hour: None if the catalogue has no price.
    """

    platform: str
    pool: str
    machine: str
    nodes: int
    node_hours: float
    usd_per_node_hour: float | None

    @property
    def usd(self) -> float | None:
        return None if self.usd_per_node_hour is None else self.node_hours * self.usd_per_node_hour

    def document(self) -> dict[str, Any]:
        return {
            "platform": self.platform,
            "pool": self.pool,
            "machine": self.machine,
            "nodes": self.nodes,
            "node_hours": self.node_hours,
            "usd_per_node_hour": self.usd_per_node_hour,
            "usd": self.usd,
        }


def pool_costs(launches: Sequence[Mapping[str, Any]]) -> list[PoolCost]:
    """The cost in each pool that could run the launches, cheapest first. Launches without a platform are
    ignored.
    """
    found: dict[tuple[str, str], PoolCost] = {}
    for launch in launches:
        platform, seconds = launch.get("platform"), launch.get("seconds")
        if not isinstance(platform, Mapping) or not isinstance(seconds, int | float):
            continue
        for pool in platform.get("pools", []):
            key = (f"{platform.get('name')} ({platform.get('cloud')})", str(pool.get("name")))
            nodes = math.ceil(int(launch.get("workers", 1)) / max(1, int(pool.get("per_node") or 1)))
            before = found.get(key)
            hours = nodes * seconds / 3600 + (before.node_hours if before else 0.0)
            price = pool.get("usd_per_hour")
            found[key] = PoolCost(
                *key,
                _machine(pool),
                max(nodes, before.nodes if before else 0),
                hours,
                None if price is None else float(price),
            )
    return sorted(
        found.values(), key=lambda each: (each.usd is None, each.usd or 0.0, each.platform, each.pool)
    )


def usd_of(figures: Mapping[str, Any]) -> float | None:
    """The cost of a run, from the figures of its report: the price of the machines that it held; if unknown,
    that of the cheapest pool that could run it.
    """
    usd: float | None = figures["usd"]
    return next((row["usd"] for row in figures["cost"]), None) if usd is None else usd


def _machine(pool: Mapping[str, Any]) -> str:
    accelerator = f"{pool.get('per_node')} {pool.get('accelerator')}" if pool.get("accelerator") else ""
    kind = "spot" if pool.get("spot") else ""
    return ", ".join(filter(None, (str(pool.get("instance_type") or ""), accelerator, kind)))
