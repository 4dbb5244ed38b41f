"""What a platform costs: nodes from the catalogue, what else runs by the hour from prices.toml, and what is
not known.
"""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from trainfleet.infra.catalog.cost import HOURS_PER_MONTH, UNITS, Bill, BillItem, bill, node_costs, prices
from trainfleet.infra.spec.load import load_stack
from trainfleet.infra.spec.schema import PlatformSpec

CLOUDS = {
    "aws": {"cloud": "aws", "region": "us-east-2"},
    "gcp": {"cloud": "gcp", "region": "us-central1", "account": "my-project-123456"},
    "azure": {"cloud": "azure", "region": "eastus", "account": "11111111-2222-3333-4444-555555555555"},
}


def platform(cloud: str = "aws", **more: Any) -> PlatformSpec:
    return PlatformSpec.model_validate({"name": "p", "owner": "a@example.com", **CLOUDS[cloud], **more})


def part(spec: PlatformSpec, name: str) -> BillItem:
    return next(part for part in bill(spec).parts if part.name == name)


def test_the_bill_is_the_nodes_and_what_else_runs_by_the_hour() -> None:
    spec = platform(gpu_pools=[{"name": "a10g", "accelerator": "A10G", "max_nodes": 2}])
    nodes = node_costs(spec)
    more = [each for each in bill(spec).parts if each.name not in ("system", "a10g")]
    disks = {"disk-gp3", "disk-gp3-throughput"}
    assert {each.name for each in more} == {"control-plane", "nat", "address", "endpoint", "key", *disks}
    standing = sum(each.min_usd_per_hour or 0 for each in more)
    assert standing > 0
    assert bill(spec).min_usd_per_hour == pytest.approx(nodes.min_usd_per_hour + standing)
    most = sum(each.max_usd_per_hour or 0 for each in more)
    assert bill(spec).max_usd_per_hour == pytest.approx(nodes.max_usd_per_hour + most)


@pytest.mark.parametrize(
    ("nat", "zones", "count"), [("per-zone", 3, 3), ("per-zone", 2, 2), ("single", 3, 1)]
)
def test_nat_gateways_are_counted_as_they_are_built_on_aws(nat: str, zones: int, count: int) -> None:
    spec = platform(network={"nat": nat, "zones": zones})
    assert (part(spec, "nat").least, part(spec, "address").most) == (count, count)


def test_a_filesystem_is_paid_by_the_size_it_has() -> None:
    shared = {"kind": "lustre", "capacity_gib": 2400, "throughput_mbps_per_tib": 250}
    found = part(platform(storage={"shared_filesystem": shared}), "shared-filesystem")
    assert found.most == 2400
    assert found.max_usd_per_hour is not None
    assert found.max_usd_per_hour * HOURS_PER_MONTH == pytest.approx(2400 * 0.210)


def test_a_part_without_a_price_is_named_and_never_zero() -> None:
    spec = platform(
        "gcp",
        storage={
            "shared_filesystem": {"kind": "lustre", "capacity_gib": 18000, "throughput_mbps_per_tib": 500}
        },
    )
    found = part(spec, "shared-filesystem")
    assert found.usd_per_hour is None
    assert found.max_usd_per_hour is None
    assert bill(spec).unknown == ("shared-filesystem",)
    assert bill(spec).as_json()["unpriced"] == ["shared-filesystem"]


def test_a_spot_price_has_no_date_because_the_catalogue_has_none() -> None:
    pools = [
        {"name": "l4", "accelerator": "L4", "per_node": 4, "capacity": "spot"},
        {"name": "a10g", "accelerator": "A10G"},
    ]
    spec = platform(gpu_pools=pools)
    assert part(spec, "l4").price_date is None
    assert part(spec, "a10g").price_date == date(2026, 7, 20)


@pytest.mark.parametrize(
    ("cloud", "names"),
    [("aws", ("endpoint",)), ("gcp", ("control-plane", "nat", "address")), ("azure", ("nat", "endpoint"))],
)
def test_a_price_without_a_date_is_an_estimate(cloud: str, names: tuple[str, ...]) -> None:
    found = bill(platform(cloud))
    assert (
        set(names) <= set(found.estimated) == {each.name for each in found.parts if each.price_date is None}
    )
    assert found.as_json()["estimated"] == list(found.estimated)
    assert "system" not in found.estimated


def test_a_cluster_that_is_already_there_costs_nothing_here() -> None:
    assert bill(load_stack("local")) == Bill(())


@pytest.mark.parametrize("cloud", CLOUDS)
def test_every_price_has_a_source_a_place_and_one_unit(cloud: str) -> None:
    rows = prices()[cloud]
    assert {"control-plane", "nat", "address"} <= rows.keys()
    for name, row in rows.items():
        assert row["source"], name
        assert row["price_region"], name
        (unit,) = set(UNITS) & row.keys()
        assert row[unit] > 0, name
        assert all(price > 0 for price in row.get("in_region", {}).values()), name
        # Without a date it is an estimate, and the source has to say why.
        assert ("price_date" in row) != ("undated" in row["source"]), name
        assert set(row) <= {"what", unit, "price_region", "price_date", "source", "in_region"}, name
