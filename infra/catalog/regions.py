"""Where the catalogue knows a machine to be offered, and its price there: infra/<cloud>/regions.toml.

source, date    of the whole file
[offered]       regions by machine; a machine that is missing here is not restricted
[on_demand]     USD per hour by machine and region; what is missing costs as in machines.toml
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from datetime import date
from functools import cache

from trainfleet.infra.catalog.machines import CLOUDS_FOLDER, HYPERPOD_PREFIX, Machine
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.spec.schema import Capacity


@dataclass(frozen=True)
class Regions:
    """The regions.toml of one cloud."""

    source: str = ""
    date: date | None = None
    offered: dict[str, tuple[str, ...]] | None = None
    on_demand: dict[str, dict[str, float]] | None = None


@cache
def regions(cloud: Cloud) -> Regions:
    """Read a cloud's regions.toml once per process; empty if there is none."""
    file = CLOUDS_FOLDER / cloud / "regions.toml"
    if not file.is_file():
        return Regions()
    document = tomllib.loads(file.read_text(encoding="utf-8"))
    offered = {name: tuple(names) for name, names in document["offered"].items()}
    return Regions(document["source"], document["date"], offered, document.get("on_demand"))


def offered_in(machine: Machine) -> tuple[str, ...]:
    """Return the regions in which the catalogue knows a machine; empty if it knows nothing."""
    return (regions(machine.cloud).offered or {}).get(machine.instance_type, ())


def known_in(machine: Machine, region: str) -> bool:
    """Whether nothing speaks against a machine in a region. A region that the file does not have says
    nothing.
    """
    offered = offered_in(machine)
    hyperpod = machine.instance_type.startswith(HYPERPOD_PREFIX)
    table = (regions(machine.cloud).offered or {}).items()
    everywhere = {
        name for key, names in table if key.startswith(HYPERPOD_PREFIX) == hyperpod for name in names
    }
    return not offered or region in offered or region not in everywhere


def at(machine: Machine, region: str, capacity: Capacity) -> Machine:
    """Return the machine with the price of a region, where the catalogue has it."""
    table = regions(machine.cloud)
    price = (table.on_demand or {}).get(machine.instance_type, {}).get(region)
    if price is None or capacity is Capacity.SPOT or machine.declared:
        return machine
    return replace(
        machine,
        usd_per_hour_on_demand=price,
        price_region=region,
        price_date=table.date,
        source=f"{machine.source}; price: {table.source}",
    )
