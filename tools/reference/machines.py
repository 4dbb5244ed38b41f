"""docs/reference/machines.md: the machines of each cloud, and what else has an hourly price."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tools.reference.pages import header
from tools.reference.tables import code, table

if TYPE_CHECKING:
    from trainfleet.infra.catalog.machines import Machine

TITLES = {"aws": "AWS", "gcp": "GCP", "azure": "Azure"}
HEAD = (
    *(
        "Machine",
        "GPUs",
        ">GPU memory (GiB)",
        ">vCPU",
        ">RAM (GiB)",
        ">Network (Gbit/s)",
        "Fabric",
        ">NVMe (GB)",
    ),
    *(">On demand (USD/h)", ">Spot (USD/h)", "Price region", "Price date", "Source"),
)
INTRODUCTION = """These are the machines that pools can use, with their list prices. `trainfleet machines`
shows the same catalogue with filters, and `trainfleet machines --json` the whole source of each figure.

- Prices are for the whole machine, in USD per hour, for Linux, without commitments. `-`: no price is known.
- The price date is that of the on-demand price. Spot prices have no date. On AWS a spot price is the median
  over the zones of the region.
- GPU memory is for one GPU. AWS reports what the driver shows; GCP and Azure report nominal sizes.
- Network: baseline including EFA on AWS, maximum egress including RDMA on GCP, Ethernet without InfiniBand on
  Azure.
- Fabric: the number of network interfaces that NCCL can use, and their kind.
"""


def markdown() -> str:
    """The page."""
    from trainfleet.infra.catalog.machines import catalogue

    parts = [header("Machines and prices"), INTRODUCTION]
    clouds = dict.fromkeys(machine.cloud.value for machine in catalogue())
    for cloud in clouds:
        parts += _cloud(cloud, [machine for machine in catalogue() if machine.cloud == cloud])
    return "\n".join(parts)


def _cloud(cloud: str, machines: list[Machine]) -> list[str]:
    """The section of a cloud: its machines by use, its other prices, and the sources of both."""
    sources: dict[str, int] = {}
    parts = [f"## {TITLES.get(cloud, cloud)}\n"]
    for title, found in (
        ("GPU machines", [each for each in machines if each.accelerator and each.kind == "nodes"]),
        ("HyperPod machines", [each for each in machines if each.kind == "hyperpod"]),
        ("Machines of the system pool", [each for each in machines if not each.accelerator]),
    ):
        if found:
            parts += [f"### {title} on {TITLES.get(cloud, cloud)}\n", table(HEAD, _rows(found, sources))]
    prices = _prices(cloud, sources)
    if prices:
        parts.append(f"### Other prices on {TITLES.get(cloud, cloud)}\n")
        parts.append(table(("Part", ">Price (USD)", "Per", "Price region", "Price date", "Source"), prices))
    listed = [f"- [{number}] {source}" for source, number in sources.items()]
    return [*parts, f"Sources of prices on {TITLES.get(cloud, cloud)}:\n\n" + "\n".join(listed) + "\n"]


def _rows(machines: Iterable[Machine], sources: dict[str, int]) -> list[tuple[str, ...]]:
    from trainfleet.infra.cli.machines import price_source

    rows: list[tuple[str, ...]] = []
    for each in machines:
        priced = (each.usd_per_hour_on_demand, each.usd_per_hour_spot) != (None, None)
        source = _number(price_source(each), sources) if priced else "-"
        date = (str(each.price_date) if each.price_date else "undated") if priced else "-"
        rows.append(
            (
                code(each.instance_type),
                f"{each.accelerators_per_node} x {each.accelerator}" if each.accelerator else "",
                _figure(each.gpu_memory_gib if each.accelerator else None),
                str(each.vcpu),
                _figure(each.memory_gib),
                _figure(each.network_gbps),
                f"{each.rdma_nics} x {each.rdma}" if each.rdma_nics else "",
                _figure(each.local_nvme_gb),
                _usd(each.usd_per_hour_on_demand),
                _usd(each.usd_per_hour_spot),
                each.price_region if priced else "-",
                date,
                source,
            )
        )
    return rows


UNITS = {
    "usd_per_hour": "hour",
    "usd_per_month": "month",
    "usd_per_gib_month": "GiB and month",
    "usd_per_gb": "GB",
}
"""Columns of prices.toml with a price, and what it is for."""


def _prices(cloud: str, sources: dict[str, int]) -> list[tuple[str, ...]]:
    from trainfleet.infra.catalog.cost import prices

    rows: list[tuple[str, ...]] = []
    for row in prices().get(cloud, {}).values():
        (column,) = set(UNITS) & row.keys()
        source = _number(str(row["source"]), sources)
        region = str(row["price_region"]) + (", and others" if "in_region" in row else "")
        rows.append((str(row["what"]), _usd(row[column]), UNITS[column], region, _date(row), source))
    return rows


def _number(source: str, sources: dict[str, int]) -> str:
    return f"[{sources.setdefault(source, len(sources) + 1)}]"


def _date(row: dict[str, Any]) -> str:
    return str(row.get("price_date", "undated"))


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:,.10g}"


def _usd(price: float | None) -> str:
    return "-" if price is None else f"{price:,.3f}"
