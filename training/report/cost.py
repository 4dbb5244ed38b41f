"""What a run's time costs at the catalogue's prices of the platform it was launched for.

Used by the report. Easy to get wrong: a price is that of a node and not of a GPU, a worker takes one GPU, and
a launch
without a platform, or a pool without a price, costs something that nobody here knows: it is said so and never
counted as 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Priced:
    """The hours that launches for one platform took, in nodes of one of its pools.

    Attributes:
        nodes: most nodes at one time.
        node_hours: over all launches.
        usd_per_node_hour: None where the catalogue has no price.
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


def priced(launches: Sequence[Mapping[str, Any]]) -> list[Priced]:
    """The cost on each pool that could hold the run, the cheapest first; nothing for launches without a
    platform.
    """
    found: dict[tuple[str, str], Priced] = {}
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
            found[key] = Priced(
                *key,
                _machine(pool),
                max(nodes, before.nodes if before else 0),
                hours,
                None if price is None else float(price),
            )
    return sorted(
        found.values(), key=lambda each: (each.usd is None, each.usd or 0.0, each.platform, each.pool)
    )


def _machine(pool: Mapping[str, Any]) -> str:
    accelerator = f"{pool.get('per_node')} {pool.get('accelerator')}" if pool.get("accelerator") else ""
    kind = "spot" if pool.get("spot") else ""
    return ", ".join(filter(None, (str(pool.get("instance_type") or ""), accelerator, kind)))
